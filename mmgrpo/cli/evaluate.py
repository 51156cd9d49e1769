"""Measure a model on prompts: means with intervals, task by task, best of k samples, and against another model.

    mmgrpo evaluate --run runs/demo                                  # its held-out prompts and rewards
    mmgrpo evaluate --run runs/demo --against untrained --samples 8
    mmgrpo evaluate --run runs/a --against runs/b                    # the same prompts and noise
    mmgrpo evaluate --file prompts.jsonl --rewards scene_all         # the embedded base model
    mmgrpo evaluate --model.family whisper --file embedded:speech/natural.jsonl
    mmgrpo evaluate --model.family qwen_vl --model.path Qwen/Qwen2.5-VL-3B-Instruct --file prompts.jsonl \\
        --rewards task --samples 8 --sampling.evaluation-temperature 1

Intervals are 95 % bootstrap intervals over prompts. "best of k" is the expected best of k samples of a prompt and
"pass@k" the chance that one of k reaches --success, both estimated without bias from --samples of each (so k goes up
to that); they are given for rewards whose values lie in [0, 1].

Of completions also "majority@k", what the most frequent answer of k samples scores, and where prompts show pictures or
clips "blind", what the model scores when every one is blank: a score that is no better was not seen but guessed.

Of transcripts and translations also what papers report of a whole file: word and character error rate, or BLEU and
chrF, by groups (voice, noise, ...), how many words were substituted, deleted and inserted, and the worst clips.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli import corpus
from mmgrpo.cli.errors import enter
from mmgrpo.cli.measures import Table, describe, difference, known, report
from mmgrpo.cli.sample import refuse_copies
from mmgrpo.cli.source import (
    UNTRAINED,
    Source,
    config_of,
    kept_options,
    load_weights,
    prompts_of,
    read_source,
    run_config,
    start,
)
from mmgrpo.family import family

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.family import Family
    from mmgrpo.runtime.config import Config
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Prompt


@dataclass
class Evaluate(Source):
    """What is measured, of which model."""

    rewards: list[str] = field(default_factory=list)
    """name(parameter=value) each; package.module:function names one of your own. A run has its own."""
    against: str = ""
    """Another model on the same prompts and noise: untrained (the run's own, before), a run folder, or a model."""
    success: float = 1.0
    """The value from which on a sample passes."""
    blind: bool = True
    """Also measure with blank pictures and clips, where prompts show any."""
    groups: list[str] = field(default_factory=list)
    """Names in the clips' meta whose values are reported apart, e.g. voice; empty takes those with a few values."""
    worst: int = 10
    """How many of the worst clips are listed."""
    output: str = ""
    """File that is written; empty writes evaluation.json into the run folder, or here where there is none."""


@dataclass(frozen=True)
class Contestant:
    """A model that is measured."""

    args: Any
    config: Config
    family: Family


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    args, config, chosen = read_source(Evaluate, sys.argv[1:] if arguments is None else arguments, __doc__ or "")
    if not args.file:
        raise ValueError("there are no prompts to measure with; give --file, or --run for a run's held-out prompts")
    refuse_copies(args.samples, config)
    from mmgrpo.rewards import scorers

    prompts = prompts_of(args, config, chosen)
    translated = getattr(config.model, "task", "") == "translate"
    specs = args.rewards or (config.rewards if args.run else corpus.suitable(prompts, translated, config.rewards))
    accelerator = start(args)
    scoring = scorers(specs, str(accelerator.device))
    contestant = Contestant(args, config, chosen)
    other = opponent(contestant)
    table, texts = measure(contestant, prompts, scoring, accelerator)
    counts = corpus.count(prompts, texts, specs)
    result: dict[str, Any] = {
        "run": args.run,
        "weights": args.weights if args.run else "base",
        "model": config.model.path,
        "file": args.file,
        "prompts": len(prompts),
        "samples": args.samples,
        "seed": args.seed,
        **kept_options(config),
        **describe(table, texts, prompts, args.success),
    }
    if args.blind and (blank := chosen.blank(prompts)):
        unseen, guesses = measure(contestant, blank, scoring, accelerator)
        result["blind"] = {"name": "blind", **describe(unseen, guesses, prompts, args.success)}
        result["blind"]["difference"] = difference(unseen, table)
    if whole := corpus.described(prompts, texts, counts, specs, args.groups, args.worst):
        result["corpus"] = whole
    if other is not None:
        against, replies = measure(other, prompts, scoring, accelerator)
        result["difference"] = difference(against, table)
        result["against"] = {"name": args.against, **describe(against, replies, prompts, args.success)}
        if whole:
            result["corpus"]["difference"] = corpus.compared(corpus.count(prompts, replies, specs), counts)
    result["values"] = [
        {"id": prompt.id, **{name: [known(v) for v in rows[i]] for name, rows in table.items()}}
        for i, prompt in enumerate(prompts)
    ]
    if accelerator.is_main_process:
        from mmgrpo.runtime.files import write_text

        path = Path(args.output or Path(args.run) / "evaluation.json")
        write_text(path, json.dumps(result, indent=1, ensure_ascii=False))
        print("\n".join([*report(result, kept_options(config)), *corpus.lines(result.get("corpus", {}))]))
        print(f"\nwritten: {path}")


def opponent(contestant: Contestant) -> Contestant | None:
    """The model that is compared with, if any."""
    args, config = contestant.args, contestant.config
    if not args.against:
        return None
    if args.against == UNTRAINED:
        if not args.run:
            raise ValueError("--against untrained means the model that a run began with; name the run with --run")
        return replace(contestant, args=replace(args, weights=UNTRAINED))
    if (Path(args.against) / "config.yaml").is_file():
        run, model = args.against, run_config(args.against, contestant.family).model
    else:
        untrained = {"path": args.against, "lora_rank": 0}
        known_options = {f.name for f in fields(config.model)}
        run = ""
        model = replace(config.model, **{name: value for name, value in untrained.items() if name in known_options})
    args = replace(args, run=run, weights="model", model=model)
    return Contestant(args, config_of(args, config), family(model.family))


def measure(
    contestant: Contestant, prompts: Sequence[Prompt], scorers: Sequence[Scorer], accelerator: Accelerator
) -> tuple[Table, Sequence[Sequence[str]]]:
    """The value of every sample of every prompt by reward, and the completions, where the model writes."""
    from mmgrpo.evaluation import draw_samples

    args = contestant.args
    drawn = draw_samples(
        load_weights(args, contestant.config, contestant.family, str(accelerator.device)),
        scorers,
        prompts,
        samples=args.samples,
        seed=args.seed,
        batch_size=args.batch_size,
        shown=0,
        accelerator=accelerator,
        title=f"{args.run or args.model.path} {args.weights}",
    )
    table: Mapping[str, Any] = {s.name: drawn.values[..., column].tolist() for column, s in enumerate(scorers)}
    for column, scorer in enumerate(scorers):
        if bool(drawn.values[..., column].isnan().all()):
            total = drawn.values[..., 0].numel()
            raise ValueError(f"reward '{scorer.name}' gave NaN for all {total} samples: none is scored")
    return table, drawn.texts


if __name__ == "__main__":
    enter(main)
