"""Regression and discriminative objectives by hand, and how a group's loss spreads over its decisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.objectives import aggregation, groups, preference

A = [1.0, 0.0, 0.0, 1.0]


def group(sums: list[float], rewards: list[float], length: int = 2) -> dict[str, Any]:
    """Rows whose log-ratios add up to ``sums``, spread evenly over ``length`` decisions; one group."""
    log_probs = (torch.tensor(sums, dtype=torch.float64)[:, None] / length).expand(-1, length).clone()
    advantages = torch.tensor(rewards, dtype=torch.float64)[:, None].expand(-1, length)
    full = torch.ones_like(log_probs).bool()
    return {
        "log_probs": log_probs,
        "old_log_probs": torch.zeros_like(log_probs),
        "advantages": advantages,
        "loss_mask": full,
        "decision_mask": full,
        "key": torch.zeros(len(sums), dtype=torch.long),
    }


def total(loss, batch, weigh=aggregation.per_sample) -> torch.Tensor:
    return (weigh(batch["loss_mask"]).double() * loss.values).sum()


@pytest.mark.parametrize(
    ("sums", "rewards", "expected"),
    [
        # beta L - r = [.02 - 1, -.01]: difference -.97, 1/2 * .9409 / 2 = .235225
        ([0.2, -0.1], [1.0, 0.0], 0.235225),
        # d = [-.96, -.02, .01, -.99], mean -.49; 1/2 * (.2209 + .2209 + .25 + .25) / 3 = .156967
        ([0.4, -0.2, 0.1, 0.1], A, 0.156967),
    ],
)
def test_gvpo_numbers(sums, rewards, expected):
    batch = group(sums, rewards)
    assert total(preference.regression_group(**batch), batch).item() == pytest.approx(expected, abs=5e-7)


def test_rebel_number():
    batch = group([0.2, -0.1], [1.0, 0.0])  # (.3 - 1)^2 = .49
    assert total(preference.regression_pair(**batch), batch).item() == pytest.approx(0.49)
    assert total(preference.regression_pair(**batch, eta=2.0), batch).item() == pytest.approx(0.85**2)  # .15 - 1


def test_reg_grpo_number():
    # z(L) = [1.1619, -1.1619, -.3873, .3873] against [.8660, -.8660, -.8660, .8660]: mean of squares .15836
    batch = group([0.2, -0.1, 0.0, 0.1], [0.75**0.5, -(0.75**0.5), -(0.75**0.5), 0.75**0.5])
    assert total(preference.regression_standardized(**batch, eps=0.0), batch).item() == pytest.approx(0.15836, abs=5e-6)


def test_reg_grpo_of_a_pair():
    # std .3 sqrt(2): z = +-.70711 against +-1, so both residuals are .29289 from their mean
    batch = group([0.3, -0.3], [1.0, -1.0])
    expected = pytest.approx((1 - 0.5**0.5) ** 2)
    assert total(preference.regression_standardized(**batch, eps=0.0), batch).item() == expected


def test_prdp_number():
    # difference of log-ratios to the reference .3, of rewards over beta .1: (.3 - .1)^2 = .04
    batch = group([0.2, -0.1], [1.0, 0.0])
    reference = torch.zeros_like(batch["log_probs"])
    loss = preference.regression_proximal(**batch, reference_log_probs=reference, clip=1.0)
    assert total(loss, batch).item() == pytest.approx(0.04)


def test_prdp_takes_the_worse_of_moved_and_held_steps():
    # rewards far apart: target (1 - 0) / .1 = 10. Moved .3, held at .1 + .1: (10 - .2)^2 > (10 - .3)^2
    batch = group([0.2, -0.1], [1.0, 0.0], length=1)
    reference = torch.zeros_like(batch["log_probs"])
    batch["log_probs"].requires_grad_()
    loss = preference.regression_proximal(**batch, reference_log_probs=reference, clip=0.1, beta=0.1)
    total(loss, batch).backward()
    assert total(loss, batch).item() == pytest.approx(9.8**2)
    assert loss.high.tolist() == [[True], [False]] and not loss.low.any()
    # row 0 is held: no gradient. Row 1, at its bound, is free: d/dL (10 - L0 + L1)^2 = 2 * 9.8
    assert_close(batch["log_probs"].grad, torch.tensor([[0.0], [19.6]], dtype=torch.float64))


def test_prdp_counts_a_step_at_its_bound_as_inside():
    batch = group([0.1, -0.2], [0.0, 1.0], length=1)
    loss = preference.regression_proximal(**batch, reference_log_probs=torch.zeros(2, 1).double(), clip=0.1)
    assert not loss.high.any() and loss.low.tolist() == [[False], [True]]


def test_prdp_of_means_over_dimensions_is_that_of_their_sums():
    # Means over 2 dimensions: sums of .2 and -.1, held at .1 and -.1, that had moved by .02 and -.02 from the
    # reference: (10 - .2 - .04)^2, and twice the gradient of the sums
    batch = group([0.1, -0.05], [1.0, 0.0], length=1)
    reference = torch.tensor([[-0.01], [0.01]], dtype=torch.float64)
    batch["log_probs"].requires_grad_()
    loss = preference.regression_proximal(**batch, reference_log_probs=reference, clip=0.1, beta=0.1, dimensions=2)
    total(loss, batch).backward()
    assert total(loss, batch).item() == pytest.approx(9.76**2)
    assert loss.high.tolist() == [[True], [False]] and not loss.low.any()
    assert_close(batch["log_probs"].grad, torch.tensor([[0.0], [2 * 2 * 9.76]], dtype=torch.float64))


def test_rebel_is_four_times_gvpo_for_any_group():
    batch = group([0.4, -0.2, 0.1, 0.1], A)
    rebel = preference.regression_pair(**batch, eta=10.0).values
    assert_close(rebel, 4 * preference.regression_group(**batch, beta=0.1).values)


def test_gvpo_on_policy_has_the_gradient_of_centred_rewards_on_summed_log_probs():
    batch = group([0.0] * 4, [1.0, 0.0, 0.5, 0.0], length=3)
    batch["log_probs"].requires_grad_()
    total(preference.regression_group(**batch, beta=0.1), batch).backward()
    centred = batch["advantages"] - batch["advantages"].mean()
    assert_close(batch["log_probs"].grad, -0.1 / 3 * centred)


def test_reg_grpo_on_policy_has_a_finite_gradient_along_the_group_policy_gradient():
    batch = group([0.0] * 4, A)
    batch["log_probs"].requires_grad_()
    total(preference.regression_standardized(**batch, eps=0.5), batch).backward()
    # residual d = L / .5 - A; d/dL mean (d - mean d)^2 = 2 / 4 * (1 / .5) * -(A - mean A)
    assert_close(batch["log_probs"].grad, -(batch["advantages"] - 0.5))


@pytest.mark.parametrize("objective", [preference.regression_pair, preference.regression_group])
def test_a_constant_on_all_rewards_changes_nothing(objective):
    batch = group([0.4, -0.2, 0.1, 0.1], A)
    shifted = {**batch, "advantages": batch["advantages"] + 5}
    assert_close(objective(**shifted).values, objective(**batch).values)


def test_regression_is_zero_where_log_ratios_explain_the_rewards():
    batch = group([10.0, 0.0, 0.0, 10.0], A)
    assert_close(preference.regression_group(**batch, beta=0.1).values, torch.zeros(4, 2, dtype=torch.float64))


def test_interleaved_groups_are_averaged():
    # GVPO of both worked groups: (.235225 + .156967) / 2 when sizes are equal, by size when not
    two, four = group([0.2, -0.1], [1.0, 0.0]), group([0.4, -0.2, 0.1, 0.1], A)
    order = torch.tensor([2, 0, 3, 4, 1, 5])
    both: dict[str, Any] = {k: torch.cat([two[k], four[k]])[order] for k in two}
    both["key"] = torch.tensor([0, 0, 9, 9, 9, 9])[order]
    loss = preference.regression_group(**both)
    assert total(loss, both).item() == pytest.approx((2 * 0.235225 + 4 * 0.156967) / 6, abs=5e-7)
    per_prompt = (aggregation.per_prompt(both["loss_mask"], both["key"]).double() * loss.values).sum()
    assert per_prompt.item() == pytest.approx((0.235225 + 0.156967) / 2, abs=5e-7)


def test_a_group_of_one_has_no_loss():
    batch = group([0.3], [1.0])
    assert (preference.regression_group(**batch).values == 0).all()
    assert (preference.regression_standardized(**batch).values == 0).all()
    assert (groups.disco(**batch).values == 0).all()


@pytest.mark.parametrize(
    "objective",
    [preference.regression_group, preference.regression_standardized, groups.disco],
)
def test_a_row_without_trained_decisions_is_no_member(objective):
    three, four = group([0.4, -0.2, 0.1], A[:3]), group([0.4, -0.2, 0.1, 0.7], A)
    four["loss_mask"] = four["loss_mask"].clone()
    four["loss_mask"][3] = False
    values = objective(**four).values
    assert_close(values[:3], objective(**three).values)
    assert (values[3] == 0).all()


def scores(log_probs: list[float], rewards: list[float]):
    """Rows of two decisions with the given mean log-prob."""
    batch = group([2 * value for value in log_probs], rewards)
    batch["old_log_probs"] = batch["log_probs"].clone()
    return batch


@pytest.mark.parametrize(
    ("objective", "parameters", "gain"),
    [
        # s+ = -.5, s- = [-1, -2]: -.5 - 10 log((e^-.1 + e^-.2) / 2) = .98751
        (groups.disco, {"tau": 10.0}, 0.98751),
        (groups.disco, {"tau": 1.0}, 0.87989),  # -.5 - log((e^-1 + e^-2) / 2)
        (groups.disco_basic, {}, 1.0),  # -.5 + 1.5
    ],
)
def test_disco_numbers(objective, parameters, gain):
    batch = scores([-0.5, -1.0, -2.0], [1.0, -0.5, -0.5])
    loss = objective(**batch, **parameters)
    assert_close(loss.values, torch.full((3, 2), -gain, dtype=torch.float64), rtol=0, atol=5e-6)


def test_disco_presses_hardest_on_the_likeliest_negative():
    batch = scores([-0.5, -1.0, -2.0], [1.0, -0.5, -0.5])
    batch["log_probs"].requires_grad_()
    total(groups.disco(**batch, tau=1.0), batch).backward()
    # softmax of [-1, -2] = [.73106, .26894]; each row's score is a mean of two decisions
    expected = torch.tensor([-1.0, 0.73106, 0.26894], dtype=torch.float64)[:, None].expand(3, 2) / 2
    assert_close(batch["log_probs"].grad, expected, rtol=0, atol=5e-6)


def test_disco_of_ratios_is_zero_on_policy():
    batch = scores([-0.5, -1.0, -2.0], [1.0, -0.5, -0.5])
    assert_close(groups.disco(**batch, tau=1.0, score="ratio").values, torch.zeros(3, 2).double())


def test_disco_with_a_large_tau_is_the_basic_form():
    batch = scores([-0.5, -1.0, -2.0, -0.7], [1.0, -0.5, -0.5, 0.3])
    large = groups.disco(**batch, tau=1e6).values
    assert_close(large, groups.disco_basic(**batch).values, rtol=0, atol=1e-6)


def test_unanimous_groups_are_skipped():
    for reward in (1.0, -1.0, 0.0):
        batch = scores([-0.5, -1.0], [reward, reward])
        batch["log_probs"].requires_grad_()
        loss = groups.disco(**batch)
        assert (loss.values == 0).all()
        total(loss, batch).backward()
        assert (batch["log_probs"].grad == 0).all()


@pytest.mark.parametrize(("lam", "share"), [(0.1, 0.99331), (1.0, 0.62246)])
def test_drpo_weighs_positives_by_their_brevity(lam, share):
    # T = [1, 3] of at most 4: exp(.75 / lam) against exp(.25 / lam)
    decision_mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    log_probs = torch.tensor([[-1.0] * 3, [-2.0] * 3, [-3.0] * 3], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)[:, None].expand(3, 3)
    key = torch.zeros(3, dtype=torch.long)
    loss = groups.drpo(log_probs, log_probs, advantages, decision_mask, decision_mask, key, length=4, lam=lam)
    assert loss.values[0, 0].item() == pytest.approx(-(share * -1.0 + (1 - share) * -2.0 + 3.0), abs=5e-6)
    assert torch.equal(loss.values != 0, decision_mask)


def test_an_advantage_of_zero_is_on_the_negative_side():
    mixed = scores([-0.5, -1.0, -2.0], [1.0, 0.0, -1.0])
    plain = scores([-0.5, -1.0, -2.0], [1.0, -0.5, -0.5])
    assert_close(groups.disco(**mixed).values, groups.disco(**plain).values)


def test_drpo_with_a_large_lambda_is_disco():
    batch = scores([-0.5, -1.0, -2.0, -0.7], [1.0, -0.5, -0.5, 0.3])
    batch["decision_mask"] = batch["loss_mask"] = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]], dtype=torch.bool)
    drpo = groups.drpo(**batch, length=2, lam=1e9).values
    assert_close(drpo, groups.disco(**batch).values)


def test_an_unknown_score_is_refused():
    with pytest.raises(ValueError, match="'sum'.*'log'"):
        groups.disco(**scores([-0.5, -1.0], [1.0, -1.0]), score="sum")


def test_rto_adds_the_token_rewards_that_are_still_to_come():
    batch = group([0.0], [0.0], length=3)
    guide = torch.tensor([[0.4, -3.0, 1.0]]).double().requires_grad_()
    given = {**batch, "reference_log_probs": torch.zeros(1, 3).double(), "guide_log_probs": guide}
    to_come = torch.tensor([[0.02, 0.0, 0.05]])  # of .02, -.05 (bounded) and .05
    made = groups.token_rewards(**given)
    assert_close(made.values, -(to_come - to_come.mean()).double())
    assert not made.values.requires_grad
    alike = groups.token_rewards(**{**given, "guide_log_probs": torch.zeros(1, 3).double()})
    assert (alike.values == 0).all()


def seen(advantages, lengths=None, **parameters):
    """The weights of VA-OPD: twice its loss at a distance of one from the teacher."""
    seeing = torch.tensor(advantages).double()
    mask = torch.arange(seeing.shape[1]) < torch.tensor(lengths or [seeing.shape[1]] * len(seeing))[:, None]
    key = torch.zeros(len(seeing)).long()
    return 2 * groups.visual_distillation(seeing - 1, seeing, seeing * 0, mask, mask, key, **parameters).values


def test_va_opd_weighs_samples_and_tokens_by_what_the_teacher_sees():
    # means 1 and 0: z = 1 and -1, shares .881 and .119 of two samples
    made = seen([[1.0] * 5, [0.0] * 5], share=0.2)
    assert_close(made, torch.tensor([[2 * 0.880797], [2 * 0.119203]]).double().expand(2, 5), rtol=0, atol=1e-6)
    # one of five tokens has half of the weight: 2.5 times its part, the others .625
    made = seen([[0.0, 0, 3, 0, 0]])
    assert_close(made, torch.tensor([[0.625, 0.625, 2.5, 0.625, 0.625]]).double())
    assert_close(made.sum(), torch.tensor(5.0).double())  # the mean over the tokens is kept
    # alike, and the share is that of the tokens: plain distillation; what the teacher finds less likely is nothing
    assert (seen([[0.0] * 5, [-2.0] * 5], share=0.2) == 1).all()
    assert seen([[4.0, 9.0]], lengths=[1])[0].tolist() == [1, 0]
