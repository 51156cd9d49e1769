"""Recipes on clean samples run on a tiny model: a network by name, guidance of the reference, solver and levels."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.runtime.networks import bind_networks
from mmgrpo.types import Request
from pipelines.lora import adapters_off
from pipelines.visual import sd3
from tests.journeys.cli.running import call, read_lines
from tests.libraries.families.examples import EXAMPLES
from tests.libraries.pipelines.visual.test_evaluation_settings import policy_of
from tests.tiny import tiny_checkpoint

RECIPES = [
    "diffusion_nft",
    "crd",
    "tdm_r1",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("diffusion_nft_ocr", "dgpo")),
]
REQUEST = Request(EXAMPLES["sd3"].prompts[:2], [0, 1], 2, seed=3)


@pytest.fixture(scope="module")
def tiny() -> str:
    return str(tiny_checkpoint(sd3.tiny))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_two_steps_on_a_tiny_model(name, tiny, tmp_path):
    small = ["--model.height", 16, "--model.width", 16, "--model.path", tiny, "--model.lora-rank", 4]
    small += ["--model.dtype", "float32", "--model.no-gradient-checkpointing", "--data.prompts-per-step", 2]
    small += ["--data.group-size", 4, "--steps", 2, "--eval.skip", "--trackers", "--rewards", "jpeg_compressibility"]
    call("train", "--recipe", f"visual/{name}", "--name", "run", "--output-dir", tmp_path, "--threads", 1, *small)
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert len(lines) == 2 and all(math.isfinite(line["loss"]) for line in lines)
    assert lines[0]["grad_norm"] > 0


def velocities(policy, names):
    drawn = policy.rollout(REQUEST)
    [part] = drawn.steps.split(drawn.decisions.loss_mask, 100)
    return policy.score(drawn, part, frozenset(names))


def test_with_adapters_a_named_network_shares_the_base_and_a_moving_reference_begins_as_the_base(tiny):
    policy = policy_of("sd3", tiny, {"lora_rank": 2}, {"policy": "matching", "draws": 2})
    with torch.no_grad():
        for parameter in policy.networks.trained.values():
            parameter += 0.1
    policy.networks.follow(bind_networks(["average", "renewal(every=1)"]))
    names = {"error", "old.error", "reference.error"}
    scores = velocities(policy, names)
    assert torch.equal(scores["old.error"], scores["error"]) and not torch.equal(
        scores["reference.error"], scores["error"]
    )
    sizes = {name: value.numel() for name, value in policy.networks.values["old"].items()}
    assert all(".lora_" in name for name in sizes) and sum(sizes.values()) < 0.2 * sum(
        parameter.numel() for parameter in policy.network.parameters()
    )
    x = torch.randn(2, *policy.model.latent_shape(), generator=torch.Generator().manual_seed(0))
    given = (x, torch.tensor([0.7, 0.3]), policy.model.encode(REQUEST.prompts))
    with torch.no_grad(), policy.networks("reference") as network:
        moving = policy.model.predict(network, *given)
    with torch.no_grad(), adapters_off(policy.network) as network:
        torch.testing.assert_close(moving, policy.model.predict(network, *given), rtol=0, atol=1e-6)
    policy.networks.advance(1)
    assert torch.equal(velocities(policy, names)["reference.error"], scores["error"])


def test_adapters_of_a_lower_rank_and_another_alpha_are_the_same_teacher(tiny, tmp_path):
    other = policy_of("sd3", tiny, {"lora_rank": 2, "lora_alpha": 8}, {"policy": "matching", "draws": 2})
    with torch.no_grad():
        for parameter in other.networks.trained.values():
            parameter += 0.1
    other.save(tmp_path / "model")
    policy = policy_of("sd3", tiny, {"lora_rank": 4, "lora_alpha": 4}, {"policy": "matching", "draws": 2})
    policy.networks.follow(bind_networks([f"frozen(path={str(tmp_path / 'model')!r})"]))
    x = torch.randn(2, *policy.model.latent_shape(), generator=torch.Generator().manual_seed(0))
    given = (x, torch.tensor([0.7, 0.3]), policy.model.encode(REQUEST.prompts))
    with torch.no_grad(), policy.networks("teacher") as network:
        found = policy.model.predict(network, *given)
        torch.testing.assert_close(found, other.model.predict(other.network, *given), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found, policy.model.predict(policy.model.network, *given) * 0, atol=1e-3)
    with pytest.raises(ValueError, match=r"rank 4.*lora_rank=2"):
        policy.save(tmp_path / "larger")
        other.networks.follow(bind_networks([f"frozen(path={str(tmp_path / 'larger')!r})"]))


def test_the_reference_may_be_guided_and_the_policy_not(tiny):
    sampling = {"policy": "matching", "draws": 2}
    plain = policy_of("sd3", tiny, {"guidance": 1.0, "lora_rank": 2}, sampling)
    guided = policy_of("sd3", tiny, {"guidance": 1.0, "lora_rank": 2}, {**sampling, "reference_guidance": 4.0})
    own, other = (velocities(policy, {"error", "reference.error"}) for policy in (plain, guided))
    assert torch.equal(own["error"], other["error"]) and torch.equal(own["error"], own["reference.error"])
    assert (own["reference.error"] - other["reference.error"]).abs().max() > 1e-4


def test_draws_are_of_the_noisiest_levels(tiny):
    sampling = {"policy": "matching", "draws": 1}
    noisy = policy_of("sd3", tiny, {}, {**sampling, "noisy_fraction": 0.5}).rollout(REQUEST)
    assert noisy.steps.step.tolist() == [[0], [0]]
    with pytest.raises(ValueError, match=r"sampling\.draws.*2"):
        policy_of("sd3", tiny, {}, {**sampling, "draws": 2, "noisy_fraction": 0.5})
