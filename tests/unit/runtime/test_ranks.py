"""Communication between ranks, in threads of one process that meet where ranks would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.runtime import distributed
from mmgrpo.scoring import RewardScores
from mmgrpo.types import OWN, REFERENCE, Decisions
from tests.trees import decisions


class Meeting:
    """Where the ranks lay down a tensor each and take away all."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.brought = threading.Barrier(ranks, timeout=60), [torch.empty(0)] * ranks
        self.rank = threading.local()

    def all(self, value: torch.Tensor) -> list[torch.Tensor]:
        self.brought[self.rank.number] = value
        self.barrier.wait()
        brought = list(self.brought)
        self.barrier.wait()
        return brought

    def of_all(self, work: Callable[[int], Any]) -> list[Any]:
        """What a function returns on each rank; the error of the rank that failed, not of those that wait for it."""

        def one(number: int) -> Any:
            self.rank.number = number
            try:
                return work(number)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(len(self.brought)) as pool:
            made = [pool.submit(one, number) for number in range(len(self.brought))]
        errors = [future.exception() for future in made]
        for error in sorted(filter(None, errors), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in made]


class Rank(Accelerator):
    """The accelerator of one of several ranks."""

    device = torch.device("cpu")
    num_processes = process_index = 0
    state: Any

    def __init__(self, number: int, meeting: Meeting) -> None:
        self.process_index, self.num_processes, self.meeting = number, len(meeting.brought), meeting

    def reduce(self, value: torch.Tensor, reduction: str = "mean", scale: float = 1.0) -> torch.Tensor:
        assert reduction == "sum"
        return torch.stack(self.meeting.all(value)).sum(0)


@pytest.fixture
def on_ranks(monkeypatch) -> Callable[..., list[Any]]:
    """Run a function of rank and accelerator on so many ranks at once; what each of them returns."""

    def run(count: int, work: Callable[[int, Rank], Any]) -> list[Any]:
        meeting = Meeting(count)
        monkeypatch.setattr(distributed, "gather", lambda value: torch.cat(meeting.all(value)))

        return meeting.of_all(lambda number: work(number, Rank(number, meeting)))

    return run


def test_rows_of_all_ranks_stand_in_their_order_also_where_one_has_more_or_none(on_ranks):
    rows = [torch.tensor([[1.0, 2.0]]), torch.empty(0, 2), torch.tensor([[3.0, 4.0], [5.0, 6.0]])]
    for got in on_ranks(3, lambda number, rank: distributed.gather_rows(rows[number], rank)):
        assert got.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert on_ranks(3, lambda number, rank: distributed.row_counts(rows[number], rank)) == [[1, 0, 2]] * 3


def test_texts_of_all_ranks_stand_in_their_order_whatever_their_bytes(on_ranks):
    texts = [["zwei Bären", ""], [], ["三"]]
    for got in on_ranks(3, lambda number, rank: distributed.gather_texts(texts[number], rank)):
        assert got == ["zwei Bären", "", "三"]
    assert on_ranks(2, lambda number, rank: distributed.gather_texts([], rank)) == [[], []]


def test_the_largest_number_and_the_sum_are_those_of_all_ranks(on_ranks):
    assert on_ranks(3, lambda number, rank: distributed.largest(-1.0 - number, rank)) == [-1.0] * 3
    sums = on_ranks(3, lambda number, rank: distributed.sum_over_ranks(torch.tensor([number, 1.0]), rank))
    assert [one.tolist() for one in sums] == [[3, 3]] * 3
    named = [{"a": 1.0, "b": 2.0}, {"b": 3.0}]
    sums = on_ranks(2, lambda number, rank: distributed.sum_by_name(named[number], ["b", "a", "c"], rank))
    assert sums == [{"b": 5, "a": 1, "c": 0}] * 2


def test_each_rank_works_on_its_own_even_share(on_ranks):
    shares = on_ranks(3, lambda number, rank: distributed.RankSlice.of(6, rank, "rows"))
    assert [(one.start, one.stop) for one in shares] == [(0, 2), (2, 4), (4, 6)]
    with pytest.raises(ValueError, match="3.*7.*multiple.*3"):
        on_ranks(3, lambda number, rank: distributed.RankSlice.of(7, rank, "rows"))


def test_ranks_that_divide_tokens_are_one_whose_first_counts(on_ranks):
    """Four ranks, two by two: rows, sums and shares are those of ranks 0 and 2, gradients those of all."""

    def work(number: int, rank: Rank) -> dict[str, Any]:
        distributed.TOGETHER[rank] = 2
        rows = [torch.tensor([1.0]), torch.tensor([9.0]), torch.tensor([3.0, 4.0]), torch.tensor([9.0, 9.0])][number]
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([10.0**number])
        share = distributed.RankSlice.of(6, rank, "rows")
        found = {
            "place": distributed.DataRank.of(rank),
            "share": (share.start, share.stop),
            "rows": distributed.gather_rows(rows, rank).tolist(),
            "counts": distributed.row_counts(rows, rank),
            "sum": float(distributed.sum_over_ranks(rows.sum(), rank)),
            "largest": distributed.largest(float(number), rank),
        }
        distributed.sum_gradients([weight], rank)
        return found | {"gradient": float(weight.grad)}

    found = on_ranks(4, work)
    assert [one.pop("place") for one in found] == [
        distributed.DataRank(index, 2, first) for index, first in ((0, True), (0, False), (1, True), (1, False))
    ]
    assert [one.pop("share") for one in found] == [(0, 3), (0, 3), (3, 6), (3, 6)]
    # 1 + 3 + 4 = 8; a signal that the last rank alone has received counts; 1 + 10 + 100 + 1000
    assert found == [{"rows": [1, 3, 4], "counts": [1, 2], "sum": 8, "largest": 3, "gradient": 1111}] * 4


def test_decisions_of_ranks_and_draws_never_share_a_node_and_are_padded_to_the_widest(on_ranks):
    made = [decisions([[0, 1], [0, 2]]), decisions([[0, 1, 2]])]
    [first, second] = [
        on_ranks(2, lambda number, rank, draw=draw: distributed.gather_decisions(made[number], rank, draw))
        for draw in (0, 1)
    ]
    got = first[0]
    assert got.loss_mask.shape == (3, 3) and got.decision_mask.tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert torch.equal(got.node, first[1].node)
    nodes = [set(one.node[one.decision_mask].tolist()) for one in (first[0], second[0])]
    # 3 nodes of the first rank and 3 of the second, in each draw
    assert len(nodes[0]) == len(nodes[1]) == 6 and not nodes[0] & nodes[1]
    assert (got.node[0, 0] == got.node[1, 0]) and got.node[2, 0] - got.node[0, 0] == distributed.NODES_PER_RANK
    joined = distributed.join_decisions([made[0], made[1]])
    assert joined.decision_mask.tolist() == got.decision_mask.tolist()


def test_decisions_keep_all_that_they_have(on_ranks):
    """Rank 0 has one row of one decision, rank 1 two rows of two, of which the last is padding."""

    def made(number: int) -> Decisions:
        mask = torch.tensor([[[True]], [[True, True], [True, False]]][number])
        return Decisions(
            log_probs=-1.0 - number * mask.float(),
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel()).view(mask.shape),
            origin=torch.full((len(mask),), [OWN, REFERENCE][number]),
            keys={"prompt": torch.full((len(mask),), 7 + number)},
            fields={"std": 0.5 + mask.float(), "truncated": torch.full((len(mask),), float(number))},
        )

    gathered = on_ranks(2, lambda number, rank: distributed.gather_decisions(made(number), rank, 3))
    for got in (*gathered, distributed.join_decisions([made(0), made(1)])):
        assert got.log_probs.tolist() == [[-1, 0], [-2, -2], [-2, -1]]
        assert got.loss_mask.tolist() == got.decision_mask.tolist() == [[True, False], [True, True], [True, False]]
        assert got.origin.tolist() == [OWN, REFERENCE, REFERENCE] and got.keys["prompt"].tolist() == [7, 8, 8]
        assert got.fields["std"].tolist() == [[1.5, 0], [1.5, 1.5], [1.5, 0.5]]
        assert got.fields["truncated"].tolist() == [0, 1, 1]


def test_scores_of_all_ranks_are_gathered_with_what_could_be_scored(on_ranks):
    def scores(number: int, rank: Rank) -> RewardScores:
        mine = RewardScores(torch.full((2, 1), float(number)), torch.tensor([[True], [number == 0]]))
        return distributed.gather_reward_scores(mine, rank)

    for got in on_ranks(2, scores):
        assert got.values.tolist() == [[0], [0], [1], [1]] and got.valid.tolist() == [[True], [True], [True], [False]]


def test_gradients_are_summed_over_ranks_and_none_counts_as_zero(on_ranks):
    def gradients(number: int, rank: Rank) -> list[list[float]]:
        first, second, third = (nn.Parameter(torch.zeros(size)) for size in (2, 1, 1))
        first.grad = torch.tensor([1.0, 10.0]) * (number + 1)
        if number == 1:
            second.grad = torch.tensor([7.0])
        distributed.sum_gradients([first, second, third], rank)
        return [parameter.grad.tolist() for parameter in (first, second, third)]

    assert on_ranks(2, gradients) == [[[3, 30], [7], [0]]] * 2


def test_one_rank_alone_gives_back_what_it_has():
    alone = Accelerator(cpu=True)
    value = torch.tensor([1.0])
    assert distributed.gather_rows(value, alone) is value and distributed.sum_over_ranks(value, alone) is value
    assert distributed.gather_texts(("a", "b"), alone) == ["a", "b"] and distributed.row_counts(value, alone) == [1]
    parameter = nn.Parameter(torch.zeros(2))
    distributed.sum_gradients([parameter], alone)
    assert parameter.grad is not None and parameter.grad.tolist() == [0, 0]
