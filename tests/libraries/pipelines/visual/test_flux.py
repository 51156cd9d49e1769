"""FLUX.1: equal to diffusers' own pipeline, packed latents, embedded guidance, the dynamic shift."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipelines.visual import flux
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.pipelines.visual.drawing import check_adapters, check_sample, draw, drawn_by_diffusers, noise
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="module")
def dev() -> Path:
    return tiny_checkpoint(flux.tiny)


@pytest.fixture(scope="module")
def schnell() -> Path:
    return tiny_checkpoint(flux.tiny, guided=False)


def ours(folder: Path, **options) -> FlowModel:
    return load(flux, folder, height=16, width=24, max_sequence_length=48, **options)


def theirs(folder: Path, x: torch.Tensor, guidance: float, true_cfg_scale: float, output: str, lora: str | Path = ""):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    options = {"guidance": guidance, "max_sequence_length": 48}
    return drawn_by_diffusers("flux", folder, x, output, size=(16, 24), scale=true_cfg_scale, lora=lora, **options)


@pytest.mark.parametrize(("guidance", "true_cfg_scale"), [(3.5, 1.0), (1.0, 1.0), (3.5, 2.5)])
def test_a_sample_equals_the_pipeline_of_diffusers(dev, guidance, true_cfg_scale):
    model = ours(dev, guidance=guidance, true_cfg_scale=true_cfg_scale)
    check_sample(model, lambda x, output: theirs(dev, x, guidance, true_cfg_scale, output), flux.pack)


def test_schnell_has_no_embedded_guidance_and_a_constant_shift(schnell):
    model = ours(schnell, guidance=7.0)
    start = noise(model)
    end = draw(model, model.network, start)
    torch.testing.assert_close(flux.pack(end), theirs(schnell, start, 0.0, 1.0, "latent"), atol=1e-5, rtol=0)
    # linspace(1, 1/4, 4), unshifted
    torch.testing.assert_close(model.grid(4).levels, torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0]), atol=1e-7, rtol=0)


def test_packing_puts_two_by_two_neighbours_into_one_token():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert flux.pack(x)[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert torch.equal(flux.unpack(flux.pack(x), 4, 4), x)
    assert flux.places(2, 2).tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]


def test_levels_of_the_schedulers_own_are_asked_for_by_number(dev):
    scheduler = SimpleNamespace(config={"use_flow_sigmas": True})
    architecture = flux.Flux(None, 512, 3.5, torch.device("cpu"), (128, 128))
    assert architecture.spacing(scheduler, 7) == {"num_inference_steps": 7, "mu": pytest.approx(1.15)}  # 4096 tokens


def test_saved_adapters_give_diffusers_the_same_picture(dev, tmp_path):
    model = ours(dev, lora_rank=2, lora_alpha=6)
    check_adapters(model, tmp_path, lambda x, lora: theirs(dev, x, 3.5, 1.0, "latent", lora=lora), flux.pack)
