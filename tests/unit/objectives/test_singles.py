"""REC, ROVER, chi-squared and RAPO: worked numbers, gradients and what they reduce to."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.objectives import OBJECTIVES, TERMS


def rec(ratio, advantage, **options):
    log_probs = torch.tensor([math.log(ratio)], requires_grad=True)
    given = {"log_probs": log_probs, "old_log_probs": torch.zeros(1), "advantages": torch.tensor([float(advantage)])}
    text = "rec(" + ", ".join(f"{k}={v!r}" for k, v in options.items()) + ")" if options else "rec"
    loss = bind(text, OBJECTIVES, "objective")(given)
    (gradient,) = torch.autograd.grad(loss.values.sum(), log_probs)
    return gradient.item(), bool(loss.low), bool(loss.high)


@pytest.mark.parametrize(
    ("ratio", "advantage", "options", "gradient"),
    [
        (1.5, 1, {}, 0),
        (0.5, 1, {}, -1),
        (0.5, 1, {"weight": "ratio"}, -0.5),
        (0.5, -1, {}, 0),
        (1.5, -1, {}, 1),
        (0.5, 1, {"side": "two"}, 0),
        (1.1, 1, {"side": "two"}, -1),
        (0.3, 1, {"side": "ring"}, -1),
        (0.5, 1, {"side": "ring"}, 0),
        (4.0, -1, {"side": "ring"}, 1),
        (4.0, -1, {"side": "ring", "weight": "bounded"}, 3),
    ],
)
def test_rec_masks_by_range_and_weighs_by_name(ratio, advantage, options, gradient):
    assert rec(ratio, advantage, **options)[0] == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0, 1.1, 1.5])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_one_sided_rec_with_the_ratio_as_weight_has_the_gradient_of_ppo(ratio, advantage):
    log_probs = torch.tensor([math.log(ratio)], requires_grad=True)
    given = {"log_probs": log_probs, "old_log_probs": torch.zeros(1), "advantages": torch.tensor([advantage])}
    (wanted,) = torch.autograd.grad(bind("ppo", OBJECTIVES, "objective")(given).values.sum(), log_probs)
    assert rec(ratio, advantage, weight="ratio")[0] == pytest.approx(wanted.item(), abs=1e-6)


def test_rover_fits_the_log_ratio_to_reward_and_next_mean():
    log_probs = torch.tensor([[0.4, 0.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    given = {"log_probs": log_probs, "old_log_probs": torch.zeros(1, 2), "advantages": torch.full((1, 2), 0.5)}
    given |= {"decision_mask": mask, "certainty": torch.tensor([[1.0, 0.9]]), "drawn_certainty": torch.ones(1, 2)}
    loss = bind("rover", OBJECTIVES, "objective")(given).values
    assert loss[0].tolist() == pytest.approx([0.04, 0.25])  # (.4 - .6)^2, and at the end (0 - .5)^2
    fresh = {**given, "log_probs": torch.zeros(1, 2, requires_grad=True), "certainty": torch.ones(1, 2)}
    (gradient,) = torch.autograd.grad(bind("rover", OBJECTIVES, "objective")(fresh).values.sum(), fresh["log_probs"])
    assert gradient[0].tolist() == [-1.0, -1.0]  # -2 A


def chi(text, ratios):
    log_probs = torch.tensor(ratios)[:, None].requires_grad_()
    mask = torch.ones(len(ratios), 1, dtype=torch.bool)
    given = {"log_probs": log_probs, "reference.log_probs": torch.zeros(len(ratios), 1)}
    values = bind(text, TERMS, "term")({**given, "decision_mask": mask, "loss_mask": mask})
    (gradient,) = torch.autograd.grad(values.mean(), log_probs)
    return values.mean().item(), gradient[:, 0]


def test_chi_squared_is_a_mean_over_samples_and_its_root_a_batch_statistic():
    ratios = [0.5, -0.5, 0.0]
    plain, of_plain = chi("chi_squared(coef=1.0, root=False)", ratios)
    root, of_root = chi("chi_squared(coef=1.0)", ratios)
    assert plain == pytest.approx(0.17017, abs=5e-6) and root == pytest.approx(0.41251, abs=5e-6)
    expected = torch.tensor([math.exp(x) - math.exp(-x) for x in ratios]) / 3
    torch.testing.assert_close(of_plain, expected)
    torch.testing.assert_close(of_root, expected / (2 * root))  # d sqrt(c) = dc / (2 sqrt(c))
    assert chi("chi_squared(coef=1.0, root=False)", [0.1])[0] == pytest.approx(0.010008, abs=1e-6)
    far, slope = chi("chi_squared(coef=1.0, root=False)", [12.0])
    assert far == pytest.approx(math.exp(10) * 3 + math.exp(-10) * -1 - 2, rel=1e-4)
    assert slope.item() == pytest.approx(math.exp(10), rel=1e-4)
    assert chi("chi_squared(coef=1.0)", [0.0, 0.0])[0] == 0.0


def test_a_reference_weighted_by_reward_is_the_reference_where_phi_is_one():
    given = {"log_probs": torch.tensor([-1.2]), "reference.log_probs": torch.tensor([-1.0])}

    def value(advantage):
        return bind("kl_forward_rewarded(coef=1.0)", TERMS, "term")({**given, "advantages": torch.tensor([advantage])})

    x = math.exp(0.7)  # phi = .5 at A = 0: log x = -.5 + 1.2
    assert value(0.0).item() == pytest.approx(x * 0.7 - x + 1, rel=1e-5)
    plain = bind("kl_forward(coef=1.0)", TERMS, "term")(given)
    torch.testing.assert_close(value(40.0), plain)
    assert plain.item() == pytest.approx(0.02288, abs=5e-6)


def test_distillation_has_the_gradient_of_the_kl_to_the_teacher():
    """Over all outcomes of p = (.8, .2) against (.5, .5): sum p (log p - log q) d log p is d KL / d logits."""
    logits, teacher = torch.tensor([math.log(4.0), 0.0], requires_grad=True), torch.tensor([0.5, 0.5]).log()
    p = logits.log_softmax(0)
    given = {"log_probs": p, "teacher.log_probs": teacher}
    values = bind("distillation(coef=1.0)", TERMS, "term")(given)
    (found,) = torch.autograd.grad((p.detach().exp() * values).sum(), logits, retain_graph=True)
    (wanted,) = torch.autograd.grad((p.exp() * (p - teacher)).sum(), logits)
    torch.testing.assert_close(found, wanted)
    assert bind("distillation(coef=1.0)", TERMS, "term")(
        {"log_probs": torch.tensor([-1.0]), "teacher.log_probs": torch.tensor([-2.0])}
    ).tolist() == [0.5]
