"""Samples of several calls of one policy, each with a prompt of its own: the walk of a program (``sampling.program``).

    def plan_and_write(prompt, seed, member):
        plan = yield Ask(f"Plan an answer. {prompt.text}", "planner")
        return (yield Ask(f"{prompt.text} Follow the plan: {plan}", "writer"))

A program is a generator function. It yields what a module is asked, is sent what that wrote, and returns the sample's
text, or a ``Given`` with rewards. Modules are roles of the policy: stages of a pipeline (mmGRPO), a planner and those
whom it plans for (AgentFlow), agents who answer each other (MAGRPO), vehicles of a fleet (OSPO), of which each member
of the group asks for another.

All of a sample's calls are one row (``chains``), so its outcome is judged once and counts once. The calls of all
samples of a batch are drawn together, call by call. With ``trained`` only calls of these modules are decisions; others
are drawn by the network without its adapters, and belong to the world.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mmgrpo.config.plugins import load_object
from mmgrpo.config.ranges import short_repr
from mmgrpo.policies.chains import Chains, pad_rows
from mmgrpo.policies.generation import Drawing, Generated
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.tools import STREAMS, number_of
from mmgrpo.policies.walks import Completion, Walked
from mmgrpo.randomness import derive
from mmgrpo.types import OWN, RECORDS, Output, Prompt, Request, Text, Turn

RECORDED = frozenset({"certainty", "turn", "state", "action", "call"})
"""What it can record of the tokens of samples."""


@dataclass(frozen=True)
class Ask:
    """What a module is asked: a text in the place of the prompt's own, behind its system prompt and media."""

    text: str
    module: str = ""


@dataclass(frozen=True)
class Given:
    """What a program returns with rewards of its own."""

    text: str
    reward: float | None = None
    """Of the whole sample: the reward ``tool_reward``."""
    rewards: Sequence[float] = ()
    """Of each call of trained modules, in their order: the field ``step_rewards``, which credits of turns read."""


Calls: TypeAlias = Generator[Ask, str, "str | Given | None"]
Function: TypeAlias = Callable[[Prompt, int, int], Calls]
"""From a prompt, a seed that its whole group has, and the number of the sample in the group."""


@dataclass(frozen=True)
class Program:
    """A program and its limits."""

    run: Function
    calls: int
    """Calls of a sample, with the last of which it ends."""
    trained: tuple[str, ...] = ()
    """Modules whose calls are trained; empty: all."""

    @staticmethod
    def load(name: str, calls: int, trained: Sequence[str] = ()) -> Program:
        """The program that ``module:function`` names."""
        if ":" not in name:
            raise ValueError(f"sampling.program: got '{name}', expected module:function of your own")
        return Program(load_object(name, "sampling.program", kind=_generator), calls, tuple(trained))


def _generator(value: Any) -> str:
    return "" if inspect.isgeneratorfunction(value) else "a generator function, which yields what modules are asked"


@dataclass
class Call:
    """A call that was answered."""

    ask: Ask
    number: int
    """Of this call among those of the module."""
    prompt: Prompt
    """What the policy reads."""
    ids: list[int]
    numbers: dict[str, list[float]]
    text: str
    ended: bool
    prefilled: str
    seen: tuple[tuple[int, int], ...]
    trained: bool


@dataclass
class Sample:
    """A sample so far."""

    query: Query
    member: int
    program: str
    """Its name."""
    steps: Calls
    ask: Ask | None = None
    """What is asked next; None: it has ended."""
    calls: list[Call] = field(default_factory=list)
    given: Given = field(default_factory=lambda: Given(""))

    @property
    def trained(self) -> list[Call]:
        """Calls that are decisions."""
        return [call for call in self.calls if call.trained]

    def go_on(self, answer: str | None, most: int) -> None:
        """Up to what the program asks next, unless it has asked ``most`` times. RuntimeError that names the program
        where it fails; ValueError for what no program may ask or return."""
        name, of_prompt = self.program, f"for prompt '{self.query.prompt.id}'"
        try:
            ask = self.steps.send(answer)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            self.ask, self.given = None, self._read_returned(end.value, f"{name} {of_prompt}")
            return
        except Exception as error:
            raise RuntimeError(f"sampling.program: {name} failed {of_prompt}: {error!r}") from error
        if not isinstance(ask, Ask) or not isinstance(ask.text, str) or not ask.text:
            raise ValueError(
                f"sampling.program: {name} yielded {short_repr(ask)} {of_prompt}, "
                "expected Ask(text, module) with a text"
            )
        self.ask = ask
        if len(self.calls) == most:
            self.steps.close()
            self.ask, self.given = None, Given(self.calls[-1].text)

    def _read_returned(self, value: Any, where: str) -> Given:
        if not self.calls:
            raise ValueError(f"sampling.program: {where} ended before it asked for anything; yield at least one Ask")
        if value is None or isinstance(value, str):
            return Given(self.calls[-1].text if value is None else value)
        if not isinstance(value, Given) or not isinstance(value.text, str):
            raise ValueError(
                f"sampling.program: {where} returned {short_repr(value)}, expected a text or Given(text, ...)"
            )
        if value.rewards and len(value.rewards) != len(self.trained):
            raise ValueError(
                f"sampling.program: {where} returned {len(value.rewards)} rewards, expected {len(self.trained)}, one "
                "for each call of the modules that are trained"
            )
        if wrong := [reward for reward in value.rewards if not math.isfinite(reward)]:
            raise ValueError(f"sampling.program: {where} returned the reward {wrong[0]} of a call, expected a number")
        return value

    def read(self, prompts: dict[tuple[int, str], Prompt]) -> Prompt:
        """What the policy reads of the ask: the same object for the same words, so it is computed once."""
        assert self.ask is not None
        prompt, text = self.query.prompt, self.ask.text
        key = id(prompt), text
        if key not in prompts:
            kept = tuple(turn for turn in prompt.turns if turn.role == "system")
            turns = (*kept, Turn("user", (*prompt.media, text))) if prompt.turns else ()
            prompts[key] = replace(prompt, text=text, turns=turns)
        return prompts[key]

    @property
    def output(self) -> Text:
        """What rewards read: the returned text, behind all calls before it."""
        calls, text = self.calls, self.given.text
        last = calls[-1]
        is_last = last.text == text
        turns = [
            turn
            for call in calls
            for turn in (Turn("user", (call.ask.text,)), Turn("assistant", (call.prefilled + call.text,)))
        ]
        return Text(
            text,
            sum(len(call.ids) for call in calls),
            not all(call.ended for call in calls),
            last.seen,
            last.prefilled if is_last else "",
            tuple(last.ids) if is_last else (),
            tuple(turns[:-1] if is_last else turns),
            tool_reward=self.given.reward,
        )


class Programmed(Completion):
    """The calls of a program."""

    setting = "sampling.program"
    fields = frozenset({"turns", "step_rewards"})

    def __init__(self, value: Program) -> None:
        super().__init__(value)
        self.program = value

    @property
    def text(self) -> str:
        """The name of the program."""
        return self.program.run.__name__

    @property
    def lacks(self) -> frozenset[str]:
        """Records of one text, and scores under changed prompts."""
        changed = {"log_probs under a changed prompt", "reference.log_probs under a changed prompt"}
        return frozenset({f"{name} of samples" for name in RECORDS.keys() - RECORDED} | changed)

    def draw(self, policy: TokenPasses, request: Request, queries: Sequence[Query], drawing: Drawing) -> Walked:
        """All calls of the samples, of which those of trained modules are decisions."""
        samples = self._samples(policy, queries, drawing, self.measures_of(request), rollout=True)
        calls = [(row, call) for row, sample in enumerate(samples) for call in sample.trained]
        if missing := next((sample for sample in samples if not sample.trained), None):
            raise ValueError(
                f"sampling.trained_modules: got {list(self.program.trained)}, of which program {self.text} asked none "
                f"for prompt '{missing.query.prompt.id}' (it asked "
                f"{', '.join(sorted({repr(call.ask.module) for call in missing.calls}))}); name one that it asks in "
                "every sample"
            )
        sequences, numbers = self._join(policy, [call for _, call in calls], request, drawing)
        slots = {id(call.prompt): samples[row].query.slot for row, call in calls}
        read = {id(call.prompt): call.prompt for _, call in calls}
        read_queries = [Query(prompt, slots[name], 1) for name, prompt in read.items()]
        zeros = torch.zeros_like(numbers["log_probs"])
        drawn = Generated(
            sequences.ids, sequences.real, numbers["log_probs"], numbers["entropy"], zeros, numbers.get("certainty")
        )
        walked = self.record_tokens(policy, request, read_queries, sequences, drawn)
        place = {id(query): number for number, query in enumerate(queries)}
        chains = Chains(
            sequences,
            torch.tensor([row for row, _ in calls]),
            torch.tensor([place[id(sample.query)] for sample in samples]),
        )
        return Walked(
            chains,
            {name: chains.table(value) for name, value in walked.numbers.items()},
            torch.full((len(samples),), OWN, device=policy.device),
            fields=self._fields(samples, chains, request.records),
            ended=torch.tensor(
                [all(call.ended for call in sample.trained) for sample in samples], device=policy.device
            ),
            outputs=[sample.output for sample in samples],
        )

    def sample(self, policy: TokenPasses, queries: list[Query], drawing: Drawing) -> list[Output]:
        """The samples of an evaluation."""
        return [sample.output for sample in self._samples(policy, queries, drawing, frozenset(), rollout=False)]

    def _samples(
        self, policy: TokenPasses, queries: Sequence[Query], drawing: Drawing, measures: frozenset[str], rollout: bool
    ) -> list[Sample]:
        """Run the program for every sample, all of them call by call."""
        if any(query.forced for query in queries):
            raise ValueError("sampling.program: got samples that begin with given tokens, expected the policy's own")
        program, prompts = self.program, dict[tuple[int, str], Prompt]()
        samples = []
        for query in queries:
            seed = derive(drawing.seed, "program", query.slot)
            for member in range(query.count):
                samples.append(Sample(query, member, self.text, program.run(query.prompt, seed, member)))
                samples[-1].go_on(None, program.calls)
        turn = 0
        while live := [sample for sample in samples if sample.ask is not None]:
            for frozen in (False, True):
                if some := [sample for sample in live if self._frozen(sample) == frozen]:
                    self._turn(policy, some, drawing, measures, turn, prompts, frozen, rollout)
            for sample in live:
                sample.go_on(sample.calls[-1].text, program.calls)
            turn += 1
        return samples

    def _frozen(self, sample: Sample) -> bool:
        assert sample.ask is not None
        return bool(self.program.trained) and sample.ask.module not in self.program.trained

    def _turn(
        self,
        policy: TokenPasses,
        samples: Sequence[Sample],
        drawing: Drawing,
        measures: frozenset[str],
        turn: int,
        prompts: dict[tuple[int, str], Prompt],
        frozen: bool,
        rollout: bool,
    ) -> None:
        """The next call of some samples. Where all samples of a prompt begin with the same, it is drawn as a plain
        rollout draws it."""
        reference = policy.model.reference
        if frozen and not reference.bare:
            raise ValueError(
                f"sampling.trained_modules: got {list(self.program.trained)} with a model that is not trained by new "
                "adapters, without which the others are drawn; set model.lora_rank above 0, or train all modules"
            )
        read = [sample.read(prompts) for sample in samples]
        together = Counter((id(sample.query), id(prompt)) for sample, prompt in zip(samples, read, strict=True))
        query_of: dict[object, Query] = {}
        for sample, prompt in zip(samples, read, strict=True):
            key = id(sample.query), id(prompt)
            if turn == 0 and together[key] == sample.query.count:
                query_of[key] = replace(sample.query, prompt=prompt)
            else:
                query_of[id(sample)] = replace(
                    sample.query, prompt=prompt, slot=sample.query.slot * STREAMS + sample.member, count=1
                )
        # A first call has the seed of the round, so a program of one module draws what a plain rollout draws.
        plain = turn == 0 and not frozen
        seed = drawing.seed if plain else derive(drawing.seed, "frozen call" if frozen else "call", turn)
        with reference() if frozen else nullcontext():
            engine = policy.engine if rollout and not frozen else None
            sequences, drawn = policy.generate(
                [*query_of.values()], replace(drawing, seed=seed), measures, None, engine
            )
        context, rows = sequences.context, sequences.prompts.tolist()
        tables = {"log_probs": drawn.log_probs.tolist(), "entropy": drawn.entropy.tolist()}
        tables |= {} if drawn.certainty is None else {"certainty": drawn.certainty.tolist()}
        ends = frozenset(policy.ends.tolist())
        table = zip(samples, read, rows, drawn.ids.tolist(), drawn.real.sum(1).tolist(), strict=True)
        for number, (sample, prompt, row, ids, length) in enumerate(table):
            assert sample.ask is not None
            before = sum(call.ask.module == sample.ask.module for call in sample.calls)
            sample.calls.append(
                Call(
                    sample.ask,
                    before,
                    prompt,
                    ids[:length],
                    {name: values[number][:length] for name, values in tables.items()},
                    policy.model.decode(ids[:length]),
                    ids[length - 1] in ends,
                    str(context.prefilled[row]) if context.prefilled else "",
                    context.seen[row] if context.seen else (),
                    not frozen,
                )
            )

    def _join(
        self, policy: TokenPasses, calls: Sequence[Call], request: Request, drawing: Drawing
    ) -> tuple[Sequences, dict[str, Tensor]]:
        """The calls as sequences, and what was recorded of their tokens."""
        read = list({id(call.prompt): call.prompt for call in calls}.values())
        index, device = {id(prompt): place for place, prompt in enumerate(read)}, policy.device
        context, features = policy.encode(read)
        ids = pad_rows([call.ids for call in calls], policy.model.pad_id, torch.long).to(device)
        real = pad_rows([[True] * len(call.ids) for call in calls], False, torch.bool).to(device)
        prompt = torch.tensor([index[id(call.prompt)] for call in calls], device=device)
        numbers = {
            name: pad_rows([call.numbers[name] for call in calls], 0.0, torch.float32).to(device)
            for name in calls[0].numbers
        }
        return Sequences(context, features, prompt, ids, real, request.seed, drawing.temperature), numbers

    def _fields(self, samples: Sequence[Sample], chains: Chains, records: frozenset[str]) -> dict[str, Tensor]:
        """The number of calls; of every token what is asked of its call; and what the program gave to each call."""
        device = chains.sequences.ids.device
        fields = {"turns": torch.tensor([float(len(sample.calls)) for sample in samples], device=device)}

        def of_calls(number: Callable[[Sample, int, Call], int], filler: int) -> Tensor:
            of_call = [number(sample, place, call) for sample in samples for place, call in enumerate(sample.trained)]
            return chains.table(torch.tensor(of_call, device=device)[:, None].expand_as(chains.sequences.ids), filler)

        numbers = {
            "turn": lambda sample, place, call: place,
            "state": lambda sample, place, call: number_of(sample.query.prompt, call.ask.module, call.ask.text),
            "action": lambda sample, place, call: number_of(sample.query.prompt, " ".join(call.text.split())),
            "call": lambda sample, place, call: number_of(sample.query.prompt, call.ask.module, call.number),
        }
        fields |= {
            name: of_calls(number, -1 if name == "turn" else 0) for name, number in numbers.items() if name in records
        }
        if "turn" in records:  # what reads rewards of turns reads their numbers too
            rewards = torch.tensor([reward for sample in samples for reward in _rewards(sample)], device=device)
            place = torch.arange(chains.sequences.ids.shape[1], device=device)
            last = place == chains.sequences.real.sum(1)[:, None] - 1
            fields["step_rewards"] = chains.table(torch.where(last, rewards[:, None], 0.0))
        return fields


def _rewards(sample: Sample) -> list[float]:
    """What the program gave to each call of trained modules; 0 where it gave none."""
    return [float(reward) for reward in sample.given.rewards] or [0.0] * len(sample.trained)
