"""What processes gather from one another, with two threads as the processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmgrpo.runtime import distributed
from mmgrpo.scoring import RewardScores
from mmgrpo.types import OWN, REFERENCE, Decisions


class Rank(Accelerator):
    """One of two processes that are threads."""

    num_processes = 2
    process_index = 0
    device = torch.device("cpu")

    def __init__(self, index: int, exchange: Callable[[int, torch.Tensor], list[torch.Tensor]]) -> None:
        self.process_index = index
        self.exchange = exchange

    def reduce(self, tensor: torch.Tensor, reduction: str = "mean", scale: float = 1.0) -> torch.Tensor:
        total = torch.stack(self.exchange(self.process_index, tensor)).sum(0)
        return total if reduction == "sum" else total / 2


@pytest.fixture
def on_both(monkeypatch):
    """Calls a function with each of two ranks, and returns what it returns on both."""
    place, barrier, sent = threading.local(), threading.Barrier(2, timeout=60), [torch.empty(0), torch.empty(0)]

    def exchange(index: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        sent[index] = tensor
        barrier.wait()
        received = list(sent)
        barrier.wait()
        assert received[0].shape == received[1].shape and received[0].dtype == received[1].dtype
        return received

    monkeypatch.setattr(distributed, "gather", lambda tensor: torch.cat(exchange(place.index, tensor)))

    def call(function: Callable[[Rank], Any]) -> list[Any]:
        def of(index: int) -> Any:
            place.index = index
            return function(Rank(index, exchange))

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(of, range(2)))

    return call


def test_rows_of_all_are_gathered_in_order_however_many_each_has(on_both):
    mine = [torch.tensor([[1, 2]]), torch.tensor([[3, 4], [5, 6], [7, 8]])]
    for made in on_both(lambda rank: distributed.gather_rows(mine[rank.process_index], rank)):
        assert made.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    for made in on_both(lambda rank: distributed.row_counts(mine[rank.process_index], rank)):
        assert made == [1, 3]


@pytest.mark.parametrize("texts", [(["a", "déjà vu"], ["", "b" * 300]), ([], ["a"]), ([], [])])
def test_texts_of_all_are_gathered_in_order_however_long(texts, on_both):
    for made in on_both(lambda rank: distributed.gather_texts(texts[rank.process_index], rank)):
        assert made == [*texts[0], *texts[1]]


def test_the_largest_and_the_sums_are_over_both(on_both):
    assert on_both(lambda rank: distributed.largest([2.0, -1.0][rank.process_index], rank)) == [2, 2]
    mine = [{"a": 1.0, "b": 2.0}, {"b": 3.0}]
    sums = on_both(lambda rank: distributed.sum_by_name(mine[rank.process_index], ["b", "a", "c"], rank))
    assert sums == [{"b": 5, "a": 1, "c": 0}] * 2


def test_gradients_are_summed_and_those_of_one_rank_alone_count_once(on_both):
    def gradients(rank: Rank) -> list[list[float]]:
        parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1, 1))]
        parameters[0].grad = torch.tensor([1.0, 2.0]) * (1 + rank.process_index)
        if rank.process_index:
            parameters[1].grad = torch.tensor([[5.0]])
        distributed.sum_gradients(parameters, rank)
        return [parameter.grad.flatten().tolist() for parameter in parameters if parameter.grad is not None]

    assert on_both(gradients) == [[[3, 6], [5]]] * 2


def test_scores_of_both_are_gathered(on_both):
    def scores(rank: Rank) -> RewardScores:
        value = torch.tensor([[float(rank.process_index)]])
        return distributed.gather_reward_scores(RewardScores(value, value > 0), rank)

    for made in on_both(scores):
        assert made.values.tolist() == [[0], [1]] and made.valid.tolist() == [[False], [True]]


def decisions(index: int) -> Decisions:
    """Rank 0 has one row of one decision, rank 1 two rows of two, of which the last is padding."""
    mask = torch.tensor([[[True]], [[True, True], [True, False]]][index])
    return Decisions(
        log_probs=-1.0 - index * mask.float(),
        loss_mask=mask,
        decision_mask=mask,
        node=torch.arange(mask.numel()).view(mask.shape),
        origin=torch.full((len(mask),), [OWN, REFERENCE][index]),
        keys={"prompt": torch.full((len(mask),), 7 + index)},
        fields={"std": 0.5 + mask.float(), "truncated": torch.full((len(mask),), float(index))},
    )


def test_decisions_of_both_are_padded_to_the_longer_and_numbered_apart(on_both):
    for made in on_both(lambda rank: distributed.gather_decisions(decisions(rank.process_index), rank, 3)):
        assert made.log_probs.tolist() == [[-1, 0], [-2, -2], [-2, -1]]
        for mask in (made.loss_mask, made.decision_mask):
            assert mask.tolist() == [[True, False], [True, True], [True, False]]
        first, second = (place * distributed.NODES_PER_RANK for place in (6, 7))
        assert made.node.tolist() == [[first, first], [second, second + 1], [second + 2, second + 3]]
        assert made.origin.tolist() == [OWN, REFERENCE, REFERENCE]
        assert made.keys["prompt"].tolist() == [7, 8, 8]
        assert made.fields["std"].tolist() == [[1.5, 0], [1.5, 1.5], [1.5, 0.5]]
        assert made.fields["truncated"].tolist() == [0, 1, 1]


def test_draws_are_joined_with_all_that_they_have():
    made = distributed.join_decisions([decisions(0), decisions(1)])
    assert made.log_probs.tolist() == [[-1, 0], [-2, -2], [-2, -1]]
    assert made.loss_mask.tolist() == made.decision_mask.tolist() == [[True, False], [True, True], [True, False]]
    assert made.node.tolist() == [[0, 0], [0, 1], [2, 3]]
    assert made.origin.tolist() == [OWN, REFERENCE, REFERENCE] and made.keys["prompt"].tolist() == [7, 8, 8]
    assert made.fields["std"].tolist() == [[1.5, 0], [1.5, 1.5], [1.5, 0.5]]
    assert made.fields["truncated"].tolist() == [0, 1, 1]


def test_a_rank_works_on_its_part_of_what_divides_evenly(on_both):
    parts = on_both(lambda rank: distributed.RankSlice.of(6, rank, "prompts"))
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 6)]
    with pytest.raises(ValueError, match="2.*5.*multiple.*2"):
        on_both(lambda rank: distributed.RankSlice.of(5, rank, "prompts"))


def test_alone_everything_is_ones_own():
    alone, rows = Accelerator(cpu=True), torch.tensor([[1.0], [2.0]])
    part = distributed.RankSlice.of(5, alone, "prompts")
    assert (part.start, part.stop) == (0, 5)
    assert distributed.gather_rows(rows, alone) is rows and distributed.sum_over_ranks(rows, alone) is rows
    assert distributed.gather_texts(("a", ""), alone) == ["a", ""] and distributed.row_counts(rows, alone) == [2]
    assert distributed.largest(-2.5, alone) == -2.5
    assert distributed.sum_by_name({"a": 1.0, "c": 9.0}, ["b", "a"], alone) == {"b": 0, "a": 1}
    [reached, other] = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    reached.grad = torch.tensor([1.0, 2.0])
    distributed.sum_gradients(iter([reached, other]), alone)
    assert (reached.grad.tolist(), other.grad.tolist()) == ([1, 2], [0, 0])
    one = decisions(1)
    assert distributed.join_decisions([one]) is one
    made = distributed.gather_decisions(one, alone, 2)
    assert made.node.tolist() == [[2 * distributed.NODES_PER_RANK + n for n in row] for row in one.node.tolist()]
    assert distributed.pad_decisions(one, 3).log_probs.tolist() == [[-2, -2, 0], [-2, -1, 0]]
