"""A small Stable Diffusion 3, drawn with by hand and by diffusers' own pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from mmgrpo.family import families
from mmgrpo.types import Prompt, Video
from pipelines.visual import sd3
from pipelines.visual.flow import FlowModel
from pipelines.visual.library import load_pipeline
from pipelines.visual.pipeline import Call
from tests.building import load

__all__ = [
    "PROMPTS",
    "STEPS",
    "at",
    "check_adapters",
    "check_sample",
    "draw",
    "drawn_by_diffusers",
    "noise",
    "ours",
    "load_pipeline",
    "shake",
    "theirs",
]

PROMPTS = [Prompt("a red circle"), Prompt("a blue square and a circle."), Prompt("a red circle")]
STEPS = 4


def ours(folder, **options) -> FlowModel:
    return load(sd3, folder, height=16, width=16, max_sequence_length=48, **options)


def noise(model, count: int = 3) -> torch.Tensor:
    return torch.randn(count, *model.latent_shape(), generator=torch.Generator().manual_seed(3))


def draw(model, network, x, prompts=PROMPTS):
    """Euler: x <- x + (sigma_next - sigma) v, with v the family's prediction."""
    grid, conditioning = model.grid(STEPS), model.encode(prompts)
    with torch.no_grad():
        for i in range(STEPS):
            velocity = model.predict(network, x, grid.levels[i].expand(len(x)), conditioning)
            x = x + (grid.levels[i + 1] - grid.levels[i]) * velocity
    return x


def theirs(pipe, x, guidance: float, output: str):
    """What diffusers' pipeline makes of the same noise, on its own noise levels."""
    return pipe(
        prompt=[prompt.text for prompt in PROMPTS],
        height=16,
        width=16,
        latents=x.clone(),
        num_inference_steps=STEPS,
        guidance_scale=guidance,
        max_sequence_length=48,
        output_type=output,
    ).images


def drawn_by_diffusers(
    name: str,
    folder: str | Path,
    x: torch.Tensor,
    output: str,
    *,
    size: tuple[int, int],
    scale: float,
    lora: str | Path = "",
    levels: torch.Tensor | None = None,
    prompts: Sequence[Prompt] = PROMPTS,
    frames: int = 0,
    fps: float = 0.0,
    framed: bool = False,
    **options: Any,
) -> torch.Tensor:
    """What the pipeline of a family makes of the same noise, as ``mmgrpo validate`` asks it.

    The noise levels are the pipeline's own or, with a solver of another kind, ``levels``; ``scale`` is that of
    classifier-free guidance, and the options are those of the family's model.
    """
    make: Any = families()[name].library
    library = make()
    pipeline = library.pipeline(str(folder), str(lora))
    pipeline = pipeline if levels is None else library.with_our_steps(pipeline, levels)
    calls = [
        Call(prompt, start[None], STEPS, scale, size, frames, fps, framed, options)
        for prompt, start in zip(prompts, x, strict=True)
    ]
    return library.samples(pipeline, calls, output)


def shake(network, scale: float = 0.2) -> None:
    """Random adapters: B is 0 after initialization, and an adapter that does nothing proves nothing."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)


def check_sample(
    model: Any,
    theirs: Callable[[torch.Tensor, str], torch.Tensor],
    shaped: Callable[[torch.Tensor], torch.Tensor] = lambda latents: latents,
    prompts: Sequence[Prompt] = PROMPTS,
    close: float = 1e-5,
    decoded: float = 1e-5,
) -> None:
    """Of one noise the library makes our latents and our pictures or clips: ``theirs``, of the noise and the kind of
    output, which has latents in its own shape."""
    start = noise(model)
    end = draw(model, model.network, start, prompts)
    torch.testing.assert_close(shaped(end), theirs(start, "latent"), atol=close, rtol=0)
    outputs = model.decode(end)
    pixels = torch.stack([one.frames if isinstance(one, Video) else one.pixels for one in outputs])
    torch.testing.assert_close(pixels, theirs(start, "pt"), atol=decoded, rtol=0)
    assert pixels.std() > 0.01  # a blank picture would agree too
    assert all(one.fps == model.fps for one in outputs if isinstance(one, Video))


def check_adapters(
    model: Any,
    folder: Path,
    theirs: Callable[[torch.Tensor, Path | str], torch.Tensor],
    shaped: Callable[[torch.Tensor], torch.Tensor] = lambda latents: latents,
    prompts: Sequence[Prompt] = PROMPTS,
    close: float = 1e-5,
) -> None:
    """Of saved adapters the library makes what we make with them, and without them something else: ``theirs``, of the
    noise and the adapters' folder, which has our latents in its own shape."""
    shake(model.network)
    start = noise(model)
    end = shaped(draw(model, model.network, start, prompts))
    model.save(folder, model.network)
    torch.testing.assert_close(theirs(start, folder), end, atol=close, rtol=0)
    assert (theirs(start, "") - end).abs().max() > 1e-3


def at(model, network, time: float = 0.7):
    x = noise(model)
    return model.predict(network, x, torch.full((3,), time), model.encode(PROMPTS))
