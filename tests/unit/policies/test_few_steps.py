"""Few-step models: a consistency step is a Gaussian, and one drawn step of it is trained (CM-GRPO)."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.diffusion.kernels import kernel
from mmgrpo.objectives.surrogates import policy_gradient
from mmgrpo.types import Request
from tests.building import algorithm_blocks, trainer
from tests.flows import real, worked
from tests.toys import toy_policy, toy_prompts

CONSISTENCY = {"kernel": "cps(a=1.0, scaled=True)", "plan": "every_step(train=1)", "plan_per": "prompt"}


def test_the_loss_has_the_gradient_of_ravens_regression():
    """mean((x0 - stop(x0 - g))^2) with g = -A (1 - s') (x' - mean) / (2 std^2), of x0 = x - s v."""
    x, output, step, grid = worked()
    noise, advantage = real(0.3)[:, None], real(1.5)
    gradients = []
    for form in ("policy", "regression"):
        v = output.clone().requires_grad_()
        transition = kernel("cps(a=1.0, scaled=True)")(x, v, step, grid)
        drawn = transition.sample(noise).detach()
        if form == "policy":
            log_prob = transition.log_prob(drawn)
            loss = policy_gradient(log_prob, advantage).values.sum()
        else:
            clean = x - 0.8 * v
            g = -0.5 * advantage * 0.4 * (drawn - transition.mean) / transition.std.square()
            loss = (clean - (clean - g).detach()).square().mean()
        (gradient,) = torch.autograd.grad(loss, v)
        gradients.append(gradient)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)
    assert abs(gradients[0].item() - 0.24) < 1e-9


def test_every_state_has_fresh_noise_and_one_step_of_a_group_is_trained():
    made = toy_policy(steps=4, **CONSISTENCY).rollout(Request(toy_prompts(6), list(range(6)), 4, 5))
    assert made.decisions.decision_mask.sum(1).tolist() == [3] * 24
    assert made.decisions.loss_mask.sum(1).tolist() == [1] * 24
    by_prompt = {prompt.id: set() for prompt in made.prompts}
    for prompt, row in zip(made.prompts, made.decisions.loss_mask, strict=True):
        by_prompt[prompt.id].add(int(row.nonzero()))
    assert all(len(steps) == 1 for steps in by_prompt.values()) and len(set.union(*by_prompt.values())) > 1


@pytest.mark.learning
def test_a_model_of_four_steps_learns(tmp_path):
    """Samples move towards 1: the mean of exp(-distance^2 / 4) rises by more than .05."""

    def near(prompts, outputs):
        return [float(torch.exp(-(output.pixels - 1).square().sum() / 4)) for output in outputs]

    policy = toy_policy(steps=4, **CONSISTENCY)
    request = Request(toy_prompts(2), [0, 1], 64, 77)
    before = sum(near([], policy.sample(request))) / 128
    blocks = algorithm_blocks("cm_grpo")
    trainer(
        policy, tmp_path, toy_prompts(2), reward=near, prompts_per_step=2, group_size=16, steps=40, lr=1e-2, **blocks
    ).fit()
    assert sum(near([], policy.sample(request))) / 128 > before + 0.05
