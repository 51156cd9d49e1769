"""Reward functions that were written for TRL, ``f(prompts, completions, **columns)``.

They are called as ``GRPOTrainer`` calls them, by keywords: ``prompts`` and ``completions``, ``completion_ids``, one
list for each column of the rows under its own name (and ``answer`` and ``task``, our names), ``trainer_state``,
``log_extra`` and ``log_metric``. Where a prompt is a conversation, it and its completion are lists of messages,
otherwise texts. A function without ``**kwargs`` is given what it names. None abstains. Functions may be asynchronous.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import python_function, reward_function
from mmgrpo.config.ranges import check_type
from mmgrpo.scoring import current
from mmgrpo.types import Output, Prompt, Text, Turn

GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Arguments of every such function besides columns."""

OURS = ("answer", "task")
"""Columns that every row has here, by our name."""

MESSAGES = "messages"
"""Parameter of a function that is named in a recipe: whether all prompts are given as messages, or all as texts."""


@dataclass(frozen=True)
class TrainerState:
    """What transformers' ``TrainerState`` says of a run, as far as it is known here."""

    global_step: int
    max_steps: int
    is_world_process_zero: bool = True
    is_local_process_zero: bool = True
    log_history: list[dict[str, float]] = field(default_factory=list)


def is_trl(function: Any) -> bool:
    """Whether a function is of TRL's form: it has a parameter ``completions`` or ``completion_ids``, or takes columns
    by keywords only."""
    if python_function(function):
        return False
    parameters = inspect.signature(function).parameters
    if {"completions", "completion_ids"} & parameters.keys():
        return True
    keywords = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return keywords and bool(reward_function(function))


def is_factory(value: Any) -> bool:
    """Whether a function makes a reward, as ``trl.rewards.get_cosine_scaled_reward``: it is annotated to return a
    Callable."""
    if not inspect.isfunction(value) or is_trl(value):
        return False
    returned = inspect.get_annotations(value).get("return")
    return "Callable" in (returned if isinstance(returned, str) else repr(returned))


def either(value: Any) -> str:
    """A reward of our form or of TRL's, or what makes one."""
    return "" if is_trl(value) or is_factory(value) else reward_function(value)


def inside(function: Any) -> Any:
    """The user's function in a reward that ``of_texts`` made; any other as it is."""
    if getattr(function, "__module__", "") != __name__:
        return function
    return inspect.getclosurevars(inspect.unwrap(function)).nonlocals.get("function", function)


def needed_columns(function: Any) -> list[str]:
    """The columns without which a function in TRL's form cannot be called."""
    parameters = inspect.signature(inside(function)).parameters.values()
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        parameter for parameter in parameters if parameter.default is parameter.empty and parameter.kind not in starred
    ]
    return [parameter.name for parameter in required if parameter.name not in GIVEN + OURS]


def missing_column(name: str, needs: Sequence[str], prompts: Sequence[Prompt]) -> str:
    """The objection to rows none of which has a column that a reward needs; empty where there is none."""
    for column in needs:
        if prompts and not any(column in prompt.columns or column in prompt.meta for prompt in prompts):
            known = sorted({*prompts[0].columns, *prompts[0].meta, *OURS})
            return (
                f"reward '{name}' needs the column '{column}', which none of {len(prompts)} rows has."
                f"{nearest(column, known)} --data.columns THEIRS=meta.{column} gives them that of another name"
            )
    return ""


def of_texts(
    function: Callable[..., Any], messages: bool | None = None, name: str = ""
) -> Callable[..., list[float | None]]:
    """A reward in TRL's form as one of prompts and outputs. TypeError for outputs that are no texts, ValueError for
    ones without tokens where it reads ``completion_ids``. A column that a row lacks is None.

    ``messages`` gives all prompts and completions as messages, or all as texts; by default each as its row has it.
    """
    title = name or getattr(function, "__name__", type(function).__name__)
    needs = needed_columns(function)
    accepted = inspect.signature(function).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())

    def reward(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float | None]:
        texts = [output for output in outputs if isinstance(output, Text)]
        if len(texts) != len(outputs):
            raise TypeError(
                f"got outputs {sorted({type(o).__name__ for o in outputs})}, expected Text for a TRL reward"
            )
        if "completion_ids" in accepted and any(text.text and not text.ids for text in texts):
            raise ValueError(
                f"reward '{title}' reads completion_ids, which only completions that a policy sampled in this run have"
            )
        given = _arguments(title, prompts, texts, messages, needs)
        values = function(**(given if anything else {key: given[key] for key in given if key in accepted}))
        if inspect.isawaitable(values):
            values = _await_result(values)
        return [None if value is None else float(value) for value in values]

    return reward


def _arguments(
    title: str, prompts: Sequence[Prompt], texts: Sequence[Text], messages: bool | None, needs: Sequence[str]
) -> dict[str, Any]:
    rows = [{**prompt.meta, **prompt.columns} for prompt in prompts]
    names = sorted(set(needs).union(*rows) - {"prompt", "completion", "completion_ids", *GIVEN})
    columns: dict[str, list[Any]] = {key: [row.get(key) for row in rows] for key in names}
    columns |= {
        key: [row[key] if row.get(key) is not None else getattr(prompt, key) for prompt, row in zip(prompts, rows)]
        for key in OURS
    }
    spoken = [bool(prompt.turns) if messages is None else messages for prompt in prompts]
    now = current()
    return {
        **columns,
        "prompts": [as_messages(prompt) if talk else prompt.text for prompt, talk in zip(prompts, spoken)],
        "completions": [
            [*map(_message, text.turns), {"role": "assistant", "content": text.whole}] if talk else text.transcript
            for text, talk in zip(texts, spoken)
        ],
        "completion_ids": [list(text.ids) for text in texts],
        "trainer_state": TrainerState(now.step, now.steps),
        "log_extra": lambda column, values: _warn_unrecorded(title, "log_extra", column),
        "log_metric": lambda metric, value: _warn_unrecorded(title, "log_metric", metric),
    }


def as_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """A prompt as messages: the content is a text, or a list of blocks where there are media in it."""
    return [_message(turn) for turn in prompt.turns] or [{"role": "user", "content": prompt.text}]


def _message(turn: Turn) -> dict[str, Any]:
    if all(isinstance(part, str) for part in turn.parts):
        return {"role": turn.role, "content": "".join(map(str, turn.parts)), **turn.keys}
    blocks = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind, part.kind: part.source}
        for part in turn.parts
    ]
    return {"role": turn.role, "content": blocks, **turn.keys}


def _await_result(values: Any) -> Any:
    """The result of an asynchronous function, also where a loop of events runs in this thread (a notebook)."""

    async def wait() -> Any:
        return await values

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


_warned: set[tuple[str, str]] = set()


def _warn_unrecorded(title: str, function: str, what: str) -> None:
    if (title, function) not in _warned:
        _warned.add((title, function))
        warnings.warn(
            f"reward '{title}' calls {function}('{what}', ...), which is not recorded here; return it as a reward of "
            "weight 0 to see it in the metrics",
            stacklevel=4,
        )


def make_reward(function: Any, parameters: Mapping[str, Any], name: str) -> Any:
    """The reward that a factory makes of the parameters of a recipe; ValueError for parameters that it does not take,
    and for what is no reward."""
    signature = inspect.signature(function)
    for parameter in parameters:
        if parameter not in signature.parameters:
            raise ValueError(
                f"rewards: '{name}' has no parameter '{parameter}'.{nearest(parameter, signature.parameters)}"
            )
        check_type(function, parameter, parameters[parameter], f"rewards: '{name}': {parameter}")
    try:
        signature.bind(**parameters)
    except TypeError as error:
        raise ValueError(f"rewards: '{name}': {error}; write {name}(parameter=value)") from error
    reward = function(**parameters)
    if expected := "" if is_trl(reward) else reward_function(reward):
        raise ValueError(f"rewards: '{name}' made a {type(reward).__name__}, expected {expected}")
    return reward
