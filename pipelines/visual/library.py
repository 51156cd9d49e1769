"""A sample of diffusers' own pipeline from the noise of ours, with which ours is compared.

The pipeline is read by its own ``from_pretrained``, so text encoders, packing, guidance, noise levels and VAE are
those of the library. Only solvers are replaced that take other steps than the deterministic sampler here: of a flow by
Euler's steps on the same levels, of a diffusion by DDIM with eta = 0.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.plugins import locate
from mmgrpo.config.settings import Config
from mmgrpo.family import Difference, Incomparable, families
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.types import Policy, Prompt, Request, Video
from pipelines.denoising import Process
from pipelines.lora import DIFFUSERS_FILE
from pipelines.pretrained import architecture
from pipelines.training import torch_dtype
from pipelines.visual.conditioning_image import conditioning_images, first_frame
from pipelines.visual.flow import is_euler
from pipelines.visual.pipeline import Call, Pipeline

__all__ = ["TOLERANCE", "Diffusers", "load_pipeline"]

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
"""Root mean square of the differences of pixels in [0, 1], by the precision of computation."""


@dataclass(frozen=True)
class Diffusers:
    """diffusers' pipeline of a family of images or clips."""

    name: str
    module: str
    architectures: tuple[str, ...]
    guidance: str
    """The option that is the scale of classifier-free guidance."""
    process: Process

    @property
    def differences(self) -> Pipeline:
        """Where the family's pipeline differs from the others."""
        return vars(importlib.import_module(self.module)).get("PIPELINE", Pipeline())

    measure = "root mean square of the differences of pixels in [0, 1]"
    tolerance = TOLERANCE

    def compare(self, config: Config, policy: Policy, prompts: Sequence[Prompt]) -> Difference:
        """Draw every prompt once with the deterministic sampler."""
        if not isinstance(policy, DenoisingPolicy):
            raise Incomparable(f"sampling.policy: is compared with transitions only, got {type(policy).__name__}")
        model: Any = policy.evaluation.model
        if model.architecture.pipeline is None:
            raise Incomparable("a model without text encoders and VAE of its own is none of diffusers'")
        given, sizes = vars(config.model).get("given_size"), self.differences.given_sizes
        if sizes and given is not None and given not in sizes:
            raise Incomparable(f"model.given_size: diffusers' pipeline has {sizes[-1]}, got {given}")
        if not self.differences.guided and model.guidance != 1:
            raise Incomparable(f"model.true_cfg_scale: diffusers' pipeline has none, got {model.guidance}")
        request = Request(prompts, range(len(prompts)), 1, seed=1)
        grid = policy.evaluation_grid
        drawn, _, conditioning = policy.evaluation.sample(policy.network, request, grid)
        outputs: list[Any] = list(drawn)
        with torch.no_grad():
            starts = model.architecture.complete(policy.evaluation.initial_noise(request, 1), conditioning.tensors)
        ours = torch.stack([output.frames if isinstance(output, Video) else output.pixels for output in outputs]).cpu()
        shared: dict[str, Any] = {"steps": grid.steps, "guidance": float(model.guidance), "fps": float(model.fps)}
        shared |= {"size": tuple(ours.shape[-2:]), "frames": ours.shape[1] if ours.dim() == 5 else 0}
        shared |= {"framed": model.architecture.frame_size is not None, "options": vars(config.model)}
        calls = [Call(prompt, start[None].cpu(), **shared) for prompt, start in zip(prompts, starts, strict=True)]
        levels = grid.levels.float().cpu() if self.process == "flow" else None

        def difference(pipeline: Any) -> float:
            theirs = self.samples(self.with_our_steps(pipeline, levels), calls).float().cpu()
            return float((theirs - ours).square().mean().sqrt())

        return difference

    def load(self, config: Config, path: str, adapters: str, device: str) -> Any:
        """diffusers' pipeline in the precision of ``model.dtype``."""
        return self.pipeline(locate(path), adapters, torch_dtype(config.model.dtype), device)

    def pipeline(self, path: str, adapters: str = "", dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
        """The pipeline of a checkpoint, with adapters that diffusers reads where a folder is named."""
        declared = architecture(path)
        shared = sum(declared in other.architectures for other in families().values()) > 1
        name, parts = self.architectures[0] if shared else declared, self.differences.parts(path)
        pipeline = load_pipeline(name, path, adapters, dtype=dtype, device=device, **parts)
        self.differences.complete(pipeline, path)
        return pipeline

    def with_our_steps(self, pipeline: Any, levels: Tensor | None) -> Any:
        """The pipeline with a solver that takes the steps of the deterministic sampler, on ``levels`` of a flow."""
        from diffusers import DDIMScheduler

        if levels is None:
            pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
        elif not is_euler(pipeline.scheduler):
            pipeline.scheduler = euler_on(levels)
        return pipeline

    def samples(self, pipeline: Any, calls: Sequence[Call], output: str = "pt") -> Tensor:
        """What the pipeline draws, of images N 3 H W and of clips N frames 3 H W, in [0, 1]; with ``output`` latent its
        own latents."""
        accepted, results = inspect.signature(type(pipeline).__call__).parameters, []
        for call in calls:
            self.differences.prepare(pipeline, call)
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(0)  # LTX-Video's decoder injects noise, which ours draws with this seed
                arguments = {
                    **self.arguments(call, "true_cfg_scale" in accepted),
                    **self.differences.arguments(pipeline, call),
                }
                arguments["output_type"] = output
                drawn = pipeline(**{name: value for name, value in arguments.items() if name in accepted})
            result = drawn.frames if {"num_frames", "frames"} & {*accepted} else drawn.images
            results.append(self.differences.pixels(result) if output == "pt" else result)
        return torch.cat([torch.as_tensor(sample) for sample in results])

    def arguments(self, call: Call, true_scale: bool) -> dict[str, Any]:
        """By name; ``true_scale``: the pipeline has a scale of guidance proper next to one that the network reads."""
        options, (height, width) = call.options, call.size
        negative = options.get("negative_prompt") or (self.differences.no_words if true_scale else None)
        arguments: dict[str, Any] = {
            "prompt": call.prompt.text,
            "height": height,
            "width": width,
            "num_frames": call.frames,
            "frames": call.frames,  # of SANA-Video's pipeline
            "frame_rate": int(call.fps),
            "latents": self.differences.noise(call.start).clone(),
            "generator": torch.Generator(),
            "num_inference_steps": call.steps,
            "eta": 0.0,
            "use_resolution_binning": False,
            "enable_prompt_rewrite": False,
        }
        if negative is not None and call.guidance > 1:
            arguments["negative_prompt"] = negative
        if "max_sequence_length" in options:
            arguments["max_sequence_length"] = options["max_sequence_length"]
        if true_scale:
            arguments["true_cfg_scale"] = call.guidance
        if self.guidance == "true_cfg_scale":
            arguments["guidance_scale"] = options["guidance"]
        elif not true_scale:
            arguments["guidance_scale"] = call.guidance
        if options.get("guidance_2"):
            arguments["guidance_scale_2"] = options["guidance_2"]
        if call.prompt.media:
            if call.framed:
                arguments["image"] = first_frame(call.prompt, self.name, call.size)
            else:
                images = conditioning_images(call.prompt, self.name)
                arguments["image"] = images if len(images) > 1 else images[0]
        return arguments


def load_pipeline(
    name: str,
    path: str | Path,
    adapters: str | Path = "",
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    **parts: Any,
) -> Any:
    """A pipeline of diffusers by the name of its class, with the adapters of another folder; ``parts`` are those that
    it does not load itself."""
    import diffusers
    from diffusers.loaders.lora_base import LoraBaseMixin

    kind: Any = getattr(diffusers, name)
    pipeline = kind.from_pretrained(path, dtype=dtype, use_safetensors=True, **parts)
    pipeline.set_progress_bar_config(disable=True)
    module = importlib.import_module(type(pipeline).__module__)
    if "ftfy" not in vars(module):  # which some pipelines call even where it is missing
        module.ftfy = SimpleNamespace(fix_text=str)  # type: ignore[attr-defined]
    if adapters and issubclass(kind, LoraBaseMixin):
        pipeline.load_lora_weights(str(adapters))
        if (second := Path(adapters) / "transformer_2").is_dir():
            pipeline.load_lora_weights(str(second), load_into_transformer_2=True)
    elif adapters:  # a pipeline without adapters, of which the network has some
        pipeline.transformer.load_lora_adapter(str(adapters), weight_name=DIFFUSERS_FILE)
    return pipeline.to(device)


def euler_on(levels: Float[Tensor, " levels"]) -> Any:
    """diffusers' Euler scheduler of flows on given noise levels, whatever a pipeline asks for."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler: Any = FlowMatchEulerDiscreteScheduler(shift=1.0)

    def set_timesteps(
        num_inference_steps: int | None = None,
        device: Any = None,
        sigmas: Any = None,
        mu: float | None = None,
        timesteps: Any = None,
    ) -> None:
        scheduler.sigmas, scheduler.timesteps = levels.clone(), (1000 * levels[:-1]).to(device)
        scheduler.num_inference_steps = len(levels) - 1
        scheduler._step_index = scheduler._begin_index = None

    scheduler.set_timesteps = set_timesteps
    return scheduler
