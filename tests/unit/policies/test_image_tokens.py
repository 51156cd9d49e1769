"""The guided distribution of image tokens: worked numbers, its gradient, and what scoring without it would give."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.advantages.estimate import AdvantageRecipe, estimate
from mmgrpo.config.presets import PRESETS
from mmgrpo.config.settings import Algorithm
from mmgrpo.policies.image_tokens import classifier_free_guidance
from mmgrpo.update import LossRecipe
from tests.trees import plain
from tests.unit.test_update import Leaf, slopes

C, U = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([[0.5, 0.5, -0.5]])
"""Logits with and without the prompt. With w = 5: .5 + 5 x .5 = 3, .5 - 5 x .5 = -2, -.5 - 5 x .5 = -3."""


@pytest.mark.parametrize(
    ("scale", "logits", "log_probs"),
    [(1.0, [1, 0, -1], [-0.4076, -1.4076, -2.4076]), (5.0, [3, -2, -3], [-0.0092, -5.0092, -6.0092])],
)
def test_the_guided_distribution_is_the_worked_one(scale, logits, log_probs):
    assert classifier_free_guidance(C, U, scale)[0].tolist() == logits
    found = torch.log_softmax(classifier_free_guidance(C, U, scale), -1)[0]
    assert found.tolist() == pytest.approx(log_probs, abs=5e-5)


def test_plain_scores_of_guided_samples_are_no_ratio_of_one():
    """e^(-.4076 + .0092) = .671, and e^(-1.4076 + 5.0092) = e^(-2.4076 + 6.0092) = 36.7."""
    plain, drawn = (torch.log_softmax(classifier_free_guidance(C, U, scale), -1)[0] for scale in (1.0, 5.0))
    assert (plain - drawn).exp().tolist() == pytest.approx([0.6714, 36.66, 36.66], rel=1e-3)


def test_guidance_multiplies_the_gradient_and_gives_the_unconditional_row_the_rest():
    """w (onehot - p) for the prompt's logits, -(w - 1) (onehot - p) for the others: 5 x (1 - e^-5.0092) = 4.967."""
    c, u = C.clone().requires_grad_(), U.clone().requires_grad_()
    torch.log_softmax(classifier_free_guidance(c, u, 5.0), -1)[0, 1].backward()
    assert c.grad is not None and u.grad is not None
    assert c.grad[0].tolist() == pytest.approx([-4.954, 4.967, -0.0123], abs=5e-4)
    assert u.grad[0].tolist() == pytest.approx([one * -4 / 5 for one in c.grad[0].tolist()], rel=1e-5)
    assert c.grad[0, 1].item() == pytest.approx(5 * (1 - math.exp(-5.0092)), abs=1e-3)


@pytest.mark.parametrize(("name", "beta", "ratio"), [("ar_grpo", 1.0, math.exp(0.1)), ("t2i_r1", 0.01, 1.0)])
def test_a_preset_of_image_tokens_has_its_advantages_and_its_gradient(name, beta, ratio):
    """Rewards 1, 0, 0, 1: .5 / (.57735 + 1e-4) = .86588. Of two rows of two tokens, the first token has moved to .1
    from 0, where old and reference are: (beta (1 - e^-.1) - A e^.1) / 4 with the ratio, (beta (1 - e^-.1) - A) / 4
    without; tokens that have not moved: -A / 4."""
    algorithm = Algorithm(**PRESETS[name])
    rewards = torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    rows = plain([1] * 4, keys={"prompt": [0] * 4})
    made = estimate(rewards, torch.ones(4, 1, dtype=torch.bool), torch.ones(1), rows, AdvantageRecipe.of(algorithm))
    assert made.samples.tolist() == pytest.approx([0.86588, -0.86588, -0.86588, 0.86588], abs=1e-5)
    found = slopes(Leaf([[0.1, 0.0], [0.0, 0.0]]), [2.0, -1.0], LossRecipe.read(algorithm))
    moved = (beta * (1 - math.exp(-0.1)) - 2.0 * ratio) / 4
    assert found[0] == pytest.approx([moved, -0.5], rel=1e-5) and found[1] == pytest.approx([0.25, 0.25], rel=1e-5)
