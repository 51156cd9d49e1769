"""Small Stable Diffusion checkpoints, drawn with by the family and by diffusers' own pipeline with DDIM."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mmgrpo.diffusion.ode import Solver
from mmgrpo.types import Prompt
from pipelines.visual import sdxl, stable_diffusion
from pipelines.visual.diffusion import DiffusionModel
from pipelines.visual.library import load_pipeline
from tests.building import load

KINDS = {stable_diffusion: "StableDiffusionPipeline", sdxl: "StableDiffusionXLPipeline"}
"""Module of a family to the class of its pipeline in diffusers."""

PROMPTS = [Prompt("a red circle"), Prompt("a blue square and a circle."), Prompt("a red circle")]
STEPS = 4


def ours(family: ModuleType, folder: str | Path, **options: Any) -> DiffusionModel:
    return load(family, folder, **{"height": 16, "width": 24, **options})


def draw(model: DiffusionModel, x: torch.Tensor, steps: int = STEPS) -> torch.Tensor:
    """What the deterministic solver of evaluation makes of a noise."""
    solver = Solver(model, 64, torch.device("cpu"))
    with torch.no_grad():
        return solver.denoise(model.network, x, model.encode(PROMPTS), model.grid(steps))


def pipe(family: ModuleType, folder: str | Path) -> Any:
    """diffusers' pipeline of the folder, with the DDIM that diffusers makes of its scheduler."""
    import diffusers

    made = load_pipeline(KINDS[family], folder)
    made.scheduler = diffusers.DDIMScheduler.from_config(made.scheduler.config)
    return made


def theirs(made: Any, x: torch.Tensor, guidance: float, output: str = "latent", steps: int = STEPS) -> torch.Tensor:
    """What the pipeline makes of the same noise with eta = 0."""
    return made(
        prompt=[prompt.text for prompt in PROMPTS],
        height=16,
        width=24,
        latents=x.clone(),
        num_inference_steps=steps,
        guidance_scale=guidance,
        eta=0.0,
        output_type=output,
    ).images


def predicted(model: DiffusionModel, time: int = 501) -> torch.Tensor:
    """The guided prediction for a noise at one timestep."""
    x = torch.randn(3, *model.latent_shape(), generator=torch.Generator().manual_seed(3))
    return model.predict(model.network, x, torch.full((3,), time), model.encode(PROMPTS))
