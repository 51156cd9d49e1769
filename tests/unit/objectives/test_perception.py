"""The terms that compare with a changed prompt, in numbers that can be checked in the head."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.objectives import TERMS
from mmgrpo.objectives.divergences import MASKED
from mmgrpo.update import LossRecipe

CHANGED = f"log_probs@{MASKED}"


def penalty(text: str, seen: float, hidden: float) -> tuple[float, float, float]:
    """Value and gradients by both log-probs, of probabilities with and without the picture."""
    log_probs, changed = (torch.tensor([math.log(p)], requires_grad=True) for p in (seen, hidden))
    value = bind(text, TERMS, "term")({"log_probs": log_probs, CHANGED: changed})
    grads = torch.autograd.grad(value.sum(), [log_probs, changed], allow_unused=True, materialize_grads=True)
    return value.item(), grads[0].item(), grads[1].item()


@pytest.mark.parametrize(
    ("text", "ratio", "value", "slope"),
    [
        ("perception(gamma=1)", 2, -(2 - math.log(2) - 1), -(2 - 1)),  # r = 2: r - log r - 1, and by log r: r - 1
        ("perception(gamma=0.5)", 4, -0.5 * (3 - math.log(4)), -0.5 * 3),
        ("perception(gamma=1)", 0.5, -(math.log(2) - 0.5), 0.5),  # hidden, it was likelier: away from r = 1 too
        ("perception_k3(gamma=1)", 2, -(0.5 + math.log(2) - 1), -(1 - 0.5)),  # by log r: 1 - 1 / r
        ("perception_k3(gamma=2)", 4, -2 * (math.log(4) - 0.75), -2 * 0.75),
    ],
)
def test_values_and_gradients_of_the_perception_loss(text, ratio, value, slope):
    seen, hidden = (0.8, 0.8 / ratio) if ratio > 1 else (0.4, 0.8)
    assert penalty(text, seen, hidden) == pytest.approx((value, slope, -slope), rel=1e-5)
    one_side = penalty(text[:-1] + ", both_sides=False)", seen, hidden)
    assert one_side == pytest.approx((value, slope, 0.0), rel=1e-5)


def test_the_double_entropy_raises_what_was_sampled_with_and_without_the_picture():
    value, seen, hidden = penalty("double_entropy(eta1=0.1, eta2=0.3)", 1 / math.e, 1 / math.e**2)
    assert (value, seen, hidden) == pytest.approx((0.1 * 1 + 0.3 * 2, -0.1, -0.3), rel=1e-5)


@pytest.mark.parametrize("name", ["perception", "perception_k3"])
def test_where_the_change_changes_nothing_there_is_neither_value_nor_gradient(name):
    assert penalty(f"{name}(gamma=1)", 0.3, 0.3) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("name", "far"), [("perception", 0.06), ("perception_k3", math.exp(-12))])
def test_above_its_limit_a_decision_has_no_gradient(name, far):
    assert penalty(f"{name}(gamma=1)", 0.9, 0.9 * far) == (-10.0, 0.0, 0.0)
    assert penalty(f"{name}(gamma=1, limit=inf)", 0.9, 0.9 * far)[0] < -10.0
    assert penalty(f"{name}(gamma=1, limit=0.1)", 0.8, 0.4) == pytest.approx((-0.1, 0.0, 0.0))


def test_the_mean_of_the_codes_estimate_is_the_divergence_and_that_of_the_papers_is_not():
    """Over two tokens of probabilities 3/4 and 1/4 with the picture, 1/2 each without."""
    seen, hidden = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    divergence = float((seen * (seen / hidden).log()).sum())
    chi_square = float((seen**2 / hidden).sum() - 1)
    inputs = {"log_probs": seen.log(), CHANGED: hidden.log()}
    k3, paper = (
        float((-seen * bind(text, TERMS, "term")(inputs)).sum())
        for text in ("perception_k3(gamma=1)", "perception(gamma=1)")
    )
    assert k3 == pytest.approx(divergence, rel=1e-5)
    assert paper == pytest.approx(chi_square - divergence, rel=1e-5)


def test_terms_of_one_change_ask_for_one_score_and_terms_of_two_for_two():
    one = LossRecipe.of("ppo", "per_sample", terms=["perception(gamma=0.01)", "double_entropy(eta1=0.03, eta2=0.03)"])
    assert one.scores == {"log_probs", CHANGED}
    two = LossRecipe.of("ppo", "per_sample", terms=["perception(gamma=0.01)", "perception_k3(gamma=1, change='blank')"])
    assert two.scores == {"log_probs", CHANGED, "log_probs@blank"}
    assert not two.needs_reference and not two.coupled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("mask_patch", "algorithm.terms.*change.*'mask_patch'.*'mask_patches'"),
        ("mask_patches(ratio=2)", "ratio.*mask_patches.*2.0.*0, 1"),
        ("blank(ratio=0.5)", "'blank'.*'ratio'"),
    ],
)
def test_a_change_that_does_not_exist_is_refused_before_the_run(change, message):
    with pytest.raises(ValueError, match=message):
        LossRecipe.of("ppo", "per_sample", terms=[f"perception(gamma=0.02, change='{change}')"])
