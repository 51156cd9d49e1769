"""Forward-process objectives over UNets that predict the noise or v, against the schedulers of diffusers, and over
image and video flows."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.objectives.matching import diffusion_nft
from mmgrpo.runtime.networks import bind_networks
from mmgrpo.types import Request
from pipelines.visual import flux, sd3, wan
from tests.libraries.families.examples import EXAMPLES
from tests.libraries.pipelines.visual.test_evaluation_settings import policy_of
from tests.tiny import maker, tiny_checkpoint

MADE = {
    "epsilon": ("stable_diffusion", lambda folder="", seed=0: maker("stable_diffusion")(folder, seed)),
    "v": ("stable_diffusion", lambda folder="", seed=0: maker("stable_diffusion")(folder, seed, "v_prediction")),
    "sdxl": ("sdxl", maker("sdxl")),
}


FLOWS = {"sd3": sd3.tiny, "flux": flux.tiny, "wan": wan.tiny, "ltx_video": maker("ltx_video")}


@pytest.fixture(scope="module", params=MADE)
def policy(request):
    name, tiny = MADE[request.param]
    return moved(name, tiny, {"lora_rank": 2, "guidance": 1.0})


def moved(name, tiny, model):
    """A policy that has left its reference, with a network ``old`` that has not moved since."""
    made = policy_of(name, str(tiny_checkpoint(tiny)), model, {"policy": "matching", "draws": 2})
    with torch.no_grad():
        for parameter in made.networks.trained.values():
            parameter += 0.05
    made.networks.follow(bind_networks(["average(start=1)"]))
    return made


def scored(policy, *names, family="stable_diffusion"):
    drawn = policy.rollout(Request(EXAMPLES[family].prompts[:2], [0, 1], 2, seed=3))
    [part] = drawn.steps.split(drawn.decisions.loss_mask, 100)
    return drawn, part, policy.score(drawn, part, frozenset(names))


def test_errors_are_those_of_the_scheduler_s_own_targets(policy):
    """Diffusion-DPO and SePPO compare mean((eps_theta - eps)^2), of v models the same of v."""
    drawn, part, scores = scored(policy, "error", "reference.error", "time")
    scheduler, matches = policy.model.scheduler, drawn.steps
    clean, noise, step = policy._draws(matches, part)
    times = policy.grid.times[step]
    x = scheduler.add_noise(clean, noise, times)
    wanted = noise if policy.model.prediction == "epsilon" else scheduler.get_velocity(clean, noise, times)
    conditioning = matches.conditioning.take(part.rows)
    with torch.no_grad():
        own = policy.model.predict(policy.network, x, times, conditioning)
        with policy.model.reference() as network:
            base = policy.model.predict(network, x, times, conditioning)
    for name, output in (("error", own), ("reference.error", base)):
        expected = (output - wanted).square().flatten(1).mean(1)
        torch.testing.assert_close(scores[name].detach(), expected, rtol=1e-4, atol=1e-5)
    abar = scheduler.alphas_cumprod[times]
    scale = (1 / abar - 1).sqrt() if policy.model.prediction == "epsilon" else (1 - abar).sqrt()
    torch.testing.assert_close(scores["time"], scale, rtol=1e-5, atol=1e-6)


def test_at_the_old_network_the_gradient_of_diffusion_nft_is_that_of_matching_times_two_rho_minus_one(policy):
    check_two_rho_minus_one(policy, "stable_diffusion")


@pytest.mark.parametrize("name", FLOWS)
def test_the_same_objective_trains_image_and_video_flows(name):
    check_two_rho_minus_one(moved(name, FLOWS[name], {"lora_rank": 2}), name)


def check_two_rho_minus_one(policy, family):
    trained = list(policy.networks.trained.values())

    def gradient(advantage):
        _, _, scores = scored(policy, "gap", "old.gap", "time", family=family)
        given = torch.full_like(scores["time"], advantage)
        loss = diffusion_nft(scores["gap"], scores["old.gap"], scores["time"], given).values.mean()
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, trained)])

    best = gradient(5.0)  # rho = 1
    assert best.abs().max() > 0
    for advantage, factor in ((0.0, 0.0), (1.5, 0.3), (-5.0, -1.0)):
        torch.testing.assert_close(gradient(advantage), factor * best, rtol=1e-3, atol=1e-4 * float(best.abs().max()))


def test_given_images_become_latents_that_decode_to_them(policy):
    """As those of a data set must, for preferences and supervised rows."""
    latents = torch.randn(2, *policy.model.latent_shape(), generator=torch.Generator().manual_seed(0))
    pixels = policy.model.architecture.pixels(latents)
    encoded = policy.model.architecture.encode_pixels(pixels)
    vae = policy.model.architecture.pipeline.vae
    expected = vae.encode(2 * pixels - 1).latent_dist.mode() * vae.config.scaling_factor
    torch.testing.assert_close(encoded, expected)
