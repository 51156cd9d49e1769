"""Completions of several turns: the policy calls tools, and reads what they answer in its next turn.

    <tool_call> ... <end>     user: <tool_response> ... assistant:     The answer is 7 <end>
    written                   observed                                 written

All of it is one row, and unless it sums up its context (``Summaries``) one sequence. Its tokens are those that were
drawn, never spelled again, and those that the chat template writes behind a turn that tools have answered
(``mmgrpo.data.chat.ChatTemplate.reply``). Observed tokens are read by the network and are no decisions. All unfinished
completions of a batch are continued together, by whatever draws them.

A tool is a function, or a public method of a class, of which each completion has an instance of its own. Its method
``reset(prompt, seed)`` begins it, and may return a text that the completions read behind the prompt; ``turn_reward()``
says after each turn what it reached (the field ``step_rewards``), ``state()`` where it has led (the field ``state``),
and ``reward()`` at the end what was reached in all (the reward ``tool_reward``).

What goes wrong is of two kinds. What the policy asked for, a call that raises or takes too long, it reads as the
result. What the world did by itself, an instance that cannot begin, whose process ends, or that raises ``WorldFailed``,
ends the completion, which no reward scores (``Text.fault``); ``FAILURES`` prompts of this kind in a row end the run.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import short_repr
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.messages import append_text
from mmgrpo.policies.generation import Generated
from mmgrpo.policies.token_model import Query, Showing, Speller, TokenModel
from mmgrpo.policies.tool_calls import arguments_of, calls_of
from mmgrpo.policies.tool_table import WorldFailed, having, offered, opens, reset_parameters
from mmgrpo.randomness import derive
from mmgrpo.types import Call, Image, Media, Prompt, Turn

STREAMS = 1 << 20
"""Random streams that the later turns of a prompt's completions have, from the number of its prompt times this on."""

ENDS = ("answered", "turns", "tokens", "unreadable", "failed", "summaries")
"""Why a completion ended: with a turn without a call, with a call in its last turn, at its last token, with calls that
cannot be read (``unreadable_calls``), as its world failed, or with a context that is full after the last summary."""

CUT = ("tokens", "summaries")
"""Ends of completions that were cut off."""

FAILURES = 8
"""Prompts in a row with which a run ends where the worlds of all their completions have failed."""

CHARACTERS, MARGIN = 16, 16
"""Characters of a result that are spelled for each token that is read, and tokens behind them whose spelling may be
another since the text is cut there."""

NUMBERS = ("turns", "tool_calls", "failed_calls", "turns_end")
"""What a policy with tools records of each completion, the last the place of its end in ``ENDS``."""

WALKING = frozenset({"answer_probability", "segment", "character", "gradient_feature", "visual_dependency"})
"""Records that read a completion as one text of the policy."""

if TYPE_CHECKING:
    from mmgrpo.policies.tool_process import Copy, ToolProcess

S = TypeVar("S")
T = TypeVar("T")

Parts: TypeAlias = str | Sequence[Mapping[str, str]]
"""The content of a message: a text, or parts of texts and media."""

Draw: TypeAlias = Callable[[Sequence[Query], int, int], Generated]
"""Continues queries by at most a number of tokens, in the turn of a number."""


class Context(NamedTuple):
    """Where a context of a completion begins, and the prompt that it is read behind."""

    prompt: Prompt
    token: int = 0
    shown: int = 0
    """Tokens of the completion, and media in it, before the context."""


@dataclass(frozen=True)
class Summaries:
    """When a completion sums up its context and goes on with the prompt and the summary alone (SUPO,
    arXiv:2510.06727)."""

    tokens: int
    """Tokens behind the prompt beyond which a context is summed up, when the calls of a turn were answered."""
    most: int
    """Summaries of a completion; where the context after the last is full, it ends."""
    asked: str
    """What the model reads at the end of the last answer: that it is to write the summary."""

    def again(self, prompt: Prompt, summary: str) -> Prompt:
        """The prompt of the next context."""
        return append_text(prompt, f"\n\nSummary of the work so far:\n{summary}")


@runtime_checkable
class Growing(Protocol):
    """What makes trees of completions (``turn_trees``)."""

    def grow(
        self,
        chains: Sequence[Episode],
        seed: int,
        fork: Callable[[Episode, int, int], Episode],
        go_on: Callable[[Sequence[Episode], int], None],
        made: Callable[[Episode], None],
    ) -> list[tuple[Episode, int]]:
        """The leaves of all trees, each with the number of its tree."""
        ...


@dataclass
class Episode:
    """A completion so far: what was drawn and read, and its instances of the tools that are classes."""

    query: Query
    member: int
    ids: list[int] = field(default_factory=list)
    observed: list[bool] = field(default_factory=list)
    numbers: dict[str, list[float]] = field(default_factory=dict)
    """Of each token what was recorded of it, 0 where it was observed."""
    text: str = ""
    last: list[int] = field(default_factory=list)
    """Text and tokens of the newest turn of the policy."""
    begun: list[tuple[int, int]] = field(default_factory=list)
    """The number of tokens before each turn of the policy, and of media in them."""
    ends: list[int] = field(default_factory=list)
    """The place of the last token of each turn of the policy."""
    earned: list[float] = field(default_factory=list)
    """What its tools gave to each of them; NaN where one failed."""
    states: list[int] = field(default_factory=list)
    """The number of the state in which each of them is taken (``number_of``), where they are asked for."""
    actions: list[int] = field(default_factory=list)
    """That of what each of them does."""
    turns: list[Turn] = field(default_factory=list)
    shown: list[Media] = field(default_factory=list)
    """The media that tools have returned."""
    calls: list[Call] = field(default_factory=list)
    unreadable: int = 0
    """The newest calls in a row that could not be read."""
    end: str = ""
    reward: float | None = None
    """What its tools gave it; NaN where one failed, None without such tools."""
    fault: str = ""
    """Why its world failed, after which nothing of it is scored."""
    contexts: list[Context] = field(default_factory=list)
    """The present one last."""
    summing: bool = False
    """Whether the next turn is a summary."""
    before: list[tuple[int, int]] = field(default_factory=list)
    """The number of turns and of calls before each turn of the policy."""
    parent: Episode | None = None
    """Of which it shares the first turns."""
    shared_turns: int = 0
    shared_tokens: int = 0
    instances: dict[type, Copy] = field(default_factory=dict)
    """The processes of its instances; closed ones did not answer in time or ended, and answer no more."""

    @property
    def turn(self) -> int:
        """Turns of the policy so far."""
        return len(self.ends)

    def __post_init__(self) -> None:
        self.contexts.append(Context(self.query.prompt))

    @property
    def here(self) -> Context:
        """The present context."""
        return self.contexts[-1]

    @property
    def written(self) -> int:
        """Tokens that the policy wrote."""
        return len(self.ids) - sum(self.observed)


class Span(NamedTuple):
    """A context of a finished completion."""

    row: int
    prompt: Prompt
    begin: int
    """The column of its first token."""
    length: int
    shown: tuple[Media, ...]


@dataclass(frozen=True)
class Conversations:
    """Finished completions as tensors."""

    episodes: Sequence[Episode]
    drawn: Generated
    observed: Bool[Tensor, "B T"]
    trees: Sequence[int] = ()
    """The number of the tree of each, where they are leaves of some."""

    @property
    def spans(self) -> list[Span]:
        """The contexts in which something was written, those of a completion one after the other."""
        ends = [
            (row, now, Context(one.query.prompt, len(one.ids), len(one.shown)) if then is None else then, one)
            for row, one in enumerate(self.episodes)
            for now, then in zip_longest(one.contexts, one.contexts[1:])
        ]
        return [
            Span(row, now.prompt, now.token, then.token - now.token, tuple(one.shown[now.shown : then.shown]))
            for row, now, then, one in ends
            if now.token < then.token
        ]

    @property
    def shown(self) -> Sequence[tuple[Media, ...]]:
        """The media in each completion; empty if none has any."""
        return [tuple(one.shown) for one in self.episodes] if any(one.shown for one in self.episodes) else ()

    @property
    def ended(self) -> Bool[Tensor, " B"]:
        """Completions that were not cut off."""
        ended = torch.tensor([one.end not in CUT for one in self.episodes])
        return ended.to(self.observed.device)

    def fields(self, records: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """``NUMBERS`` of each completion and ``world_failed``, ``turn``, ``state`` and ``action`` where they are asked
        for, and the rewards of turns with them or where tools have given some."""
        rows = [
            (one.turn, len(one.calls), sum(bool(call.error) for call in one.calls), ENDS.index(one.end))
            for one in self.episodes
        ]
        numbers: dict[str, Tensor] = dict(
            zip(NUMBERS, torch.tensor(rows, dtype=torch.float32).to(self.observed.device).T)
        )
        numbers["world_failed"] = torch.tensor([float(bool(one.fault)) for one in self.episodes]).to(
            self.observed.device
        )
        if "turn" in records:
            numbers["turn"] = self.turn
        if "state" in records:
            numbers["state"] = self.of_turns([one.states for one in self.episodes])
        if "action" in records:
            numbers["action"] = self.of_turns([one.actions for one in self.episodes])
        rewarded = "turn" in records or any(one.earned for one in self.episodes)
        return numbers | {"step_rewards": self.step_rewards} if rewarded else numbers

    @property
    def step_rewards(self) -> Float[Tensor, "B T"]:
        """What the tools gave to each turn, at its last token, and 0 elsewhere; NaN where one failed."""
        table = torch.zeros(self.observed.shape)
        for row, one in zip(table, self.episodes, strict=True):
            row[one.ends[: len(one.earned)]] = torch.tensor(one.earned)
        return table.to(self.observed.device)

    def of_turns(self, numbers: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
        """At each token of the policy the number that its turn has; 0 elsewhere."""
        turn, width = self.turn, max(one.turn for one in self.episodes)
        pairs = zip(self.episodes, numbers, strict=True)
        table = torch.tensor([[*own[: one.turn], *[0] * (width - one.turn)] for one, own in pairs])
        return torch.where(turn >= 0, table.to(turn.device).gather(1, turn.clamp(min=0)), 0)

    @property
    def turn(self) -> Int[Tensor, "B T"]:
        """The number of the turn that each token of the policy is in, from 0; -1 elsewhere."""
        begun = torch.zeros(self.observed.shape, dtype=torch.long)
        for row, one in zip(begun, self.episodes, strict=True):
            row[[end + 1 for end in one.ends[:-1]]] = 1
        written = self.drawn.real & ~self.observed
        return torch.where(written, begun.cumsum(1).to(written.device), -1)


@dataclass(frozen=True)
class Tools:
    """The tools of a run, and their limits."""

    tools: Sequence[Any]
    """Functions and classes."""
    reply: Callable[[Sequence[Parts]], str]
    """What the chat template writes behind a turn whose calls have these results, up to the next turn of the policy."""
    turns: int
    """Turns of the policy in a completion; the calls of the last are not answered."""
    observation_tokens: int
    """Tokens to which a result is cut."""
    seconds: float
    """Time in which a call must be answered."""
    special: Sequence[str] = ()
    """Special tokens of the tokenizer, which a result cannot write."""
    prefilled: str = ""
    """What the chat template writes of each turn of the policy itself, an opened thought."""
    workers: int = 1
    """Completions whose calls are answered at a time."""
    calls_per_turn: int = 0
    """Calls of a turn that are answered; 0: all."""
    names: Sequence[str] = ()
    """Where another Python finds the tools, ``module:name``; empty: their process is a fork of this one."""
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The JSON schema of each tool's parameters that the model is shown, by which arguments are read."""
    unreadable_calls: int = 0
    """Calls in a row that cannot be read, with which a completion ends; 0: it goes on."""
    memory: int = 0
    """Bytes that the process of an instance, or of a function, may take beyond what all share; 0: any number."""
    summaries: Summaries | None = None
    """When contexts are summed up; None: never."""

    @cached_property
    def table(self) -> dict[str, tuple[type | None, Callable[..., Any]]]:
        """``offered``, of these tools."""
        return offered(self.tools)

    @cached_property
    def rewarding(self) -> list[type]:
        """The classes that reward their completions."""
        return having(self.tools, "reward")

    @cached_property
    def opening(self) -> list[type]:
        """The classes that write behind the prompt."""
        return [tool for tool in self.tools if isinstance(tool, type) and opens(tool)]

    def opened(self, queries: Sequence[Query], seed: int) -> list[Query]:
        """The queries with what the classes write behind their prompts; all completions of a prompt read the same, and
        nothing where a class cannot begin."""
        if not self.opening:
            return list(queries)

        def begun(owner: type, query: Query) -> str:
            copy, text = self._begun(owner, query, seed)
            self.process.leave(copy, self.seconds)
            return text

        def written(query: Query) -> Query:
            try:
                return replace(query, opening=tuple(begun(owner, query) for owner in self.opening))
            except WorldFailed as error:
                return replace(query, opening=("",) * len(self.opening), fault=str(error))

        return [*self._each(queries, written)]

    @cached_property
    def rewarding_turns(self) -> list[type]:
        """The classes that reward single turns."""
        return having(self.tools, "turn_reward")

    @cached_property
    def stating(self) -> list[type]:
        """The classes that name the states of their instances."""
        return having(self.tools, "state")

    @cached_property
    def process(self) -> ToolProcess:
        """Where they are called."""
        from mmgrpo.policies.tool_process import ToolProcess

        return ToolProcess(self.tools, self.names, self.memory)

    def converse(
        self,
        first: Generated,
        queries: Sequence[Query],
        draw: Draw,
        model: TokenModel,
        ends: frozenset[int],
        most: int,
        seed: int,
        keyed: bool = False,
        tree: Growing | None = None,
    ) -> Conversations:
        """The completions that begin with ``first``, whose row i is of ``queries[i]``, at most ``most`` tokens each;
        ``keyed``: with the states and actions of their turns. With a ``tree`` they are the first of their trees, whose
        leaves are returned."""
        members: dict[int, int] = {}
        rows = []
        for query in queries:
            opened = [Turn("user", (text,))] if (text := "".join(query.opening)) else []
            rows.append(Episode(query, members.setdefault(query.slot, 0), turns=opened, fault=query.fault))
            members[query.slot] += 1
        begun, trees = [*rows], list[int]()

        def go_on(some: Sequence[Episode], number: int) -> None:
            self._converse(some, None, draw, model, ends, most, seed, keyed, (number + 1) * STREAMS)

        try:
            self._converse(rows, first, draw, model, ends, most, seed, keyed)
            if tree:
                leaves = tree.grow(rows, seed, partial(self._forked, seed=seed), go_on, begun.append)
                rows, trees = [one for one, _ in leaves], [number for _, number in leaves]
        finally:
            for one in begun:
                for copy in one.instances.values():
                    self.process.leave(copy, self.seconds)
        self._count(rows)
        return replace(_joined(rows, first, model.pad_id), trees=trees)

    def _forked(self, one: Episode, turn: int, member: int, seed: int) -> Episode:
        """A completion that goes on from before a turn of another: with its tokens and calls, which are made again in
        instances of its own. RuntimeError where they are answered otherwise."""
        (tokens, shown_), (turns, calls) = one.begun[turn], one.before[turn]
        fork = Episode(
            one.query,
            member,
            one.ids[:tokens],
            one.observed[:tokens],
            {name: values[:tokens] for name, values in one.numbers.items()},
            begun=one.begun[:turn],
            ends=one.ends[:turn],
            earned=one.earned[:turn],
            states=one.states[: turn + 1],
            actions=one.actions[:turn],
            turns=one.turns[:turns],
            shown=one.shown[:shown_],
            calls=one.calls[:calls],
            before=one.before[:turn],
            fault=one.query.fault,
            parent=one,
            shared_turns=turn,
            shared_tokens=tokens,
        )
        if not one.instances:
            return fork
        for place in range(turn):
            first, made = one.before[place]
            written = str(one.turns[first].parts[0])
            for number, (name, given) in enumerate(calls_of(written)[: self.calls_per_turn or None]):
                if name not in self.table or self.table[name][0] is None:
                    continue
                again, was = self._answered(fork, name, given, seed), one.calls[made + number]
                if (again.result, again.error) != (was.result, was.error):
                    raise RuntimeError(
                        f"sampling.tree: '{name}' answered {again.result or again.error!r:.80} when the calls of a "
                        f"completion of prompt '{one.query.prompt.id}' were made again, expected "
                        f"{was.result or was.error!r:.80} as before; in a tree the answers of a class may depend "
                        "on the prompt, the seed and the calls alone"
                    )
            if self.rewarding_turns:
                self._given(fork, "turn_reward", self.rewarding_turns, seed)
        return fork

    def _count(self, rows: Sequence[Episode]) -> None:
        """Warn of worlds that failed; RuntimeError where those of ``FAILURES`` prompts in a row have."""
        for fault in dict.fromkeys(one.fault for one in rows if one.fault):
            warnings.warn(f"sampling.tools: a completion has no reward, as its world failed: {fault}", stacklevel=2)
        for _, group in groupby(rows, key=lambda one: one.query.slot):
            some = [*group]
            if all(one.fault for one in some):
                self.process.failures += 1
            elif any(one.instances and not one.fault for one in some):
                self.process.failures = 0
            if self.process.failures >= FAILURES:
                raise RuntimeError(
                    f"sampling.tools: the worlds of {FAILURES} prompts in a row failed, the last as {some[0].fault}"
                )

    def _converse(
        self,
        rows: Sequence[Episode],
        first: Generated | None,
        draw: Draw,
        model: TokenModel,
        ends: frozenset[int],
        most: int,
        seed: int,
        keyed: bool,
        turn: int = 1,
    ) -> None:
        """Continue the completions until all have ended; ``first``: what is already drawn of their next turn, that of
        the number ``turn``."""
        if keyed and first is not None:
            for one, state in zip(rows, self._each(rows, partial(self._state, (), seed=seed)), strict=True):
                one.states.append(state)
        turned = partial(self._turned, seed=seed, keyed=keyed)
        going, drawn = rows, first
        while True:
            if drawn is None:
                asked = [
                    replace(
                        one.query,
                        prompt=one.here.prompt,
                        slot=one.query.slot * STREAMS + one.member,
                        count=1,
                        forced=tuple(one.ids[one.here.token :]),
                        shown=tuple(one.shown[one.here.shown :]),
                    )
                    for one in going
                ]
                drawn = draw(asked, most - min(len(one.ids) for one in going), turn)
            tables = {"log_probs": drawn.log_probs.tolist(), "entropy": drawn.entropy.tolist()}
            tables |= {} if drawn.certainty is None else {"certainty": drawn.certainty.tolist()}
            for row, (one, ids, real) in enumerate(zip(going, drawn.ids.tolist(), drawn.real.tolist(), strict=True)):
                # Others may have had more tokens left.
                length = min(sum(real), most - len(one.ids))
                numbers = {name: table[row][:length] for name, table in tables.items()}
                self._written(one, ids[:length], numbers, model, ends)
            for one, answered in zip(going, self._each(going, turned), strict=True):
                if not one.end:
                    self._observed(one, answered, model, most)
            going = [one for one in going if not one.end]
            if not going:
                if self.rewarding:
                    given = partial(self._given, method="reward", owners=self.rewarding, seed=seed)
                    for one, value in zip(rows, self._each(rows, given), strict=True):
                        one.reward = value
                for one in rows:
                    one.end = "failed" if one.fault else one.end
                return
            drawn, turn = None, turn + 1

    def _written(
        self,
        one: Episode,
        ids: list[int],
        numbers: Mapping[str, list[float]],
        model: TokenModel,
        ends: frozenset[int],
    ) -> None:
        """A further turn of the policy; the completion ends with it unless it calls tools that may still answer."""
        one.begun.append((len(one.ids), len(one.shown)))
        one.before.append((len(one.turns), len(one.calls)))
        one.ids += ids
        one.observed += [False] * len(ids)
        for name, values in numbers.items():
            one.numbers.setdefault(name, []).extend(values)
        one.last, one.text = ids, model.decode(ids)
        one.ends.append(len(one.ids) - 1)
        if ids[-1] not in ends:
            one.end = "tokens"
            return
        if one.summing:
            if one.turn == self.turns:
                one.end = "turns"
            return
        calls = calls_of(self.prefilled + one.text)
        for _, given in calls:
            one.unreadable = one.unreadable + 1 if isinstance(given, str) else 0
            if 0 < self.unreadable_calls <= one.unreadable:
                one.end = "unreadable"
                return
        if not calls:
            one.end = "answered"
        elif one.turn == self.turns:
            one.end = "turns"

    def _each(self, some: Sequence[S], does: Callable[[S], T]) -> Iterable[T]:
        """What is done with each completion, or prompt, with several at a time."""
        if self.workers == 1 or len(some) < 2:
            return map(does, some)
        with ThreadPoolExecutor(self.workers) as pool:
            return [*pool.map(does, some)]

    def _turned(self, one: Episode, seed: int, keyed: bool) -> list[Call]:
        """The answered calls of the newest turn, one after the other, none of a last one; then the turn is rewarded,
        and the next state numbered."""
        calls = [] if one.end or one.fault or one.summing else calls_of(self.prefilled + one.text)
        most = self.calls_per_turn or len(calls)
        answered = [self._answered(one, name, given, seed) for name, given in calls[:most]]
        if more := len(calls[most:]):
            words = f"got {len(calls)} calls in one turn, expected at most {most}: the last {more} were not made"
            answered.append(Call(calls[most][0], error=words))
        if self.rewarding_turns:
            one.earned.append(self._given(one, "turn_reward", self.rewarding_turns, seed))
        if keyed:
            one.actions.append(_action(one.query.prompt, self.prefilled + one.text))
        if keyed and not one.end:
            one.states.append(self._state(answered, one, seed))
        if one.fault:
            one.end, one.calls = "failed", [*one.calls, *answered]
        return answered

    def _state(self, answered: Sequence[Call], one: Episode, seed: int) -> int:
        """The number of the present state: of what the classes with a method ``state`` return or, without any, of the
        newest observation. One that could not be named is equal to no other."""
        if not self.stating and one.summing:
            return number_of(one.query.prompt, {"summary": one.text})
        if not self.stating:
            return number_of(one.query.prompt, *map(_observation, answered))
        named = []
        for owner in self.stating:
            value, error = self._asked(one, "state", owner, seed, "what JSON can hold")
            if error:
                warnings.warn(
                    f"sampling.tools: state of class '{owner.__name__}' failed for a completion of prompt "
                    f"'{one.query.prompt.id}', whose turn is compared with none: {error}",
                    stacklevel=2,
                )
                return number_of(one.query.prompt, {"unknown": [one.query.slot, one.member, one.turn]})
            named.append(value)
        return number_of(one.query.prompt, named)

    def _given(self, one: Episode, method: str, owners: Sequence[type], seed: int) -> float:
        """The sum of what the instances of some classes return from a method; NaN where one fails."""
        total = 0.0
        for owner in owners:
            value, error = self._asked(one, method, owner, seed, "a number")
            if one.fault:
                return math.nan
            if not error and not abs(value) <= torch.finfo(torch.float32).max:
                error = f"it returned {short_repr(value)}, expected a finite number"
            if error:
                warnings.warn(
                    f"sampling.tools: {method} of class '{owner.__name__}' failed for a completion of prompt "
                    f"'{one.query.prompt.id}': {error}",
                    stacklevel=2,
                )
                return math.nan
            total += value
        return total

    def _asked(self, one: Episode, method: str, owner: type, seed: int, expected: str) -> tuple[Any, str]:
        """What the completion's instance of a class returns from a method of ``HOOKS``, or why it returns nothing;
        ValueError for something else than ``expected``."""
        if one.fault:
            return None, one.fault
        try:
            copy = self._instance(one, owner, seed)
        except WorldFailed as error:
            one.fault = str(error)
            return None, one.fault
        if not copy.open:
            return None, "it no longer answers"
        answer = copy.ask({"hook": method}, self.seconds)
        if not copy.open or answer.get("failed"):
            one.fault = _fault(method, owner, one.query, answer["error"])
        if kind := answer.get("wrong"):
            raise ValueError(
                f"sampling.tools: {method} of class '{owner.__name__}' returned a {kind}, expected {expected}"
            )
        return answer.get("value"), answer.get("error", "")

    def _observed(self, one: Episode, answered: Sequence[Call], model: TokenModel, most: int) -> None:
        """What the newest turn's calls were answered; the completion ends where it leaves no token to the policy. After
        a summary its next context begins; where the present one is full a summary is asked for."""
        if one.summing:
            one.turns.append(Turn("assistant", (self.prefilled + one.text,)))
            prompt = self._summaries.again(one.query.prompt, one.text)
            one.contexts.append(Context(prompt, len(one.ids), len(one.shown)))
            one.summing = False
            if len(one.ids) >= most:
                one.end = "tokens"
            return
        read: list[Any] = []
        answered = [self._looked_at(call, model, one.query.prompt, read) for call in answered]
        one.calls += answered
        texts = [self._shown(call, model) for call in answered]

        def spelled() -> list[int]:
            written = self.reply([_content(text, call.images) for text, call in zip(texts, answered, strict=True)])
            return (
                model.spell_shown(written, read) if read and isinstance(model, Showing) else model.spell(written)[:-1]
            )

        ids = spelled()
        if self.summaries and len(one.ids) - one.here.token + len(ids) > self.summaries.tokens:
            if len(one.contexts) > self.summaries.most:
                one.end = "summaries"
                return
            texts[-1] = f"{texts[-1]}\n\n{self.summaries.asked}"
            ids, one.summing = spelled(), True
        if len(one.ids) + len(ids) >= most:
            one.end = "tokens"
            return
        one.ids += ids
        one.observed += [True] * len(ids)
        for values in one.numbers.values():
            values.extend([0.0] * len(ids))
        one.shown += [image for call in answered for image in call.images]
        one.turns.append(Turn("assistant", (self.prefilled + one.text,)))
        one.turns += [Turn("tool", (text, *call.images)) for text, call in zip(texts, answered, strict=True)]

    @property
    def _summaries(self) -> Summaries:
        assert self.summaries is not None
        return self.summaries

    def _looked_at(self, call: Call, model: TokenModel, prompt: Prompt, read: list[Any]) -> Call:
        """The call, whose images are added to those that were ``read``; failed where the model cannot read them, an
        empty crop for instance. ValueError for a model that cannot be shown any."""
        if not call.images:
            return call
        if not isinstance(model, Showing):
            raise ValueError(
                f"sampling.tools: '{call.name}' returned an image, which {type(model).__name__} cannot be shown behind "
                "its prompt; return text, or choose another model.family"
            )
        empty = [image for image in call.images if isinstance(image.source, Image) and not image.source.pixels.numel()]
        try:
            if empty:
                raise Unreadable("got an image without a pixel")
            read += model.read_shown(call.images, prompt)
        except Unreadable as error:
            return replace(call, result="", error=str(error), images=())
        return call

    def _shown(self, call: Call, model: Speller) -> str:
        """What the policy reads of a call: its result or error, without special tokens and cut."""
        text, most = f"error: {call.error}" if call.error else call.result, self.observation_tokens
        # No more of it is spelled than is read: the characters of so many tokens, and some behind the last of these.
        part = CHARACTERS * most
        while True:
            plain = self._plain(text[:part])
            ids = model.spell(plain)[:-1]
            if part >= len(text) or len(ids) >= most + MARGIN:
                return plain if len(ids) <= most else model.decode(ids[:most])
            part *= 4

    def _plain(self, text: str) -> str:
        """The text without special tokens."""
        for token in self.special:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text

    def _answered(self, one: Episode, name: str, given: Mapping[str, Any] | str, seed: int) -> Call:
        """A call with its result or its error; ValueError for a tool that answers with something else than text or
        JSON, which no policy can mend."""
        if one.fault:
            return Call(name, error=one.fault)
        if isinstance(given, str):
            return Call(name, error=given)
        if name not in self.table:
            return Call(name, given, error=f"unknown tool '{name}'.{nearest(name, self.table)}")
        owner, _ = self.table[name]
        if name in self.parameters:
            converted, wrong = arguments_of(self.parameters[name], given)
            if wrong:
                return Call(name, given, error=wrong)
            given = converted
        request = {"call": name, "arguments": dict(given)}
        if owner is None:
            answer: dict[str, Any] = self.process.call(request, self.seconds)
        else:
            try:
                copy = self._instance(one, owner, seed)
            except WorldFailed as error:
                one.fault = str(error)
                return Call(name, given, error=one.fault)
            answer = copy.ask(request, self.seconds) if copy.open else {"error": f"'{name}' no longer answers"}
        if answer.get("failed") or (owner is not None and answer.get("ended")):
            one.fault = _fault(name, owner, one.query, answer["error"])
        if kind := answer.get("wrong"):
            raise ValueError(f"sampling.tools: '{name}' returned {kind}")
        if error := answer.get("error"):
            return Call(name, given, error=error)
        return Call(name, given, result=answer["text"], images=tuple(answer["images"]))

    def _instance(self, one: Episode, owner: type, seed: int) -> Copy:
        """The process of the completion's own instance of a class. ``WorldFailed`` where it cannot begin, RuntimeError
        where it writes another text behind the prompt than was read."""
        if owner not in one.instances:
            one.instances[owner], text = self._begun(owner, one.query, seed)
            read = one.query.opening[self.opening.index(owner)] if owner in self.opening else ""
            if text != read:
                raise RuntimeError(
                    f"sampling.tools: reset of class '{owner.__name__}' returned {text!r:.80} for a completion of "
                    f"prompt '{one.query.prompt.id}', expected {read!r:.80} as before; it may depend on the prompt and "
                    "the seed alone"
                )
        return one.instances[owner]

    def _begun(self, owner: type, query: Query, seed: int) -> tuple[Copy, str]:
        """A process with an instance of a class for a completion of a prompt, and what it writes behind it; all of a
        prompt begin with the same seed. ``WorldFailed`` where it cannot begin."""
        parameters = reset_parameters(owner)
        request = {"begin": list(self.tools).index(owner), "parameters": parameters}
        request |= {"prompt": query.prompt if parameters else None, "seed": derive(seed, "tools", query.slot)}
        copy = self.process.take()
        try:
            answer = copy.ask(request, self.seconds)
        except TypeError as error:  # of a prompt made in Python
            copy.close()
            raise RuntimeError(
                f"sampling.tools: class '{owner.__name__}' could not begin prompt '{query.prompt.id}': {error}"
            ) from error
        if error := answer.get("error"):
            slow = "" if copy.open else "; sampling.tool_seconds is the time that it has"
            copy.close()
            raise WorldFailed(f"class '{owner.__name__}' could not begin prompt '{query.prompt.id}': {error}{slow}")
        text, kind = answer.get("value"), answer.get("wrong")
        if isinstance(text, str) and owner not in self.opening:
            copy.close()
            raise ValueError(
                f"sampling.tools: reset of class '{owner.__name__}' returned a text, which no completion reads unless "
                "it is declared: write def reset(...) -> str, or return nothing"
            )
        if owner in self.opening and kind:
            copy.close()
            raise ValueError(
                f"sampling.tools: reset of class '{owner.__name__}' returned a {kind}, expected text or nothing"
            )
        return copy, self._plain(text) if isinstance(text, str) else ""


def _fault(name: str, owner: type | None, query: Query, error: str) -> str:
    """How a world failed, in words."""
    of = f" of class '{owner.__name__}'" if owner else ""
    return f"'{name}'{of} failed for a completion of prompt '{query.prompt.id}': {error}"


def number_of(prompt: Prompt, *state: Any) -> int:
    """The number of a state of a prompt, equal for equal ones in every process: the first 8 bytes of BLAKE2b of
    [prompt, state] as JSON with sorted keys."""
    written = json.dumps([prompt.id, *state], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(written.encode(), digest_size=8).digest(), "big", signed=True)


def _action(prompt: Prompt, text: str) -> int:
    """The number of what a turn does: its calls or, without any, what it says outside of its thought."""
    calls = [[name, given] for name, given in calls_of(text)]
    return number_of(prompt, calls or " ".join(text.rpartition("</think>")[2].split()))


def _observation(call: Call) -> list[Any]:
    """What the policy reads of a call, as JSON can hold it."""
    return [call.error, call.result, [_content_of(image) for image in call.images]]


def _content_of(image: Media) -> Any:
    """The digest of an image in memory, or the name of a file."""
    if not isinstance(image.source, Image):
        return repr(image.source)
    pixels = image.source.pixels.contiguous().cpu()
    return [[*pixels.shape], hashlib.blake2b(pixels.numpy().tobytes()).hexdigest()]


def _content(text: str, images: Sequence[Media]) -> Parts:
    """The result of a call as chat templates take it."""
    return [{"type": "text", "text": text}, *({"type": image.kind} for image in images)] if images else text


def _joined(rows: Sequence[Episode], first: Generated, pad_id: int) -> Conversations:
    width, device = max(len(one.ids) for one in rows), first.ids.device

    def table(values: Sequence[Sequence[Any]], filler: Any, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *[filler] * (width - len(row))] for row in values]
        return torch.tensor(padded, dtype=dtype).to(device)

    numbers = {name: table([one.numbers[name] for one in rows], 0.0, torch.float32) for name in rows[0].numbers}
    ids = table([one.ids for one in rows], pad_id, first.ids.dtype)
    real = table([[True] * len(one.ids) for one in rows], False, torch.bool)
    zeros = torch.zeros_like(numbers["log_probs"])
    drawn = Generated(ids, real, numbers["log_probs"], numbers["entropy"], zeros, numbers.get("certainty"))
    return Conversations(rows, drawn, table([one.observed for one in rows], False, torch.bool))
