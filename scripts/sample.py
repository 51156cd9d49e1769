"""Draw pictures, answer prompts, or speak, with a trained or an untrained model.

    python scripts/sample.py --prompts "a red circle" "two blue squares"        # the embedded base model
    python scripts/sample.py --run runs/demo --before                           # a run's held-out prompts, both models
    python scripts/sample.py --run runs/demo --weights 50 --file prompts.txt --samples 4
    python scripts/sample.py --model.family whisper --prompts a.wav b.flac      # sound files, of a model that hears
    python scripts/sample.py --run runs/demo_duration --prompts "Good morning!" # said by a policy that speaks

Of a model that draws, written to the output folder: grid.png (all pictures with their prompts), one PNG a picture,
and samples.json with the prompts, the noise they were drawn from and their rewards. Of a model that answers, hears or
speaks: completions.html with pictures or players, prompts and completions, and the same as lines of JSON. Noise is a
function of the seed, the prompt's place and the number of samples, so the same call draws the same noise with every
model.

--help lists the options of models that draw, and with --model.family (qwen_vl, whisper, duration) or --run those of
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from answering import ANSWERS, Answering
from answers_shown import exhibit as looking_shown
from corpus import aligner
from door import enter
from drawing import PICTURES, Drawing
from hearing import CLIPS, Hearing, clips
from saying import SOUNDS, Saying
from sounds_shown import exhibit as hearing_shown
from source import UNTRAINED, Kind, Source, load_weights, prompts_of_file, read_source, start
from voice import exhibit as saying_shown
from voice import recognizer_of

if TYPE_CHECKING:
    from mmgrpo.evaluation import Drawn, Shown
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Prompt


@dataclass
class Sample(Source):
    """What is drawn, by which model."""

    prompts: list[str] = field(default_factory=list)
    """Prompts, or sound files for a model that hears; without any, those of --file."""
    before: bool = False
    """Also draw the same noise with the untrained model of the run, side by side."""
    rewards: list[str] = field(default_factory=list)
    """Rewards of the samples, name(parameter=value) each; they may need answers, which only files have."""
    output: str = ""
    """Folder that is written; empty writes pictures/ or completions/ into the run folder, or here where there is
    none."""


@dataclass
class SampleDrawing(Sample, Drawing):
    """What is drawn, by which model."""

    columns: int = 4
    """Pictures in a row of the grid."""


@dataclass
class SampleAnswering(Sample, Answering):
    """What is answered, by which model."""


@dataclass
class SampleHearing(Sample, Hearing):
    """What is heard, by which model."""


@dataclass
class SampleSaying(Sample, Saying):
    """What is said, by which policy."""


OPTIONS: Mapping[str, Sample] = {
    "visual": SampleDrawing(limit=16),
    "vlm": SampleAnswering(limit=16),
    "speech": SampleHearing(limit=16, at_once=32),
    "voice": SampleSaying(limit=16, at_once=32),
}
KINDS = {"visual": PICTURES, "vlm": ANSWERS, "speech": CLIPS, "voice": SOUNDS}


def main() -> None:
    from reward_models import scorers

    args, config, kind = read_source(OPTIONS, KINDS, __doc__ or "")
    prompts = chosen(args, kind)
    if args.before and not args.run:
        raise ValueError("--before compares the model of a run with the one it began with; name the run with --run")
    made = scorers(args.rewards) if args.rewards else []
    device = str(start(args).device)
    drawn = {"": draw_all(args, kind, prompts, made, device)}
    if args.before:
        drawn = {"before": draw_all(replace(args, weights=UNTRAINED), kind, prompts, made, device), **drawn}
    if isinstance(args, SampleDrawing):
        folder = Path(args.output or Path(args.run) / "pictures")
        written = write(folder, args, drawn, made)
        print(f"{written} pictures in {folder}: see {folder / 'grid.png'}")
    else:
        folder = Path(args.output or Path(args.run) / "completions")
        show = shower(args, [*args.rewards, *(config.rewards if args.run else ["one_minus_wer"])])
        written = write_answers(folder, args.samples, drawn, made, show)
        print(f"{written} completions in {folder}: see {folder / 'completions.html'}")


def shower(args: Sample, rewards: Sequence[str]) -> Callable[[Path, Shown], None]:
    """What writes completions: with transcripts word by word of a model that hears, with players of one that speaks."""
    if isinstance(args, SampleHearing):
        return partial(hearing_shown, align=aligner(rewards))
    return partial(saying_shown, recognizer_of(rewards)) if isinstance(args, SampleSaying) else looking_shown


def chosen(args: Sample, kind: Kind) -> list[Prompt]:
    """The prompts of the command line, or of the file."""
    from mmgrpo.types import Prompt

    if args.prompts and isinstance(args, SampleHearing):
        return clips(args, args.prompts)
    if args.prompts:
        return [Prompt(text, id=f"prompt-{number}") for number, text in enumerate(args.prompts)]
    if not args.file:
        raise ValueError('there is nothing to draw; give --prompts "a red circle", or --file, or --run')
    return prompts_of_file(args, kind)


def draw_all(args: Sample, kind: Kind, prompts: Sequence[Prompt], made: Sequence[Scorer], device: str) -> list[Drawn]:
    """All samples of all prompts."""
    from mmgrpo.evaluation import draw

    policy = load_weights(args, kind, device)
    return list(draw(policy, made, prompts, range(len(prompts)), args.samples, args.seed, args.at_once, "draw"))


def write_answers(
    folder: Path,
    samples: int,
    drawn: Mapping[str, Sequence[Drawn]],
    made: Sequence[Scorer],
    show: Callable[[Path, Shown], None],
) -> int:
    """Write the completions as lines and as a page, each title as ``show`` does; the number of completions."""
    from mmgrpo.evaluation import Shown
    from mmgrpo.report.completions import completions_html
    from mmgrpo.report.html import page
    from mmgrpo.runtime.files import write_text

    count = 0
    (folder / "before.jsonl").unlink(missing_ok=True)  # of an earlier call
    for title, parts in drawn.items():
        prompts = [prompt for part in parts for prompt in part.prompts]
        if samples > 1:
            prompts = [replace(prompt, id=f"{prompt.id} ({i % samples + 1})") for i, prompt in enumerate(prompts)]
        outputs = [output for part in parts for output in part.outputs]
        values = [{s.name: v for s, v in zip(made, row)} for part in parts for row in part.values.tolist()]
        show(folder / (title or "after"), Shown(prompts, outputs, values))
        count += len(outputs)
    write_text(folder / "completions.html", page("Completions", [completions_html(folder)]))
    return count


def write(folder: Path, args: SampleDrawing, drawn: dict[str, list[Drawn]], made: Sequence[Scorer]) -> int:
    """Write the pictures, the grid and samples.json; the number of pictures."""
    import io

    from mmgrpo.report.plots import sample_grid, to_pil
    from mmgrpo.runtime.files import write_bytes, write_text

    rows: list[dict[str, Any]] = []
    shown: list[tuple[int, Any, str]] = []
    for title, parts in drawn.items():
        flat = [entry for part in parts for entry in zip(part.prompts, part.outputs, part.values.tolist(), strict=True)]
        for place, (prompt, output, values) in enumerate(flat):
            slot, sample = divmod(place, args.samples)
            rewards = {s.name: v if v == v else None for s, v in zip(made, values, strict=True)}
            name = "-".join(filter(None, [f"{slot:03d}", str(sample), title])) + ".png"
            stream = io.BytesIO()
            to_pil(output).save(stream, format="PNG")
            write_bytes(folder / name, stream.getvalue())
            model = {"weights": UNTRAINED if title else args.weights if args.run else "base"}
            noise = {"seed": args.seed, "slot": slot, "sample": sample}
            rows.append({"file": name, "prompt": prompt.text, "id": prompt.id, **noise, **model, "rewards": rewards})
            scores = "  ".join(f"{n} {v:.2f}" if v is not None else f"{n} –" for n, v in rewards.items())
            shown.append((place, output, "\n".join(filter(None, [prompt.text, f"{title} {scores}".strip()]))))
    shown.sort(key=lambda entry: entry[0])  # stable, so that before stands to the left of after
    columns = args.columns + args.columns % 2 if args.before else args.columns
    grid = sample_grid([output for _, output, _ in shown], [caption for _, _, caption in shown], columns)
    stream = io.BytesIO()
    grid.save(stream, format="PNG")
    write_bytes(folder / "grid.png", stream.getvalue())
    told = {"run": args.run, "model": args.model.path, "steps": args.steps, "samples": args.samples, "pictures": rows}
    write_text(folder / "samples.json", json.dumps(told, indent=1, ensure_ascii=False))
    return len(rows)


if __name__ == "__main__":
    enter(main)
