"""What is added to a plain run, by a method of the package or by its user: one protocol.

    attach                      when the run is made, before a checkpoint is read
    on_train_begin
        on_evaluate             before training, between rounds, after training
        on_rollout_end          a round is sampled and scored
            on_step_end         after each of its optimizer steps
        on_round_end            before its checkpoint
    on_train_end

A plain run has no callbacks and calls none. Hooks are called on all processes, in the order of the callbacks, which is
that of ``mmgrpo.rounds.methods`` and then the user's own.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.config.plugins import load_object
from mmgrpo.config.registry import parse
from mmgrpo.evaluation import Evaluation
from mmgrpo.rollout import Round
from mmgrpo.scoring import Scorer
from mmgrpo.types import Policy, Prompt

Numbers = Mapping[str, float]


@runtime_checkable
class Run(Protocol):
    """What a callback sees of the run."""

    folder: Path
    policy: Policy
    scorers: Sequence[Scorer]
    prompts: Sequence[Prompt]
    accelerator: Accelerator
    trained: Mapping[str, torch.nn.Parameter]
    """The trained parameters, by name."""
    seed: int
    step: int
    """Optimizer steps so far."""
    round: int
    """Rounds so far."""
    steps: int
    """Optimizer steps of the whole run."""


class Callback:
    """Hooks that do nothing; a subclass defines those that it needs.

    Numbers that a hook returns are metrics of the run, by name: of ``on_rollout_end`` and ``on_step_end`` in
    ``metrics.jsonl``, of ``on_evaluate`` in the file of the evaluation; all of them go to the trackers. A name of the
    run itself is an error, as is a number that is not finite.
    """

    name: str = ""
    """How errors and checkpoints call it; empty: by its class."""
    key: ClassVar[str] = ""
    """What its state is called in checkpoints; empty: ``callback-<name>``."""

    def attach(self, run: Run) -> None:
        """Once, when the run is made and its weights are those before training."""

    def on_train_begin(self, run: Run) -> None:
        """Before the first evaluation; of a resumed run after its checkpoint was read."""

    def on_rollout_end(self, run: Run, round_: Round) -> Numbers | None:
        """After a round was sampled and scored, before its first optimizer step."""

    def on_step_end(self, run: Run, metrics: Numbers) -> Numbers | None:
        """After an optimizer step, also a skipped one, with its metrics; ``run.step`` counts it."""

    def on_round_end(self, run: Run, round_: Round) -> None:
        """After the optimizer steps of a round, before its checkpoint and the evaluation that follows it."""

    def on_evaluate(self, run: Run, title: str, evaluation: Evaluation) -> Numbers | None:
        """After an evaluation: ``before``, ``step-000050``, ``after``, or of further prompts ``before-<name>``. A
        resumed run reads those before training again, and calls this again."""

    def on_train_end(self, run: Run) -> None:
        """After the last step and the last evaluation; not where the run fails or is interrupted."""

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Context in which the network has the weights that are evaluated and saved; later callbacks change those of
        earlier ones."""
        return nullcontext()

    def ended(self) -> str:
        """Why no further round follows; empty: it goes on. Equal on all processes."""
        return ""

    def summary(self) -> Mapping[str, Any]:
        """Sections of ``summary.json``."""
        return {}

    def state(self) -> Any:
        """What a resumed run needs, as JSON, for a checkpoint; None where it needs nothing."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The same as tensors."""
        return {}

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take back ``state`` and ``tensors`` as they were at ``step``; None and empty if it has none."""


def load_callback(spec: str | Callback) -> Callback:
    """The callback that ``package.module:Class(parameter=value)`` names; ValueError for what is none."""
    if isinstance(spec, Callback):
        return spec
    if not isinstance(spec, str):
        raise ValueError(f"callbacks: got {spec!r:.80}, expected an object of a subclass of mmgrpo.Callback")
    name, parameters = parse(spec)
    maker = load_object(name, "callbacks", kind=_is_subclass)
    try:
        inspect.signature(maker).bind(**parameters)
    except TypeError as error:
        raise ValueError(
            f"callbacks: '{spec}': {error}; it is {name.partition(':')[2]}{inspect.signature(maker)}"
        ) from None
    return maker(**parameters)


def _is_subclass(value: Any) -> str:
    right = isinstance(value, type) and issubclass(value, Callback)
    return "" if right else "a subclass of mmgrpo.Callback"


PREFIX = "callback-"


class Callbacks:
    """The callbacks of a run, in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks: dict[str, Callback] = {}
        for one in callbacks:
            name = one.name or type(one).__name__
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"callbacks: got the name '{name}', expected letters, digits, - and _")
            if self.callbacks.setdefault(one.key or PREFIX + name, one) is not one:
                raise ValueError(f"callbacks: got two of the name '{name}'; give one a 'name' of its own")

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks.values())

    def call(self, hook: str, run: Run, *given: Any, taken: Numbers | None = None) -> dict[str, float]:
        """Call a hook of all callbacks; the numbers that they return. ``taken``: metrics that the run has already."""
        numbers: dict[str, float] = {}
        for callback in self:
            for name, value in (getattr(callback, hook)(run, *given) or {}).items():
                numbers[name] = self._checked(
                    f"{type(callback).__name__}.{hook}", name, value, {**(taken or {}), **numbers}
                )
        return numbers

    def _checked(self, where: str, name: str, value: Any, taken: Numbers) -> float:
        """The value of a metric as a number."""
        if name in taken:
            raise ValueError(f"{where}: got the metric '{name}', which the run has already; choose another name")
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: got {value!r:.80} as the metric '{name}', expected a number") from error
        if not math.isfinite(number):
            raise ValueError(f"{where}: got {number} as the metric '{name}', expected a finite number")
        return number

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        """Context of the weights that are evaluated and saved."""
        with ExitStack() as stack:
            for callback in self:
                stack.enter_context(callback.evaluated_weights())
            yield

    def ended(self) -> str:
        """Why no further round follows; empty: it goes on."""
        return next((reason for callback in self if (reason := callback.ended())), "")

    def summary(self) -> dict[str, Any]:
        """The sections that callbacks add to ``summary.json``."""
        return {name: section for callback in self for name, section in callback.summary().items()}

    def state(self) -> dict[str, Any]:
        """The states of those that have one, by key."""
        states = {key: state for key, one in self.callbacks.items() if (state := one.state()) is not None}
        for key, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{type(self.callbacks[key]).__name__}.state: {error}; return tensors by tensors()"
                ) from error
        return states

    def tables(self) -> dict[str, Mapping[str, Tensor]]:
        """The tensors of all, by key."""
        return {key: one.tensors() for key, one in self.callbacks.items()}

    def load(self, state: Mapping[str, Any], tables: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """Give each what the checkpoint of ``step`` has of it; ValueError for the state of one that is not here."""
        kept = {key for key in (*state, *tables) if key.startswith(PREFIX)}
        if lost := sorted(kept - self.callbacks.keys()):
            name = lost[0].removeprefix(PREFIX)
            raise ValueError(
                f"callbacks: the checkpoint has the state of '{name}', which this run has not; add it again"
            )
        for key, one in self.callbacks.items():
            one.load(state.get(key), tables.get(key, {}), step)
