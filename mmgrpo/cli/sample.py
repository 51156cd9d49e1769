"""Draw pictures, answer prompts, transcribe or speak, with a trained or an untrained model.

    mmgrpo sample --prompts "a red circle" "two blue squares"        # the embedded base model
    mmgrpo sample --run runs/demo --before                           # a run's held-out prompts, both models
    mmgrpo sample --run runs/demo --weights 50 --file prompts.txt --samples 4
    mmgrpo sample --model.family whisper --prompts a.wav b.flac      # sound files, of a model that hears
    mmgrpo sample --run runs/demo_duration --prompts "Good morning!" # spoken by a policy that chooses durations

Of a model that draws, the output folder holds grid.png (all pictures with their prompts), one PNG per picture, and
samples.json with the prompts, the noise they were drawn from and their rewards. Of a model that answers, hears or
speaks: completions.html with pictures or players, prompts and completions, and the same as lines of JSON. Noise is a
function of the seed, the prompt's place and the number of samples, so the same call draws the same noise with every
model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli.errors import enter
from mmgrpo.cli.source import UNTRAINED, Source, kept_options, load_weights, prompts_of, read_source, start

if TYPE_CHECKING:
    from mmgrpo.evaluation import Shown
    from mmgrpo.family import Family
    from mmgrpo.runtime.config import Config
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Prompt


@dataclass
class Sample(Source):
    """What is drawn, by which model."""

    limit: int = 16
    """Take the first prompts of the file only; 0 takes all of them."""
    prompts: list[str] = field(default_factory=list)
    """Prompts, or sound files for a model that hears; without any, those of --file."""
    before: bool = False
    """Also draw the same noise with the untrained model of the run, side by side."""
    rewards: list[str] = field(default_factory=list)
    """Rewards of the samples, name(parameter=value) each; they may need answers, which only files have."""
    output: str = ""
    """Folder that is written; empty writes drawn/ into the run folder, or here where there is none."""
    columns: int = 4
    """Pictures in a row of the grid."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw samples and write them."""
    args, config, chosen = read_source(Sample, sys.argv[1:] if arguments is None else arguments, __doc__ or "")
    if args.before and not args.run:
        raise ValueError("--before compares the model of a run with the one it began with; name the run with --run")
    refuse_copies(args.samples, config)
    if args.prompts:
        prompts = chosen.prompts(config, args.prompts)
    elif args.file:
        prompts = prompts_of(args, config, chosen)
    else:
        raise ValueError('there is nothing to draw; give --prompts "a red circle", or --file, or --run')
    from mmgrpo.rewards import entries, scorer, scorers

    accelerator = start(args)
    scoring = scorers(args.rewards, str(accelerator.device)) if args.rewards else []
    # What a run's own rewards note of a sample (aligned words, boxes) is shown, though they do not score it.
    notes = [spec for spec in config.rewards if (entry := entries().get(spec.partition("(")[0])) and entry.annotate]
    noting = [*scoring, *map(scorer, notes)]
    device = str(accelerator.device)
    sets = {"": draw_all(args, config, chosen, prompts, scoring, noting, device)}
    if args.before:
        untrained = replace(args, weights=UNTRAINED)
        sets = {"before": draw_all(untrained, config, chosen, prompts, scoring, noting, device), **sets}
    folder = Path(args.output or Path(args.run) / "drawn")
    opened = chosen.write_page(folder, sets, args.samples, args.columns)
    write_list(folder, args, config, sets)
    print(f"{sum(len(shown.outputs) for shown in sets.values())} samples in {folder}: see {opened}")


def refuse_copies(samples: int, config: Config) -> None:
    """Several samples of a policy that always draws the same one are an error."""
    if samples > 1 and getattr(config.sampling, "evaluation_temperature", None) == 0:
        hot = "evaluation_temperature" in kept_options(config)
        advice = "give --sampling.evaluation-temperature 1" if hot else "this family always takes the most likely one"
        raise ValueError(f"--samples {samples} at temperature 0 are {samples} times the same; {advice}")


def draw_all(
    args: Sample,
    config: Config,
    chosen: Family,
    prompts: Sequence[Prompt],
    scorers: Sequence[Scorer],
    noting: Sequence[Scorer],
    device: str,
) -> Shown:
    """All samples of all prompts, with what rewards say of them."""
    from mmgrpo.evaluation import Shown, annotate, draw

    policy = load_weights(args, config, chosen, device)
    slots = range(len(prompts))
    batches = list(draw(policy, scorers, prompts, slots, args.samples, args.seed, args.batch_size, "draw"))
    everything = [prompt for batch in batches for prompt in batch.prompts]
    outputs = [output for batch in batches for output in batch.outputs]
    values = [dict(zip([s.name for s in scorers], row)) for batch in batches for row in batch.values.tolist()]
    return Shown(everything, outputs, values, annotate(noting, everything, outputs))


def write_list(folder: Path, args: Any, config: Config, sets: Mapping[str, Shown]) -> None:
    """``samples.json``: every sample with its prompt, its noise, its model and its rewards."""
    from mmgrpo.runtime.files import write_text

    rows: list[dict[str, Any]] = []
    for title, shown in sets.items():
        weights = UNTRAINED if title else args.weights if args.run else "base"
        for place, (prompt, values) in enumerate(zip(shown.prompts, shown.values, strict=True)):
            slot, sample = divmod(place, args.samples)
            rewards = {name: value if value == value else None for name, value in values.items()}
            noise = {"seed": args.seed, "slot": slot, "sample": sample}
            rows.append({"prompt": prompt.text, "id": prompt.id, **noise, "weights": weights, "rewards": rewards})
    about = {"run": args.run, "model": config.model.path, **kept_options(config), "samples": args.samples}
    write_text(folder / "samples.json", json.dumps({**about, "drawn": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    enter(main)
