"""Small Wan checkpoints, filmed with by hand and by diffusers' own pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mmgrpo.diffusion.planners import PLANS
from mmgrpo.types import Image, Media, Prompt, Turn
from pipelines.visual import wan_tiny
from pipelines.visual.conditioning_image import first_frame
from pipelines.visual.flow import FlowModel
from pipelines.visual.library import load_pipeline
from tests.building import load
from tests.libraries.pipelines.visual.drawing import STEPS

VERSIONS = ("2.1", "2.2-14B", "2.2-5B")

SIZE = {"height": 32, "width": 64}

WORDS = ("a red circle", "a blue   square &amp; a circle.", "a red circle")


UNJUDGED = [plan for plan in PLANS if plan != "expand_prune"]
"""Plans that ask for no rewards while they draw."""

FOUR = {
    "branch_tree": "branch_tree(splits=[0, 1])",
    "branch_mix": "branch_mix(splits=[0, 1], window=2)",
    "tree_window": "tree_window(children=2, depth=2)",
    "one_step_branch": "one_step_branch(draw='all', intervals=[1, 2])",
    "sliding_window": "sliding_window(size=2, tail='dpmpp_2m')",
}
"""Plans of 4 samples and 5 steps, where the name alone is not one."""


def pictured(text: str, seed: int) -> Prompt:
    """Words and a picture, of another size than the clip."""
    pixels = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(seed))
    return Prompt(text, str(seed), turns=(Turn("user", (Media("image", Image(pixels)), text)),))


TEXTS = [Prompt(text) for text in WORDS]
PICTURED = [pictured(text, number) for number, text in enumerate(WORDS)]


def checkpoint(folder: Path, version: str, pictures: bool = False) -> Path:
    """A tiny checkpoint whose scheduler is Euler's, so diffusers' pipeline takes the steps that we take."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    pipeline = kind(pictures).from_pretrained(wan_tiny.tiny(folder / "unipc", version=version, image_input=pictures))
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipeline.save_pretrained(folder / "euler")
    return folder / "euler"


def kind(pictures: bool) -> Any:
    from diffusers import WanImageToVideoPipeline, WanPipeline

    return WanImageToVideoPipeline if pictures else WanPipeline


def ours(folder: Path, pictures: bool = False, **options: Any) -> FlowModel:
    return load("wan_i2v" if pictures else "wan", folder, **{**SIZE, "frames": 9, "guidance": 1.0, **options})


def theirs(folder: Path, x: torch.Tensor, output: str, pictures: bool = False, lora: str | Path = "", **options: Any):
    """What diffusers' pipeline makes of the same noise, on its own noise levels; ``lora`` is a folder of adapters."""
    pipe = load_pipeline("WanImageToVideoPipeline" if pictures else "WanPipeline", folder, lora)
    given = {"num_frames": 9, "num_inference_steps": STEPS, "guidance_scale": 1.0, "output_type": output} | options
    if not pictures:
        return pipe(prompt=list(WORDS), latents=x.clone(), **SIZE, **given).frames
    size = SIZE["height"], SIZE["width"]
    clips = [
        pipe(first_frame(prompt, "the test", size), prompt=prompt.text, latents=one[None].clone(), **SIZE, **given)
        for prompt, one in zip(PICTURED, x, strict=True)
    ]
    return torch.cat([clip.frames for clip in clips])


def clips_of(outputs: list) -> torch.Tensor:
    """The frames of all clips."""
    return torch.stack([clip.frames for clip in outputs])
