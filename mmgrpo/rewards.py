"""Rewards: functions from prompts and outputs to one number per output, by name or as Python functions.

    def brightness(prompts, outputs):
        return [float(output.pixels.mean()) for output in outputs]

Installed packages offer rewards by name (entry point ``mmgrpo.rewards``); any other function is named as
``module:function``. NaN marks an output that could not be scored; an exception stops the run. No reward returns a
plausible number on failure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.registry import nearest, parse
from mmgrpo.runtime import plugins
from mmgrpo.runtime.kinds import reward
from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt, Text

COMMON_PARAMETERS = ("weight",)
"""Parameters that every reward has: its weight in the weighted sum."""


@dataclass(frozen=True)
class RewardEntry:
    """A row of a table of rewards, whose entries are written ``module:function``."""

    function: str
    rates: str = ""
    """From the reward's parameters to its ``ErrorRate``s."""
    annotate: str = ""
    """From the reward's parameters to a function of prompts and outputs that returns annotations for people."""


def entries() -> Mapping[str, RewardEntry]:
    """All rewards that installed packages offer, by name."""
    rows = plugins.table(plugins.REWARDS)
    return {name: RewardEntry(row) if isinstance(row, str) else row for name, row in rows.items()}


def scorer(spec: str | Callable[..., Sequence[float]] | Scorer, device: str = "cpu") -> Scorer:
    """A reward from its text, ``name(weight=1.0, parameter=value)``, or from a function; weight 0 is logged only.

    A function with a parameter ``device`` receives the device of the run. Unknown names, modules, functions and
    parameters are errors that list the known ones.
    """
    if isinstance(spec, Scorer):
        return spec
    if callable(spec):
        return Scorer(getattr(spec, "__name__", type(spec).__name__), _bound(spec, {}, device))
    name, parameters = parse(spec)
    weight = parameters.pop("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ValueError(f"rewards: '{name}': got weight {weight!r}, expected a number")
    entry = RewardEntry(name) if ":" in name else entries().get(name)
    if entry is None:
        raise ValueError(
            f"rewards: there is no '{name}'.{nearest(name, entries())} "
            "A function of your own is named package.module:function."
        )
    function = plugins.load_object(entry.function, "rewards", own=":" in name, kind=reward)
    if not callable(function):
        raise ValueError(
            f"rewards: '{name}': got a {type(function).__name__}, expected a function of prompts and outputs"
        )
    accepted = list(inspect.signature(function).parameters)[2:]
    for parameter in parameters:
        if parameter not in accepted:
            raise ValueError(
                f"rewards: '{name}' has no parameter '{parameter}'."
                + nearest(parameter, [*accepted, *COMMON_PARAMETERS])
            )
    rates, annotate = (
        plugins.load_object(path, "rewards", own=False)(**parameters) if path else None
        for path in (entry.rates, entry.annotate)
    )
    return Scorer(name.split(":")[-1], _bound(function, parameters, device), float(weight), rates or (), annotate)


def scorers(specs: Sequence[Any], device: str = "cpu") -> list[Scorer]:
    """Several rewards; their names must differ."""
    if not specs:
        raise ValueError(f"rewards: got none, expected at least one of {', '.join(sorted(entries()))}")
    several = [scorer(spec, device) for spec in specs]
    names = [one.name for one in several]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"rewards: got '{name}' twice, expected different names, by which metrics are logged")
    return several


def _bound(function: Callable[..., Any], parameters: Mapping[str, Any], device: str) -> Any:
    defaults = {"device": device} if "device" in inspect.signature(function).parameters else {}
    return functools.partial(function, **{**defaults, **parameters})


def from_trl(function: Callable[..., Sequence[float | None]], name: str = "") -> Scorer:
    """A reward function in TRL's form, ``f(prompts, completions, **columns)``, with None for no score.

    Prompts and completions are strings; columns are ``answer``, ``task`` and the keys of the prompts' ``meta``.
    """

    def reward(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        texts = [output.text for output in outputs if isinstance(output, Text)]
        if len(texts) != len(outputs):
            raise TypeError(
                f"got outputs {sorted({type(o).__name__ for o in outputs})}, expected Text for a TRL reward"
            )
        names = sorted(set().union(*(prompt.meta for prompt in prompts)))
        columns: dict[str, list[Any]] = {key: [prompt.meta.get(key) for prompt in prompts] for key in names}
        columns |= {"answer": [prompt.answer for prompt in prompts], "task": [prompt.task for prompt in prompts]}
        values = function(prompts=[prompt.text for prompt in prompts], completions=texts, **columns)
        return [float("nan") if value is None else float(value) for value in values]

    return Scorer(name or getattr(function, "__name__", "reward"), reward)
