"""From the text of a reward to its function and to the parameters that every named reward has."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.config import plugins
from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import check_type
from mmgrpo.config.schedules import Schedule
from mmgrpo.scoring import trl
from mmgrpo.scoring.decisions import PARAMETER, records
from mmgrpo.scoring.isolation import in_words

COMMON_PARAMETERS = ("weight", "timeout", "process", "device", "cache", "log_as")
"""Parameters that every named reward has (``mmgrpo.rewards.scorer``)."""

TIMEOUT = 600.0
"""Seconds that a reward in a process of its own may take for a batch, unless ``timeout`` says otherwise."""


@dataclass(frozen=True)
class Common:
    """The values of the parameters that every named reward has."""

    title: str
    """Its name in metrics."""
    weight: float
    timeout: float
    """Seconds for a batch in a process of its own; 0 for one in the run's own process."""
    cache: bool | str
    """Whether scores are cached, or in which file."""
    schedule: Schedule | None = None
    """What its weight follows; ``weight`` is then the value of it that lies farthest from 0."""


def common_parameters(name: str, parameters: dict[str, Any], custom: bool, elsewhere: bool) -> Common:
    """The common parameters of a reward, taken out of its ``parameters`` but for ``device``.

    A reward that is computed ``elsewhere`` has the name that it has there, a ``timeout`` of its own meaning, and no
    process or cache here.
    """
    title = parameters.pop("log_as", str(parameters.get("reward", name) if elsewhere else name).split(":")[-1])
    if not isinstance(title, str) or not re.fullmatch(r"[\w.-]+", title):
        raise ValueError(f"rewards: '{name}': got log_as {title!r}, expected letters, digits, '_', '.' and '-'")
    stated = parameters.pop("weight", 1.0)
    schedule = stated if isinstance(stated, Schedule) else None
    weight: Any = max(schedule.levels, key=abs) if schedule else stated
    for parameter, value in parameters.items():
        if isinstance(value, Schedule):
            raise ValueError(
                f"rewards: '{name}': got {parameter} {value.text}, expected a value; only weight may change"
            )
    if not _is_number(weight) or not math.isfinite(weight):
        raise ValueError(f"rewards: '{name}': got weight {weight!r}, expected a number")
    if elsewhere:
        if unfit := [option for option in ("process", "cache") if option in parameters]:
            raise ValueError(f"rewards: '{name}': got {unfit[0]}, which is for the reward of the server; name it there")
        return Common(title, float(weight), 0.0, False, schedule)
    timeout, cache = parameters.pop("timeout", None), parameters.pop("cache", False)
    process = parameters.pop("process", custom or timeout is not None)
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise ValueError(f"rewards: '{name}': got timeout {timeout!r}, expected a positive number of seconds, or inf")
    if not isinstance(process, bool):
        raise ValueError(f"rewards: '{name}': got process {process!r}, expected True or False")
    if timeout is not None and not process:
        raise ValueError(
            f"rewards: '{name}': got timeout {timeout!r} and process False, expected only one of them: in the process "
            "of the run no reward can be stopped"
        )
    if not isinstance(cache, bool) and not (isinstance(cache, str) and cache):
        raise ValueError(f"rewards: '{name}': got cache {cache!r}, expected True, False or the path of a file")
    seconds = (TIMEOUT if timeout is None else float(timeout)) if process else 0.0
    return Common(title, float(weight), seconds, cache, schedule)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def load_reward(name: str, path: str, parameters: Mapping[str, Any], device: str) -> Callable[..., Any]:
    """The function ``module:function`` at ``path``, with its parameters bound; one named ``device`` is that of the run.

    Where ``name`` is the path itself, the module is the user's own (``plugins.load_object``). A function in TRL's form
    serves as it is, and has no parameters but columns and ``messages`` (``trl.of_texts``); one that makes such a
    function is called with the parameters. A module that cannot be imported, what is no function of prompts and
    outputs, unknown or missing parameters, and values that are not of a parameter's type are ValueErrors.
    """
    try:
        function = plugins.load_object(path, "rewards", own=name == path, kind=trl.either)
    except (ValueError, ModuleNotFoundError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ValueError(f"rewards: '{name}' cannot be loaded: {in_words(error)}") from error
    given = dict(parameters)
    if trl.is_factory(function):
        messages, given = given.pop(trl.MESSAGES, None), {key: given[key] for key in given if key != "device"}
        function = trl.make_reward(function, given, name)
        parameters = {} if messages is None else {trl.MESSAGES: messages}
    if trl.is_trl(function):
        parameters = dict(parameters)
        messages = parameters.pop(trl.MESSAGES, None)
        if not (messages is None or isinstance(messages, bool)):
            raise ValueError(f"rewards: '{name}': got messages {messages!r}, expected True or False")
        function = trl.of_texts(function, messages, name.split(":")[-1])
    signature = inspect.signature(function)
    accepted = list(signature.parameters)
    for parameter in parameters:
        if parameter not in accepted[2:] or parameter in (PARAMETER, *records(function)):
            raise ValueError(
                f"rewards: '{name}' has no parameter '{parameter}'."
                + nearest(parameter, {*accepted[2:], *COMMON_PARAMETERS})
            )
        check_type(function, parameter, parameters[parameter], f"rewards: '{name}': {parameter}")
    given = {**({"device": device} if "device" in accepted else {}), **parameters}
    try:
        signature.bind((), (), **given, **dict.fromkeys({PARAMETER, *records(function)} & {*accepted}))
    except TypeError as error:
        raise ValueError(
            f"rewards: '{name}': got a function of {signature}, expected one that can be called with prompts and "
            f"outputs and with {given}: {error}"
        ) from error
    return functools.partial(function, **given)
