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
from mmgrpo.policies.tool_table import WorldFailed, having, opens, reset_parameters, tools_by_name
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
    instruction: str
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
            (
                row,
                now,
                Context(episode.query.prompt, len(episode.ids), len(episode.shown)) if then is None else then,
                episode,
            )
            for row, episode in enumerate(self.episodes)
            for now, then in zip_longest(episode.contexts, episode.contexts[1:])
        ]
        return [
            Span(row, now.prompt, now.token, then.token - now.token, tuple(episode.shown[now.shown : then.shown]))
            for row, now, then, episode in ends
            if now.token < then.token
        ]

    @property
    def shown(self) -> Sequence[tuple[Media, ...]]:
        """The media in each completion; empty if none has any."""
        return [tuple(e.shown) for e in self.episodes] if any(e.shown for e in self.episodes) else ()

    @property
    def ended(self) -> Bool[Tensor, " B"]:
        """Completions that were not cut off."""
        ended = torch.tensor([episode.end not in CUT for episode in self.episodes])
        return ended.to(self.observed.device)

    def fields(self, records: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """``NUMBERS`` of each completion and ``world_failed``, ``turn``, ``state`` and ``action`` where they are asked
        for, and the rewards of turns with them or where tools have given some."""
        rows = [
            (episode.turn, len(episode.calls), sum(bool(call.error) for call in episode.calls), ENDS.index(episode.end))
            for episode in self.episodes
        ]
        numbers: dict[str, Tensor] = dict(
            zip(NUMBERS, torch.tensor(rows, dtype=torch.float32).to(self.observed.device).T)
        )
        numbers["world_failed"] = torch.tensor([float(bool(episode.fault)) for episode in self.episodes]).to(
            self.observed.device
        )
        if "turn" in records:
            numbers["turn"] = self.turn
        if "state" in records:
            numbers["state"] = self.of_turns([episode.states for episode in self.episodes])
        if "action" in records:
            numbers["action"] = self.of_turns([episode.actions for episode in self.episodes])
        rewarded = "turn" in records or any(episode.earned for episode in self.episodes)
        return numbers | {"step_rewards": self.step_rewards} if rewarded else numbers

    @property
    def step_rewards(self) -> Float[Tensor, "B T"]:
        """What the tools gave to each turn, at its last token, and 0 elsewhere; NaN where one failed."""
        table = torch.zeros(self.observed.shape)
        for row, episode in zip(table, self.episodes, strict=True):
            row[episode.ends[: len(episode.earned)]] = torch.tensor(episode.earned)
        return table.to(self.observed.device)

    def of_turns(self, numbers: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
        """At each token of the policy the number that its turn has; 0 elsewhere."""
        turn, width = self.turn, max(episode.turn for episode in self.episodes)
        pairs = zip(self.episodes, numbers, strict=True)
        table = torch.tensor([[*known[: episode.turn], *[0] * (width - episode.turn)] for episode, known in pairs])
        return torch.where(turn >= 0, table.to(turn.device).gather(1, turn.clamp(min=0)), 0)

    @property
    def turn(self) -> Int[Tensor, "B T"]:
        """The number of the turn that each token of the policy is in, from 0; -1 elsewhere."""
        starts = torch.zeros(self.observed.shape, dtype=torch.long)
        for row, episode in zip(starts, self.episodes, strict=True):
            row[[end + 1 for end in episode.ends[:-1]]] = 1
        written = self.drawn.real & ~self.observed
        return torch.where(written, starts.cumsum(1).to(written.device), -1)


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
        """``tools_by_name``, of these tools."""
        return tools_by_name(self.tools)

    @cached_property
    def rewarding(self) -> list[type]:
        """The classes that reward their completions."""
        return having(self.tools, "reward")

    @cached_property
    def opening(self) -> list[type]:
        """The classes that write behind the prompt."""
        return [tool for tool in self.tools if isinstance(tool, type) and opens(tool)]

    def open_prompts(self, queries: Sequence[Query], seed: int) -> list[Query]:
        """The queries with what the classes write behind their prompts; all completions of a prompt read the same, and
        nothing where a class cannot begin."""
        if not self.opening:
            return list(queries)

        def begin(owner: type, query: Query) -> str:
            copy, text = self._begin_instance(owner, query, seed)
            self.process.leave(copy, self.seconds)
            return text

        def open_prompt(query: Query) -> Query:
            try:
                return replace(query, opening=tuple(begin(owner, query) for owner in self.opening))
            except WorldFailed as error:
                return replace(query, opening=("",) * len(self.opening), fault=str(error))

        return [*self._each(queries, open_prompt)]

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
        episodes, trees = [*rows], list[int]()

        def go_on(some: Sequence[Episode], number: int) -> None:
            self._converse(some, None, draw, model, ends, most, seed, keyed, (number + 1) * STREAMS)

        try:
            self._converse(rows, first, draw, model, ends, most, seed, keyed)
            if tree:
                leaves = tree.grow(rows, seed, partial(self._fork, seed=seed), go_on, episodes.append)
                rows, trees = [leaf for leaf, _ in leaves], [number for _, number in leaves]
        finally:
            for episode in episodes:
                for copy in episode.instances.values():
                    self.process.leave(copy, self.seconds)
        self._count(rows)
        return replace(_join(rows, first, model.pad_id), trees=trees)

    def _fork(self, episode: Episode, turn: int, member: int, seed: int) -> Episode:
        """A completion that goes on from before a turn of another: with its tokens and calls, which are made again in
        instances of its own. RuntimeError where they are answered otherwise."""
        (tokens, shown_), (turns, calls) = episode.begun[turn], episode.before[turn]
        fork = Episode(
            episode.query,
            member,
            episode.ids[:tokens],
            episode.observed[:tokens],
            {name: values[:tokens] for name, values in episode.numbers.items()},
            begun=episode.begun[:turn],
            ends=episode.ends[:turn],
            earned=episode.earned[:turn],
            states=episode.states[: turn + 1],
            actions=episode.actions[:turn],
            turns=episode.turns[:turns],
            shown=episode.shown[:shown_],
            calls=episode.calls[:calls],
            before=episode.before[:turn],
            fault=episode.query.fault,
            parent=episode,
            shared_turns=turn,
            shared_tokens=tokens,
        )
        if not episode.instances:
            return fork
        for place in range(turn):
            first, calls_before = episode.before[place]
            written = str(episode.turns[first].parts[0])
            for number, (name, arguments) in enumerate(calls_of(written)[: self.calls_per_turn or None]):
                if name not in self.table or self.table[name][0] is None:
                    continue
                repeated, before = self._make_call(fork, name, arguments, seed), episode.calls[calls_before + number]
                if (repeated.result, repeated.error) != (before.result, before.error):
                    raise RuntimeError(
                        f"sampling.tree: '{name}' answered {repeated.result or repeated.error!r:.80} when the calls of "
                        f"a completion of prompt '{episode.query.prompt.id}' were made again, expected "
                        f"{before.result or before.error!r:.80} as before; in a tree the answers of a class may depend "
                        "on the prompt, the seed and the calls alone"
                    )
            if self.rewarding_turns:
                self._sum_hooks(fork, "turn_reward", self.rewarding_turns, seed)
        return fork

    def _count(self, rows: Sequence[Episode]) -> None:
        """Warn of worlds that failed; RuntimeError where those of ``FAILURES`` prompts in a row have."""
        for fault in dict.fromkeys(e.fault for e in rows if e.fault):
            warnings.warn(f"sampling.tools: a completion has no reward, as its world failed: {fault}", stacklevel=2)
        for _, group in groupby(rows, key=lambda episode: episode.query.slot):
            some = [*group]
            if all(episode.fault for episode in some):
                self.process.failures += 1
            elif any(episode.instances and not episode.fault for episode in some):
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
            for episode, state in zip(rows, self._each(rows, partial(self._state, (), seed=seed)), strict=True):
                episode.states.append(state)
        turned = partial(self._answer_turn, seed=seed, keyed=keyed)
        going, drawn = rows, first
        while True:
            if drawn is None:
                queries = [
                    replace(
                        episode.query,
                        prompt=episode.here.prompt,
                        slot=episode.query.slot * STREAMS + episode.member,
                        count=1,
                        forced=tuple(episode.ids[episode.here.token :]),
                        shown=tuple(episode.shown[episode.here.shown :]),
                    )
                    for episode in going
                ]
                drawn = draw(queries, most - min(len(episode.ids) for episode in going), turn)
            tables = {"log_probs": drawn.log_probs.tolist(), "entropy": drawn.entropy.tolist()}
            tables |= {} if drawn.certainty is None else {"certainty": drawn.certainty.tolist()}
            for row, (episode, ids, real) in enumerate(
                zip(going, drawn.ids.tolist(), drawn.real.tolist(), strict=True)
            ):
                # Others may have had more tokens left.
                length = min(sum(real), most - len(episode.ids))
                numbers = {name: table[row][:length] for name, table in tables.items()}
                self._append_turn(episode, ids[:length], numbers, model, ends)
            for episode, answered in zip(going, self._each(going, turned), strict=True):
                if not episode.end:
                    self._observe(episode, answered, model, most)
            going = [e for e in going if not e.end]
            if not going:
                if self.rewarding:
                    sum_hooks = partial(self._sum_hooks, method="reward", owners=self.rewarding, seed=seed)
                    for episode, value in zip(rows, self._each(rows, sum_hooks), strict=True):
                        episode.reward = value
                for episode in rows:
                    episode.end = "failed" if episode.fault else episode.end
                return
            drawn, turn = None, turn + 1

    def _append_turn(
        self,
        episode: Episode,
        ids: list[int],
        numbers: Mapping[str, list[float]],
        model: TokenModel,
        ends: frozenset[int],
    ) -> None:
        """A further turn of the policy; the completion ends with it unless it calls tools that may still answer."""
        episode.begun.append((len(episode.ids), len(episode.shown)))
        episode.before.append((len(episode.turns), len(episode.calls)))
        episode.ids += ids
        episode.observed += [False] * len(ids)
        for name, values in numbers.items():
            episode.numbers.setdefault(name, []).extend(values)
        episode.last, episode.text = ids, model.decode(ids)
        episode.ends.append(len(episode.ids) - 1)
        if ids[-1] not in ends:
            episode.end = "tokens"
            return
        if episode.summing:
            if episode.turn == self.turns:
                episode.end = "turns"
            return
        calls = calls_of(self.prefilled + episode.text)
        for _, arguments in calls:
            episode.unreadable = episode.unreadable + 1 if isinstance(arguments, str) else 0
            if 0 < self.unreadable_calls <= episode.unreadable:
                episode.end = "unreadable"
                return
        if not calls:
            episode.end = "answered"
        elif episode.turn == self.turns:
            episode.end = "turns"

    def _each(self, some: Sequence[S], does: Callable[[S], T]) -> Iterable[T]:
        """What is done with each completion, or prompt, with several at a time."""
        if self.workers == 1 or len(some) < 2:
            return map(does, some)
        with ThreadPoolExecutor(self.workers) as pool:
            return [*pool.map(does, some)]

    def _answer_turn(self, episode: Episode, seed: int, keyed: bool) -> list[Call]:
        """The answered calls of the newest turn, one after the other, none of a last one; then the turn is rewarded,
        and the next state numbered."""
        calls = [] if episode.end or episode.fault or episode.summing else calls_of(self.prefilled + episode.text)
        most = self.calls_per_turn or len(calls)
        answered = [self._make_call(episode, name, arguments, seed) for name, arguments in calls[:most]]
        if more := len(calls[most:]):
            words = f"got {len(calls)} calls in one turn, expected at most {most}: the last {more} were not made"
            answered.append(Call(calls[most][0], error=words))
        if self.rewarding_turns:
            episode.earned.append(self._sum_hooks(episode, "turn_reward", self.rewarding_turns, seed))
        if keyed:
            episode.actions.append(_action(episode.query.prompt, self.prefilled + episode.text))
        if keyed and not episode.end:
            episode.states.append(self._state(answered, episode, seed))
        if episode.fault:
            episode.end, episode.calls = "failed", [*episode.calls, *answered]
        return answered

    def _state(self, answered: Sequence[Call], episode: Episode, seed: int) -> int:
        """The number of the present state: of what the classes with a method ``state`` return or, without any, of the
        newest observation. One that could not be named is equal to no other."""
        if not self.stating and episode.summing:
            return number_of(episode.query.prompt, {"summary": episode.text})
        if not self.stating:
            return number_of(episode.query.prompt, *map(_observation, answered))
        named = []
        for owner in self.stating:
            value, error = self._ask_hook(episode, "state", owner, seed, "what JSON can hold")
            if error:
                warnings.warn(
                    f"sampling.tools: state of class '{owner.__name__}' failed for a completion of prompt "
                    f"'{episode.query.prompt.id}', whose turn is compared with none: {error}",
                    stacklevel=2,
                )
                return number_of(episode.query.prompt, {"unknown": [episode.query.slot, episode.member, episode.turn]})
            named.append(value)
        return number_of(episode.query.prompt, named)

    def _sum_hooks(self, episode: Episode, method: str, owners: Sequence[type], seed: int) -> float:
        """The sum of what the instances of some classes return from a method; NaN where one fails."""
        total = 0.0
        for owner in owners:
            value, error = self._ask_hook(episode, method, owner, seed, "a number")
            if episode.fault:
                return math.nan
            if not error and not abs(value) <= torch.finfo(torch.float32).max:
                error = f"it returned {short_repr(value)}, expected a finite number"
            if error:
                warnings.warn(
                    f"sampling.tools: {method} of class '{owner.__name__}' failed for a completion of prompt "
                    f"'{episode.query.prompt.id}': {error}",
                    stacklevel=2,
                )
                return math.nan
            total += value
        return total

    def _ask_hook(self, episode: Episode, method: str, owner: type, seed: int, expected: str) -> tuple[Any, str]:
        """What the completion's instance of a class returns from a method of ``HOOKS``, or why it returns nothing;
        ValueError for something else than ``expected``."""
        if episode.fault:
            return None, episode.fault
        try:
            copy = self._instance(episode, owner, seed)
        except WorldFailed as error:
            episode.fault = str(error)
            return None, episode.fault
        if not copy.open:
            return None, "it no longer answers"
        answer = copy.ask({"hook": method}, self.seconds)
        if not copy.open or answer.get("failed"):
            episode.fault = _fault(method, owner, episode.query, answer["error"])
        if kind := answer.get("wrong"):
            raise ValueError(
                f"sampling.tools: {method} of class '{owner.__name__}' returned a {kind}, expected {expected}"
            )
        return answer.get("value"), answer.get("error", "")

    def _observe(self, episode: Episode, answered: Sequence[Call], model: TokenModel, most: int) -> None:
        """What the newest turn's calls were answered; the completion ends where it leaves no token to the policy. After
        a summary its next context begins; where the present one is full a summary is asked for."""
        if episode.summing:
            episode.turns.append(Turn("assistant", (self.prefilled + episode.text,)))
            prompt = self._summaries.again(episode.query.prompt, episode.text)
            episode.contexts.append(Context(prompt, len(episode.ids), len(episode.shown)))
            episode.summing = False
            if len(episode.ids) >= most:
                episode.end = "tokens"
            return
        read: list[Any] = []
        answered = [self._read_images(call, model, episode.query.prompt, read) for call in answered]
        episode.calls += answered
        texts = [self._observation_text(call, model) for call in answered]

        def spell_reply() -> list[int]:
            written = self.reply([_content(text, call.images) for text, call in zip(texts, answered, strict=True)])
            return (
                model.spell_shown(written, read) if read and isinstance(model, Showing) else model.spell(written)[:-1]
            )

        ids = spell_reply()
        if self.summaries and len(episode.ids) - episode.here.token + len(ids) > self.summaries.tokens:
            if len(episode.contexts) > self.summaries.most:
                episode.end = "summaries"
                return
            texts[-1] = f"{texts[-1]}\n\n{self.summaries.instruction}"
            ids, episode.summing = spell_reply(), True
        if len(episode.ids) + len(ids) >= most:
            episode.end = "tokens"
            return
        episode.ids += ids
        episode.observed += [True] * len(ids)
        for values in episode.numbers.values():
            values.extend([0.0] * len(ids))
        episode.shown += [image for call in answered for image in call.images]
        episode.turns.append(Turn("assistant", (self.prefilled + episode.text,)))
        episode.turns += [Turn("tool", (text, *call.images)) for text, call in zip(texts, answered, strict=True)]

    @property
    def _summaries(self) -> Summaries:
        assert self.summaries is not None
        return self.summaries

    def _read_images(self, call: Call, model: TokenModel, prompt: Prompt, read: list[Any]) -> Call:
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

    def _observation_text(self, call: Call, model: Speller) -> str:
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

    def _make_call(self, episode: Episode, name: str, arguments: Mapping[str, Any] | str, seed: int) -> Call:
        """A call with its result or its error; ValueError for a tool that answers with something else than text or
        JSON, which no policy can mend."""
        if episode.fault:
            return Call(name, error=episode.fault)
        if isinstance(arguments, str):
            return Call(name, error=arguments)
        if name not in self.table:
            return Call(name, arguments, error=f"unknown tool '{name}'.{nearest(name, self.table)}")
        owner, _ = self.table[name]
        if name in self.parameters:
            converted, wrong = arguments_of(self.parameters[name], arguments)
            if wrong:
                return Call(name, arguments, error=wrong)
            arguments = converted
        request = {"call": name, "arguments": dict(arguments)}
        if owner is None:
            answer: dict[str, Any] = self.process.call(request, self.seconds)
        else:
            try:
                copy = self._instance(episode, owner, seed)
            except WorldFailed as error:
                episode.fault = str(error)
                return Call(name, arguments, error=episode.fault)
            answer = copy.ask(request, self.seconds) if copy.open else {"error": f"'{name}' no longer answers"}
        if answer.get("failed") or (owner is not None and answer.get("ended")):
            episode.fault = _fault(name, owner, episode.query, answer["error"])
        if kind := answer.get("wrong"):
            raise ValueError(f"sampling.tools: '{name}' returned {kind}")
        if error := answer.get("error"):
            return Call(name, arguments, error=error)
        return Call(name, arguments, result=answer["text"], images=tuple(answer["images"]))

    def _instance(self, episode: Episode, owner: type, seed: int) -> Copy:
        """The process of the completion's own instance of a class. ``WorldFailed`` where it cannot begin, RuntimeError
        where it writes another text behind the prompt than was read."""
        if owner not in episode.instances:
            episode.instances[owner], text = self._begin_instance(owner, episode.query, seed)
            read = episode.query.opening[self.opening.index(owner)] if owner in self.opening else ""
            if text != read:
                raise RuntimeError(
                    f"sampling.tools: reset of class '{owner.__name__}' returned {text!r:.80} for a completion of "
                    f"prompt '{episode.query.prompt.id}', expected {read!r:.80} as before; it may depend on the prompt "
                    "and the seed alone"
                )
        return episode.instances[owner]

    def _begin_instance(self, owner: type, query: Query, seed: int) -> tuple[Copy, str]:
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
    calls = [[name, arguments] for name, arguments in calls_of(text)]
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


def _join(rows: Sequence[Episode], first: Generated, pad_id: int) -> Conversations:
    width, device = max(len(row.ids) for row in rows), first.ids.device

    def table(values: Sequence[Sequence[Any]], filler: Any, dtype: torch.dtype) -> Tensor:
        padded = [[*row, *[filler] * (width - len(row))] for row in values]
        return torch.tensor(padded, dtype=dtype).to(device)

    numbers = {name: table([row.numbers[name] for row in rows], 0.0, torch.float32) for name in rows[0].numbers}
    ids = table([row.ids for row in rows], pad_id, first.ids.dtype)
    real = table([[True] * len(row.ids) for row in rows], False, torch.bool)
    zeros = torch.zeros_like(numbers["log_probs"])
    drawn = Generated(ids, real, numbers["log_probs"], numbers["entropy"], zeros, numbers.get("certainty"))
    return Conversations(rows, drawn, table([row.observed for row in rows], False, torch.bool))
