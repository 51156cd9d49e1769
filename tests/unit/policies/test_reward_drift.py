"""The gradient of a reward as a drift of sampling, which log-probs know nothing of (Euphonium)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.diffusion.kernels import kernel
from mmgrpo.diffusion.schedules import Grid, flow
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.reward_drift import drift_of
from mmgrpo.types import Image, Prompt, Request
from pipelines.denoising import check_sampling
from pipelines.options import DenoisingSampling
from tests.toys import ToyConditioning, ToyModel


class Grey(ToyModel):
    """Pixels (x + 4) / 8 of latents, on the levels .8, .6, .2, 0."""

    def pixels(self, latents: Tensor, conditioning: ToyConditioning) -> Tensor:
        return (latents.expand(-1, 3, -1, -1) + 4) / 8

    def latent_shape(self) -> tuple[int, ...]:
        return (1, 1, 2)

    def decode(self, latents: Tensor, conditioning: ToyConditioning) -> list[Image]:
        return [Image(one.detach().expand(3, -1, -1)) for one in latents]

    def grid(self, steps: int) -> Grid:
        return flow(torch.tensor([0.8, 0.6, 0.2, 0.0]))


def near_half(prompts: Sequence[Prompt], pixels: Tensor) -> Tensor:
    """-(x - .5)^2, summed over the latent."""
    return -(8 * pixels[:, 0] - 4.5).square().flatten(1).sum(1)


REQUEST = Request([Prompt("a"), Prompt("b", answer="1")], [0, 1], 4, seed=1, gradient=near_half)


def policy_of(drift: str, model: Any = None, plan: str = "every_step") -> DenoisingPolicy:
    return DenoisingPolicy(
        model or Grey(2),
        steps=3,
        kernel_text="flow_sde(a=0.7)",
        plan=plan,
        evaluation_steps=3,
        forward_batch_size=64,
        reward_drift=drift,
    )


@pytest.mark.parametrize(("beta", "mean"), [(1.0, 0.5913), (0.5, 0.5521)])
def test_the_mean_moves_by_the_variance_times_the_slope_over_two_beta(beta, mean):
    model, step = Grey(2), torch.zeros(1, dtype=torch.long)
    x, velocity, grid = torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), 0.5), flow(torch.tensor([1.0, 0.8, 0.6, 0.0]))
    step = step + 1
    drift = drift_of(f"gradient(reward='a', beta={beta})")
    assert drift is not None
    # The clean estimate is 1 - .8 * .5 = .6, and its slope -2 (.6 - .5) = -.2.
    shift = drift(model, x, velocity, step, grid, ToyConditioning(torch.zeros(1)), [Prompt("a")], near_half)
    assert float(shift) == pytest.approx(-0.2 / (2 * beta))
    transition = kernel("flow_sde(a=0.7)")(x, velocity, step, grid)
    assert float(transition.mean) == pytest.approx(0.6305, abs=5e-5)
    assert float(transition.mean + transition.std.square() * shift) == pytest.approx(mean, abs=5e-5)


def test_states_are_moved_and_log_probs_are_those_of_the_mean_without_the_drift():
    model = Grey(2)
    plain, moved = (policy_of(text, model).rollout(REQUEST) for text in ("", "gradient(reward='a', beta=1.0)"))
    one, other = (rollout.steps.walks[0] for rollout in (plain, moved))  # type: ignore[attr-defined]
    # At the first step all begin at the same states with the same noise, and at the last one there is no noise.
    start = one.states[one.source[:, 0]]
    torch.testing.assert_close(other.states[other.source[:, 0]], start)
    shift = (other.states[other.target[:, 0]] - one.states[one.target[:, 0]]).detach()
    conditioning = one.conditioning.take(one.prompt)
    velocity = model.predict(model.network, start, torch.full((8,), 0.8), conditioning)
    clean = start - 0.8 * velocity
    torch.testing.assert_close(shift, (one.std[0].square() * -(clean - 0.5)).detach())
    for rollout in (plain, moved):
        policy = policy_of("", model)
        for part in rollout.steps.split(rollout.decisions.loss_mask, 64):
            scored = policy.score(rollout, part, frozenset())["log_probs"]
            torch.testing.assert_close(scored, rollout.decisions.log_probs[part.rows, part.positions])
    pixels = [torch.stack([image.pixels for image in rollout.outputs]) for rollout in (plain, moved)]  # type: ignore
    rewards = [near_half([], one / 8 + 0.5).mean() for one in pixels]
    assert rewards[1] > rewards[0] + 0.05


@pytest.mark.parametrize("text", ["gradient(reward='a', first=2)", "gradient(reward='a', beta=1e9)"])
def test_no_drift_before_its_first_step_and_none_of_a_beta_without_end(text):
    model = Grey(2)
    first, second = (policy_of(one, model).rollout(REQUEST).steps.walks[0] for one in ("", text))  # type: ignore
    torch.testing.assert_close(first.states, second.states)


def test_what_branches_of_a_tree_share_is_moved_once():
    model, tree = Grey(2), "one_step_branch"
    plain, moved = (policy_of(one, model, tree) for one in ("", "gradient(reward='a', beta=1.0)"))
    first, second = (one.rollout(REQUEST).steps.walks[0] for one in (plain, moved))  # type: ignore[attr-defined]
    shift = second.states[second.target].sub(first.states[first.target])
    split = (first.target > 0).any(0).nonzero()[0, 0]
    for prompt in (slice(0, 4), slice(4, 8)):
        torch.testing.assert_close(shift[prompt, split], shift[prompt, split][:1].expand(4, -1, -1, -1))
        assert bool((shift[prompt, split] != 0).any())


def test_a_drift_without_its_reward_or_its_decoder_is_refused():
    with pytest.raises(ValueError, match="sampling.reward_drift.*'a'"):
        policy_of("gradient(reward='a')").rollout(replace(REQUEST, gradient=None))
    with pytest.raises(ValueError, match="sampling.reward_drift"):
        policy_of("gradient(reward='a')", ToyModel(2))
    with pytest.raises(ValueError, match="sampling.reward_drift.*reward"):
        drift_of("gradient")
    late = DenoisingSampling(steps=3, reward_drift="gradient(reward='a', first=3)")
    with pytest.raises(ValueError, match="first=3.*sampling.steps=3"):
        check_sampling("sd3", "flow", late)
    check_sampling("sd3", "flow", replace(late, steps=4))
