"""FLUX.1 Kontext: equal to diffusers' own pipeline, with a given picture that is never noised, and without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.types import Image, Media, Prompt, Request
from pipelines.visual import flux
from pipelines.visual.families import FAMILIES
from pipelines.visual.flow import FlowModel
from pipelines.visual.options import MemoryOptions
from tests.building import check_scores, denoising_policy_over, load, refuse_foreign
from tests.libraries.families.examples import SEEN, shown
from tests.libraries.families.examples import noise as drawn
from tests.libraries.pipelines.visual.drawing import check_adapters, draw, drawn_by_diffusers, noise
from tests.tiny import maker, tiny_checkpoint

DARK, LIGHT = drawn(3, 16, 24, seed=1) / 4, 1 - drawn(3, 16, 24, seed=2) / 4
PROMPTS = [
    shown(0, Media("image", Image(DARK)), "make it red"),
    Prompt("make it red"),
    shown(2, Media("image", Image(LIGHT)), "make it red"),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("flux_kontext"))


def ours(folder: Path, **options) -> FlowModel:
    return load(
        "flux_kontext", folder, **{"height": 16, "width": 24, "max_sequence_length": 48, "given_size": 0, **options}
    )


def theirs(folder: Path, x: torch.Tensor, scale: float = 1.0, output: str = "latent", lora: str | Path = "", **other):
    """What diffusers' pipeline makes of the same noise for each prompt, on its own noise levels."""
    options = {"size": (16, 24), "scale": scale, "prompts": PROMPTS, "lora": lora, **other}
    given = {"guidance": 3.5, "max_sequence_length": 48, "given_size": 0}
    return drawn_by_diffusers("flux_kontext", folder, x, output, **options, **given)


def pil(pixels: torch.Tensor) -> Pil.Image:
    return Pil.fromarray((pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())


@pytest.mark.parametrize("true_cfg_scale", [1.0, 2.5])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, true_cfg_scale):
    model = ours(folder, true_cfg_scale=true_cfg_scale)
    start = noise(model, 1).expand(3, -1, -1, -1)
    end = draw(model, model.network, start, PROMPTS)
    torch.testing.assert_close(flux.pack(end), theirs(folder, start, true_cfg_scale), atol=1e-5, rtol=0)
    pictures = torch.stack([image.pixels for image in model.decode(end)])
    torch.testing.assert_close(pictures, theirs(folder, start, true_cfg_scale, "pt"), atol=1e-5, rtol=0)
    assert pictures.shape[1:] == (3, 16, 24) and pictures.std() > 0.01
    assert min((end[0] - end[1]).abs().max(), (end[0] - end[2]).abs().max()) > 2e-4


@pytest.mark.parametrize(("height", "width"), [(64, 160), (160, 64), (64, 64), (70, 90)])
def test_a_picture_keeps_its_proportions_as_in_the_pipeline(folder, height, width):
    prompts = [shown(0, Media("image", Image(drawn(3, height, width, seed=3))), "make it red")]
    model = ours(folder, height=64, width=64)
    start = noise(model, 1)
    end = draw(model, model.network, start, prompts)
    expected = theirs(folder, start, size=(64, 64), prompts=prompts)
    torch.testing.assert_close(flux.pack(end), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("picture", "given_size", "pixels"),
    [
        ((40, 100), 1024, (672, 1568)),
        ((100, 104), 1024, (1024, 1024)),
        ((40, 100), 64, (40, 96)),
        ((37, 50), 0, (36, 48)),
    ],
)
def test_a_picture_is_brought_to_the_nearest_of_the_preferred_sizes(folder, picture, given_size, pixels):
    architecture: Any = ours(folder, given_size=given_size).architecture
    assert architecture.resize(pil(torch.rand(3, *picture))).shape == (1, 3, *pixels)


def test_the_given_picture_is_neither_noised_nor_predicted(folder, monkeypatch):
    model = ours(folder)
    seen = []
    forward = model.network.forward
    monkeypatch.setattr(model.network, "forward", lambda **inputs: seen.append(inputs) or forward(**inputs))
    rows = model.encode(PROMPTS[:1])
    for time in (1.0, 0.1):
        predicted = model.predict(model.network, noise(model, 1), torch.tensor([time]), rows)
        assert predicted.shape == (1, *model.latent_shape())
    early, late = (inputs["hidden_states"][:, 24:] for inputs in seen)
    assert torch.equal(early, late) and torch.equal(early, rows.tensors[2])
    assert seen[0]["img_ids"][:, 0].tolist() == [0.0] * 24 + [1.0] * 24
    assert torch.equal(seen[0]["img_ids"][:24, 1:], seen[0]["img_ids"][24:, 1:])


def test_pictures_encoded_by_a_vae_of_another_precision_are_not_taken_from_the_disk(folder, tmp_path):
    for files, dtype in ((1, "float32"), (1, "float32"), (2, "bfloat16")):
        model = ours(folder)
        model.limit_memory(MemoryOptions(encodings_folder=str(tmp_path), vae_dtype=dtype), "kontext")
        model.encode(PROMPTS[:1])
        assert len(list(tmp_path.iterdir())) == files


def test_the_rows_come_back_in_their_order(folder):
    model = ours(folder)
    x, time = noise(model), torch.full((3,), 0.7)
    together = model.predict(model.network, x, time, model.encode(PROMPTS))
    for row in range(3):
        alone = model.predict(model.network, x[row : row + 1], time[:1], model.encode(PROMPTS[row : row + 1]))
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, lora=lora), flux.pack, PROMPTS)


def test_a_tree_over_edits_scores_as_it_sampled(folder):
    policy = denoising_policy_over(ours(folder, true_cfg_scale=2.0), "branch_tree(splits=[0, 1])")
    rollout = policy.rollout(Request(PROMPTS, [0, 1, 2], 4, seed=0))
    check_scores(policy, rollout, 3)


def test_what_the_model_cannot_do_is_refused(folder):
    model = ours(folder)
    with pytest.raises(ValueError, match="media video"):
        model.encode(SEEN[1:2])
    with pytest.raises(ValueError, match="50.*48.*T5"):
        model.encode([Prompt("a" * 48)])
    with pytest.raises(ValueError, match="width.*22.*24"):
        ours(folder, width=22)
    with pytest.raises(ValueError, match="FluxKontextPipeline.*model.family=flux_kontext"):
        refuse_foreign(FAMILIES["flux"], str(folder))
