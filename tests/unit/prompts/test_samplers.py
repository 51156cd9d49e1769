"""Samplers: weights and sizes of their papers, and the draws that follow from weights."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from mmgrpo.advantages.estimate import Estimate
from mmgrpo.config.registry import bind
from mmgrpo.prompts.drawing import Draw, Drawing, PromptOrder, Sampling, category_of
from mmgrpo.prompts.samplers import SAMPLERS, with_replacement, without_replacement
from mmgrpo.types import Decisions, Prompt


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of(text: str, **inputs):
    kinds = {name: torch.int64 if name in ("visits", "draws", "last_count") else torch.float64 for name in inputs}
    given = {name: torch.tensor(v, dtype=kinds[name]) if isinstance(v, list) else v for name, v in inputs.items()}
    return bind(text, SAMPLERS, "test")(given)


def test_a_weight_of_zero_is_never_drawn_also_where_the_sums_meet():
    weights = numbers([0.25, 0.1875, 0.0, 0.05])
    assert with_replacement(weights, numbers([0.5, 0.6, 0.9]), 3) == [0, 1, 3]
    edge = 0.4375 / 0.4875
    assert with_replacement(weights, numbers([edge, edge - 1e-12, 1 - 1e-16]), 3)[1:] == [1, 3]
    assert with_replacement(weights, numbers([edge]), 1) in ([1], [3])


def test_draws_without_replacement_take_the_largest_keys():
    weights, uniform = numbers([0.55, 0.35, 0.35, 0.05]), numbers([0.5, 0.9, 0.2, 0.95])
    keys = [math.log(u) / w for u, w in zip(uniform.tolist(), weights.tolist(), strict=True)]
    assert keys == pytest.approx([-1.26027, -0.30103, -4.59839, -1.02587], abs=1e-5)
    assert without_replacement(weights, uniform, 2) == [1, 3]
    assert without_replacement(numbers([0, 1, 0]), numbers([0.9, 0.5, 0.9]), 2) == [1]


def test_equal_weights_draw_evenly():
    uniform = torch.rand(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(torch.tensor(with_replacement(torch.ones(4), uniform, 10_000)))
    assert bool((counts - 2500).abs().max() < 4 * math.sqrt(10_000 * 0.25 * 0.75))


def test_weights_of_papers():
    # MMR1: p (1 - p); a prompt never visited has the largest of the others.
    made = of("variance_weighted", visits=[1, 1, 1, 1, 0], last_variance=[0.25, 0.1875, 0, 0, 0])
    assert made.weights.tolist() == [0.25, 0.1875, 0, 0, 0.25] and made.share == 0.5
    assert (made.weights[:4] / made.weights[:4].sum()).tolist() == pytest.approx([0.57143, 0.42857, 0, 0], abs=1e-5)
    # MMR1 with the diversity of trajectories: .8 x .25 + .2 x .5, .2 x 1, .8 x .1875; the largest for what is unknown.
    given = {"last_variance": [0.25, 0.0, 0.1875, 0.0], "last_score": [0.5, 1.0, 0.0, float("nan")]}
    made = of("promotion", visits=[1, 1, 1, 0], **given)
    assert made.weights.tolist() == pytest.approx([0.3, 0.2, 0.15, 0.3]) and made.share == 0.5
    plain = of("promotion(outcome=1, diversity=0)", visits=[1, 1, 1, 0], **given)
    assert plain.weights.tolist() == [0.25, 0.0, 0.1875, 0.25]
    # SPO
    made = of("uncertainty_weighted", tracker_value=[0.5, 0.1, 0.9, 0.0])
    assert made.weights.tolist() == pytest.approx([0.55, 0.35, 0.35, 0.05]) and made.how == "distinct"
    # SEC
    for temperature, chances in ((1.0, [0.40176, 0.32893, 0.26931]), (0.2, [0.66524, 0.24473, 0.09003])):
        arms = of(f"bandit(temperature={temperature})", arm_values=[0.4, 0.2, 0.0])
        assert arms.weights.tolist() == pytest.approx(chances, abs=1e-5)
        moved = of(f"bandit(temperature={temperature})", arm_values=[5.4, 5.2, 5.0])
        assert moved.weights.tolist() == pytest.approx(chances, abs=1e-5)
    # PCL: distances from .5; what was never visited is at the target.
    made = of("nearest", average_reward=[0.9, 0.45, float("nan"), 0.6])
    assert made.weights.tolist() == pytest.approx([0.4, 0.05, 0, 0.1])


def test_filters_keep_what_was_never_visited():
    visits = [1, 1, 0]
    assert of("retire", visits=visits, last_mean=[0.9, 0.875, 0.0]).tolist() == [False, True, True]
    for round_, kept in ((59, [True, True, True]), (60, [False, True, True])):
        # RCS with weights 1 and 1 and three samples: a score of 6 is out, 5 is in.
        rates = {"visits": visits, "last_mean": [6 / 3, 5 / 3, 0.0], "round": round_}
        assert of("imperfect(full=2.0)", **rates).tolist() == kept
    assert of("solved_rate(high=0.3)", visits=visits, pass_rate=[0.3, 0.4, math.nan]).tolist() == [True, False, True]
    assert of("varied(least=0.1)", visits=visits, last_variance=[0.09, 0.1, 0.0]).tolist() == [False, True, True]
    stages = "difficulty_stages(until=[100, 200], most=[2, 5])"
    for round_, count in ((99, 2), (100, 4), (200, 5)):
        assert int(of(stages, column_values=[1, 2, 3, 5, 8], round=round_).sum()) == count


def total_value(sizes, rates) -> float:
    return sum((1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2 for n, p in zip(sizes, rates, strict=True))


def sizes_of(rates, count, *, least=2, most=16, draws=None, counts=None, last=None) -> list[int]:
    known = {"window_mean": rates, "last_mean": last or rates, "count": count}
    known |= {"draws": draws or [99] * len(rates), "last_count": counts or [1] * len(rates)}
    return of(f"knapsack(least={least}, most={most})", **known).tolist()


def test_a_budget_is_spent_where_it_teaches_most():
    rates = [0.5, 0.25, 0.1]
    assert sizes_of(rates, 8) == [6, 9, 9]
    values = [total_value(sizes, rates) for sizes in ([6, 9, 9], [8, 8, 8])]
    assert values == pytest.approx([0.300778, 0.296700], abs=1e-6)
    every = [n for n in itertools.product(range(2, 17), repeat=3) if sum(n) == 24]
    assert total_value([6, 9, 9], rates) == pytest.approx(max(total_value(n, rates) for n in every))
    assert sizes_of([0.1, 0.5, 0.25], 8) == [9, 6, 9], "prompts and sizes are permuted together"
    assert sizes_of(rates, 8, least=8, most=8) == [8, 8, 8]


def test_what_a_budget_does_not_know_or_cannot_use():
    assert sizes_of([0.5, 0.5], 4, draws=[0, 7]) == [4, 4], "too few samples so far: the usual number"
    assert sizes_of([1.0, 0.0, 0.0, 1.0], 4) == [2, 6, 6, 2], "nothing teaches: all for those never solved"
    assert sum(sizes_of([0.9, 1.0, 0.0], 8, most=64)) == 24
    # log .1 / log .5 = 3.3: three samples suffice, and the rest of the 16 are for the prompt never solved.
    assert sizes_of([0.5, 0.0], 8) == [3, 13]
    assert sizes_of([0.5, 0.25], 8, counts=[16, 16], last=[0.25, 0.5]) == sizes_of([0.25, 0.5], 8)


def test_stages_end_by_their_rule():
    done, positive = of("staged(count=4)"), of("staged(rule='positive')")
    rounds = [0] * 8, [0] * 8 + [1] + [0] * 7, [0] * 8 + [1] + [0] * 12 + [1] * 3
    assert [done(numbers(list(one))) for one in rounds] == [False, False, True]
    assert [positive(numbers(list(one))) for one in rounds] == [False, True, True]


def test_unequal_groups_are_divided_by_their_samples():
    counts = (16, 9, 9, 6, 4, 4)
    parts = Draw((0,) * 6, tuple(range(6)), tuple(range(6)), counts).parts(2, 0)
    assert [sum(counts[place] for part in one for place in part) for one in parts] == [26, 22]
    assert all(len({counts[place] for place in part}) == 1 for one in parts for part in one)
    equal = Draw((0,) * 4, tuple(range(4)), tuple(range(4)), (3,) * 4)
    assert equal.parts(2, 0) == [[[0, 1]], [[2, 3]]] and equal.parts(1, 3) == [[[0, 1, 2], [3]]]


@pytest.mark.parametrize(
    ("samplers", "trackers", "message"),
    [
        (["variance_weighted", "nearest"], ["moving_average"], "'variance_weighted'.*'nearest'"),
        (["dynamic_sampling", "staged"], [], "'dynamic_sampling'.*'staged'"),
        (["uncertainty_weighted"], [], "tracker_value.*'beta'"),
        (["adaptive_sampling"], [], "keep_rate.*'keep_rate'"),
        (["retir"], [], "'retir'.*'retire'"),
        ([], ["betta"], "algorithm.trackers.*'betta'.*'beta'"),
    ],
)
def test_samplers_that_cannot_work_are_refused(samplers, trackers, message):
    with pytest.raises(ValueError, match=message):
        Sampling.of(samplers, trackers)


def test_a_mixture_names_a_category_that_no_prompt_has():
    prompts = [Prompt("a", "1", meta={"kind": "count"}), Prompt("b", "2", meta={"kind": "colour"})]
    assert Sampling.of(["mixture(weights={'count': 1}, column='kind')"]).ledger(prompts).names == ("count", "colour")
    with pytest.raises(ValueError, match="'coun'.*'kind'.*count"):
        Sampling.of(["mixture(weights={'coun': 1}, column='kind')"]).ledger(prompts)
    with pytest.raises(ValueError, match="'1'.*'level'"):
        category_of(prompts[0], "level", {})


@pytest.mark.parametrize(
    ("sampler", "draws"),
    [
        ("", [3]),
        ("dynamic_sampling(rounds=1)", [3, 3]),
        ("dynamic_sampling", [3] * 11),
        ("adaptive_sampling(rounds=2)", [3, 9, 36]),  # one of 3 counts as kept, then one of 12
    ],
)
def test_a_round_whose_groups_never_have_spread_ends_after_its_redraws(sampler, draws):
    sampling = Sampling.of([sampler] if sampler else [], ["keep_rate"])
    size = SimpleNamespace(prompts=3, group_size=4, samplers=sampling)
    drawing = Drawing(size, sampling.ledger([Prompt("", str(n)) for n in range(8)]), PromptOrder(8, 0), 0, 0, 0, 1)
    nothing, decisions = Mock(spec=Estimate, spread_groups=0), Mock(spec=Decisions)
    drawn = [drawing.first(), *itertools.islice(iter(lambda: drawing.next(nothing, decisions), None), 20)]
    assert [len(one.slots) for one in drawn] == draws and drawing.cursor == sum(draws)
    slots = [slot for one in drawn for slot in one.slots]
    assert len({*slots}) == len(slots), "each group is one of its own"
