"""Transforms of rewards: worked numbers, and which rewards they change."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.config.registry import bind


def real(rows):
    return torch.tensor(rows, dtype=torch.float64)


def transformed(text, rows, references=None, names=("a", "b")):
    values = real(rows)
    inputs = {"values": values, "raw": values, "names": names[: values.shape[1]]}
    inputs |= {"reference_rewards": real(references)} if references else {}
    return bind(text, TRANSFORMS, "transform")(inputs)


@pytest.mark.parametrize("difference, wanted", [(0, -0.69315), (2, -0.12693), (-2, -2.12693), (-80, -80)])
def test_log_sigmoid_is_minus_softplus(difference, wanted):
    assert transformed("log_sigmoid(reference=0.5)", [[difference + 0.5]]).item() == pytest.approx(wanted, abs=5e-6)


def test_the_sum_of_log_sigmoids_is_at_most_the_smallest_and_a_satisfied_reward_gains_nothing():
    made = transformed("log_sigmoid(reference=0)", [[3.0, -1.0], [6.0, -1.0], [60.0, -1.0]])
    assert (made.sum(1) <= made.min(1).values).all()
    assert 0 < made[2].sum() - made[1].sum() < 0.007


def test_log_sigmoid_against_the_upper_quantile_of_the_references():
    # 0, 1, ..., 20: the 85 % quantile is 17
    made = transformed("log_sigmoid_quantile", [[19.0]], [[list(range(21))]])
    assert made.item() == pytest.approx(-0.12693, abs=5e-6)


def test_par_is_the_probability_to_win_against_the_references():
    references = [[[0.0, 1.0, 2.0]]]
    assert transformed("par", [[1.0]], references).item() == pytest.approx(0.5)
    assert transformed("par", [[3.0]], references).item() == pytest.approx(0.85481, abs=5e-6)
    beaten = transformed("par(slope=1e4)", [[1.5]], references)
    assert beaten.item() == pytest.approx(2 / 3)  # a steep slope counts the references beaten
    one = transformed("par", [[1.7]], [[[0.4]]])
    assert one.item() == pytest.approx(transformed("sigmoid(reference=0.4)", [[1.7]]).item())


def test_a_reward_without_references_stays_as_it_is():
    made = transformed("par", [[1.0, 7.0]], [[[1.0], [math.nan]]])
    assert made.tolist() == [[0.5, 7.0]]


def test_transforms_change_the_reward_that_they_name_and_its_previews():
    rows = [[4.0, 4.0, 4.0]]
    assert transformed("clip(low=0, high=1, of='b')", rows, names=("a", "b", "b@x")).tolist() == [[4, 1, 1]]
    assert transformed("standard(mean=2, std=4)", rows[:1], names=("a", "b", "c")).tolist() == [[0.5, 0.5, 0.5]]
    assert transformed("shortfall(least=5, of='a')", rows, names=("a", "b", "c")).tolist() == [[-1, 4, 4]]
    assert transformed("shortfall(least=3, of='a')", rows, names=("a", "b", "c")).tolist() == [[0, 4, 4]]


def test_a_gate_floors_all_other_rewards_or_the_one_it_names():
    rows = [[0.9, 0.2], [0.8, 0.5], [0.7, 0.9]]
    assert transformed("gate(by='b', least=0.5, floor=-1)", rows).tolist() == [[-1, 0.2], [0.8, 0.5], [0.7, 0.9]]
    three = [[0.9, 0.2, 0.3]]
    made = transformed("gate(by='b', least=0.5, floor=0, of='c')", three, names=("a", "b", "c"))
    assert made.tolist() == [[0.9, 0.2, 0]]
    # a judge that counts for what is wrong only, and a band
    assert transformed("gate(by='b', most=0, floor=0)", [[0.9, 0.0], [0.8, 1.0]]).tolist() == [[0.9, 0], [0, 1]]
    made = transformed("gate(by='b', least=0.3, most=0.6, floor=0)", rows)
    assert made.tolist() == [[0, 0.2], [0.8, 0.5], [0, 0.9]]
    with pytest.raises(ValueError, match="gate.*least, most"):
        transformed("gate(by='b', floor=0)", rows)


def test_the_advice_after_a_right_class_is_worth_half_as_much_more():
    """TimeMaster: .9 class + .1 form + .5 advice, which counts after a right class only: 1.3, 1 and .1."""
    rows, names = [[1.0, 1.0, 0.6], [1.0, 1.0, 0.0], [0.0, 1.0, 0.6]], ("task", "format", "judge_score")
    made = transformed("gate(by='task', least=1, floor=0, of='judge_score')", rows, names=names)
    assert (made @ torch.tensor([0.9, 0.1, 0.5], dtype=made.dtype)).tolist() == pytest.approx([1.3, 1.0, 0.1])


def test_every_row_is_compared_with_its_own_references():
    # the medians of 1, 2, 9 and 3, 4, 5 are 2 and 4; r is 2 more and 2 less
    made = transformed("log_sigmoid_quantile(quantile=0.5)", [[4.0], [2.0]], [[[1.0, 2, 9]], [[3.0, 4, 5]]])
    assert made.flatten().tolist() == pytest.approx([-0.12693, -2.12693], abs=5e-6)
    # gaps of ln 2, ln 4 and 0: the mean of 1/2, 3/4 and 0; of the second reward ln 2 and 0, 0
    two = math.log(2)
    made = transformed("above_reference(slope=1)", [[0.0, two]], [[[-two, -2 * two, 1], [0, two, 9]]])
    assert made.flatten().tolist() == pytest.approx([1.25 / 3, 0.5 / 3])


@pytest.mark.parametrize("text, changed", [("gate(by='b', least=5, floor=-1)", -1), ("demote(by='b', least=5)", 1)])
def test_what_a_missed_reward_takes_from_the_others_it_does_not_take_from_itself_and_its_previews(text, changed):
    made = transformed(text, [[2.0, 3, 4, 2], [2, 5, 4, 2]], names=("a", "b", "b@half", "a@half"))
    assert made.tolist() == [[changed, 3, 4, changed], [2, 5, 4, 2]]


def test_a_soft_threshold_is_flat_above_and_steep_far_below():
    """TempSamp-R1, arXiv:2509.18056; of slope .58198 left of the threshold and .01 right of it."""
    rows = [[0.0], [0.3], [0.5], [0.8], [1.0]]
    made = transformed("soft_threshold", rows)[:, 0].tolist()
    assert made == pytest.approx([0.086764, 0.422459, 0.59639, 0.8, 0.801823], abs=5e-6)
    near = transformed("soft_threshold", [[0.8 - 1e-6], [0.8], [0.8 + 1e-6]])[:, 0]
    assert ((near[1:] - near[:-1]) / 1e-6).tolist() == pytest.approx([0.58198, 0.01], rel=1e-3)


def saved(text, rows, *then):
    raw = values = real(rows)
    inputs = {"raw": raw, "names": ("right", "paid", "format")[: raw.shape[1]], "stat": raw[:, 0] == raw[:, 0]}
    for one in (text, *then):
        values = bind(one, TRANSFORMS, "transform")(inputs | {"values": values})
    return values


def test_what_was_saved_counts_for_right_samples_alone():
    """Router-R1: .5 of a right answer and .5 of what it saved; .5 (1 + .8) = .9 where that is .8."""
    text = "saving(by='paid', coefficient=0.5, low=0, high=1)"
    assert saved(text, [[1, 0], [1, 1], [1, 4], [1, 9]])[:, 0].tolist() == pytest.approx([1, 5 / 6, 2 / 3, 1 / 2])
    assert saved(text, [[1, 0], [0, 0], [-1, 0], [1, 25], [1, 1]])[:, 0].tolist() == pytest.approx([1, 0, -1, 0.5, 0.9])
    assert saved(text, [[1, 4], [0.5, 4]])[:, 0].tolist() == [0.75, 0.5]  # nothing is cheaper than anything
    assert saved("saving(by='paid', coefficient=0)", [[1, 1], [1, 9]])[:, 0].tolist() == [1, 1]
    assert saved(text, [[1, math.nan], [1, 1], [1, 0]])[:, 0].tolist() == [1, 0.5, 1]
    assert saved(text, [[1, 1], [1, 9]])[:, 1].tolist() == [1, 9]
    # the quantiles .05 and .95 of the roots 0, 1, ..., 20 are 1 and 19
    rows = [[1, number**2] for number in range(21)]
    assert saved("saving(by='paid')", rows)[[0, 1, 10, 19, 20], 0].tolist() == pytest.approx([1, 1, 0.75, 0.5, 0.5])
    with pytest.raises(ValueError, match="saving.*'paid'.*below 0"):
        saved(text, [[1, -1]])


def test_a_wrong_format_goes_before_the_answer_and_what_it_saved():
    rows, gate = [[1, 4, 1], [1, 4, 0], [0, 1, 1]], "gate(by='format', least=1, floor=-1, of='right')"
    assert saved("saving(by='paid', low=0, high=1, of='right')", rows, gate)[:, 0].tolist() == [0.5, -1, 0]
