"""Training from Python: a policy, prompts, rewards and the name of an algorithm.

    >>> import mmgrpo
    >>> from pipelines import visual
    >>> policy = visual.policy("embedded:visual/scenes/base", lora_rank=4, steps=4)
    >>> prompts = [{"text": "a red circle", "answer": {"things": [[1, "red", "circle"]], "place": ""}}]
    >>> run = mmgrpo.train(policy, prompts, ["scene_all"], steps=1, prompts_per_step=1, group_size=2)
    >>> run.folder.joinpath("report.html").is_file()
    True

``train`` builds a configuration and executes it as ``run_config`` executes one from a recipe, so Python and the
command line are equivalent.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.config.advice import PYTHON, argument, in_python
from mmgrpo.config.conflicts import DECISIONS, PROCESS, refuse_conflicts
from mmgrpo.config.needs import refuse_moot, sections_of, values_of
from mmgrpo.config.reading import build, compare_with_preset, preset_settings, refuse_preset, setting_names, usual
from mmgrpo.config.schedules import of_settings, schedules_of
from mmgrpo.config.settings import Algorithm, Config, Optim, Sections, config_class
from mmgrpo.data.pairs import KEYS
from mmgrpo.data.splits import Splits
from mmgrpo.data.streaming import shows_undecoded
from mmgrpo.evaluation import EvalSettings, directions
from mmgrpo.family import (
    Family,
    Settings,
    family,
    refuse_absent_engine,
    refuse_engine,
    refuse_undivided,
    refuse_unshardable,
)
from mmgrpo.files import write_text
from mmgrpo.inputs import RunInputs, load, unread_keys
from mmgrpo.prompts.drawing import Sampling
from mmgrpo.prompts.ledger import Ledger, TrainingPrompts, by_number, read_measurements
from mmgrpo.randomness import deterministic
from mmgrpo.report import tracking
from mmgrpo.report.run_record import GroupRecord, RunRecord, display_form
from mmgrpo.requirements.blocks import of_algorithm, refuse_unmet, refuse_unread, requirements_of, traits_of
from mmgrpo.requirements.policies import reads_answers
from mmgrpo.requirements.rewards import refuse_ranges, refuse_start
from mmgrpo.rewards import scorers
from mmgrpo.rollout import RoundSettings
from mmgrpo.rounds import methods, schedule_callbacks
from mmgrpo.rounds.callback import Callback, Callbacks, Hyperparameters, load_callback
from mmgrpo.runtime import devices
from mmgrpo.runtime.checkpoint import step_of
from mmgrpo.runtime.distributed import TOGETHER
from mmgrpo.runtime.fingerprint import of_inputs
from mmgrpo.runtime.folder import agree_on_name, claim, open_folder, refuse_folder, run_folder, run_id, with_name
from mmgrpo.runtime.heartbeat import watch_processes
from mmgrpo.runtime.metrics import read_metrics
from mmgrpo.runtime.progress import Checkpoints, before_start
from mmgrpo.runtime.sharding import mesh_of, sequences_of, shard
from mmgrpo.scoring import Scorer, rules_of
from mmgrpo.scoring.fitting import check_rows_with, downloads
from mmgrpo.trainer import Trainer
from mmgrpo.types import Policy
from mmgrpo.update import LossRecipe

ELSEWHERE = {
    "model": "belongs to the policy, e.g. visual.policy(path, lora_rank=32)",
    "sampling": "belongs to the policy, e.g. visual.policy(path, steps=10)",
    "eval": "is the argument evaluation",
    **{setting: f"is the argument {name}" for setting, name in PYTHON.items()},
    "dry_run": "is an option of the command mmgrpo train",
}
"""Settings of a recipe that ``train`` takes in another place."""


@dataclass(frozen=True)
class Result:
    """A finished run."""

    folder: Path
    """The folder of report.html, model/, metrics.jsonl and the other files of the run."""
    summary: Mapping[str, Any]
    """The contents of summary.json: evaluations before and after with intervals, steps, seconds."""
    policy: Policy
    """The trained policy."""

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """What went wrong without an error (``summary["alarms"]``), each with its ``kind`` and a ``message``. A run
        that trained nothing has one."""
        return [dict(alarm) for alarm in self.summary.get("alarms", [])]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The numbers of every optimizer step."""
        return read_metrics(self.folder / "metrics.jsonl")


@dataclass
class Handmade:
    """The sections model and sampling of a run whose policy no family loaded, so they are empty."""

    family: str = ""
    path: str = ""
    device: str = "auto"


PLAIN = Sections(model=Handmade, sampling=Handmade)
"""The sections of such a run."""


def train(
    policy: Policy,
    prompts: Any,
    rewards: Sequence[Any],
    *,
    preset: str = "grpo",
    steps: int = 100,
    heldout: Any = (),
    group_size: int | None = None,
    prompts_per_step: int = 8,
    algorithm: Mapping[str, Any] | None = None,
    optim: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> Result:
    """Train a policy; returns the finished run.

    ``prompts`` and ``heldout`` are strings, rows as in a JSONL file (dicts), ``Prompt``s, a ``datasets.Dataset``, or
    the path of a file; ``rewards`` are functions of prompts and outputs, names, or ``Scorer``s. ``preset`` names an
    algorithm, of which ``algorithm`` overrides fields; ``optim`` and ``evaluation`` are the recipe sections optim and
    eval; ``callbacks`` act at rounds, steps and evaluations (``mmgrpo.Callback``); ``settings`` are fields outside the
    sections (name, output_dir, seed, resume, overwrite, save_every, ...) and the section data (extra_train, media_root,
    ...). Rows of files are left out and refused as by ``mmgrpo train``.

    The policy samples as it was made: where a preset has a plan, a kernel or a kind of decisions of its own, make the
    policy for it (``visual.policy(..., preset=preset)``), or give these options yourself; a policy that only has the
    defaults is refused. ``group_size`` is 8 where neither the call nor the preset says.
    """
    for name, value in {"prompts": prompts, "heldout": heldout}.items():
        named = isinstance(value, str) and (value.startswith(("embedded:", "hf:")) or Path(value).suffix)
        if isinstance(value, str) and not named and not Path(value).is_dir():
            raise ValueError(f"{name}: got the text '{value:.60}', expected a list of prompts or the path of a file")
    if isinstance(rewards, str | Scorer) or callable(rewards):
        raise ValueError("rewards: got one reward alone, expected a list of them, e.g. rewards=[...]")
    source: Settings | None = policy.settings
    sections = source.family.sections if source else PLAIN
    where = "mmgrpo.train"
    inside = {"algorithm": algorithm or {}, "data": settings.get("data", {})}
    for key in [*settings, *(f"{section}.{name}" for section in inside for name in inside[section])]:
        if key in ELSEWHERE:
            raise ValueError(f"{where}: '{key}' {ELSEWHERE[key]}")
    kind = config_class(sections)
    of_preset = preset_settings(kind, preset, where)
    if source:
        refuse_unlike(preset, of_preset, source)
    data = {**of_preset.get("data", {}), **inside["data"]}
    config = build(kind, {**settings, "steps": steps, "data": {"group_size": 8, **data}}, where, "", argument)
    config = replace(
        config,
        algorithm=build(Algorithm, {**(algorithm or {}), "preset": preset}, where, "algorithm.", argument),
        optim=build(Optim, optim or {}, where, "optim.", argument),
        eval=build(sections.eval, evaluation or {}, where, "eval.", argument),
        data=replace(
            config.data,
            train=str(prompts) if isinstance(prompts, str | Path) else "",
            heldout=str(heldout) if isinstance(heldout, str | Path) else "",
            prompts_per_step=prompts_per_step,
            group_size=config.data.group_size if group_size is None else group_size,
        ),
        rewards=[spec if isinstance(spec, str) else getattr(spec, "__name__", "reward") for spec in rewards],
        callbacks=[spec if isinstance(spec, str) else type(spec).__name__ for spec in callbacks],
    )
    if source:
        config = replace(config, model=source.config.model, sampling=source.config.sampling)
    owner = source.family if source else None
    rows = {"prompts": prompts, "heldout": heldout}
    rows = {name: value for name, value in rows.items() if not isinstance(value, str | Path)}
    again = "the same call with resume=True, name='{name}'"
    try:
        return execute(config, owner, lambda _: load(config, owner, lambda _: policy, rows), rewards, again, callbacks)
    except (ValueError, OSError) as error:
        if len(error.args) == 1:
            error.args = (in_python(str(error), setting_names(kind)),)
        raise


def refuse_unlike(preset: str, settings: Mapping[str, Mapping[str, Any]], source: Settings) -> None:
    """ValueError for a policy that samples otherwise than its preset says, and not because its maker asked for it."""
    if source.given is None or source.preset == preset:
        return
    sampling = settings.get("sampling", {})
    if "policy" in source.given and source.config.sampling.policy != sampling.get("policy", "transitions"):
        return  # decisions of another kind, for which the other settings are not meant
    data = {key: value for key, value in settings.get("data", {}).items() if key != "group_size"}
    stated = {key: getattr(source.config.sampling, key) for key in sampling}
    stated |= {key: getattr(source.config.data, key) for key in data}
    unlike = {k: v for k, v in {**sampling, **data}.items() if k not in source.given and stated[k] != v}
    if unlike:
        expected, actual = (", ".join(f"{key}={values[key]!r}" for key in unlike) for values in (unlike, stated))
        raise ValueError(
            f"preset: '{preset}' samples with {expected}, and the policy was made with {actual}; make it with "
            f"preset='{preset}', e.g. visual.policy(path, preset='{preset}'), or give it {', '.join(unlike)}"
        )


def run_config(
    config: Config, inherited: Collection[str] = (), again: str = "", callbacks: Sequence[Callback] = ()
) -> Result:
    """Execute a configuration, as ``mmgrpo train`` does. ``inherited``: settings that may have lost their effect
    through others and are then named in a warning, where all others are refused (``mmgrpo.config.needs``); ``again``:
    how the run is continued, where another command line does it; ``callbacks``: further ones."""
    owner = family(config.model.family)
    refuse_moot(config, usual(type(config), config.algorithm.preset), inherited)
    owner.check(config)

    def start(accelerator: Accelerator) -> RunInputs:
        device = str(accelerator.device)
        return load(config, owner, lambda prompts: owner.policy(config, device, prompts), inherited=inherited)

    return execute(config, owner, start, config.rewards, again, [*config.callbacks, *callbacks])


def resume_command(config: Config) -> str:
    """How the command line continues a run."""
    options = f"--config {shlex.quote(str(run_folder(config) / 'config.yaml'))} --resume"
    world, machine = devices.processes_of(os.environ), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if world == 1:
        return f"mmgrpo train {options}"
    if world == machine:
        return f"mmgrpo launch --processes {world} {options}"
    return f"mmgrpo train {options} in as many processes on as many machines"


def execute(
    config: Config,
    owner: Family | None,
    start: Callable[[Accelerator], RunInputs],
    rewards: Sequence[Any],
    again: str = "",
    callbacks: Sequence[Any] = (),
) -> Result:
    """A whole run: load with ``start``, train, save, evaluate and report. ``owner`` is the family of the policy, and
    ``again`` says how to continue the run, whose name takes the place of {name}; empty: by the command line.

    Errors of the configuration are raised before anything is loaded, and the run folder is created last, so a run
    that cannot start removes nothing.
    """
    with before_start():
        config, accelerator = begin(config)
    again = again.replace("{name}", config.name) or resume_command(config)
    with deterministic(config.deterministic), claim(config, accelerator):
        with before_start():
            trainer = make_trainer(config, owner, start, rewards, accelerator, again, callbacks)
            if config.resume or config.resume_from:
                last = step_of(config.resume_from) if config.resume_from else None
                if not trainer.resume(last):
                    print(f"{trainer.folder} has no checkpoint yet; starting from the beginning", flush=True)
        tracking.begin(accelerator, config, trainer.step)
        started = time.perf_counter()
        with end_engine_on_error(owner, trainer):
            with watch_processes(accelerator, again):
                evaluations = trainer.fit(trainer.folder / "model")
            wall = time.perf_counter() - started
            return finish(config, owner, trainer, evaluations, wall, accelerator)


@contextmanager
def end_engine_on_error(owner: Family | None, trainer: Trainer) -> Iterator[None]:
    """A ``with`` block that leaves a served engine to other runs also where the run fails; the process may go on."""
    try:
        yield
    except BaseException:
        if owner and owner.engines:
            owner.engines.end(trainer.policy)
        raise


def begin(config: Config) -> tuple[Config, Accelerator]:
    """The configuration as all processes agree on it, and their accelerator, after threads and seeds are set."""
    if sharding := devices.requested_sharding(os.environ):
        config = replace(config, distributed=replace(config.distributed, shard=sharding[0], replicate=sharding[1]))
    config.check(devices.processes_of(os.environ))
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    given = with_name(config)
    refuse_folder(given)
    accelerator = devices.accelerator(
        config.model.device, log_with=[*config.trackers] or None, project_dir=config.output_dir
    )
    return agree_on_name(given, accelerator), accelerator


def finish(
    config: Config,
    owner: Family | None,
    trainer: Trainer,
    evaluations: Mapping[str, Any],
    wall_seconds: float,
    accelerator: Accelerator,
) -> Result:
    """The summary and the report of a run that has ended."""
    folder = trainer.folder
    additions = owner.summary(config, trainer) if owner else {}
    summary = {
        "run": trainer.checkpoints.run,
        "modality": owner.modality if owner else "",
        "family": config.model.family,
        "preset": config.algorithm.preset,
        "preset_settings": {name: value for name, (value, _) in compare_with_preset(config).items()},
        "steps": trainer.step,
        "seconds": round(trainer.seconds, 3),
        "wall_seconds": round(wall_seconds, 3),
        "seed": config.seed,
        "skipped_steps": trainer.skipped,
        "nonfinite_steps": trainer.nonfinite_steps,
        "trained": directions(trainer.scorers, trainer.recipe),
        **evaluations,
        **({"rules": rules} if (rules := rules_of(trainer.scorers)) else {}),
        **additions,
    }
    if accelerator.is_main_process:
        from mmgrpo.report.hacking import alarms
        from mmgrpo.report.html import write_report
        from mmgrpo.report.idle import read_alarms
        from mmgrpo.report.model_card import add_model_card
        from mmgrpo.report.run_folder import read_measured

        raised = [*read_alarms(folder), *alarms(read_measured(folder))]
        summary["alarms"] = [alarm.as_dict() for alarm in raised]
        write_text(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False))
        write_report(folder)
        add_model_card(folder, config.model.path, owner.task if owner else "")
    if owner and owner.engines:
        owner.engines.end(trainer.policy)
    accelerator.end_training()
    return Result(folder, summary, trainer.policy)


def make_trainer(
    config: Config,
    owner: Family | None,
    start: Callable[[Accelerator], RunInputs],
    rewards: Sequence[Any],
    accelerator: Accelerator,
    again: str = "resume=True",
    callbacks: Sequence[Any] = (),
) -> Trainer:
    """The trainer of a run, ready to fit, in its folder."""
    algorithm = config.algorithm
    refuse_unshardable(config, owner)
    refuse_undivided(config, owner)
    if accelerator.num_processes > 1:
        TOGETHER[accelerator] = config.distributed.sequence
    refuse_engine(config, owner)
    refuse_absent_engine(config)
    run = run_id(config, accelerator)
    if config.rollout.url:
        from mmgrpo.engines.served import refuse_servers, title_of, token_of

        refuse_servers(config.rollout.url, token_of(config.rollout.token_file), run, title_of(config))
    if owner is not None:
        refuse_preset(algorithm.preset, owner.decisions(config))
    offline = config.data.offline
    reward_scorers = scorers(rewards, str(accelerator.device)) if rewards or offline < 1 else []
    if (absences := downloads(reward_scorers, os.environ)) and accelerator.is_main_process:
        print("\n".join(absences), flush=True)
    recipe = AdvantageRecipe.of(algorithm)
    loss = LossRecipe.read(algorithm)
    refuse_start(config.data.group_size, recipe, loss, reward_scorers, offline)
    stopping: Any = {"patience": config.eval.patience, "patience_reward": config.eval.patience_reward}
    stopping["every"] = config.eval.every
    kind: Any = {"offline": offline, "steps": config.steps, "staleness": config.rollout.max_staleness}
    sampled = values_of(sections_of(config))
    kind["reward_drift"] = sampled.get("sampling.reward_drift", "")
    kind["temperature_by_entropy"] = sampled.get("sampling.temperature_by_entropy", 0.0)
    kind["total_tokens"] = sampled.get("sampling.total_tokens", 0)
    attached = partial(methods, loss, config.optim, reward_scorers, weighting=recipe.weighting, **stopping, **kind)
    theirs = [load_callback(spec) for spec in callbacks]
    Callbacks([*attached(), *theirs])
    refuse_shape(config, owner, recipe, loss)
    # Bound here, so errors in any block precede the loading of a model.
    sampling = Sampling.of(algorithm.sampler, algorithm.trackers)
    changing = schedule_callbacks(recipe, loss, sampling, reward_scorers, of_settings(config), config.steps)
    refuse_ranges(recipe, sampling.trackers, reward_scorers)
    if config.rollout.max_staleness and config.rollout.engine != "served" and accelerator.is_main_process:
        print(
            f"rollout.max_staleness: rollout.engine={config.rollout.engine} draws in the trainer's process, so "
            "nothing overlaps: the numbers are those of rollout.engine=served, the time is not",
            flush=True,
        )
    with check_rows_with(reward_scorers):
        inputs = start(accelerator)
    used = {
        *recipe.fields,
        *config.eval.groups,
        *(KEYS if offline or config.data.comparison or reads_answers(loss) else ()),
    }
    readers = [*rewards, *values_of(sections_of(config)).get("sampling.tools", ())]
    unread = unread_keys(inputs.keys, inputs.rows, readers, used, owner, inputs.policy)
    if unread and accelerator.is_main_process:
        print(unread, flush=True)
    if loss.needs_reference:
        inputs.policy.keep_reference()
    splits, evaluation, folder = inputs.splits, config.eval, run_folder(config)
    origin = of_inputs(splits, inputs.policy.network)  # of the whole network, however many processes divide it
    if config.distributed.sequence > 1:
        divide_sequences(config, owner, inputs.policy, accelerator)
    if config.distributed.shard == "full":
        shard_networks(config, owner, inputs.policy, accelerator)
    if config.rollout.engine != "policy" and owner and owner.engines:
        place = accelerator.num_processes, accelerator.process_index
        owner.engines.draw(owner, config, inputs.policy, str(accelerator.device), *place, run)
    small = owner.displayed() if owner else display_form
    ledger, known = start_ledger(config, sampling, splits, reward_scorers)
    if config.data.ledger and accelerator.is_main_process:
        print(f"data.ledger: rewards of {known} of {len(splits.train)} training prompts are known", flush=True)
    sizes = config.data.prompts_per_step, config.data.group_size, config.data.prompts_at_once
    rounds = RoundSettings(*sizes, samplers=sampling)
    trainer = Trainer(
        policy=inputs.policy,
        scorers=reward_scorers,
        hyperparameters=Hyperparameters(recipe, loss, rounds, RewardWeights.of(reward_scorers)),
        prompts=TrainingPrompts(splits.train, ledger),
        optim=config.optim,
        steps=config.steps,
        seed=config.seed,
        evaluation=EvalSettings(
            prompts=splits.heldout,
            every=evaluation.every,
            samples=evaluation.samples,
            seed=evaluation.seed,
            batch_size=evaluation.batch_size,
            shown=config.samples_shown,
            extra=splits.extra,
            groups=evaluation.groups,
            patience=evaluation.patience,
            patience_reward=evaluation.patience_reward,
        ),
        record=RunRecord(
            Checkpoints(folder, accelerator, config.save_every, config.save_every_minutes, config.keep),
            GroupRecord(folder, config.groups_kept, config.steps, config.optim.steps_per_round, small),
            owner.write_samples if owner else lambda stem, shown: None,
            again,
        ),
        callbacks=[*attached(given=splits.supervised, images=shows_undecoded(splits.train)), *theirs, *changing],
    )
    skipped = [*inputs.skipped, *(row for callback in trainer.callbacks for row in callback.skipped)]
    # Last, so a run that cannot start leaves its folder as it was.
    identity = open_folder(config, origin, skipped, accelerator, run)
    trainer.checkpoints.run = identity.run if identity else ""
    return trainer


def refuse_shape(config: Config, owner: Family | None, recipe: AdvantageRecipe, loss: LossRecipe) -> None:
    """ValueError for blocks and settings that do not go together (``refuse_conflicts``), and for blocks that require of
    the rollouts of a run what its settings do not give (``refuse_unmet``)."""
    algorithm = config.algorithm
    schedules = {**of_settings(config), **schedules_of(Sampling.of(algorithm.sampler, algorithm.trackers))}
    listed = replace(config, schedules=[f"{name}={schedule.text}" for name, schedule in schedules.items()])
    facts = {DECISIONS: owner.decisions(config) if owner else "", PROCESS: config.process}
    refuse_conflicts(sections_of(listed), traits_of(recipe, loss, schedules), facts)
    samplers = Sampling.of(algorithm.sampler, algorithm.trackers).blocks
    if [*requirements_of(recipe, loss, samplers)]:
        refuse_unmet(recipe, loss, *traits_of_run(config, owner, loss), samplers)
    refuse_unread(recipe, loss, samplers)


def traits_of_run(config: Config, owner: Family | None, loss: LossRecipe) -> tuple[frozenset[str], bool]:
    """What the settings of a run give to its blocks, and whether that tells all that its policy has."""
    stated = owner.has if owner else None
    has = stated(config) if stated else frozenset[str]()
    data = {"answers": config.data.reference_in_group, "supervised": config.data.supervised}
    data |= {"evaluations": config.eval.every, "positive_weights": True}  # the trainer knows prompts and weights
    return has | of_algorithm(loss) | {name for name, holds in data.items() if holds}, stated is not None


def start_ledger(config: Config, sampling: Sampling, splits: Splits, rewards: Sequence[Scorer]) -> tuple[Ledger, int]:
    """The ledger of a run with what ``data.ledger`` says was measured, and of how many prompts that is."""
    ledger, path, known = sampling.ledger(splits.train, splits.files), config.data.ledger, {}
    if path:
        weights = {reward.name: reward.weight for reward in rewards}
        known = by_number(splits.train, read_measurements(path, weights), path)
        ledger.start(known)
    return ledger, len(known)


def divide_sequences(config: Config, owner: Family | None, policy: Policy, accelerator: Accelerator) -> None:
    """Let neighbouring processes divide the tokens that the networks of a policy read; nothing by one process."""
    assert owner is not None and owner.divide is not None  # refuse_undivided
    if accelerator.num_processes == 1:
        print("distributed.sequence: has no effect with one process", flush=True)
        return
    mesh = sequences_of(accelerator.device.type, config.distributed.sequence)
    for network in [policy.network, *policy.networks.model.reference.copies]:
        owner.divide(network, mesh)


def shard_networks(config: Config, owner: Family | None, policy: Policy, accelerator: Accelerator) -> None:
    """Divide the networks of a policy among the processes as ``distributed`` says; by one process they are moved to its
    device."""
    assert owner is not None  # refuse_unshardable
    networks = [policy.network, *policy.networks.model.reference.copies]
    by_engine = config.rollout.engine != "policy"  # it is sent whole weights while rollouts are drawn
    if accelerator.num_processes == 1:
        print("distributed.shard: full has no effect with one process, which holds the whole model", flush=True)
        for network in networks:
            network.to(accelerator.device)
        return
    shard(
        networks,
        owner.blocks,
        mesh_of(accelerator.device.type, config.distributed.replicate),
        # Plans of single prompts differ in their numbers of calls.
        in_step=owner.in_step and config.sampling.plan_per == "round",
        agree=not owner.in_step,
        whole_rollouts={"auto": by_engine or None, "blocks": False, "whole": True}[config.distributed.rollout_weights],
        compute=getattr(torch, getattr(config.model, "dtype", "float32")),
        others=lambda: policy.networks.replacements,
    )
