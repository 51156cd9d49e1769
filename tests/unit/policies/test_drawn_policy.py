"""A denoising policy whose network predicts the std of its decisions too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.requirements.policies import refuse_mismatch
from mmgrpo.types import Request, Rollout
from mmgrpo.update import LossRecipe
from tests.building import denoising_policy_over, recipe
from tests.toys import ToyConditioning, ToyModel, ToyNetwork, toy_prompts


class DrawingModel(ToyModel):
    """The toy with a second network for ln sigma."""

    prediction = "drawn"

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.network = nn.ModuleDict({"mean": self.network, "ln": ToyNetwork(3, seed=2)})
        self.reference = type(self.reference)(self.network)
        self.reference.keep()

    def predict(self, network: Any, x: Tensor, time: Tensor, conditioning: ToyConditioning) -> Tensor:
        return torch.cat([network[name](x, time, conditioning.number) for name in ("mean", "ln")], 1)


def policy(plan: str = "every_step") -> DenoisingPolicy:
    return denoising_policy_over(DrawingModel(), plan, kernel="drawn_velocity", steps=5, evaluation_steps=5)


def scored(policy: DenoisingPolicy, made: Rollout, name: str) -> Tensor:
    dense = torch.zeros_like(made.decisions.log_probs)
    for part in made.steps.split(made.decisions.loss_mask, 7):
        dense[part.rows, part.positions] = policy.score(made, part, frozenset({name}))[name]
    return dense


@pytest.mark.parametrize("plan", ["every_step", "random_window(size=2)", "sliding_window(size=1, tail='dpmpp_2m')"])
def test_its_ratio_is_one_and_its_kl_zero_before_the_first_update(plan):
    drawn = policy(plan)
    made = drawn.rollout(Request(toy_prompts(2), range(2), 3, seed=1))
    torch.testing.assert_close(scored(drawn, made, "log_probs"), made.decisions.log_probs * made.decisions.loss_mask)
    assert scored(drawn, made, "reference.kl").abs().max() < 1e-6


def test_its_kl_is_that_of_two_gaussians():
    """mu and ln sigma moved by 0.2 and 0.1: KL = (0.2 / sigma_ref)^2 / 2 + (e^0.2 - 1) / 2 - 0.1 at each entry."""
    drawn = policy()
    made = drawn.rollout(Request(toy_prompts(1), range(1), 2, seed=1))
    walk = made.steps.walks[0]  # type: ignore[attr-defined]
    network: Any = drawn.network
    with torch.no_grad():
        network["mean"].outer.bias += 0.2
        network["ln"].outer.bias += 0.1
    got = scored(drawn, made, "reference.kl").detach()
    mask = made.decisions.loss_mask
    for row, t in mask.nonzero().tolist():
        x = walk.states[walk.source[row, t]][None]
        with torch.no_grad():
            moved = network["ln"](x, walk.grid.times[t : t + 1], torch.zeros(1))
        sigma = (moved - 0.1).exp()
        kl = ((0.2 / sigma) ** 2 / 2 + (torch.tensor(0.2).exp() - 1) / 2 - 0.1).mean()
        assert got[row, t].item() == pytest.approx(kl.item(), rel=1e-4)


def test_a_std_of_zero_is_refused_while_sampling_and_not_finite_in_an_update():
    drawn = policy()
    made = drawn.rollout(Request(toy_prompts(1), range(1), 2, seed=1))
    with torch.no_grad():
        drawn.network["ln"].outer.bias -= 200  # exp(-200) is 0 in fp32
    assert not scored(drawn, made, "log_probs")[made.decisions.loss_mask].isfinite().any()
    with pytest.raises(ValueError, match="log_prob.*std 0"):
        drawn.rollout(Request(toy_prompts(1), range(1), 2, seed=1))


def test_the_ode_follows_the_mean():
    drawn, plain = policy(), DrawingModel()
    plain.prediction = "flow"
    network: Any = plain.network
    plain.predict = lambda _, x, time, c: network["mean"](x, time, c.number)  # type: ignore[method-assign]
    alone = denoising_policy_over(plain, kernel="flow_sde", steps=5, evaluation_steps=5)
    request = Request(toy_prompts(2), range(2), 2, seed=4)
    for ours, theirs in zip(drawn.sample(request), alone.sample(request), strict=True):
        assert torch.equal(ours.pixels, theirs.pixels)  # type: ignore[union-attr]


def test_what_needs_one_std_a_step_is_refused_and_the_exact_divergence_is_not():
    drawn = policy()
    assert not {"std", "level"} & (drawn.provides | drawn.fields)
    made = drawn.rollout(Request(toy_prompts(1), range(1), 2, seed=1))
    assert made.decisions.fields.keys() == drawn.fields == {"dt"}
    with pytest.raises(ValueError, match="std"):
        loss = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=["kl_gaussian_exact(coef=1.0)"])
        refuse_mismatch(drawn, recipe(), loss)
    loss = LossRecipe.of("ppo(low=0.2, high=0.2)", "per_sample", terms=["kl_transition(coef=1.0)"])
    refuse_mismatch(drawn, recipe(), loss)
