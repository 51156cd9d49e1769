"""What a reward may read of the rollout: it has a parameter ``rollout``, and is given the numbers of its rows.

    def confidence(prompts, outputs, *, rollout):
        log_probs, mask = rollout.log_probs, rollout.decision_mask       # [B, T], one row per output
        return (log_probs.where(mask, 0.0).sum(1) / mask.sum(1)).tolist()

``rollout`` is the ``Decisions`` of the policy: log-probabilities, masks (whose sum is the length in decisions), and the
fields that it records, e.g. ``entropy``. It is a copy on the CPU. An evaluation samples without recording decisions.

Some numbers cost the policy more than its samples do. It records them if a reward has a parameter of their name
(``RECORDS``), which is then given one number per output:

    def certain(prompts, outputs, *, certainty):
        return certainty.tolist()                                        # [B]
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from mmgrpo.types import RECORDS, Decisions, Output, Prompt

PARAMETER = "rollout"


def records(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names in ``RECORDS`` that a reward has as parameters."""
    return tuple(name for name in RECORDS if name in inspect.signature(function).parameters)


def reads_rollout(function: Callable[..., Any]) -> bool:
    """Whether a reward has the parameter ``rollout``, or one of ``RECORDS``."""
    return PARAMETER in inspect.signature(function).parameters or bool(records(function))


def rollout_arguments(function: Callable[..., Any], rollout: Decisions) -> dict[str, Any]:
    """The arguments of a reward that come from the rollout, by name."""
    parameters = inspect.signature(function).parameters
    given: dict[str, Any] = {PARAMETER: rollout} if PARAMETER in parameters else {}
    for name in records(function):
        if name not in rollout.fields:
            raise ValueError(f"it reads {name}, which this policy does not record; leave the reward out")
        value, mask = rollout.fields[name], rollout.decision_mask
        if value.dim() == 2:
            value = value.where(mask, 0.0).sum(1) / mask.sum(1).clamp_min(1)
        given[name] = value
    return given


_warned: set[str] = set()


def with_decisions(name: str, function: Callable[..., Any], rollout: Decisions | None) -> Callable[..., Any]:
    """A reward that reads the rollout, as one of prompts and outputs alone; without decisions all its values are NaN,
    with a warning, once for each reward."""
    if rollout is not None:
        copy = Decisions(**plain(rollout))
        whole = PARAMETER in inspect.signature(function).parameters and not records(function)
        return functools.partial(function, **({PARAMETER: copy} if whole else rollout_arguments(function, copy)))
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"reward '{name}' reads the decisions of a rollout and is left out where there are none (evaluation)",
            stacklevel=3,
        )
    return _nothing


def _nothing(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    return [math.nan] * len(outputs)


def plain(rollout: Decisions) -> dict[str, Any]:
    """The fields of decisions by name, all tensors copied to the CPU."""
    return {field.name: _copy_to_host(getattr(rollout, field.name)) for field in fields(rollout)}


def _copy_to_host(value: Tensor | Mapping[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in value.items()}
