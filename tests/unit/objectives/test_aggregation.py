"""Weights of an optimizer step and mismatch corrections, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.objectives import aggregation, surrogates

LOSSES = torch.tensor([[1.0, 1.0], [4.0, 99.0]])
MASK = torch.tensor([[True, True], [True, False]])
APART = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("weighed", "expected"),
    [
        (aggregation.per_decision(MASK), 2.0),  # (1 + 1 + 4) / 3
        (aggregation.per_sample(MASK), 2.5),  # (1 + 4) / 2
        (aggregation.sample_sum(MASK), 3.0),  # (2 + 4) / 2
        (aggregation.constant_horizon(MASK, length=4.0), 0.75),  # 6 / (2 * 4)
        (aggregation.per_prompt(MASK, APART), 2.5),  # each row a prompt: as per_sample
        (aggregation.per_prompt(MASK, torch.tensor([3, 3])), 2.0),  # one prompt: as per_decision
        # std of the trained decisions [1, 3, 2] on per_sample weights [1/4, 1/4, 1/2]: [1, 3, 4] / 8
        (aggregation.noise_aware(MASK, torch.tensor([[1.0, 3.0], [2.0, math.nan]])), 2.5),
        # weights [1, 3, 2] of mean 2: (1/4 + 3/4 + 2 * 4 / 2) / 2
        (aggregation.rectified(MASK, torch.tensor([[1.0, 3.0], [2.0, 6.0]])), 2.5),
        # of the first step of the grid: mean (1 + 2) / 2
        (aggregation.rectified(MASK, torch.tensor([[1.0, 3.0], [2.0, 6.0]]), pool=1), 5 / 1.5),
    ],
)
def test_two_samples_of_two_and_one_decisions(weighed, expected):
    assert (weighed * LOSSES).sum().item() == pytest.approx(expected)


def test_turns_of_a_sample_count_alike_however_long_they_are():
    """Three turns of 2, 1 and 1 tokens, the last of which is not trained, and one turn: 1/8, 1/8, 1/4 and 1/2."""
    mask = torch.tensor([[True, True, False, True, False], [True, False, False, False, False]])
    turn = torch.tensor([[0, 0, -1, 1, 2], [0, -1, -1, -1, -1]])
    wanted = [[0.125, 0.125, 0, 0.25, 0], [0.5, 0, 0, 0, 0]]
    assert aggregation.per_turn(mask, turn).tolist() == wanted
    assert_close(aggregation.per_turn(mask, turn * 0), aggregation.per_sample(mask))


def test_noise_aware_has_mean_one_over_rows_of_equal_length_times_per_sample():
    loss_mask, std = torch.ones(3, 2).bool(), torch.tensor([[0.7, 0.3]]).expand(3, 2)
    assert_close(
        aggregation.noise_aware(loss_mask, std), aggregation.per_sample(loss_mask) * torch.tensor([[1.4, 0.6]])
    )


def test_a_pool_makes_the_weight_of_a_step_independent_of_what_else_was_drawn():
    rectifier, step = torch.tensor([3.0, 1.0, 0.5]).expand(4, 3), torch.arange(3)
    alone, mixed = (drawn[:, None] == step for drawn in (torch.tensor([1, 1, 1, 1]), torch.tensor([1, 0, 0, 1])))
    weights = [
        4 * aggregation.rectified(mask, rectifier, pool)[0, 1].item() for pool in (2, 0) for mask in (alone, mixed)
    ]
    assert weights == [0.5, 0.5, 1.0, 0.5]  # 1 / mean(3, 1) twice; 1 / 1 and 1 / mean(1, 3, 3, 1)
    with pytest.raises(ValueError, match=r"rectified: pool.*4.*3"):
        aggregation.rectified(alone, rectifier, 4)


def test_per_prompt_gives_every_prompt_one_share():
    loss_mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)
    weighed = aggregation.per_prompt(loss_mask, torch.tensor([8, 5, 8, 2]))
    # prompt 8 has five decisions, prompt 5 one, prompt 2 none that is trained
    assert_close(weighed.sum(1), torch.tensor([0.3, 0.5, 0.2, 0.0]))


def test_a_row_without_trained_decisions_is_in_no_denominator():
    more = torch.cat([MASK, torch.zeros(3, 2).bool()])
    for function in (aggregation.per_decision, aggregation.per_sample, aggregation.sample_sum):
        assert_close(function(more)[:2], function(MASK))


def test_any_split_of_the_step_adds_up_to_the_same_gradient():
    parameter = torch.tensor(2.0, requires_grad=True)
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    loss_mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    weighed = aggregation.per_sample(loss_mask)

    def gradient(rows: slice, positions: slice) -> torch.Tensor:
        total = (weighed * (parameter * inputs).square())[rows, positions].sum()
        return torch.autograd.grad(total, parameter)[0]

    parts = [gradient(r, p) for r in (slice(0, 1), slice(1, 6)) for p in (slice(0, 3), slice(3, 5))]
    assert_close(torch.stack(parts).sum(), gradient(slice(None), slice(None)), rtol=1e-6, atol=0)


def test_sample_sum_of_a_sequence_loss_scales_each_row_by_its_length():
    loss = surrogates.gspo(torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([[1.0, 1.0], [-3.0, -3.0]]), MASK)
    # rows of loss -1 and 3 with lengths 2 and 1: (2 * -1 + 1 * 3) / 2
    assert (aggregation.sample_sum(MASK) * loss.values).sum().item() == pytest.approx(0.5)


def gaps(*ratios: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Trainer and sampler log-probs of one row with the given ratios."""
    return torch.tensor([ratios]).log(), torch.zeros(1, len(ratios))


def test_a_ratio_of_three_is_truncated_or_masked():
    assert_close(aggregation.tis(*gaps(3.0, 0.1), cap=2.0), torch.tensor([[2.0, 0.1]]))
    assert_close(aggregation.mis(*gaps(3.0, 1.5, 0.1)), torch.tensor([[0.0, 1.5, 0.0]]))


def test_an_infinite_cap_is_the_plain_importance_weight():
    assert_close(aggregation.tis(*gaps(3.0, 700.0), cap=math.inf), torch.tensor([[3.0, 700.0]]))


def test_truncated_weights_are_on_in_rows_that_differ_by_more_than_the_gap():
    """Row 0: |log w| of .3 and .1, .2 on average, w e^.3 and e^-.1; row 1: .3 and, outside of it, 9."""
    sampler = torch.tensor([[-1.3, -1.9], [-1.3, -10.0]])
    old, mask = torch.tensor([[-1.0, -2.0], [-1.0, -1.0]]), torch.tensor([[True, True], [True, False]])
    found = aggregation.tis_beyond(old, sampler, mask, gap=0.25)
    torch.testing.assert_close(found, torch.tensor([[1.0, 1.0], [1.349859, 2.0]]))
    found = aggregation.tis_beyond(old, sampler, mask, gap=0.19, cap=1.2)
    torch.testing.assert_close(found[0], torch.tensor([1.2, 0.904837]))


def test_the_sequence_mask_judges_the_row_and_keeps_the_weights_of_its_decisions():
    decision_mask = torch.ones(1, 2).bool()
    assert_close(
        aggregation.sequence_mask(*gaps(3.0, 0.5), decision_mask), torch.tensor([[3.0, 0.5]])
    )  # sqrt(1.5) = 1.22
    assert (aggregation.sequence_mask(*gaps(3.0, 2.0), decision_mask) == 0).all()  # sqrt(6) = 2.45
    assert (aggregation.sequence_mask(*gaps(0.3, 0.4), decision_mask) == 0).all()  # sqrt(.12) = .35


def test_the_off_policy_mask_drops_bad_rows_that_the_policy_left():
    sampler, decision_mask = torch.zeros(4, 2), torch.ones(4, 2).bool()
    present = torch.tensor([[-0.3, -0.3], [-0.3, -0.3], [-0.3, 0.2], [0.5, 0.5]])
    advantages = torch.tensor([[-1.0], [1.0], [-1.0], [-1.0]]).expand(4, 2)
    kept = aggregation.off_policy_mask(present, sampler, advantages, decision_mask, delta=0.1)
    # mean gap .3 with A < 0 is dropped; with A > 0, or a gap of .05, or a policy that came nearer, kept
    assert kept.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
