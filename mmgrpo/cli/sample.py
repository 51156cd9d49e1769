"""Sample images, completions, transcripts or speech from a trained or an untrained model.

    mmgrpo sample --prompts "a red circle" "two blue squares"        # the embedded base model
    mmgrpo sample --run runs/demo --before                           # a run's held-out prompts, both models
    mmgrpo sample --run runs/demo --weights 50 --file prompts.txt --samples 4
    mmgrpo sample --run runs/vlm_demo --prompts "how many?" --image a.png   # also --video, --audio
    mmgrpo sample --model.family whisper --prompts a.wav b.flac      # audio files, for a speech recognizer
    mmgrpo sample --run runs/demo_duration --prompts "Good morning!" # speech, with durations from the policy

For image models the output folder contains grid.png (all images with their prompts), one PNG per image, and
samples.json with prompts, seeds of the noise and rewards. For language and speech models it contains completions.html
with media, prompts and completions, and the same as JSONL. Noise is a function of the seed, the index of the prompt and
the number of samples, so one call draws the same noise with every model.

The configuration of a run is a recipe, which can name functions: it is code, so name only runs that you trust.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmgrpo.cli.errors import enter
from mmgrpo.cli.measures import json_value
from mmgrpo.cli.options import json_output, words
from mmgrpo.cli.source import (
    UNTRAINED,
    Source,
    alias,
    load_weights,
    prompts_of,
    read_source,
    refuse_no_prompts,
    sampling_options,
    start,
)
from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, within
from mmgrpo.runtime.folder import DRAWN, refuse_output

if TYPE_CHECKING:
    from mmgrpo.config.settings import Config
    from mmgrpo.evaluation import Shown
    from mmgrpo.family import Family
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Output, Prompt


PRINTED = 8
"""Samples of a set that are printed; all are in the folder."""


@dataclass
class Sample(Source):
    """The model and the prompts to sample from."""

    limit: Annotated[int, COUNT_OR_ZERO, alias("--eval.prompts")] = 16
    """Number of prompts to take from the start of the file; 0 takes all."""
    before: bool = False
    """Also sample from the initial model of the run with the same noise, for a comparison side by side."""
    rewards: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Rewards to compute, written name(parameter=value). Some need reference answers (--answers, --file)."""
    output: Annotated[str, ANY_TEXT] = ""
    """Output folder; if empty, drawn/ in the run folder, or in the working directory without a run."""
    columns: Annotated[int, within("[1, 1000]")] = 4
    """Number of columns of the grid."""
    json: bool = False
    """Print the contents of samples.json, JSON, with the folder and the page, and all else to standard error."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Sample and write the results."""
    args, config, model_family = read_source(Sample, words(arguments), str(__doc__))
    with json_output(args.json) as write:
        sample(args, config, model_family, write)


def sample(args: Any, config: Config, model_family: Family, write: Callable[[Mapping[str, Any]], None]) -> None:
    """Sample as the options say; ``write`` also gets the list of samples."""
    if args.before and not args.run:
        raise ValueError("--before compares the trained model of a run with its initial model; name the run with --run")
    refuse_copies(args.samples, config)
    folder = Path(args.output or Path(args.run) / "drawn")
    refuse_output(folder, DRAWN, "samples.json", {"model", "samples", "drawn"})
    refuse_no_prompts(args, '--prompts "a red circle"')
    prompts = prompts_of(args, config, model_family)
    from mmgrpo.rewards import entries, scorer, scorers

    accelerator = start(args)
    scoring = scorers(args.rewards, str(accelerator.device)) if args.rewards else []
    # The run's rewards annotate samples (aligned words, boxes) even when they are not computed.
    table = entries()
    annotators = [spec for spec in config.rewards if (row := table.get(spec.partition("(")[0])) and row.annotate]
    annotating = [*scoring, *map(scorer, annotators)]
    device = str(accelerator.device)
    sets = {"": draw_all(args, config, model_family, prompts, scoring, annotating, device)}
    if args.before:
        untrained = replace(args, weights=UNTRAINED)
        sets = {"before": draw_all(untrained, config, model_family, prompts, scoring, annotating, device), **sets}
    page = model_family.write_page(folder, sets, args.samples, args.columns)
    write({**write_list(folder, args, config, sets), "folder": str(folder), "page": str(page)})
    for title, shown in sets.items():
        print("\n".join(lines_of(shown, title or ("after" if args.before else ""))))
    print(f"{sum(len(shown.outputs) for shown in sets.values())} samples in {folder}: see {page}")


def lines_of(shown: Shown, title: str = "") -> list[str]:
    """The first samples of a set for a terminal: the prompt, what was made of it, and its rewards."""
    lines = [title] if title else []
    rows = list(zip(shown.prompts, shown.outputs, shown.values, strict=True))
    for prompt, output, values in rows[:PRINTED]:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        question = " ".join((prompt.text or prompt.id).split())
        lines.append(f"{question:.60} -> {in_words(output)}" + (f"  [{numbers}]" if numbers else ""))
    return lines + ([f"... and {len(rows) - PRINTED} more"] if len(rows) > PRINTED else [])


def in_words(output: Output) -> str:
    """A sample in one line: a text itself, of anything else its size."""
    from mmgrpo.types import Audio, Image, Text

    if isinstance(output, Text):
        text = " ".join((output.transcript if output.turns else output.text).split())
        return f"{text[:200]}{'...' * (len(text) > 200)}" or "(an empty text)"
    if isinstance(output, Image):
        by = f", drawn by: {' '.join(output.words.split()):.200}" if output.words else ""
        return f"an image of {output.pixels.shape[2]} x {output.pixels.shape[1]}{by}"
    if isinstance(output, Audio):
        return f"audio of {output.samples.shape[-1] / output.rate:.1f} s"
    frames, _, height, width = output.frames.shape
    heard = f" with sound of {output.sound.samples.shape[-1] / output.sound.rate:.1f} s" if output.sound else ""
    return f"a video of {frames} frames of {width} x {height}{heard}"


def refuse_copies(samples: int, config: Config) -> None:
    """Raise ValueError for several samples per prompt from a deterministic policy, which would all be equal."""
    if samples > 1 and getattr(config.sampling, "evaluation_temperature", None) == 0:
        adjustable = "evaluation_temperature" in sampling_options(config)
        advice = "set --sampling.evaluation-temperature 1" if adjustable else "set --samples 1 for this family"
        raise ValueError(f"--samples {samples} at temperature 0 are {samples} equal samples; {advice}")


def draw_all(
    args: Sample,
    config: Config,
    model_family: Family,
    prompts: Sequence[Prompt],
    scorers: Sequence[Scorer],
    annotating: Sequence[Scorer],
    device: str,
) -> Shown:
    """All samples of all prompts, with their rewards and annotations."""
    from mmgrpo.evaluation import Shown, annotate, draw

    policy = load_weights(args, config, model_family, device)
    slots = range(len(prompts))
    batches = list(draw(policy, scorers, prompts, slots, args.samples, args.seed, args.batch_size, "draw"))
    rows = [prompt for batch in batches for prompt in batch.prompts]
    outputs = [output for batch in batches for output in batch.outputs]
    values = [dict(zip([s.name for s in scorers], row)) for batch in batches for row in batch.values.tolist()]
    return Shown(rows, outputs, values, annotate(annotating, rows, outputs))


def write_list(folder: Path, args: Any, config: Config, sets: Mapping[str, Shown]) -> dict[str, Any]:
    """Write ``samples.json``: every sample with its prompt, noise, weights, rewards, and its text if it is one, or by
    which it was drawn (``words``)."""
    from mmgrpo.files import write_text
    from mmgrpo.types import Image, Text

    rows: list[dict[str, Any]] = []
    for title, shown in sets.items():
        weights = UNTRAINED if title else args.weights if args.run else "base"
        for row, (prompt, output, values) in enumerate(zip(shown.prompts, shown.outputs, shown.values, strict=True)):
            slot, sample = divmod(row, args.samples)
            rewards = {name: json_value(value) for name, value in values.items()}
            noise = {"seed": args.seed, "slot": slot, "sample": sample}
            text = {"text": output.text} if isinstance(output, Text) else {}
            text |= {"words": output.words} if isinstance(output, Image) and output.words else {}
            about = {"prompt": prompt.text, "id": prompt.id, **noise, "weights": weights}
            rows.append({**about, "rewards": rewards, **text})
    result = {"run": args.run, "model": config.model.path, **sampling_options(config), "samples": args.samples}
    result["drawn"] = rows
    write_text(folder / "samples.json", json.dumps(result, indent=1, ensure_ascii=False))
    return result


if __name__ == "__main__":
    enter(main)
