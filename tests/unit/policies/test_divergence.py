"""How much the members of a group differ, in numbers and against a loop over a policy's own distributions."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.policies import generation
from mmgrpo.policies.generation import group_divergence
from mmgrpo.types import Request
from tests.unit.policies.test_token_policy import PROMPTS, completions, row_by_row, token_policy


def k3(d: float) -> float:
    return math.exp(d) - d - 1


def test_two_members_differ_by_how_far_each_is_from_the_mean_of_their_log_probs():
    """p = (1/2, 1/2) and (1/8, 7/8): halfway the log-probs of the first token are log 1/4, so d is -+ log 2."""
    half, eighth = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.125, 0.875]).log()
    second = math.log(0.875 / 0.5) / 2
    wanted = (k3(-math.log(2)) + k3(math.log(2)) + k3(second) + k3(-second)) / 2
    found = group_divergence(torch.stack([half, eighth]), torch.tensor([0, 0]), torch.tensor([2]))
    assert found.item() == pytest.approx(wanted, rel=1e-5)


def test_members_that_agree_do_not_differ_and_groups_do_not_meet():
    one, other = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.2, 0.8]).log()
    found = group_divergence(torch.stack([one, one, other, other]), torch.tensor([0, 0, 1, 1]), torch.tensor([2, 2]))
    assert found.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_finished_member_counts_as_uniform_and_what_nobody_can_say_not_at_all():
    going = torch.tensor([[0.125, 0.875, 0.0]]).log()
    both = torch.stack([torch.tensor([0.125, 0.875]).log(), torch.tensor([0.5, 0.5]).log()])
    found = group_divergence(going, torch.tensor([0]), torch.tensor([2]))
    assert found.item() == pytest.approx(group_divergence(both, torch.tensor([0, 0]), torch.tensor([2])).item())


def test_a_group_that_has_ended_does_not_differ():
    going = torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log()
    found = group_divergence(going, torch.tensor([0, 0]), torch.tensor([2, 3]))
    assert found.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_difference_counts_up_to_eleven_on_either_side():
    # log-probs of -40 and 0 for the first token: 20 from their mean on either side; the second is -1e-17 for both
    certain, never = torch.tensor([0.0, -40.0]), torch.tensor([-40.0, 0.0])
    found = group_divergence(torch.stack([certain, never]), torch.tensor([0, 0]), torch.tensor([2]))
    assert found.item() == pytest.approx(k3(11) + k3(-11), rel=1e-6)


def test_each_difference_is_bounded_by_itself():
    # one token, of log-probs 0, 0, -39 with the mean -13: differences -13, -13 and 26
    found = group_divergence(torch.tensor([[0.0], [0.0], [-39.0]]), torch.tensor([0, 0, 0]), torch.tensor([3]))
    assert found.item() == pytest.approx((2 * k3(-11) + k3(11)) / 3, rel=1e-6)


def test_a_token_that_one_member_cannot_say_is_left_out():
    whole = torch.tensor([[0.5, 0.5], [0.125, 0.875]]).log()
    more = torch.cat([whole, torch.tensor([[0.0], [0.5]]).log()], 1)
    group, sizes = torch.tensor([0, 0]), torch.tensor([2])
    assert group_divergence(more, group, sizes).item() == pytest.approx(group_divergence(whole, group, sizes).item())


def test_a_rollout_records_the_divergence_of_its_groups():
    """Against the distributions of each row on its own; some rows end early."""
    policy = token_policy(divergence=True)
    made = policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=3))
    real = made.decisions.decision_mask
    assert "divergence" in policy.fields and real.sum(1).min() < real.sum(1).max()
    alone = row_by_row(policy, made, made.decisions.rows)
    field = made.decisions.fields["divergence"]
    size = alone[0].logits.shape[1]
    for group in range(3):
        rows = range(4 * group, 4 * group + 4)
        for t in range(real.shape[1]):
            said = [alone[row].logits[t] if real[row, t] else torch.full((size,), -math.log(size)) for row in rows]
            mean = sum(said) / 4
            wanted = sum(float(((mean - one).exp() - (mean - one) - 1).sum()) for one in said) / 4
            for row in rows:
                assert field[row, t] == pytest.approx(wanted if real[row, t] else 0.0, rel=1e-3, abs=1e-5)
    assert field[real].max() > 0.01
    assert completions(made).shape == field.shape


def test_what_is_recorded_does_not_change_what_is_sampled_and_is_left_out_where_nobody_asks(monkeypatch):
    with_it = token_policy(divergence=True).rollout(Request(PROMPTS, [0, 1, 2], 4, seed=3))
    monkeypatch.setattr(generation, "group_divergence", None)
    without = token_policy(divergence=False).rollout(Request(PROMPTS, [0, 1, 2], 4, seed=3))
    assert torch.equal(completions(with_it), completions(without))
    assert "divergence" not in without.decisions.fields


def test_a_beam_search_has_no_divergence():
    with pytest.raises(ValueError, match="beam.*divergence"):
        token_policy(search="beam", divergence=True)
