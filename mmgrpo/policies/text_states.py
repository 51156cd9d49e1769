"""The states of a text after each of its steps, which rewards judge for credits that read ``step_rewards``.

    step k       the part of a completion up to the next empty line, of a sentence or a word (``records.segments``)
    V(s_k)       the reward of the text before step k (``judged``), or of completions drawn from there (``completed``)
    step_rewards V(s_(k+1)) - V(s_k) at the last token of step k, 0 elsewhere; after the last step stands the sample
    step_values  V(s_k) there
    step_ends    1 at the last token of each step

The text before the first step is the same for all samples of a prompt, and equal beginnings are one state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.config.ranges import ANY_NUMBER, COUNT, one_of
from mmgrpo.config.registry import Network, Reward, bind, block, table_of
from mmgrpo.policies.generation import Drawing
from mmgrpo.policies.records import GAPS, segments
from mmgrpo.policies.token_model import Query, Sequences
from mmgrpo.policies.token_passes import TokenPasses
from mmgrpo.policies.walks import Addition
from mmgrpo.randomness import derive
from mmgrpo.types import HINTED, OWN, Completions, Output, Request, Rollout, Text

STATES = table_of("states")
"""Functions that return ``States``."""

FIELDS = frozenset({"step_rewards", "step_values", "step_ends"})
"""What a policy records whose states are judged."""

AT_ONCE = 64
"""Completions that are drawn, or beginnings that are judged, at one time."""

NUMBERS = 1 << 20
"""Random streams that the states of a group have, from its own number times this on."""


@dataclass(frozen=True)
class States:
    """How the states of a text are valued."""

    by: str = ""
    """The reward that values them; empty: the weighted sum."""
    count: int = 0
    """Completions that are drawn from each state; 0: the text so far is judged as it stands."""
    eta: float = 0.0
    """What of several completions is taken: their mean, or ln(mean exp(eta r)) / eta."""
    most: int = 20
    """Steps; further ones belong to the last."""
    network: str = ""
    """What draws the completions; empty: the policy."""
    cut: str = "paragraph"
    """What a step is."""


@block(STATES)
def judged(
    by: Reward = "",
    most: Annotated[int, COUNT] = 20,
    cut: Annotated[str, one_of(*GAPS)] = "paragraph",
) -> States:
    """The text so far, by the reward ``by``, of weight 0 if it only judges steps: a process reward model
    (arXiv:2410.15115), ``judge_last_step``, ``step_coverage``."""
    return States(by, most=most, cut=cut)


@block(STATES)
def completed(
    count: Annotated[int, COUNT] = 9,
    by: Reward = "",
    most: Annotated[int, COUNT] = 20,
    eta: Annotated[float, ANY_NUMBER] = 0.0,
    network: Network = "",
    cut: Annotated[str, one_of(*GAPS)] = "paragraph",
) -> States:
    """The mean reward of ``count`` completions drawn from the text so far (VinePPO, arXiv:2410.01679: 9 of at most 20
    states), which never enter the loss; with ``eta`` ln(mean exp(eta r)) / eta, the value under a KL to what draws them
    (ER-PRM, arXiv:2412.11006: eta 1, network reference). Rewards 1 and 0: .5, with eta 1 .62011, with -1 .37989."""
    return States(by, count, eta, most, network, cut)


def step_ends(segment: Int[Tensor, "B T"], real: Bool[Tensor, "B T"], most: int) -> Bool[Tensor, "B T"]:
    """True at the last token of each step of each row; steps from number ``most`` - 1 on are one."""
    number = torch.where(real, segment.clamp(max=most - 1), -1)
    after = torch.cat([number[:, 1:], torch.full_like(number[:, :1], -1)], 1)
    return real & (number != after)


class _State(NamedTuple):
    """A text that a step of some sample begins after: its number, a row that has it, its tokens, and its place among
    those of its prompt."""

    number: int
    row: int
    length: int
    member: int


def with_states(
    rollout: Rollout,
    states: States,
    segment: Int[Tensor, "B T"],
    request: Request,
    draw: Callable[[Sequence[Query]], Sequence[Output]],
    decode: Callable[[Sequences], Sequence[Output]],
) -> Rollout:
    """The rollout with its states to be completed and scored, and the field ``step_ends``. ``draw`` completes queries,
    ``decode`` reads sequences."""
    sequences, decisions = rollout.steps, rollout.decisions
    assert isinstance(sequences, Sequences)
    drawn = torch.isin(decisions.origin, torch.tensor([OWN, HINTED], device=decisions.origin.device))
    ends = step_ends(segment, sequences.real, states.most) & drawn[:, None]
    state_of: dict[tuple[int, tuple[int, ...]], _State] = {}
    counts: Counter[int] = Counter()
    before, after = (torch.full(ends.shape, -1) for _ in range(2))
    for row, (prompt, ids, places) in enumerate(zip(sequences.prompt.tolist(), sequences.ids, ends.cpu(), strict=True)):
        tokens, start = ids.tolist(), 0
        for end in places.nonzero()[:, 0].tolist():
            key = prompt, tuple(tokens[:start])
            if key not in state_of:
                state_of[key] = _State(len(state_of), row, start, counts[prompt])
                counts[prompt] += 1
            before[row, end] = state_of[key].number
            if start:
                after[row, start - 1] = state_of[key].number
            start = end + 1
        if start:
            after[row, start - 1] = -2 - row
    after = torch.where(after < -1, len(state_of) - 2 - after, after)  # outputs are numbered behind all states
    per_state, every = max(1, states.count), list(state_of.values())

    def query(state: _State) -> Query:
        slot = int(decisions.keys["prompt"][state.row]) * NUMBERS + state.member
        return Query(
            rollout.prompts[state.row], slot, per_state, OWN, tuple(sequences.ids[state.row, : state.length].tolist())
        )

    def parts() -> Iterator[Sequence[Output]]:
        for first in range(0, len(every), step := max(1, AT_ONCE // per_state)):
            some = every[first : first + step]
            yield draw([query(state) for state in some]) if states.count else _beginnings(sequences, some, decode)

    rows = torch.tensor([state.row for state in every for _ in range(per_state)], dtype=torch.long)
    numbers = (tensor.to(ends.device) for tensor in (rows, before, after))
    completions = Completions(parts, *numbers, by=states.by, count=per_state, eta=states.eta)
    marked = replace(decisions, fields={**decisions.fields, "step_ends": ends.float()})
    return replace(rollout, decisions=marked, completions=completions)


def _beginnings(
    sequences: Sequences, states: Sequence[_State], decode: Callable[[Sequences], Sequence[Output]]
) -> list[Output]:
    """The text before each state; it is no answer that was cut off."""
    rows = torch.tensor([state.row for state in states], device=sequences.ids.device)
    lengths = torch.tensor([[state.length] for state in states], device=rows.device)
    real = torch.arange(sequences.ids.shape[1], device=rows.device) < lengths
    outputs = decode(replace(sequences, prompt=sequences.prompt[rows], ids=sequences.ids[rows], real=real))
    return [replace(output, truncated=False) if isinstance(output, Text) else output for output in outputs]


class JudgedStates(Addition):
    """The states of each completion, which are completed within the tokens of one where they are."""

    setting = "sampling.states"
    fields = FIELDS

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.states: States = bind(value, STATES, "sampling.states")({})

    def rollout(self, policy: TokenPasses, request: Request, rollout: Rollout, drawing: Drawing) -> Rollout:
        """The rollout with the states of its completions."""
        states, later = self.states, replace(drawing, seed=derive(request.seed, "states"))
        sequences = rollout.steps
        assert isinstance(sequences, Sequences)

        @torch.no_grad()
        def complete(queries: Sequence[Query]) -> list[Output]:
            with policy.networks.drawing(states.network) if states.network else nullcontext():
                drawn, _ = policy.generate(queries, later)
            lengths = torch.tensor([len(query.forced) for query in queries], device=policy.device)[drawn.prompt]
            left = drawing.max_tokens - lengths[:, None]
            place = torch.arange(drawn.real.shape[1], device=policy.device)
            outputs = policy.decode(replace(drawn, real=drawn.real & (place < left)))
            pairs = zip(outputs, lengths.tolist(), strict=True)
            return [
                replace(output, tokens=output.tokens + more) if isinstance(output, Text) else output
                for output, more in pairs
            ]

        segment = segments(sequences, policy.model.decode, states.cut)
        return with_states(rollout, states, segment, request, complete, policy.decode)
