"""Train a model with group-relative reinforcement learning.

    mmgrpo train                                             # the embedded image model, minutes on a laptop
    mmgrpo train --recipe visual/flow_grpo                   # an included recipe ('mmgrpo recipes' lists them)
    mmgrpo train --config my_run.yaml --optim.lr 1e-4        # a file of your own; every field is an option
    mmgrpo train --help optim                                # the settings of one section; --help optim.lr of one
    mmgrpo train --model.family qwen_vl --help               # all options, of another model family
    mmgrpo train --recipe flow_grpo --dry-run                # sizes and costs of the run; nothing is loaded
    mmgrpo train --recipe ... --stages sft,grpo              # supervised first, in one folder (mmgrpo/cli/stages.py)
    mmgrpo train --seeds 0 1 2 --sweep optim.lr=1e-4,3e-4    # six runs and their comparison (mmgrpo/cli/sweep.py)
    mmgrpo launch --recipe ... --distributed.shard full      # several GPUs; weights divided among them (FSDP2)

Without ``distributed.shard`` weights are replicated on every process. ``accelerate launch`` works too: its FSDP
settings are translated, DeepSpeed is refused.

--seeds and --sweep train every combination as a run of its own, one after another, or --at-once N of them together;
the same command with --resume trains what is left, and ``mmgrpo compare`` compares them again.

A recipe can name functions of your own (rewards, renderers): it is code, so run only recipes that you trust.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmgrpo.cli import settings_help, sweep
from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import words
from mmgrpo.config.extras import install
from mmgrpo.config.names import nearest, plural
from mmgrpo.config.needs import overridden, refuse_moot, sections_of, values_of
from mmgrpo.config.plugins import EMBEDDED, PYPI, locate, recipe
from mmgrpo.config.ranges import ANY_NUMBER
from mmgrpo.config.reading import (
    load_yaml,
    naming_preset,
    present_options,
    read_config,
    refuse_preset,
    sampled_as,
    take_option,
    usual,
    without_launch,
)
from mmgrpo.config.registry import parse
from mmgrpo.config.schedules import Schedule
from mmgrpo.config.settings import Config, config_class
from mmgrpo.data.values import reason_of
from mmgrpo.family import family, refuse_absent_engine, refuse_engine, refuse_undivided, refuse_unshardable
from mmgrpo.runtime.devices import processes_of, refuse_launcher
from mmgrpo.runtime.identity import MARKER

if TYPE_CHECKING:
    from mmgrpo.cli.stages import Stage
    from mmgrpo.family import Family
    from mmgrpo.runtime.memory import Folder, Pass
    from mmgrpo.scoring import Scorer

DEFAULT = "sd3"
"""The family of the embedded default model."""

ALARMED = 3
"""Exit status of a run under --strict that has raised an alarm."""

TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "q_proj", "k_proj", "v_proj", "o_proj")
"""Adapted layers of families that name none."""

KEYS = {
    **dict.fromkeys(("tokens", "matching", "neighbors", "gradients"), ("prompt",)),
    "gaussian": ("prompt", "tree"),
    "joint": ("prompt", "trace", "tree"),
}
"""The kind of a policy's decisions to the keys of its samples (``Policy.keys``)."""


def main(arguments: Sequence[str] | None = None, about: str | None = "", default: str = DEFAULT) -> None:
    """Read the options, print the sizes and costs of the run, and run it; or start the runs of a sweep."""
    if on := settings_help.subject(words(arguments)):
        print(settings_help.help_on(defaults(words(arguments), default), on))
        return
    if sweep.is_asked(words(arguments)):
        refuse_launched(os.environ)
        sweep.main(words(arguments), lambda given: check_arguments(given, about or str(__doc__), default))
        return
    if any(word.split("=")[0] == "--stages" for word in words(arguments)):
        train_stages(words(arguments), about or str(__doc__), default)
        return
    config = read(words(arguments), about or str(__doc__), default)
    refuse_launcher(os.environ)
    refuse_toys(words(arguments), config)
    plan = arithmetic(config, processes_of(os.environ))
    first = os.environ.get("RANK", "0") == "0"  # set by launchers; only the first process prints
    if first:
        print(plan, flush=True)
    missing = missing_data(words(arguments), config)
    if config.dry_run:
        if first:
            check_inputs(config, missing, overridden_settings(words(arguments), config))
        return
    if missing:
        raise FileNotFoundError(missing)
    check_model(config)
    check_adapters(config)
    run_and_report(config, overridden_settings(words(arguments), config))


def run_and_report(config: Config, *given: Any) -> Any:
    """Train, and print the results; ``given`` is further passed to ``run_config``."""
    from accelerate import PartialState

    from mmgrpo.api import run_config
    from mmgrpo.report.terminal import closing, title, verdict

    result = run_config(config, *given)
    if PartialState().is_main_process:
        folder = str(result.folder)
        print(f"{closing(result.summary)}\n\n{verdict(result.summary, folder, config.data.heldout)}")
        print(f"report: {result.folder / 'report.html'}", flush=True)
        extra = "" if find_spec("gradio") else f", after {install('demo')}"
        print(f"demo:   mmgrpo demo {shlex.quote(folder)}{extra}", flush=True)
        if config.strict and (raised := result.summary["alarms"]):
            print(f"--strict: the run has raised alarms: {', '.join(map(title, raised))}", file=sys.stderr, flush=True)
            raise SystemExit(ALARMED)
    return result


def train_stages(arguments: Sequence[str], about: str, default: str) -> None:
    """Train the stages of a run one after another (``mmgrpo.cli.stages``)."""
    from mmgrpo.cli import stages

    refuse_launcher(os.environ)
    planned = stages.plan(
        stages.stages_of(arguments, file_section(arguments)), lambda stage: read_stage(stage, about, default)
    )
    processes = processes_of(os.environ)

    def check(stage: stages.Planned) -> None:
        config = stage.known
        refuse_toys(stage.stage.arguments, config)
        costs = arithmetic(config, processes)
        if os.environ.get("RANK", "0") == "0":
            print(costs, flush=True)
            check_inputs(config, missing_data(stage.stage.arguments, config))

    stages.main(planned, check, lambda config, again, callbacks: run_and_report(config, (), again, callbacks))


def read_stage(stage: Stage, about: str, default: str) -> Config:
    """The configuration of a stage, but for its folder and the model that it starts from."""
    config = stage.effective(read(stage.arguments, about, default, stage))
    refuse_moot(config, usual(type(config), config.algorithm.preset))
    return config


def file_section(arguments: Sequence[str]) -> dict[str, Any]:
    """The settings of the recipe or file that a command line names."""
    name, rest = take_option(arguments, "--recipe")
    path, _ = take_option(rest, "--config")
    return load_yaml(str(recipe(name)) if name else path) if name or path else {}


def refuse_launched(environment: Mapping[str, str]) -> None:
    """ValueError for a sweep that a launcher has started, in which every process would start all runs."""
    if "RANK" in environment:
        raise ValueError("--seeds, --sweep: a launcher starts the processes of one run; start it once for each run")


def check_arguments(arguments: Sequence[str], about: str, default: str = DEFAULT) -> Config:
    """The configuration of a run that could start, as far as is known before anything is loaded; of a run in stages
    that of the last."""
    if any(word.split("=")[0] == "--stages" for word in arguments):
        from mmgrpo.cli import stages

        selected = stages.stages_of(arguments, file_section(arguments))
        return stages.plan(selected, lambda stage: read_stage(stage, about, default))[-1].config
    config = read(arguments, about, default)
    refuse_toys(arguments, config)
    arithmetic(config)
    if missing := missing_data(arguments, config):
        raise FileNotFoundError(missing)
    check_model(config)
    check_adapters(config)
    return config


def read(arguments: Sequence[str], about: str, default: str = DEFAULT, stage: Stage | None = None) -> Config:
    """The configuration of a run, or of a stage of it: the family's defaults, a recipe, the command line."""
    name, arguments = take_option(arguments, "--recipe")
    path, arguments = take_option(arguments, "--config")
    if name and path:
        raise ValueError("--recipe names a recipe of mmgrpo and --config a file of your own; give only one of them")
    path = str(recipe(name)) if name else path
    section = without_launch(load_yaml(path), path) if path else {}
    named = family_name(arguments, section, default)
    model_family = family(named)
    note = (
        "--recipe NAME or --config FILE reads a recipe first, and the options below override it. The model and "
        f"sampling options are those of the family {named}; set --model.family for another."
    )
    kind = config_class(model_family.sections)
    # A stage on data of its own is evaluated as the run is.
    run = take_option(arguments, "--data.train")[1] if stage and "data.train" in stage.stated else arguments
    section = with_own(with_family(section, named), run, bool(name))
    section = {key: value for key, value in section.items() if key != "stages"}  # settings of further runs
    if stage:
        return read_config(kind, arguments, stage.apply(section, kind), f"stage {stage.name}", f"{about}\n\n{note}")
    stored = bool(path) and Path(path).with_name(MARKER).is_file()
    config = read_config(kind, arguments, section, path or "the command line", f"{about}\n\n{note}", stored)
    refuse_moot(config, usual(kind, config.algorithm.preset), overridden_settings(arguments, config))
    rewarded = "rewards" in section or any(word.split("=")[0] == "--rewards" for word in arguments)
    # A run on given answers alone has no use for the rewards of the embedded example, which its rows do not fit.
    return config if rewarded or config.data.offline < 1 else replace(config, rewards=[])


def defaults(arguments: Sequence[str], default: str) -> Config:
    """The defaults of the family that a command line, or its file, names."""
    name, rest = take_option(arguments, "--recipe")
    path, _ = take_option(rest, "--config")
    section = load_yaml(str(recipe(name)) if name else path) if name or path else {}
    return config_class(family(family_name(arguments, section, default)).sections)()


def overridden_settings(arguments: Sequence[str], config: Config) -> set[str]:
    """The settings whose effect the command line may have taken by others that it gives (``overridden``)."""
    options = present_options([word for word in arguments if word.startswith("--")])
    names = [word.split("=")[0].removeprefix("--").replace("-", "_") for word in options]
    return overridden(config, {re.sub(r"(^|\.)no_", r"\1", name) for name in names} | {*names})


def with_own(section: Mapping[str, Any], arguments: Sequence[str], included: bool) -> dict[str, Any]:
    """The settings of a file, without held-out data that do not belong to the training data.

    Held-out prompts of the defaults, or of an ``included`` recipe, are none of the training prompts that the command
    line or a file names: nothing is evaluated then, unless data.heldout is named too.
    """
    data = section.get("data", {})
    if not isinstance(data, Mapping):
        return dict(section)
    train, heldout = (take_option(arguments, f"--data.{name}")[0] for name in ("train", "heldout"))
    foreign = "heldout" not in data or included or is_embedded(str(data["heldout"]))
    moved = bool(train) and train != data.get("train")
    if not heldout and ((moved and foreign) or ("train" in data and "heldout" not in data)):
        return {**section, "data": {**data, "heldout": ""}}
    return dict(section)


def is_embedded(path: str) -> bool:
    """Whether a model or a file comes with the package, or from the package index."""
    return path.startswith((EMBEDDED, PYPI))


def refuse_toys(arguments: Sequence[str], config: Config) -> None:
    """ValueError for a run whose model or data are the user's own, and whose data or rewards would be those of the
    embedded example, since neither the command line nor a file names any."""
    name, rest = take_option(arguments, "--recipe")
    path, rest = take_option(rest, "--config")
    section = load_yaml(str(recipe(name)) if name else path) if name or path else {}
    options = {word.split("=")[0] for word in rest}

    def is_named(setting: str) -> bool:
        first, _, second = setting.partition(".")
        inside = section.get(first, {}) if second else section
        return f"--{setting}" in options or (isinstance(inside, Mapping) and (second or first) in inside)

    paths = {"model.path": config.model.path, "data.train": config.data.train if is_named("data.train") else ""}
    whose = next((f"{setting}={value}" for setting, value in paths.items() if value and not is_embedded(value)), "")
    if whose and not is_named("data.train"):
        raise ValueError(
            f"data.train is required with {whose}; add --data.train FILE (docs/data.md lists the formats), e.g. a "
            f".txt file with one prompt per line. The embedded default is --data.train {config.data.train}"
        )
    if whose and not is_named("rewards") and (config.data.offline < 1 or config.data.heldout):
        raise ValueError(
            f"rewards is required with {whose}; add --rewards NAME ..., e.g. {fitting(config)}. 'mmgrpo rewards' lists "
            "all, and package.module:function is one of your own"
        )


def missing_data(arguments: Sequence[str], config: Config) -> str:
    """Where the training data of a recipe are to come from, if they are its own and not there yet; else nothing."""
    name, _ = take_option(arguments, "--recipe")
    path = config.data.train
    if not name or is_embedded(path) or not Path(path).suffix or Path(path).exists():
        return ""
    if load_yaml(str(recipe(name))).get("data", {}).get("train") != path:
        return ""
    text = recipe(name).read_text(encoding="utf-8")
    commands = re.search(r"^#\s*(mmgrpo [^\n&]*?)\s*&& mmgrpo train", text, re.MULTILINE)
    how = f"'{commands[1]}' writes it" if commands else f"the comments of {recipe(name)} describe its rows"
    return f"data.train: {path} of the recipe {name} is not in {Path.cwd()}; {how}, and --data.train names other data"


def fitting(config: Config) -> str:
    """Some rewards of the outputs of a family: those that score what its default reward scores, need nothing and can be
    computed here."""
    from mmgrpo.rewards import entries
    from mmgrpo.scoring.manifest import obstacle

    manifests = {name: entry.read_manifest() for name, entry in entries().items()}
    default, *_ = (parse(reward)[0] for reward in family(config.model.family).sections.rewards)
    usual = manifests.get(default)
    outputs = {"Video"} if "frames" in {f.name for f in fields(config.model)} else set(usual.scores if usual else ())
    fit = [
        name
        for name in dict.fromkeys([default, *manifests])
        if (manifest := manifests.get(name))
        and outputs & {*manifest.scores}
        and not manifest.group
        and not obstacle(manifest)
    ]

    # Those first that read nothing but the words of the prompt, since what else is in the rows is not known, and need
    # no weights; then those that see its media.
    def order(name: str) -> tuple[bool, bool, bool]:
        manifest = manifests[name]
        read = {*manifest.reads} if manifest else {"answer"}
        return bool(read - {"text", "media", "reward"}), bool(manifest and manifest.weights), "media" in read

    fit[1:] = sorted(fit[1:], key=order)
    return ", ".join(fit[:5] if "Text" in outputs else fit[1:6])


def family_name(arguments: Sequence[str], section: Mapping[str, Any], default: str) -> str:
    """The model family of the command line, else of the file, else ``default``."""
    name, _ = take_option(arguments, "--model.family")
    model = section.get("model", {})
    return name or str((model.get("family") if isinstance(model, Mapping) else "") or default)


def with_family(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The configuration with ``model.family`` set, which a file may leave to the default."""
    model = section.get("model", {})
    return {**section, "model": {**model, "family": name}} if isinstance(model, Mapping) else dict(section)


def arithmetic(config: Config, processes: int = 1) -> str:
    """Sizes and costs of a run as text: prompts x samples per rollout, network evaluations, optimizer steps.

    ValueError for settings with which the run could not start, as far as they can be known before anything is loaded.
    """
    with naming_preset(config):
        return _arithmetic(config, processes)


def _arithmetic(config: Config, processes: int) -> str:
    model_family, optim = family(config.model.family), config.optim
    config.check(processes)
    model_family.check(config)
    refuse_unshardable(config, model_family)
    refuse_undivided(config, model_family)
    refuse_engine(config, model_family)
    refuse_preset(config.algorithm.preset, model_family.decisions(config))
    bind_blocks(config)
    cost = model_family.arithmetic(config)
    if optim.updates > cost.groups:
        raise ValueError(
            f"a rollout of {cost.groups} groups cannot be split into optim.updates={optim.updates} steps; "
            "raise data.prompts_per_step or lower optim.updates"
        )
    steps, offline = optim.updates * optim.epochs, round(config.data.offline * config.steps)
    rollouts = -(-config.steps // steps)
    totals = ", ".join(f"{rollouts * count:,} {name}" for name, count in cost.totals.items())
    head, *rest = cost.lines
    if offline >= config.steps:
        head, rest, totals = (
            f"{config.data.prompts_per_step} prompts with the answers that they have, none sampled",
            [],
            "",
        )
    split = f"{plural(optim.updates, 'update')} x {plural(optim.epochs, 'epoch')} = {plural(steps, 'optimizer step')}"
    return "\n".join(
        [
            *([f"preset:    {config.algorithm.preset} with {settings}"] if (settings := sampled_as(config)) else []),
            f"a rollout: {head}",
            *(f"           {line}" for line in rest),
            f"           split into {split}",
            f"the run:   {config.steps:,} optimizer steps = {rollouts:,} rollouts{' = ' * bool(totals)}{totals}",
            *([f"offline:   the first {offline:,} optimizer steps train on given answers"] if offline else []),
            f"evaluated: {evaluation_in_words(config)}",
            *([f"stopped:   {early}"] if (early := stopped_early(config)) else []),
        ]
    )


def check_inputs(config: Config, missing: str = "", inherited: Collection[str] = ()) -> None:
    """Print how many prompts a run would read; ValueError that lists what is wrong in its files, rewards and model.
    ``missing`` takes the place of the error of a prompt file that does not exist, and ``inherited`` are the settings
    that may have lost their effect (``overridden``)."""
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.api import start_ledger
    from mmgrpo.data.pairs import KEYS
    from mmgrpo.data.splits import describe_repeats
    from mmgrpo.inputs import facts, read_prompts, unread_keys
    from mmgrpo.prompts.drawing import Sampling
    from mmgrpo.requirements.rewards import refuse_ranges, refuse_start
    from mmgrpo.rewards import scorers
    from mmgrpo.rounds import methods
    from mmgrpo.rounds.callback import Callbacks, load_callback
    from mmgrpo.rounds.offline import select_answered, select_better, select_comparable, way_of
    from mmgrpo.runtime.folder import refuse_folder, with_name
    from mmgrpo.scoring.fitting import check_rows_with, downloads
    from mmgrpo.scoring.isolation import RewardFailure
    from mmgrpo.scoring.served import ask_once
    from mmgrpo.update import LossRecipe

    problems, owner, reachable = list[str](), family(config.model.family), True
    for check in (check_model, check_adapters, refuse_absent_engine, lambda config: refuse_folder(with_name(config))):
        try:
            check(config)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            problems.append(str(error))
            reachable = reachable and check is not check_model
    rewards: list[Scorer] = []
    try:
        with ask_once():
            rewards = scorers(config.rewards) if config.rewards or config.data.offline < 1 else []
        recipe, loss = AdvantageRecipe.of(config.algorithm), LossRecipe.read(config.algorithm)
        refuse_start(config.data.group_size, recipe, loss, rewards, config.data.offline)
        sampling = Sampling.of(config.algorithm.sampler, config.algorithm.trackers)
        refuse_ranges(recipe, sampling.trackers, rewards)
        patience: Any = {"patience": config.eval.patience, "patience_reward": config.eval.patience_reward}
        patience |= {"every": config.eval.every, "steps": config.steps}
        sampled = values_of(sections_of(config))
        patience["reward_drift"] = sampled.get("sampling.reward_drift", "")
        patience["temperature_by_entropy"] = sampled.get("sampling.temperature_by_entropy", 0.0)
        patience["total_tokens"] = sampled.get("sampling.total_tokens", 0)
        methods(loss, config.optim, rewards, **patience, offline=config.data.offline)
    except (ValueError, OSError, RewardFailure) as error:
        problems.append(str(error))
    try:
        Callbacks([load_callback(spec) for spec in config.callbacks])
    except ValueError as error:
        problems.append(str(error))
    for note in downloads(rewards, {}):
        print(note, flush=True)
    try:
        with check_rows_with(rewards):
            read = read_prompts(config, owner)
        refuse_moot(config, usual(type(config), config.algorithm.preset), inherited, facts(config, read.splits))
        counts = {"data.train": read.splits.train, "data.heldout": read.splits.heldout, **read.splits.extra}
        print("prompts:  ", ", ".join(f"{name} {len(some):,}" for name, some in counts.items() if some), flush=True)
        for name, some in counts.items():
            if text := describe_repeats(some):
                print(f"repeated:  {name}: {text}", flush=True)
        if read.skipped:
            print(
                f"skipped:   {len(read.skipped):,} prompts, the first: {read.skipped[0].id}: {read.skipped[0].reason}"
            )
        used = {*AdvantageRecipe.of(config.algorithm).fields, *config.eval.groups}
        if config.data.offline or config.data.comparison:
            used |= KEYS
        if config.data.offline:
            kind = "text" if owner.decisions(config) == "tokens" else owner.sections.outputs.lower()
            way = way_of(LossRecipe.read(config.algorithm))
            if way == "learned":
                rows, per_step = len(select_answered(read.splits.train, kind)), config.data.prompts_per_step
                epochs = config.steps / config.optim.steps_per_round * per_step / rows
                print(f"offline:   {rows:,} prompts whose answers are learned, {epochs:.3g} epochs")
            elif way == "compared":
                usable, ties = select_comparable(read.splits.train, kind, config.data.offline)
                print(f"offline:   {len(usable):,} prompts whose answers are compared, {len(ties):,} with equal ones")
            else:
                sampling = Sampling.of(config.algorithm.sampler, config.algorithm.trackers)
                ledger, known = start_ledger(config, sampling, read.splits, rewards)
                recipe = AdvantageRecipe.of(config.algorithm)
                usable, worse = select_better(read.splits.train, kind, config.data.offline, recipe, ledger)
                print(
                    f"offline:   {len(usable):,} of {known:,} measured prompts, {len(worse):,} without a better answer"
                )
        if text := unread_keys(read.keys, read.rows, config.rewards, used, owner):
            print(text)
    except FileNotFoundError as error:
        problems.append(missing or str(error))
    except (ValueError, OSError) as error:
        problems.append(str(error))
    for line in costs_of(config, processes_of(os.environ), on_hub=reachable):
        print(line, flush=True)
    if problems:
        raise ValueError("the run could not start: " + "; ".join(problems))


def costs_of(config: Config, processes: int, *, on_hub: bool = True) -> list[str]:
    """The memory that the run needs on each process and how much it computes, by the headers of its model's files, on
    this machine or (``on_hub``) on the hub, or by the record of a published checkpoint."""
    from mmgrpo.catalogue.checkpoints import checkpoints
    from mmgrpo.runtime import memory, work
    from mmgrpo.scoring.manifest import find_in_cache
    from pipelines.pretrained import headers_on_hub

    path, reason, read = config.model.path, "are not on this machine", None
    if not path:
        return []
    if on_hub and not path.startswith((PYPI, EMBEDDED)) and not Path(path).is_dir():
        try:
            read = headers_on_hub(path)
        except OSError as error:
            reason = f"{reason}, and those on the hub cannot be read: {error}"
    if read is None and not path.startswith(PYPI):
        folder = find_in_cache(path) or Path(locate(path))
        read = memory.read_folder(folder) if folder.is_dir() else None
    beginning: list[str] = []
    if read is None and path in checkpoints():
        from pipelines.published import folder_of

        read = folder_of(checkpoints()[path])
        beginning = [
            f"model:     the files of '{path}' {reason}: its network by its configuration, no encoders, no VAE"
        ]
    if read is None:
        return [f"memory:    not computed, since the files of '{path}' {reason}"]
    known, totals = counted_in(config, read), family(config.model.family).arithmetic(config).totals
    rollouts = -(-config.steps // (config.optim.updates * config.optim.epochs))
    lines = [*beginning, *memory.report(read, config, processes, **known)]
    if config.data.offline:  # given answers are of other numbers and lengths
        return lines
    return [*lines, *work.report(known["counts"], config, totals, rollouts, processes, known["reference"])]


def counted_in(config: Config, read: Folder | None) -> dict[str, Any]:
    """What ``runtime.memory.needs`` counts besides what the settings say: the layers that get adapters, whether the
    family's blocks are gathered call by call, whether the loss needs a reference, whether there is guidance, and what a
    pass of the network takes that a checkpoint's headers state (None: nothing)."""
    from mmgrpo.update import LossRecipe

    owner = family(config.model.family)
    model = vars(importlib.import_module(owner.module)) if owner.module else {}
    targets = vars(config.model).get("lora_targets") or model.get("LORA_TARGETS", TARGETS)
    return {
        "in_step": owner.in_step,
        "targets": tuple(targets),
        "reference": LossRecipe.read(config.algorithm).needs_reference,
        "guided": bool(owner.guidance) and getattr(config.model, owner.guidance) != 1,
        "counts": pass_of(owner, config, read, tuple(targets)),
    }


def pass_of(owner: Family, config: Config, read: Folder | None, targets: Sequence[str]) -> Pass:
    """What a pass of a family's network takes, or why that is not known."""
    from mmgrpo.runtime.memory import Pass

    if read is None or owner.count_pass is None:
        return Pass(uncounted=f"family '{owner.name}' does not say what its network reads")
    try:
        return owner.count_pass(config, read, targets)
    except Exception as error:  # whatever the code of a network raises that cannot run without values
        network = read.config.get("_class_name") or (read.config.get("architectures") or ["its network"])[0]
        return Pass(uncounted=f"{network} of family '{owner.name}' cannot be run without weights: {reason_of(error)}")


def check_model(config: Config) -> None:
    """FileNotFoundError or ValueError for a model path that is no model, as far as its folder or the hub shows without
    its weights: a folder without an index, another family's model, a hub id that is unknown or cannot be reached; and
    for settings that the model does not take, as far as its configuration shows."""
    path, owner = config.model.path, family(config.model.family)
    if not path or path.startswith(PYPI):
        return
    try:
        owner.refuse_model(config, locate(path))
    except OSError as error:  # also those of the hub, of many lines
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(first if re.match(r"model\.\w+: ", first) else f"model.path: {first}") from error


def check_adapters(config: Config) -> None:
    """FileNotFoundError or ValueError for a ``model.lora_path`` that names none, as far as this machine shows."""
    from pipelines.existing_lora import ExistingLora
    from pipelines.options import ModelOptions

    if isinstance(config.model, ModelOptions):
        ExistingLora.of(config.model, fetched=False)


def evaluation_in_words(config: Config) -> str:
    """On which prompts a run is evaluated, in words."""
    if config.eval.skip:
        return "not at all (eval.skip)"
    files = [*filter(None, [config.data.heldout]), *config.eval.extra]
    first = f"the first {config.eval.prompts} prompts of " * bool(config.eval.prompts)
    return f"on {first}{', '.join(files)}" if files else "not at all, since data.heldout names no prompts"


def stopped_early(config: Config) -> str:
    """When evaluations end a run before its last step, in words; empty: never."""
    settings = config.eval
    if not settings.patience:
        return ""
    trained = [name for name, given in (parse(text, "rewards") for text in config.rewards) if given.get("weight", 1)]
    reward = settings.patience_reward or next(iter(trained), "")
    evaluations = plural(settings.patience, "evaluation")
    return f"after {evaluations} in a row, one every {settings.every} steps, without a new best mean of {reward}"


def bind_blocks(config: Config) -> None:
    """Raise ValueError for an unknown name or a value out of range in the blocks of the algorithm and in rewards."""
    from mmgrpo.advantages.estimate import AdvantageRecipe
    from mmgrpo.api import refuse_shape
    from mmgrpo.prompts.drawing import Sampling
    from mmgrpo.rewards import entries
    from mmgrpo.update import LossRecipe

    algorithm = config.algorithm
    kind = family(config.model.family).decisions(config)
    recipe = AdvantageRecipe.of(algorithm)
    keys = {*KEYS[kind], *(["tree"] if getattr(config.sampling, "tree", "") else [])}
    loss = LossRecipe.read(algorithm)
    refuse_shape(config, family(config.model.family), recipe, loss)
    for key in recipe.key_names:
        if key not in keys:
            raise ValueError(f"algorithm.keys: samples of {kind} policies have no key '{key}'.{nearest(key, keys)}")
    if config.data.offline:
        from mmgrpo.rounds.offline import refuse_algorithm, way_of

        refuse_algorithm(recipe, loss)
        scale = family(config.model.family).guidance
        if way_of(loss) == "learned" and scale and getattr(config.model, scale) != 1:
            raise ValueError(
                f"model.{scale}: got {getattr(config.model, scale):g} with algorithm.objective {loss.objective.text}, "
                "expected 1: given answers are the samples of the velocity without guidance; guidance of evaluation "
                "samples is sampling.evaluation_guidance"
            )
        if way_of(loss) == "measured" and not config.data.ledger:
            raise ValueError(
                f"data.ledger: names no measured rewards, which data.offline with the baseline {algorithm.baseline} "
                "compares answers with; name the file of mmgrpo evaluate on data.train"
            )
    Sampling.of(algorithm.sampler, algorithm.trackers)
    for text in config.rewards:
        name, parameters = parse(text, "rewards")
        if ":" not in name and name not in entries():
            raise ValueError(f"rewards: unknown reward '{name}'.{nearest(name, entries(), 'mmgrpo rewards')}")
        weight = parameters.get("weight", 1)
        if not isinstance(weight, Schedule) and weight not in ANY_NUMBER:
            raise ValueError(f"rewards: '{name}': got weight {weight!r}, expected {ANY_NUMBER}")


if __name__ == "__main__":
    enter(main)
