"""A run in stages: ``mmgrpo train --stages sft,grpo``, supervised training and then reinforcement learning.

    runs/demo/stages/sft/    the first stage, a run with its own checkpoints, evaluations, model and report
    runs/demo/               the last stage, which starts from the model of the one before; the run that others read

A stage is a preset, or an entry of ``stages`` in the recipe with whatever differs there. It has the settings of the run
but for the algorithm and what its preset samples with; ``--sft.optim.lr 1e-5`` is an option of that stage alone. All
stages are checked before the first one begins, and ``--resume`` leaves those as they are that have ended.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmgrpo.cli.sweep import values_of
from mmgrpo.config.names import nearest
from mmgrpo.config.needs import moot, sections_of
from mmgrpo.config.presets import PRESETS
from mmgrpo.config.reading import flatten, preset_settings, take_option
from mmgrpo.config.settings import Algorithm, Config
from mmgrpo.report.terminal import number
from mmgrpo.rounds.callback import Callback
from mmgrpo.runtime.folder import STAGES, refuse_folder, run_folder, set_aside, with_name

OPTION = "--stages"
LISTED = ("name", "seed", "output_dir", "resume", "resume_from", "overwrite")
"""Settings of a run as a whole, which no stage has of its own."""


@dataclass(frozen=True)
class Stage:
    """A stage of a run, as it is asked for."""

    name: str
    settings: Mapping[str, Any]
    """What the recipe says of it."""
    arguments: tuple[str, ...]
    """The command line of the stage, its own options in the place of those of the run."""
    stated: frozenset[str]
    """The settings that recipe and command line give for it alone, by their dotted names."""
    epochs: float = 0.0
    """Passes over the training prompts, which make its number of steps; 0 leaves that to ``steps``."""

    def apply(self, section: Mapping[str, Any], kind: type[Config]) -> dict[str, Any]:
        """The settings of a file, of a model family with this configuration, as they are in the stage."""
        merged = {name: dict(value) if isinstance(value, Mapping) else value for name, value in section.items()}
        preset = self.preset(section)
        if preset != preset_of(section):
            merged["algorithm"] = {"preset": preset}
            for part, values in preset_settings(kind, preset, f"stages.{self.name}").items():
                merged[part] = {**merged.get(part, {}), **values}
        for name, value in self.settings.items():
            merged[name] = {**merged.get(name, {}), **value} if isinstance(value, Mapping) else value
        return merged

    def preset(self, section: Mapping[str, Any]) -> str:
        """The preset of the stage in a run of these settings."""
        named_here = self.settings.get("algorithm", {}).get("preset", "")
        return named_here or (self.name if self.name in PRESETS else preset_of(section))

    def effective(self, config: Config) -> Config:
        """The configuration without settings of the run that have no effect in this stage, as the kernel of a policy
        that only learns given answers; those that the stage has of its own stay, and are refused."""
        for setting in moot(sections_of(config)):
            section, _, name = setting.name.rpartition(".")
            if section and setting.name not in self.stated:
                settings = getattr(config, section)
                plain = getattr(type(settings)(), name)
                config = replace(config, **{section: replace(settings, **{name: plain})})
        return config


def preset_of(section: Mapping[str, Any]) -> str:
    """The preset of a file's settings."""
    algorithm = section.get("algorithm", {})
    return str(algorithm.get("preset", Algorithm.preset)) if isinstance(algorithm, Mapping) else Algorithm.preset


def is_asked(arguments: Sequence[str]) -> bool:
    """Whether a command line of ``mmgrpo train`` asks for stages."""
    return any(word.split("=")[0] == OPTION for word in arguments)


def stages_of(arguments: Sequence[str], section: Mapping[str, Any]) -> list[Stage]:
    """The stages that a command line asks for, of a recipe with these settings; ValueError for an unknown name, with
    the nearest known one."""
    values, rest = values_of(arguments, OPTION)
    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    known = section.get("stages", {})
    if not isinstance(known, Mapping) or not all(isinstance(entry, Mapping) for entry in known.values()):
        raise ValueError("stages: expected names of stages with the settings of each, e.g. stages: {sft: {steps: 100}}")
    if len(names) < 2 or len({*names}) < len(names):
        raise ValueError(f"{OPTION}: got '{','.join(names)}', expected two names or more, each once, e.g. sft,grpo")
    for name in names:
        if name not in known and name not in PRESETS:
            raise ValueError(
                f"{OPTION}: unknown stage '{name}'.{nearest(name, [*known, *PRESETS])} A stage is a preset ('mmgrpo "
                "presets'), or an entry of 'stages' in the recipe"
            )
    options = list(segments(rest))
    others = [option for option in options if not any(option[0].startswith(f"--{name}.") for name in names)]
    run_preset, _ = take_option(rest, "--algorithm.preset")
    stages = []
    for name in names:
        given = dict(known.get(name, {}))
        its = [
            [f"--{option[0].removeprefix(f'--{name}.')}", *option[1:]]
            for option in options
            if option[0].startswith(f"--{name}.")
        ]
        epochs = str(given.pop("epochs", "") or "")
        for option in [option for option in its if option[0].split("=")[0] == "--epochs"]:
            its.remove(option)
            epochs = " ".join(option).partition("=")[2] or " ".join(option[1:])
        stated = {setting_of(option[0]) for option in its} | {*flatten(given)}
        if foreign := sorted(stated & {*LISTED}):
            raise ValueError(f"stages.{name}.{foreign[0]}: is a setting of the whole run, expected none of a stage")
        stage = Stage(name, given, (), frozenset(stated), passes(epochs, name))
        base = {**section, "algorithm": {"preset": run_preset}} if run_preset else section
        if stage.preset(base) != preset_of(base):  # what the command line says of the algorithm is of the run's own
            left = {*preset_parts(stage.preset(base)), "algorithm"}
        else:
            left = set()
        common = [
            option
            for option in others
            if not stated.intersection([setting_of(option[0])])
            and setting_of(option[0]) not in left
            and setting_of(option[0]).partition(".")[0] not in left
        ]
        words = [word for option in [*common, *its] for word in option]
        stages.append(replace(stage, arguments=tuple(words)))
    return stages


def preset_parts(preset: str) -> Iterator[str]:
    """The settings outside of the algorithm that a preset states."""
    from mmgrpo.config.presets import CATALOGUE

    record = CATALOGUE[preset]
    yield from (f"sampling.{name}" for name in record.sampling)
    yield from (f"data.{name}" for name in record.data)


def passes(text: str, name: str) -> float:
    """A number of epochs; 0 for an empty text."""
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (text and not value):
        raise ValueError(f"stages.{name}.epochs: got {text!r}, expected a number of passes over the data above 0")
    return value


def segments(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The options of a command line, each with its values."""
    option: list[str] = []
    for word in arguments:
        if word.startswith("--") and option:
            yield option
            option = []
        option.append(word)
    if option:
        yield option


def setting_of(option: str) -> str:
    """The setting of an option."""
    return option.split("=")[0].removeprefix("--").replace("-", "_").replace(".no_", ".")


@dataclass(frozen=True)
class Planned:
    """A stage that can start, as far as is known before anything is loaded."""

    stage: Stage
    config: Config
    first_model: Any
    """The section ``model`` of the run, which its first stage starts from."""

    @property
    def known(self) -> Config:
        """What can be checked before the run: where the model of the stage before is not there yet, with that of the
        run."""
        model, earlier = self.config.model, (self.config.model.path, getattr(self.config.model, "lora_path", ""))
        there = all(Path(path).exists() for path in earlier if f"/{STAGES}/" in path)
        return replace(self.config, model=model if there else self.first_model)

    @property
    def summary(self) -> dict[str, Any]:
        """That of a stage which has ended; else empty."""
        path = run_folder(self.config) / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return summary if summary.get("steps", 0) >= self.config.steps or "stopped" in summary else {}

    def title(self, number: int, count: int) -> str:
        """Which stage of the run it is, in words."""
        return f"stage {number} of {count}: {self.stage.name} ({run_folder(self.config)})"


def plan(stages: Sequence[Stage], read_stage: Callable[[Stage], Config]) -> list[Planned]:
    """The configurations of the stages, whose folders are one run's. An error says of which stage it is."""
    planned: list[Planned] = []
    last = with_name(read_stage(stages[-1]))
    for stage in stages:
        try:
            config = last if stage is stages[-1] else read_stage(stage)
            if stage.epochs:
                config = replace(config, steps=steps_of(config, stage.epochs))
            folder = run_folder(last)
            if stage is not stages[-1]:
                config = replace(config, name=stage.name, output_dir=str(folder / STAGES))
            if config.resume_from:
                raise ValueError("--resume-from: is of one run; continue a run in stages with --resume")
            first_model = config.model
            if planned:
                config = started_from(config, planned[-1].config)
            refuse_folder(config)
        except (ValueError, OSError) as error:
            raise type(error)(f"stage {stage.name}: {error}") from error
        planned.append(Planned(stage, config, first_model))
    return planned


def steps_of(config: Config, epochs: float) -> int:
    """The optimizer steps of so many passes over the training prompts, the last rollout rounded up."""
    from mmgrpo.family import family
    from mmgrpo.inputs import read_prompts

    rows = len(read_prompts(config, family(config.model.family)).splits.train)
    return max(1, math.ceil(epochs * rows / config.data.prompts_per_step)) * config.optim.steps_per_round


def started_from(config: Config, before: Config) -> Config:
    """The configuration of a stage that starts from the saved model of the one before."""
    model, folder = config.model, str(run_folder(before) / "model")
    if not getattr(before.model, "lora_rank", 0):
        return replace(config, model=replace(model, path=folder))
    mode = "continue" if getattr(model, "lora_rank", 0) else "merge"
    return replace(config, model=replace(model, path=before.model.path, lora_path=folder, lora_mode=mode))


class Earlier(Callback):
    """Puts the evaluations of the stages before into the summary, and so into the report."""

    def __init__(self, summaries: Mapping[str, Mapping[str, Any]]) -> None:
        self.summaries = summaries

    def summary(self) -> Mapping[str, Any]:
        kept = ("steps", "seconds", "preset", "alarms", "eval")
        return {
            "stages": {
                name: {key: summary[key] for key in kept if key in summary} for name, summary in self.summaries.items()
            }
        }


def main(planned: Sequence[Planned], check: Callable[[Planned], None], begin: Callable[..., Any]) -> None:
    """Check all stages, and train them one after another. ``check`` prints the costs of a stage and raises for what
    could not start; ``begin`` trains a configuration and prints its results."""
    first, count, last = os.environ.get("RANK", "0") == "0", len(planned), planned[-1].config
    for place, run in enumerate(planned, 1):
        if first:
            print(f"\n== {run.title(place, count)}", flush=True)
        try:
            check(run)
        except (ValueError, OSError) as error:
            raise type(error)(f"stage {run.stage.name}: {error}") from error
    if last.dry_run:
        return
    if last.overwrite and first:
        set_aside(last)
    again = f"the same command with --resume --name {last.name}"
    summaries: dict[str, Mapping[str, Any]] = {}
    for place, run in enumerate(planned, 1):
        config, title = run.config, run.title(place, count)
        ended = run.summary if config.resume else {}
        if first:
            print(f"\n== {title}{': has ended' * bool(ended)}", flush=True)
        if not ended:
            callbacks = [Earlier(dict(summaries))] if place > 1 else []
            result = begin(replace(config, overwrite=config.overwrite and place < count), again, callbacks)
            ended = result.summary
            del result  # the next stage has the memory of its model
        summaries[run.stage.name] = ended
    if first and (lines := table(summaries)):
        print("\n".join(["", *lines]), flush=True)


def table(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Held-out means before the first stage and after each; empty where nothing was evaluated."""
    sides = [("before", next(iter(summaries.values())).get("eval", {}).get("before", {}))]
    sides += [(f"after {name}", summary.get("eval", {}).get("after", {})) for name, summary in summaries.items()]
    rewards = [*dict.fromkeys(name for _, means in sides for name in means)]
    if not rewards:
        return []
    wide = [max(10, len(title)) for title, _ in sides]
    heading = "".join(f" {title:>{width}}" for (title, _), width in zip(sides, wide, strict=True))
    lines = [f"{'reward':24}{heading}"]
    for name in rewards:
        cells = [number(means[name]["mean"]) if name in means else "-" for _, means in sides]
        lines.append(f"{name:24}" + "".join(f" {cell:>{width}}" for cell, width in zip(cells, wide, strict=True)))
    return lines
