"""Evaluate a model on prompts: means with intervals, per task, best of k samples, and against another model.

    mmgrpo evaluate --run runs/demo                                  # its held-out prompts and rewards
    mmgrpo evaluate --run runs/demo --against untrained --samples 8
    mmgrpo evaluate --run runs/a --against runs/b                    # the same prompts and noise
    mmgrpo evaluate --file prompts.jsonl --rewards scene_all         # the embedded base model
    mmgrpo evaluate --model.family whisper --file embedded:speech/natural.jsonl
    mmgrpo evaluate --model.family qwen_vl --model.path Qwen/Qwen2.5-VL-3B-Instruct --file prompts.jsonl \\
        --rewards task --samples 8 --sampling.evaluation-temperature 1

Intervals are 95 % bootstrap intervals over prompts. "best of k" is the expected maximum of k samples of a prompt, and
"pass@k" the probability that at least one of k reaches --success; both are unbiased estimates from --samples per prompt
(k is at most that), for rewards in [0, 1].

For completions there is also "majority@k", the reward of the most frequent answer of k samples, and for prompts with
images or videos "blind", the rewards with blank media: without a difference, answers were guessed from the text.

For transcripts and translations there are the corpus scores that papers report: word and character error rate, or BLEU
and chrF, also per group (voice, noise, ...), counts of substitutions, deletions and insertions, and the worst
recordings.

The configuration of a run is a recipe, which can name functions: it is code, so name only runs that you trust.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mmgrpo.cli import corpus
from mmgrpo.cli.errors import enter
from mmgrpo.cli.measures import Table, describe, difference, json_value, report
from mmgrpo.cli.options import json_output, words
from mmgrpo.cli.prompt_arguments import is_given
from mmgrpo.cli.sample import refuse_copies
from mmgrpo.cli.source import (
    UNTRAINED,
    Source,
    alias,
    config_of,
    load_weights,
    prompts_of,
    read_source,
    refuse_no_prompts,
    run_config,
    runs_near,
    sampling_options,
    start,
)
from mmgrpo.cli.train import check_model
from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import ANY_NUMBER, ANY_TEXT, COUNT_OR_ZERO
from mmgrpo.family import family
from mmgrpo.report.terminal import FEW, change, interval
from mmgrpo.terminal import paragraph

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.config.settings import Config
    from mmgrpo.family import Family
    from mmgrpo.scoring import Scorer
    from mmgrpo.types import Prompt


@dataclass
class Evaluate(Source):
    """The model, the prompts and the rewards of the evaluation."""

    rewards: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Rewards, written name(parameter=value) or package.module:function; by default those of the run or the family."""
    against: Annotated[str, ANY_TEXT] = ""
    """Another model to compare with, on the same prompts and noise: untrained (the initial model of the run), a run
    folder, or the path of a model."""
    success: Annotated[float, ANY_NUMBER] = 1.0
    """Smallest reward at which a sample counts as passed."""
    blind: bool = True
    """Also evaluate with blank images and videos, if prompts have any."""
    groups: Annotated[list[str], ANY_TEXT, alias("--eval.groups")] = field(default_factory=list)
    """Columns of the rows by whose values rewards and corpus scores are reported too, e.g. voice; by default those of
    eval.groups of the run, and for corpus scores columns with few values."""
    worst: Annotated[int, COUNT_OR_ZERO] = 10
    """Number of worst recordings to list."""
    output: Annotated[str, ANY_TEXT] = ""
    """Output file; if empty, evaluation.json in the run folder, or in the working directory without a run. Of other
    weights or prompts than a run's own it has these in its name: evaluation-heldout-1.json with --limit 1."""
    json: bool = False
    """Print the contents of that file, JSON, and all else to standard error."""


@dataclass(frozen=True)
class Contestant:
    """A model to evaluate, with its options."""

    args: Any
    config: Config
    family: Family


def main(arguments: Sequence[str] | None = None) -> None:
    """Evaluate, print and write the results."""
    args, config, model_family = read_source(Evaluate, words(arguments), str(__doc__))
    with json_output(args.json) as write:
        evaluate(args, config, model_family, write)


def evaluate(args: Any, config: Config, model_family: Family, write: Callable[[Mapping[str, Any]], None]) -> None:
    """Evaluate as the options say; ``write`` also gets the result."""
    refuse_no_prompts(args, "--prompts TEXT")
    refuse_copies(args.samples, config)
    contestant = Contestant(args, config, model_family)
    other = opponent(contestant)
    if other is not None:
        refuse_no_model(args.against, other)
    from mmgrpo.evaluation import members
    from mmgrpo.prompts.ledger import key_of
    from mmgrpo.rewards import scorers

    prompts = prompts_of(args, config, model_family)
    columns = members(prompts)
    for name in args.groups:
        if name not in columns:
            known = ", ".join(columns) or "none"
            raise ValueError(f"--groups: no prompt has a text or number in '{name}'; columns that have: {known}")
    groups = args.groups or [name for name in config.eval.groups if name in columns]
    is_translation = getattr(config.model, "task", "") == "translate"
    specs = args.rewards or (config.rewards if args.run else corpus.suitable(prompts, is_translation, config.rewards))
    accelerator = start(args)
    scoring = scorers(specs, str(accelerator.device))
    directions = {scorer.name: math.copysign(1, scorer.weight) for scorer in scoring if scorer.weight}
    table, texts = measure(contestant, prompts, scoring, accelerator)
    counts = corpus.count(prompts, texts, specs)
    result: dict[str, Any] = {
        "run": args.run,
        "weights": args.weights if args.run else "base",
        "model": config.model.path,
        "file": "" if is_given(args) else args.file,
        "prompts": len(prompts),
        "samples": args.samples,
        "seed": args.seed,
        **sampling_options(config),
        **describe(table, texts, prompts, args.success, groups),
    }
    blinded: Table = {}
    if args.blind and (blank := model_family.blank(prompts)):
        blinded, guesses = measure(contestant, blank, scoring, accelerator)
        result["blind"] = {"name": "blind", **describe(blinded, guesses, prompts, args.success, groups)}
        result["blind"]["difference"] = difference(blinded, table)
    if section := corpus.scores(prompts, texts, counts, specs, groups, args.worst):
        result["corpus"] = section
    if other is not None:
        against, replies = measure(other, prompts, scoring, accelerator)
        result["difference"] = difference(against, table)
        result["against"] = {"name": args.against, **describe(against, replies, prompts, args.success, groups)}
        if section:
            result["corpus"]["difference"] = corpus.compare(corpus.count(prompts, replies, specs), counts)
    result["values"] = [
        {
            "id": prompt.id,
            "key": key_of(prompt),
            **{name: [json_value(v) for v in rows[i]] for name, rows in table.items()},
        }
        for i, prompt in enumerate(prompts)
    ]
    for row, i in zip(result["values"] if blinded else (), range(len(prompts))):
        row["blind"] = {name: [json_value(v) for v in rows[i]] for name, rows in blinded.items()}
    if accelerator.is_main_process:
        from mmgrpo.files import write_text

        path = Path(args.output or Path(args.run) / default_name(args, model_family))
        write_text(path, json.dumps(result, indent=1, ensure_ascii=False))
        write(result)
        print(
            "\n".join([*report(result, sampling_options(config), directions), *corpus.lines(result.get("corpus", {}))])
        )
        print("\n".join(["", *verdict(result, directions), f"written: {path}"]))


def verdict(result: Mapping[str, Any], directions: Mapping[str, float]) -> list[str]:
    """In a sentence per trained reward whether the model is better than the other; without another one, its means and
    the command that compares a run with its beginning."""
    names = [name for name in result["rewards"] if name in directions] or [*result["rewards"]]
    if "difference" in result:
        before, after, differences = result["against"]["rewards"], result["rewards"], result["difference"]
        changes = [
            change(name, before[name], after[name], differences[name], directions.get(name, 1)) for name in names[:FEW]
        ]
        return paragraph(f"{whose(result)} compared with {result['against']['name']}: {'; '.join(changes)}")
    means = [f"{name} {interval(result['rewards'][name])}" for name in names[:FEW]]
    lines = paragraph(f"{whose(result)} on {result['prompts']} prompts: {'; '.join(means)}")
    if result["run"] and result["weights"] != UNTRAINED:
        command = f"mmgrpo evaluate --run {shlex.quote(result['run'])} --against {UNTRAINED}"
        lines += [*paragraph("Compare it with the model before training:"), f"  {command}"]
    return lines


def whose(result: Mapping[str, Any]) -> str:
    """The evaluated model in words."""
    weights = f" ({result['weights']})" if result["weights"] not in ("model", "base") else ""
    return f"{result['run'] or result['model'] or 'the model'}{weights}"


def default_name(args: Any, model_family: Family) -> str:
    """The file of an evaluation: ``evaluation.json`` is that of the final weights of a run on its held-out prompts, as
    many as the run evaluates, and of a model without a run. Of others the name has what differs."""
    parts = ["evaluation"]
    if args.run:
        settings = run_config(args.run, model_family)
        if is_given(args):
            parts.append("prompts")
        elif args.limit != settings.eval.prompts or args.file != (settings.data.heldout or args.file):
            parts += [re.sub(r"[^\w.-]+", "-", Path(args.file).stem)] + [str(args.limit)] * bool(args.limit)
        parts += [args.weights] * (args.weights != "model")
    return f"{'-'.join(parts)}.json"


def opponent(contestant: Contestant) -> Contestant | None:
    """The model of ``--against``, if any."""
    args, config = contestant.args, contestant.config
    if not args.against:
        return None
    if args.against == UNTRAINED:
        if not args.run:
            raise ValueError("--against untrained is the initial model of a run; name the run with --run")
        return replace(contestant, args=replace(args, weights=UNTRAINED))
    if (Path(args.against) / "config.yaml").is_file():
        run, model = args.against, run_config(args.against, contestant.family).model
    else:
        untrained = {"path": args.against, "lora_rank": 0, "lora_path": "", "lora_mode": "continue"}
        known_options = {f.name for f in fields(config.model)}
        run = ""
        model = replace(config.model, **{name: value for name, value in untrained.items() if name in known_options})
    args = replace(args, run=run, weights="model", model=model)
    return Contestant(args, config_of(args, config), family(model.family))


def refuse_no_model(against: str, other: Contestant) -> None:
    """FileNotFoundError or ValueError for a value of ``--against`` that is no model, as far as folders or the hub show
    without weights: a run that saved none, and a name that nothing has, for which the nearest are named."""
    saved = Path(other.args.run) / "model"
    if other.args.run:
        if other.args.weights == "model" and not saved.is_dir():
            raise FileNotFoundError(
                f"--against {against}: {saved} does not exist, so the run is incomplete; finish it with --resume, or "
                "name another run or the path of a model"
            )
        return
    try:
        check_model(other.config)
    except FileNotFoundError as error:
        reason, known = str(error).removeprefix("model.path: "), nearest(against, [UNTRAINED, *runs_near(against)])
        raise FileNotFoundError(f"--against {against}: {reason}.{known}") from error
    except ValueError as error:
        raise ValueError(f"--against {against}: {str(error).removeprefix('model.path: ')}") from error


def measure(
    contestant: Contestant, prompts: Sequence[Prompt], scorers: Sequence[Scorer], accelerator: Accelerator
) -> tuple[Table, Sequence[Sequence[str]]]:
    """Sample and score: reward to values [P, G], and the completions of each prompt if outputs are texts."""
    from mmgrpo.evaluation import draw_samples

    args = contestant.args
    samples = draw_samples(
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
    table: Mapping[str, Any] = {s.name: samples.values[..., column].tolist() for column, s in enumerate(scorers)}
    for column, scorer in enumerate(scorers):
        if bool(samples.values[..., column].isnan().all()):
            total = samples.values[..., 0].numel()
            raise ValueError(
                f"reward '{scorer.name}' returned NaN for all {total} samples; choose one that suits the prompts"
            )
    return table, samples.texts


if __name__ == "__main__":
    enter(main)
