"""Rewards: functions from prompts and outputs to one number per output, by name or as Python functions.

    def brightness(prompts, outputs):
        return [float(output.pixels.mean()) for output in outputs]

Installed packages offer rewards by name (entry point ``mmgrpo.rewards``); any other function is named as
``module:function``. NaN marks an output that could not be scored, and None one to which the reward does not apply, so
that the other rewards alone decide. An exception stops the run if the reward has a weight. No reward returns a
plausible number on failure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from mmgrpo.config import plugins
from mmgrpo.config.names import nearest
from mmgrpo.config.registry import parse
from mmgrpo.scoring import Scorer, trl
from mmgrpo.scoring.cache import with_cache
from mmgrpo.scoring.decisions import reads_rollout, records
from mmgrpo.scoring.load import common_parameters, load_reward
from mmgrpo.scoring.manifest import Manifest, entry_of
from mmgrpo.scoring.manifest import RewardEntry as RewardEntry
from mmgrpo.scoring.manifest import declared as declared
from mmgrpo.scoring.manifest import reward as reward
from mmgrpo.scoring.process import RewardProcess
from mmgrpo.types import Prompt


def entries() -> Mapping[str, RewardEntry]:
    """All rewards that installed packages offer, by name."""
    rows = plugins.table(plugins.REWARDS)
    return {name: RewardEntry(row) if isinstance(row, str) else row for name, row in rows.items()}


def scorer(spec: str | Callable[..., Sequence[float]] | Scorer, device: str = "cpu") -> Scorer:
    """A reward from its text, ``name(weight=1.0, parameter=value)``, or from a function; weight 0 is logged only.

    A named function of the user's own runs in a process of its own and may take ``timeout`` seconds for a batch, as its
    exit, crash or hang would be the run's: the overhead is small compared with sampling (``RewardProcess``). Rewards of
    packages do so where ``timeout`` or ``process=True`` is given. ``process=False`` is for a debugger; functions that
    are handed over in Python cannot be named to another process. A function with a parameter ``device`` receives the
    device of the run, or the one that is given. One in TRL's form serves as it is, named or handed over
    (``from_trl``). What ``@reward`` says of a function of the user's own holds as for
    those of packages. ``cache=True``, or a file, keeps scores (``cache.Cached``). Unknown names, modules, functions and
    parameters are errors that list the known ones.
    """
    if isinstance(spec, Scorer):
        return spec
    if callable(spec):
        name = getattr(spec, "__name__", type(spec).__name__)
        if trl.is_trl(spec):
            return from_trl(spec, name)
        accepts = "device" in inspect.signature(spec).parameters
        fn = functools.partial(spec, device=device) if accepts else spec
        entry = entry_of(spec)
        manifest, gradient = (
            (entry.read_manifest(), differentiable(entry, {}, device, custom=False)) if entry else (None, None)
        )
        reads = reads_rollout(spec)
        return Scorer(name, fn, reads_rollout=reads, manifest=manifest, records=records(spec), gradient=gradient)
    name, parameters = parse(spec)
    custom = ":" in name
    entry = RewardEntry(name) if custom else entries().get(name)
    if entry is None:
        raise ValueError(
            f"rewards: unknown reward '{name}'.{nearest(name, entries(), 'mmgrpo rewards')} "
            "A function of your own is named package.module:function."
        )
    common = common_parameters(name, parameters, custom, entry.elsewhere)
    if common.timeout:
        fn = RewardProcess(name, entry.function, parameters, device, common.timeout)
        reads, needs, recorded, stated = fn.reads_rollout, tuple(fn.needs), fn.records, fn.entry
    else:
        fn = load_reward(name, entry.function, parameters, device)
        stated = entry_of(fn)
        reads, needs = (
            reads_rollout(fn),
            tuple(trl.needed_columns(fn.func)) if trl.inside(fn.func) is not fn.func else (),
        )
        recorded = records(fn)
    entry = stated or entry if custom else entry
    if reads and common.cache:
        raise ValueError(f"rewards: '{name}' reads the rollout, which differs from round to round; remove cache=...")
    manifest = read_through(entry.read_manifest(), parameters)
    gradient = None if common.timeout or entry.elsewhere else differentiable(entry, parameters, device, custom)
    fn = with_cache(name, fn, parameters, manifest, common.cache)
    where = {"device": parameters.pop("device", device)}
    rates, annotate, _ = (
        plugins.load_object(path, "rewards", custom)(**parameters) if path else None
        for path in (entry.rates, entry.annotate, entry.check)
    )
    # Of a judge in another process nothing but its values is known.
    says = entry.remarks and not common.timeout
    remarks = plugins.load_object(entry.remarks, "rewards", custom)(**parameters, **where) if says else None
    check_row = (
        functools.partial(plugins.load_object(entry.row, "rewards", custom), **parameters) if entry.row else None
    )
    elsewhere = entry.elsewhere or bool(common.timeout)
    trusted = elsewhere or not custom
    return Scorer(
        common.title,
        fn,
        common.weight,
        rates or (),
        annotate,
        trusted,
        elsewhere,
        reads,
        needs,
        manifest,
        check_row,
        common.schedule,
        recorded,
        gradient,
        remarks,
    )


def differentiable(
    entry: RewardEntry, parameters: Mapping[str, Any], device: str, custom: bool
) -> Callable[[], Callable[[Sequence[Prompt], Tensor], Tensor]] | None:
    """What loads the differentiable form of a reward with these parameters, None where it has none."""
    if not entry.gradient:
        return None
    load = plugins.load_object(entry.gradient, "rewards", custom)
    accepts = "device" in inspect.signature(load).parameters
    return functools.partial(load, **{**({"device": device} if accepts else {}), **parameters})


def read_through(manifest: Manifest | None, parameters: Mapping[str, Any]) -> Manifest | None:
    """The manifest of a reward with these parameters: what the reward reads that it asks (``frames``, ``by_task``,
    ``win_rate``, ``served``) in place of ``reward``, which stays where that is not known, and no media with ``media``
    False. Its version rises with that of the asked reward, by which caches know both."""
    if manifest is None:
        return None
    reads, version, target = dict.fromkeys(manifest.reads), manifest.version, parameters.get("reward")
    if "reward" in reads and isinstance(target, str) and (entry := entries().get(target.partition("(")[0])):
        inner = read_through(entry.read_manifest(), parse(target)[1])
        if inner is not None:
            del reads["reward"]
            reads |= dict.fromkeys(inner.reads)
            version += inner.version - 1
    if parameters.get("media") is False:
        reads.pop("media", None)
    return replace(manifest, reads=tuple(reads), version=version)


def scorers(specs: Sequence[Any], device: str = "cpu") -> list[Scorer]:
    """Several rewards; their names must differ."""
    if not specs:
        raise ValueError(f"rewards: got none, expected at least one of {', '.join(sorted(entries()))}")
    built = [scorer(spec, device) for spec in specs]
    names = [s.name for s in built]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"rewards: got '{name}' twice, expected different names for the metrics (log_as=...)")
    return built


def from_trl(function: Callable[..., Any], name: str = "", messages: bool | None = None) -> Scorer:
    """A reward function in TRL's form, ``f(prompts, completions, **columns)``, with None where it does not apply.

    It is called as TRL calls it (``mmgrpo.scoring.trl``): prompts and completions are lists of messages where the row's
    prompt is a conversation and strings otherwise (``messages`` decides for all rows), columns have their own names.
    ``scorer`` knows one by its parameter ``completions`` or ``completion_ids``.
    """
    title = name or getattr(function, "__name__", "reward")
    return Scorer(title, trl.of_texts(function, messages, title), needs=tuple(trl.needed_columns(function)))
