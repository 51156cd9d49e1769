"""The forward process of flows and of diffusion models, and matching objectives over what any network predicts."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.diffusion.noising import add_noise, clean_scale, target
from mmgrpo.diffusion.schedules import Grid, ddim_grid
from mmgrpo.objectives.matching import diffusion_nft
from mmgrpo.policies.flow_matching import FlowMatchingPolicy
from mmgrpo.types import Request
from tests.building import matching_policy_over, rescored
from tests.toys import ToyModel, toy_prompts

DIFFUSION = Grid(torch.tensor([0.64, 1.0]), torch.tensor([500]), "diffusion", 1.0)
FLOW = Grid(torch.tensor([0.6, 0.0]), torch.tensor([0.6]), "flow", 0.6)
PREDICTIONS = ("epsilon", "v", "sample")


@pytest.mark.parametrize(
    ("grid", "prediction", "x", "wanted", "scale"),
    [
        (FLOW, "flow", 2.6, 1.0, 0.6),  # .4 * 2 + .6 * 3; 3 - 2; t
        (DIFFUSION, "epsilon", 3.4, 3.0, 0.75),  # .8 * 2 + .6 * 3; e; .6 / .8
        (DIFFUSION, "v", 3.4, 1.2, 0.6),  # .8 * 3 - .6 * 2; b
        (DIFFUSION, "sample", 3.4, 2.0, 1.0),
    ],
)
def test_a_state_its_target_and_the_scale_of_its_gap(grid, prediction, x, wanted, scale):
    clean, noise, level = torch.tensor([[2.0]]), torch.tensor([[3.0]]), grid.levels[:1]
    assert add_noise(clean, noise, level, grid).item() == pytest.approx(x)
    assert target(clean, noise, level, prediction).item() == pytest.approx(wanted)
    assert clean_scale(level, prediction).item() == pytest.approx(scale)


def clean_estimate(x, output, abar, prediction):
    a, b = abar.sqrt(), (1 - abar).sqrt()
    return {"epsilon": (x - b * output) / a, "v": a * x - b * output, "sample": output}[prediction]


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_scale_times_a_gap_is_that_of_the_clean_estimate(prediction):
    clean, noise, output = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    abar = torch.tensor([0.05, 0.3, 0.64, 0.99]).double()
    x = add_noise(clean, noise, abar, DIFFUSION)
    estimate = clean_estimate(x, output, abar[:, None], prediction)
    gap = output - target(clean, noise, abar, prediction)
    torch.testing.assert_close((estimate - clean).abs(), clean_scale(abar, prediction)[:, None] * gap.abs())


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_one_denoiser_has_one_loss_of_diffusion_nft_whatever_its_network_predicts(prediction):
    """The loss is stated in clean estimates: those of two networks, by epsilon, v or x0."""
    clean, noise, first, second = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(2)).double()
    abar, advantages = torch.tensor([0.1, 0.5, 0.9]).double(), torch.tensor([1.5, -1.5, 0.0]).double()
    a, b = abar.sqrt()[:, None], (1 - abar).sqrt()[:, None]
    x = add_noise(clean, noise, abar, DIFFUSION)

    def loss(kind):
        outputs = [
            {"epsilon": (x - a * one) / b, "v": (a * x - one) / b, "sample": one}[kind] for one in (first, second)
        ]
        gap, old_gap = (one - target(clean, noise, abar, kind) for one in outputs)
        return diffusion_nft(gap, old_gap, clean_scale(abar, kind), advantages, beta=0.5).values

    torch.testing.assert_close(loss(prediction), loss("sample"), rtol=1e-10, atol=1e-12)


class Denoiser(ToyModel):
    """A toy of a diffusion process."""

    def __init__(self, prediction: str) -> None:
        super().__init__()
        self.prediction = prediction

    def grid(self, steps: int) -> Grid:
        return ddim_grid(torch.linspace(0.999, 0.95, 100).cumprod(0), steps)


def made(prediction: str, **options) -> FlowMatchingPolicy:
    options = {"steps": 6, "draws": 3, "error": "velocity", "evaluation_steps": 4, "forward_batch_size": 99} | options
    return matching_policy_over(Denoiser(prediction), **options)  # type: ignore


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("error", ["velocity", "weighted(power=2.0)", "self_normalized"])
def test_a_policy_over_a_diffusion_model_scores_its_errors(prediction, error):
    policy = made(prediction, error=error)
    drawn = policy.rollout(Request(toy_prompts(2), [0, 1], 4, seed=5))
    assert torch.equal(rescored(policy, drawn), drawn.decisions.log_probs)  # the ratio is one  # type: ignore
    kept, row, position = drawn.steps, 5, 2
    noise, step = kept.noise[1, position], kept.step[1, position]  # type: ignore
    abar, time = policy.grid.levels[step], policy.grid.times[step]
    x = abar.sqrt() * kept.clean[row] + (1 - abar).sqrt() * noise  # type: ignore
    output = policy.network(x[None], time[None].float(), kept.conditioning.number[row : row + 1])[0].detach()  # type: ignore
    gap = output - target(kept.clean[row][None], noise[None], abar[None], prediction)[0]  # type: ignore
    moved = (clean_estimate(x, output, abar, prediction) - kept.clean[row]).flatten()  # type: ignore
    expected = {"velocity": gap.square().mean(), "weighted(power=2.0)": moved.square().mean()}
    expected["self_normalized"] = moved.square().mean() / gap.abs().mean() / clean_scale(abar, prediction)
    torch.testing.assert_close(-drawn.decisions.log_probs[row, position], expected[error], rtol=1e-4, atol=1e-5)


def test_a_solver_of_flows_is_refused():
    with pytest.raises(ValueError, match="sampling.solver.*dpmpp_2m"):
        made("epsilon", solver="dpmpp_2m")
