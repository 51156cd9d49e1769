"""What is added to a plain run, by a method of the package or by its user: one protocol.

    attach                      when the run is made, before a checkpoint is read
    on_train_begin
        on_evaluate             before training, between rounds, after training
        drawing                 around what draws and scores a round, or in its place: round
            on_request          what is asked of the policy, a part of the round at a time
            on_draw             what it drew, before that is scored
            on_rows             the round is drawn and scored, and further rows may join it
        on_rollout_end          it has its advantages
        learn               something else learns from it, before the policy does
            move                an optimizer step by another rule
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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from accelerate import Accelerator
from jaxtyping import Bool
from torch import Tensor

from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.advantages.weighting import RewardWeights
from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import load_object
from mmgrpo.config.registry import Bound, parse
from mmgrpo.config.settings import Optim
from mmgrpo.data.media import Skipped
from mmgrpo.evaluation import Evaluation
from mmgrpo.prompts.drawing import Drawing, PromptOrder
from mmgrpo.prompts.ledger import Ledger
from mmgrpo.rollout import Round, RoundRows, RoundSettings
from mmgrpo.scoring import Scorer
from mmgrpo.types import Policy, Prompt, Request, Rollout
from mmgrpo.update import Batch, LossRecipe

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Choices:
    """What the settings of a recipe say of methods."""

    loss: LossRecipe
    optim: Optim
    scorers: Sequence[Scorer]
    patience: int = 0
    patience_reward: str = ""
    every: int = 0
    """Optimizer steps between evaluations."""
    given: Sequence[Prompt] = ()
    """The prompts of data.supervised."""
    images: bool = False
    """Whether prompts show images that may be decoded ahead."""
    offline: float = 0.0
    """The share of the run's steps that is made from given answers."""
    steps: int = 0
    """Optimizer steps of the run."""
    staleness: int = 0
    weighting: Sequence[Bound] = ()
    """The rules by which the weights of rewards change."""
    reward_drift: str = ""
    """sampling.reward_drift of denoising models."""
    temperature_by_entropy: float = 0.0
    """sampling.temperature_by_entropy of language models."""
    total_tokens: int = 0
    """sampling.total_tokens of language models."""

    def rules(self, method: str) -> list[Bound]:
        """The blocks of networks and of judging that a module of methods does (``Block.method``)."""
        return [rule for rule in (*self.loss.networks, *self.loss.judging) if rule.block.method == method]


@dataclass(frozen=True)
class Hyperparameters:
    """What a round, and each optimizer step of it, goes by."""

    recipe: AdvantageRecipe
    loss: LossRecipe
    rounds: RoundSettings
    weights: RewardWeights
    """Of the rewards."""


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
    recipe: AdvantageRecipe
    loss: LossRecipe
    """Both as they are at the present step."""
    ledger: Ledger
    """What is known of the training prompts."""
    order: PromptOrder
    cursor: int
    """Where in the order the next prompts are."""
    optim: Optim
    optimizer: torch.optim.Optimizer
    reward_weights: RewardWeights
    """Of the present round."""
    moved: bool
    """Whether the weights are others than those that drew the present round."""
    callbacks: Callbacks
    seed: int
    step: int
    """Optimizer steps so far."""
    seconds: float
    """Of training so far."""
    round: int
    """Rounds so far."""
    steps: int
    """Optimizer steps of the whole run."""

    def hyperparameters(self, step: int) -> Hyperparameters:
        """What an optimizer step, and the round that begins with it, goes by."""
        ...


class Callback:
    """Hooks that do nothing; a subclass defines those that it needs.

    Numbers that a hook returns are metrics of the run, by name: of ``on_rows``, ``on_rollout_end`` and ``on_step_end``
    in ``metrics.jsonl``, of ``on_evaluate`` in the file of the evaluation; all of them go to the trackers. A name that
    the run has itself is an error, as is a number that is not finite.
    """

    name: str = ""
    """How errors and checkpoints call it; empty: by its class."""
    key: ClassVar[str] = ""
    """What its state is called in checkpoints; empty: ``callback-<name>``."""
    groups: ClassVar[tuple[str, ...]] = ()
    """Beginnings of the names of its groups of tensors, where it has several: its tensors are named group/name."""

    used: Mapping[str, Any] = MappingProxyType({})
    """Settings for which it stands, with their values, so a trainer made by hand is refused what they exclude."""
    skipped: Sequence[Skipped] = ()
    """Prompts that it leaves out, which the folder of the run names."""

    def attach(self, run: Run) -> None:
        """Once, when the run is made and its weights are those before training."""

    def on_train_begin(self, run: Run) -> None:
        """Before the first evaluation; of a resumed run after its checkpoint was read."""

    def at(self, step: int, stated: Hyperparameters) -> Hyperparameters:
        """Those of an optimizer step, and of a round that begins with it, from what an earlier callback says. It has no
        effects: rounds that are drawn ahead ask for theirs before they begin."""
        return stated

    def gives(self, step: int) -> bool:
        """Whether the round that begins at an optimizer step is ``round`` and is not drawn from the policy."""
        return False

    def round(self, run: Run) -> Round:
        """A round that is not drawn."""
        raise NotImplementedError

    def drawing(self, run: Run) -> AbstractContextManager[Drawing | None]:
        """Context in which a round is drawn and scored; what it draws, where that was chosen before."""
        return nullcontext()

    def on_request(self, run: Run, request: Request) -> Request:
        """What is asked of the policy, from what an earlier callback asks."""
        return request

    def on_draw(self, run: Run, rollout: Rollout) -> Rollout:
        """What the policy drew for a request, before it is scored: the same decisions, to which fields may be added."""
        return rollout

    def on_rows(self, run: Run, rows: RoundRows) -> Numbers | None:
        """Add rows to those of a round, or let some give way (mmgrpo/rounds/rows.py), before its advantages are made.
        The same calls of ``rows`` on all processes."""

    def on_rollout_end(self, run: Run, round_: Round) -> Numbers | None:
        """After a round has its advantages, before its first optimizer step."""

    def learn(self, run: Run, batch: Batch) -> Numbers | None:
        """Learn from a round before the policy does. From here on an interrupted run goes back to its checkpoint."""

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        """Move the trained parameters, which hold the gradient of ``run.loss`` over ``rows`` of the batch; False where
        the optimizer moves them."""
        return False

    def on_step_end(self, run: Run, metrics: Numbers) -> Numbers | None:
        """After an optimizer step, also a skipped one, with its metrics and those of earlier callbacks; ``run.step``
        counts it."""

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
HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def _numbers(callback: Callback, hook: str, added: Mapping[str, Any], taken: Numbers) -> dict[str, float]:
    """The metrics that a hook returned, as numbers."""
    where, numbers = f"{type(callback).__name__}.{hook}", {}
    for name, value in added.items():
        if name in taken:
            raise ValueError(f"{where}: got the metric '{name}', which the run has already; choose another name")
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: got {value!r:.80} as the metric '{name}', expected a number") from error
        if not math.isfinite(numbers[name]):
            raise ValueError(f"{where}: got {numbers[name]} as the metric '{name}', expected a finite number")
    return numbers


class Callbacks:
    """The callbacks of a run, in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            name = callback.name or type(callback).__name__
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"callbacks: got the name '{name}', expected letters, digits, - and _")
            if unknown := [
                hook for hook in dir(type(callback)) if hook.startswith("on_") and not hasattr(Callback, hook)
            ]:
                raise ValueError(
                    f"callbacks: '{name}' has '{unknown[0]}', which nothing calls.{nearest(unknown[0], HOOKS)}"
                )
            if self.callbacks.setdefault(callback.key or PREFIX + name, callback) is not callback:
                raise ValueError(f"callbacks: got two of the name '{name}'; give one a 'name' of its own")

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks.values())

    @property
    def used(self) -> dict[str, Any]:
        """The settings for which they stand."""
        return {name: value for callback in self for name, value in callback.used.items()}

    def defines(self, hook: str) -> bool:
        """Whether a callback defines this hook."""
        return any(getattr(type(callback), hook) is not getattr(Callback, hook) for callback in self)

    def at(self, step: int, stated: Hyperparameters) -> Hyperparameters:
        """What an optimizer step, and a round that begins with it, goes by."""
        for callback in self:
            stated = callback.at(step, stated)
        return stated

    def giver(self, step: int) -> Callback | None:
        """The callback that makes the round which begins at an optimizer step, where it is not drawn."""
        return next((callback for callback in self if callback.gives(step)), None)

    @contextmanager
    def drawing(self, run: Run) -> Iterator[Drawing | None]:
        """Context in which a round is drawn and scored; what it draws, where that was chosen before."""
        with ExitStack() as stack:
            drawings = [stack.enter_context(callback.drawing(run)) for callback in self]
            yield next((drawing for drawing in drawings if drawing is not None), None)

    def change_request(self, run: Run, request: Request) -> Request:
        """What is asked of the policy for a request."""
        for callback in self:
            changed = callback.on_request(run, request)
            if not isinstance(changed, Request):
                raise ValueError(
                    f"{type(callback).__name__}.on_request: got {changed!r:.80}, expected a Request; return the one "
                    "that it was given, or dataclasses.replace(request, ...)"
                )
            request = changed
        return request

    def change_rollout(self, run: Run, rollout: Rollout) -> Rollout:
        """What the policy drew, with what callbacks add to it."""
        for callback in self:
            changed = callback.on_draw(run, rollout)
            if not isinstance(changed, Rollout):
                raise ValueError(
                    f"{type(callback).__name__}.on_draw: got {changed!r:.80}, expected a Rollout; return the one that "
                    "it was given, or rollout.with_decisions(...)"
                )
            rollout = changed
        return rollout

    def call(self, hook: str, run: Run, *given: Any, taken: Numbers | None = None) -> dict[str, float]:
        """Call a hook of all callbacks; the numbers that they return, the seconds of several as a sum. ``taken``:
        metrics that the run has already."""
        numbers: dict[str, float] = {}
        for callback in self:
            added = dict(getattr(callback, hook)(run, *given) or {})
            added |= {n: added[n] + numbers.pop(n) for n in [*added] if n.startswith("time/") and n in numbers}
            numbers |= _numbers(callback, hook, added, {**(taken or {}), **numbers})
        return numbers

    def after_step(self, run: Run, metrics: Numbers) -> dict[str, float]:
        """The metrics of an optimizer step with those that callbacks add, each of which sees those before it."""
        line = dict(metrics)
        for callback in self:
            line |= _numbers(callback, "on_step_end", callback.on_step_end(run, line) or {}, line)
        return line

    def move(self, run: Run, batch: Batch, rows: Bool[Tensor, " B"]) -> bool:
        """Whether a callback moved the parameters in the optimizer's place."""
        return any(callback.move(run, batch, rows) for callback in self)

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
        states = {key: state for key, callback in self.callbacks.items() if (state := callback.state()) is not None}
        for key, state in states.items():
            try:
                json.dumps(state)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{type(self.callbacks[key]).__name__}.state: {error}; return tensors by tensors()"
                ) from error
        return states

    def tables(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of all, by key or group."""
        tables: dict[str, dict[str, Tensor]] = {}
        for key, callback in self.callbacks.items():
            for name, tensor in callback.tensors().items():
                group, _, name = name.partition("/") if callback.groups else (key, "", name)
                tables.setdefault(group, {})[name] = tensor
        return tables

    def load(self, state: Mapping[str, Any], tables: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """Give each what the checkpoint of ``step`` has of it; ValueError for the state of one that is not here."""
        kept = {key for key in (*state, *tables) if key.startswith(PREFIX)}
        if lost := sorted(kept - self.callbacks.keys()):
            name = lost[0].removeprefix(PREFIX)
            raise ValueError(
                f"callbacks: the checkpoint has the state of '{name}', which this run has not; add it again"
            )
        for key, callback in self.callbacks.items():
            tensors = tables.get(key, {})
            if callback.groups:
                mine = {group: table for group, table in tables.items() if group.startswith(callback.groups)}
                tensors = {f"{group}/{name}": value for group, table in mine.items() for name, value in table.items()}
            callback.load(state.get(key), tensors, step)


def is_new(run: Run, title: str) -> bool:
    """Whether an evaluation of the held-out prompts was made just now; a resumed run reads that before training."""
    return title.startswith("step-") or title == "after" or (title == "before" and not run.step)
