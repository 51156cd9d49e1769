"""Rewards: functions of prompts and outputs to one number each, looked up by name, or given as they are.

    def brightness(prompts, outputs):
        return [float(output.pixels.mean()) for output in outputs]

Installed packages offer rewards by name (entry point ``mmgrpo.rewards``); one of your own is ``module:function``
wherever a known name could stand. NaN says "could not be scored"; raising stops the run. No reward returns a plausible
number on failure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.registry import nearest, parse
from mmgrpo.runtime import plugins
from mmgrpo.scoring import Scorer
from mmgrpo.types import Output, Prompt, Text

NAMES_FOR_RUNS = ("weight",)
"""Parameters that every reward has: how much it counts."""


@dataclass(frozen=True)
class RewardEntry:
    """A row of a table of rewards: ``module:function`` of the reward, and of what belongs to it."""

    function: str
    rates: str = ""
    """Takes the reward's parameters, returns ``ErrorRate``s of whole sets."""
    annotate: str = ""
    """Takes the reward's parameters, returns a function of prompts and outputs to notes for people."""


def known() -> Mapping[str, RewardEntry]:
    """All rewards that installed packages offer, by name."""
    rows = plugins.table(plugins.REWARDS)
    return {name: RewardEntry(row) if isinstance(row, str) else row for name, row in rows.items()}


def scorer(spec: str | Callable[..., Sequence[float]] | Scorer, device: str = "cpu") -> Scorer:
    """A reward from its text, ``name(weight=1.0, parameter=value)``, or a function; weight 0 is logged, not trained on.

    A function that has a parameter ``device`` is told where models may run. Unknown names, modules, functions and
    parameters are errors that say what is known.
    """
    if isinstance(spec, Scorer):
        return spec
    if callable(spec):
        return Scorer(getattr(spec, "__name__", type(spec).__name__), _bound(spec, {}, device))
    name, parameters = parse(spec)
    weight = parameters.pop("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ValueError(f"rewards: '{name}' needs a number as weight, got {weight!r}")
    entry = RewardEntry(name) if ":" in name else known().get(name)
    if entry is None:
        raise ValueError(
            f"rewards: there is no '{name}'.{nearest(name, known())} "
            "A function of your own is written package.module:function."
        )
    function = plugins.load_object(entry.function, "rewards", own=":" in name)
    if not callable(function):
        raise ValueError(
            f"rewards: '{name}' is a {type(function).__name__}, expected a function of prompts and outputs"
        )
    accepted = list(inspect.signature(function).parameters)[2:]
    for parameter in parameters:
        if parameter not in accepted:
            raise ValueError(
                f"rewards: '{name}' has no parameter '{parameter}'.{nearest(parameter, [*accepted, *NAMES_FOR_RUNS])}"
            )
    rates, annotate = (
        plugins.load_object(path, "rewards", own=False)(**parameters) if path else None
        for path in (entry.rates, entry.annotate)
    )
    return Scorer(name.split(":")[-1], _bound(function, parameters, device), float(weight), rates or (), annotate)


def scorers(specs: Sequence[Any], device: str = "cpu") -> list[Scorer]:
    """Several rewards; their names must differ."""
    if not specs:
        raise ValueError(f"rewards: none is named; give at least one of {', '.join(sorted(known()))}")
    named = [scorer(spec, device) for spec in specs]
    names = [one.name for one in named]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"rewards: '{name}' is named twice; metrics could not tell the two apart")
    return named


def _bound(function: Callable[..., Any], parameters: Mapping[str, Any], device: str) -> Any:
    offered = {"device": device} if "device" in inspect.signature(function).parameters else {}
    return functools.partial(function, **{**offered, **parameters})


def from_trl(function: Callable[..., Sequence[float | None]], name: str = "") -> Scorer:
    """A reward function of TRL's kind: ``f(prompts, completions, **columns)``, with None for what has no score.

    Texts are given as plain strings; columns are ``answer``, ``task`` and what is in ``meta`` of every prompt.
    """

    def scored(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        texts = [output.text for output in outputs if isinstance(output, Text)]
        if len(texts) != len(outputs):
            raise TypeError("a reward of TRL's kind scores texts only")
        names = sorted(set().union(*(prompt.meta for prompt in prompts)))
        columns: dict[str, list[Any]] = {key: [prompt.meta.get(key) for prompt in prompts] for key in names}
        columns |= {"answer": [prompt.answer for prompt in prompts], "task": [prompt.task for prompt in prompts]}
        values = function(prompts=[prompt.text for prompt in prompts], completions=texts, **columns)
        return [float("nan") if value is None else float(value) for value in values]

    return Scorer(name or getattr(function, "__name__", "reward"), scored)
