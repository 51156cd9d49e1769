"""Stable Diffusion and SDXL: equal to diffusers with DDIM, guidance, adapters, what is encoded, and the VAE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mmgrpo.diffusion.kernels import ddim
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.types import Prompt, Request
from pipelines.visual import sdxl
from tests.building import check_scores, denoising_policy_over
from tests.libraries.pipelines.visual.denoising import KINDS, PROMPTS, draw, ours, pipe, predicted, theirs
from tests.libraries.pipelines.visual.drawing import noise, shake
from tests.tiny import maker, tiny_checkpoint

FAMILIES = pytest.mark.parametrize("family", KINDS, ids=lambda family: family.__name__.rpartition(".")[2])
Folders = Callable[..., Path]


@pytest.fixture(scope="module")
def folder() -> Folders:
    """A family's tiny checkpoint by prediction, written once."""
    made: dict[tuple[ModuleType, str], Path] = {}

    def write(family: ModuleType, prediction: str = "epsilon") -> Path:
        if (family, prediction) not in made:
            made[family, prediction] = tiny_checkpoint(maker(family), prediction=prediction)
        return made[family, prediction]

    return write


def policy_of(model, plan: str = "every_step") -> DenoisingPolicy:
    return denoising_policy_over(model, plan, kernel="ddim(eta=1.0)", steps=5)


# ---- the same model as diffusers'


@FAMILIES
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_a_deterministic_sample_equals_the_pipeline_of_diffusers_with_ddim(folder, family, prediction, guidance):
    model, reference = (
        ours(family, folder(family, prediction), guidance=guidance),
        pipe(family, folder(family, prediction)),
    )
    start = noise(model)
    end = draw(model, start)
    torch.testing.assert_close(end, theirs(reference, start, guidance), atol=2e-5, rtol=0)
    pictures = torch.stack([image.pixels for image in model.decode(end)])
    torch.testing.assert_close(pictures, theirs(reference, start, guidance, "pt"), atol=1e-5, rtol=0)
    assert pictures.shape[1:] == (3, 16, 24) and pictures.std() > 0.01  # a blank picture would agree too
    assert (end[1] - draw(model, start[[0, 0, 0]])[1]).abs().max() > 1e-2


@FAMILIES
def test_the_prediction_is_the_checkpoints_in_the_transitions_of_a_rollout_too(folder, family):
    model = ours(family, folder(family, "v_prediction"))
    assert model.prediction == "v" and ours(family, folder(family)).prediction == "epsilon"
    policy, x, output = policy_of(model), *torch.randn(2, 1, *model.latent_shape())
    step = torch.tensor([1])
    transition = policy.kernel(x, output, step, policy.grid)
    assert torch.equal(transition.mean, ddim(x, output, step, policy.grid, "v").mean)
    assert (transition.mean - ddim(x, output, step, policy.grid, "epsilon").mean).abs().max() > 0.1


# ---- guidance


def test_without_words_sdxl_reads_zeros_where_its_checkpoint_asks_for_them(folder):
    model, reference = ours(sdxl, folder(sdxl)), pipe(sdxl, folder(sdxl))
    assert not any(tensor.any() for tensor in model.encode([Prompt("")]).tensors)
    for made in (model.architecture.pipeline, reference):
        made.register_to_config(force_zeros_for_empty_prompt=False)
    model.encodings.memory.clear()
    _, hidden, _, pooled = reference.encode_prompt("a")
    encoded = model.encode([Prompt("")]).tensors
    torch.testing.assert_close(encoded, (hidden, pooled), atol=1e-6, rtol=0)
    assert all(tensor.any() for tensor in encoded)


# ---- what trains


@FAMILIES
def test_saved_adapters_give_diffusers_the_same_picture(folder, family, tmp_path):
    model = ours(family, folder(family), lora_rank=2, lora_alpha=6)
    trained = [name for name, p in model.network.named_parameters() if p.requires_grad]
    # A and B of four projections, in self- and cross-attention: one layer below, one in the middle, two above
    assert len(trained) == 2 * 4 * 2 * 4 and all(".lora_" in name for name in trained)
    shake(model.network)
    start = noise(model)
    end = draw(model, start)
    model.save(tmp_path, model.network)
    reference = pipe(family, folder(family))
    plain = theirs(reference, start, 5.0)
    reference.load_lora_weights(tmp_path)  # alpha 6 at rank 2 is a scale of 3, which the file must say
    torch.testing.assert_close(theirs(reference, start, 5.0), end, atol=2e-5, rtol=0)
    assert (plain - end).abs().max() > 1e-2
    again = ours(family, folder(family), weights=tmp_path)
    assert torch.equal(draw(again, start), end)


@FAMILIES
def test_a_whole_network_is_saved_as_diffusers_reads_it(folder, family, tmp_path):
    from diffusers import UNet2DConditionModel

    model = ours(family, folder(family))
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.1)
    model.save(tmp_path, model.network)
    start, reference = noise(model), pipe(family, folder(family))
    reference.unet = UNet2DConditionModel.from_pretrained(tmp_path, subfolder="unet")
    torch.testing.assert_close(theirs(reference, start, 5.0), draw(model, start), atol=5e-5, rtol=1e-4)
    again = ours(family, folder(family), weights=tmp_path)
    assert torch.equal(predicted(again), predicted(model))


@FAMILIES
@pytest.mark.parametrize(
    "plan",
    [
        "every_step",
        "random_subset(fraction=0.6)",
        "sliding_window(size=2)",
        "one_step_branch",
        "branch_tree(splits=[0, 1])",
    ],
)
def test_every_plan_runs_and_keeps_its_latents_as_they_were_scored(folder, family, plan):
    policy = policy_of(ours(family, folder(family)), plan)
    rollout = policy.rollout(Request(PROMPTS[:1], [0], 4, seed=0))
    assert rollout.outputs[0].pixels.shape == (3, 16, 24)
    assert all(walk.states.dtype == torch.float32 for walk in rollout.steps.walks)
    check_scores(policy, rollout, 3)
    assert not rollout.decisions.loss_mask[:, -1].any()  # the last step has almost no noise
