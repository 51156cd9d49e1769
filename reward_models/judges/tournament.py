"""Rewards of a judge that compares an output with some of its group only, or with the answer of its prompt.

    judge_tournament   the rank in a tournament of the group, 2 G - 2 comparisons (ArenaRL, arXiv:2601.06487)
    judge_one          won or lost against one output of the group, G - 1 comparisons (BRPO, arXiv:2506.00103)
    judge_answer       the probability to win against the given answer, one comparison (Pairwise-RL, arXiv:2504.04950)

Every two are judged in both orders. What cannot be read does not count. ``media`` is that of ``judge_pairs``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmgrpo.randomness import derive
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Text
from reward_models.judges.pairwise import ASK, compare, judged_reward
from reward_models.rules.groups import groups
from reward_models.rules.parsing import gold_text

Pair = tuple[int, int]
SCHEDULES = ("elimination", "round_robin", "anchor")


@judged_reward(
    scale="rank in the group, 1 for the best",
    source="ArenaRL, arXiv:2601.06487",
    check="reward_models.judges.tournament:check_tournament",
)
def judge_tournament(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str = ASK,
    schedule: str = "elimination",
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """1 - rank / (G - 1) of an output in a tournament of its group, from 1 for the winner to 0 (ArenaRL,
    arXiv:2601.06487).

    ``elimination``: all play against the first of the group, which seeds a bracket; who is out in the same round is
    ranked by the mean of all that it got. Best seeds have byes, and go on where a match cannot be read or is a tie.
    ``round_robin``: ranks of the mean over all others (G (G - 1) / 2 comparisons), ``anchor``: of the first games
    alone; equal ones share the better rank. An output that is alone in its group, or of which nothing could be read, is
    NaN. ValueError for another schedule.
    """
    check_tournament(judge="", schedule=schedule)

    def play(pairs: Sequence[Pair]) -> dict[Pair, float]:
        both = compare(prompts, outputs, judge, ask_for, True, tokens, media, device, pairs=pairs)
        return {(first, other): _mean([both[first, other], 1 - both[other, first]]) for first, other in pairs}

    tables = [Table(rows) for rows in groups(prompts)]
    plans = [table.plan(schedule) for table in tables]
    waiting = {number: next(plan, []) for number, plan in enumerate(plans)}
    while waiting := {number: pairs for number, pairs in waiting.items() if pairs}:  # a round of all groups at once
        shares = play([pair for pairs in waiting.values() for pair in pairs])
        for number, pairs in waiting.items():
            tables[number].enter({pair: shares[pair] for pair in pairs})
            waiting[number] = next(plans[number], [])
    rewards = [math.nan] * len(prompts)
    for table in tables:
        for row, value in table.rewards().items():
            rewards[row] = value
    return rewards


def check_tournament(*, judge: str = "", schedule: str = "elimination", **_: object) -> None:
    """ValueError for a schedule that is none, before a run starts."""
    if schedule not in SCHEDULES:
        raise ValueError(f"judge_tournament: schedule: got {schedule!r}, expected one of {', '.join(SCHEDULES)}")
    if judge:
        from reward_models.judges.named import check_judge

        check_judge(judge)


@dataclass
class Table:
    """The games of one group."""

    rows: list[int]

    def __post_init__(self) -> None:
        self.got: dict[int, list[float]] = {row: [] for row in self.rows}
        self.results: dict[Pair, float] = {}
        self.out: dict[int, int] = {}
        """The round in which a row lost."""

    def enter(self, results: Mapping[Pair, float]) -> None:
        """Take in the share that the first of each pair got; NaN counts for neither."""
        self.results.update(results)
        for (first, other), share in results.items():
            if not math.isnan(share):
                self.got[first].append(share)
                self.got[other].append(1 - share)

    def plan(self, schedule: str) -> Iterator[list[Pair]]:
        """The pairs of one round after another; the results of a round are in before the next is asked for."""
        first, *others = self.rows
        if schedule == "round_robin":
            yield [(row, other) for place, row in enumerate(self.rows) for other in self.rows[place + 1 :]]
            return
        yield [(row, first) for row in others]
        if schedule == "anchor":
            return
        # The sort is stable: equal ones in the order of the rows.
        seeds = sorted(self.rows, key=lambda row: -_mean(self.got[row], 0.0))
        rank = {row: place for place, row in enumerate(seeds)}
        left: list[int | None] = [seeds[place] if place < len(seeds) else None for place in bracket(len(seeds))]
        number = 0
        while len(left) > 1:
            matches = list(zip(left[::2], left[1::2], strict=True))
            yield [(player, other) for player, other in matches if player is not None and other is not None]
            left, number = [], number + 1
            for player, other in matches:
                if player is None or other is None:
                    left.append(player if other is None else other)
                    continue
                share = self.results[player, other]
                ahead = rank[player] < rank[other] if math.isnan(share) or share == 0.5 else share > 0.5
                left.append(player if ahead else other)
                self.out[other if ahead else player] = number

    def rewards(self) -> dict[int, float]:
        """1 - rank / (G - 1) of each row of which something could be read."""
        scored = [row for row in self.rows if self.got[row]]
        value: Callable[[int], tuple[float, float]] = lambda row: (  # noqa: E731
            self.out.get(row, math.inf if self.out else 0),
            _mean(self.got[row]),
        )
        return {
            row: 1 - sum(value(other) > value(row) for other in scored) / max(1, len(self.rows) - 1) for row in scored
        }


def bracket(players: int) -> list[int]:
    """The order of the seeds, from 0, of whom two neighbours meet, padded to a power of two: the best two can meet in
    the last round alone. 4: 0 3 1 2. 8: 0 7 3 4 1 6 2 5."""
    order = [0]
    while len(order) < players:
        size = 2 * len(order)
        order = [seed for player in order for seed in (player, size - 1 - player)]
    return order


@judged_reward(range=(-1, 1), scale="won or lost against one of the group", source="BRPO, arXiv:2506.00103")
def judge_one(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str = ASK,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """1 for an output that the judge prefers in both orders to one output of its group, -1 otherwise, and 0 for that
    one: the advantage of BRPO (Writing-Zero, arXiv:2506.00103; preset ``brpo``).

    The one is drawn from a hash of the outputs, so it is another in every round and the same on all processes.
    NaN where an order cannot be read; an output that is alone is NaN.
    """
    chosen = {row: rows[_draw(outputs, rows)] for rows in groups(prompts) if len(rows) > 1 for row in rows}
    pairs = [(row, partner) for row, partner in chosen.items() if row != partner]
    both = compare(prompts, outputs, judge, ask_for, True, tokens, media, device, pairs=pairs)
    rewards = [math.nan] * len(prompts)
    for row, partner in chosen.items():
        if row == partner:
            rewards[row] = 0.0
        elif not math.isnan(both[row, partner] + both[partner, row]):
            rewards[row] = 1.0 if both[row, partner] == 1 and both[partner, row] == 0 else -1.0
    return rewards


def _draw(outputs: Sequence[Output], rows: Sequence[int]) -> int:
    content = "|".join(outputs[row].text if isinstance(outputs[row], Text) else repr(outputs[row]) for row in rows)  # type: ignore[union-attr]
    return derive(int.from_bytes(hashlib.sha256(content.encode()).digest()[:6], "big"), "judge_one") % len(rows)


@reward(
    "Text",
    scale="probability to win against the answer",
    reads=("text", "media", "answer"),
    source="Pairwise-RL, arXiv:2504.04950",
    check="reward_models.judges.named:check_judge",
    row="reward_models.judges.question:check_source",
    version=2,
)
def judge_answer(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    judge: str,
    ask_for: str = ASK,
    tokens: int = 1024,
    media: bool = True,
    device: str = "cpu",
) -> list[float]:
    """(P(output > answer) + 1 - P(answer > output)) / 2 against the answer of the prompt, judged in both orders:
    Pairwise-RL (arXiv:2504.04950), whose reward is the probability of a generative judge; here 1, 0 or a half of each
    order. A share of .8 and one of .3: .75. BRPO's ``judge_one`` is its form of +1 and -1.
    """
    answers = [Text(gold_text(prompt)) for prompt in prompts]
    count = len(outputs)
    pairs = [(row, count + row) for row in range(count)]
    both = compare([*prompts, *prompts], [*outputs, *answers], judge, ask_for, True, tokens, media, device, pairs=pairs)
    return [_mean([both[row, other], 1 - both[other, row]]) for row, other in pairs]


def _mean(values: Sequence[float], default: float = math.nan) -> float:
    read = [value for value in values if not math.isnan(value)]
    return math.fsum(read) / len(read) if read else default
