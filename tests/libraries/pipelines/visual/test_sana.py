"""Sana: equal to diffusers' own pipeline under the Euler scheduler, at the noise levels of the checkpoint's solver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipelines.visual import sana
from pipelines.visual.flow import FlowModel
from tests.building import load
from tests.libraries.pipelines.visual.drawing import (
    STEPS,
    check_adapters,
    check_sample,
    drawn_by_diffusers,
)
from tests.tiny import maker, tiny_checkpoint


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_checkpoint(maker("sana"))


def ours(folder: Path, **options) -> FlowModel:
    return load(sana, folder, height=32, width=64, max_sequence_length=48, **options)


def theirs(folder: Path, x: torch.Tensor, guidance: float, output: str, lora: str | Path = ""):
    """What diffusers' pipeline makes of the same noise with Euler's steps on the levels of its solver."""
    options = {"scale": guidance, "lora": lora, "max_sequence_length": 48}
    levels = ours(folder).grid(STEPS).levels
    return drawn_by_diffusers("sana", folder, x, output, size=(32, 64), levels=levels, **options)


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_a_sample_equals_the_pipeline_of_diffusers(folder, guidance):
    check_sample(ours(folder, guidance=guidance), lambda x, output: theirs(folder, x, guidance, output))


def test_the_levels_are_those_of_the_checkpoints_solver_but_for_its_start_below_one(folder):
    from diffusers import DPMSolverMultistepScheduler

    solver = DPMSolverMultistepScheduler.from_pretrained(folder, subfolder="scheduler")
    for steps in (1, 4, 20):
        solver.set_timesteps(steps)
        levels = ours(folder).grid(steps).levels
        torch.testing.assert_close(levels, solver.sigmas, atol=1e-3, rtol=0)
        assert levels[0] == 1 and solver.sigmas[0] < 1
    # 3 u / (1 + 2 u) at u = 1, 3/4, 1/2, 1/4, 0
    torch.testing.assert_close(ours(folder).grid(4).levels, torch.tensor([1, 0.9, 0.75, 0.5, 0]), atol=1e-6, rtol=0)


def test_a_checkpoint_with_the_euler_scheduler_keeps_its_levels(tmp_path):
    from diffusers import FlowMatchEulerDiscreteScheduler, SanaPipeline

    folder = maker("sana")(tmp_path)
    own = FlowMatchEulerDiscreteScheduler(shift=3.0)
    own.save_pretrained(folder / "scheduler")
    pipe = SanaPipeline.from_pretrained(folder, scheduler=own)
    own.set_timesteps(10)
    pipe.save_pretrained(folder)
    assert torch.equal(ours(folder).grid(10).levels, own.sigmas)
    assert float(own.sigmas[-2]) < 0.02


def test_a_scheduler_of_a_diffusion_is_refused(tmp_path):
    from diffusers import DPMSolverMultistepScheduler

    folder = maker("sana")(tmp_path)
    DPMSolverMultistepScheduler().save_pretrained(folder / "scheduler")
    with pytest.raises(ValueError, match="prediction_type.*use_flow_sigmas.*False"):
        ours(folder)


@pytest.mark.parametrize(("prediction", "flow"), [("epsilon", True), ("flow_prediction", False), (None, None)])
def test_a_solver_that_is_not_wholly_of_a_flow_is_refused(prediction, flow):
    scheduler = SimpleNamespace(config={"prediction_type": prediction, "use_flow_sigmas": flow, "flow_shift": 3.0})
    with pytest.raises(ValueError, match=f"there.*prediction_type.*{prediction}"):
        sana.euler(scheduler, "there")


def test_saved_adapters_give_diffusers_the_same_picture(folder, tmp_path):
    model = ours(folder, lora_rank=2, lora_alpha=6)
    # 4 projections of 2 attentions of 2 layers, of A and B each
    assert sum(parameter.requires_grad for parameter in model.network.parameters()) == 4 * 2 * 2 * 2
    check_adapters(model, tmp_path, lambda x, lora: theirs(folder, x, 4.5, "latent", lora=lora))
