"""The two parts of a batch are the partition with the largest variance between the parts, found among all."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch

from mmgrpo.advantages.select import parts


def cut(values: list, key: list | None = None, of: str = "rows", stat: list | None = None):
    rows = torch.tensor(stat or [True] * len(values))
    found = parts(torch.tensor(values, dtype=torch.float64), torch.tensor(key or [0] * len(values)), rows, of)
    return found and (found.high.tolist(), found.mean.tolist(), found.centre.item())


def every_partition(values: list[float]) -> tuple[set[int], float, float]:
    """The upper part of the best of all partitions, and the means of both parts."""

    def between(high: set[int]) -> float:
        above = statistics.mean(values[i] for i in high)
        below = statistics.mean(v for i, v in enumerate(values) if i not in high)
        return len(high) * (len(values) - len(high)) * (above - below) ** 2 if above > below else -1.0

    places = range(len(values))
    best = max((set(h) for n in range(1, len(values)) for h in itertools.combinations(places, n)), key=between)
    return best, statistics.mean(values[i] for i in best), statistics.mean(values[i] for i in places if i not in best)


@pytest.mark.parametrize("seed", range(12))
def test_the_cut_is_the_best_of_all_partitions(seed):
    generator = torch.Generator().manual_seed(seed)
    # of few numbers, so many are equal, and lopsided
    values = (torch.randint(0, 4, (7,), generator=generator) ** 2).double().tolist()
    high, above, below = every_partition(values)
    rows, means, centre = cut(values)
    assert {i for i, one in enumerate(rows) if one} == high
    assert means == pytest.approx([above if one else below for one in rows])
    assert centre == pytest.approx((above + below) / 2)


def test_prompts_are_divided_by_their_means_each_counted_once():
    # prompt 0: 1, 0, 1, 0 of mean .5; prompt 1: 1; prompt 2: 0, 0
    rewards, key = [1.0, 0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 2, 2]
    high, means, centre = cut(rewards, key, "prompts")
    # 0 | .5, 1 and 0, .5 | 1 are as good: the first
    assert high == [True] * 5 + [False] * 2
    assert means == [0.75] * 5 + [0] * 2 and centre == 0.375
    high, means, centre = cut(rewards, key, "rows")
    assert high == [True, False, True, False, True, False, False]
    assert means == [1, 0, 1, 0, 1, 0, 0] and centre == 0.5


def test_rows_outside_the_statistics_do_not_move_the_cut():
    high, means, _ = cut([0.0, 0, 1, 90], stat=[True, True, True, False])
    assert high == [False, False, True, True] and means == [0, 0, 1, 1]


@pytest.mark.parametrize("of", ["rows", "prompts"])
def test_what_is_all_equal_is_not_divided(of):
    assert cut([0.5, 0.5, 0.5], [0, 0, 1], of) is None
    assert cut([0.5, 7.0], [0, 1], of, stat=[True, False]) is None
    assert cut([0.5, 7.0], [0, 1], of, stat=[False, False]) is None
    assert cut([0.0, 0.0, 1.0], [0, 1, 2], of) is not None
