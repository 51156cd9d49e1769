"""What the denoising diffusion models have in common: a UNet, and DDIM on the noise levels of the checkpoint.

x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) eps with integer timesteps t; the network predicts eps, v or x0. Rollout,
training and evaluation take the steps of DDIM (Song et al. 2020, arXiv:2010.02502), whatever scheduler the checkpoint
has (PNDM, Euler, ...), as DDPO does (Black et al. 2023, arXiv:2305.13301): betas, spacing, offset, final level and
prediction are those of the checkpoint's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.diffusion.schedules import Grid, ddim_grid, diffusion_grid
from pipelines.lora import lora_weights
from pipelines.pretrained import locate, read_network, read_pipeline, reading
from pipelines.training import Training, freeze, make_trainable
from pipelines.visual.flow import Architecture, FlowModel, latents_of_pixels
from pipelines.visual.options import StableDiffusionOptions
from pipelines.visual.sizes import Sample, Sides, latent_size

UNET = "unet"
"""Subfolder of the network in a diffusers folder."""

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
"""Projections of self- and cross-attention, as in the released code of DDPO."""

PREDICTIONS = {"epsilon": "epsilon", "v_prediction": "v", "sample": "sample"}
"""``prediction_type`` of a scheduler to ``DenoisingModel.prediction``."""

DISTILLED = ("LCMScheduler", "TCDScheduler")
"""Schedulers of consistency models, which choose among the ``original_inference_steps`` of their distillation."""


class UnetArchitecture(Architecture):
    """A family whose network is the pipeline's UNet."""

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of_pixels(self.pipeline.vae, pixels)

    def save(self, folder: Path, network: Any) -> None:
        network.save_pretrained(folder / UNET)

    def save_adapters(self, folder: Path, network: Any) -> None:
        weights, config = lora_weights(network)
        self.diffusers_class().save_lora_weights(folder, unet_lora_layers=weights, unet_lora_adapter_metadata=config)


@dataclass
class DiffusionModel(FlowModel):
    """A UNet as the model of a denoising policy; ``scheduler`` is a ``DDIMScheduler``."""

    original_steps: int = 0
    """Timesteps of its distillation, of which a consistency model takes some; 0 for any other model."""

    def grid(self, steps: int) -> Grid:
        """Timesteps and levels of ``steps`` steps of DDIM; ``levels`` has no other choice.

        Raises ValueError for levels that begin at pure noise (rescaled betas) with a network that predicts the noise.
        """
        config = self.scheduler.config
        if self.original_steps:
            times = consistency_times(config.num_train_timesteps, self.original_steps, steps)
            return diffusion_grid(self.scheduler.alphas_cumprod, times, config.set_alpha_to_one)
        grid = ddim_grid(
            self.scheduler.alphas_cumprod,
            steps,
            spacing=config.timestep_spacing,
            offset=config.steps_offset,
            clean_end=config.set_alpha_to_one,
        )
        if grid.levels[0] == 0 and self.prediction == "epsilon":
            raise ValueError(
                "the checkpoint's scheduler: got rescale_betas_zero_snr=True and prediction_type=epsilon, expected "
                "v_prediction: its first timestep is pure noise, in which a prediction of the noise tells nothing; "
                "correct scheduler/scheduler_config.json"
            )
        return grid


def load_unet(
    kind: Any,
    architecture: Callable[[Any, torch.device, tuple[int, int]], UnetArchitecture],
    options: StableDiffusionOptions,
    training: Training,
    *,
    example: str,
    unread: Mapping[str, Any],
) -> DiffusionModel:
    """A UNet with the frozen parts of its pipeline, which is of class ``kind``.

    ``architecture`` takes pipeline, device, and height and width of latents. ``unread`` are further arguments of
    ``kind.from_pretrained``, among them None for parts that are not read; ``example`` is a hub id for errors.
    """
    from diffusers import UNet2DConditionModel

    source = locate(options.path, example, "model_index.json")
    device = torch.device(training.device)
    network = read_network(UNet2DConditionModel, source, training, UNET)
    pipeline = read_pipeline(kind, source, training, unet=network, **unread)
    refuse_other_inputs(source, network.config, pipeline.vae.config.latent_channels)
    scheduler, prediction = ddim_scheduler(source, pipeline.scheduler)
    freeze((part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)), device)
    factor, positions = pipeline.vae_scale_factor, network.config.sample_size

    def sized(height: int, width: int, frames: int) -> tuple[UnetArchitecture, tuple[int, ...]]:
        size = latent_size(
            height,
            width,
            sides_of(network.config, factor),
            factor=factor,
            default=[factor * side for side in ([positions] * 2 if isinstance(positions, int) else positions)],
        )
        return architecture(pipeline, device, size), (network.config.in_channels, *size)

    return DiffusionModel(
        network,
        *sized(options.height, options.width, 0),
        scheduler,
        training,
        make_trainable(network, training, LORA_TARGETS),
        guidance=float(options.guidance),
        prediction=prediction,
        sized=sized,
        original_steps=original_steps(pipeline.scheduler),
    )


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that a U-Net takes, with ``factor`` pixels per side of a latent position."""
    return Sides(max(8, factor))


CLIP = 77
"""Words that its text encoders read."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample; a network of Stable Diffusion XL also the sizes of images."""
    larger = config.get("addition_embed_type") == "text_time"
    width = config.get("projection_class_embeddings_input_dim") or 0
    pooled = torch.empty(1, width - 6 * config["addition_time_embed_dim"]) if larger else None
    return {
        "sample": torch.empty(1, config["in_channels"], sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words or CLIP, config["cross_attention_dim"]),
        "added_cond_kwargs": {"text_embeds": pooled, "time_ids": torch.empty(1, 6)} if larger else None,
        "timestep": torch.empty(1),
    }


def refuse_other_inputs(source: str, config: Any, channels: int) -> None:
    """ValueError for UNets that read more than latents, time and words: those of inpainting, and distilled ones."""
    if config.in_channels != channels:
        raise ValueError(
            f"'{source}': unet/config.json: got in_channels={config.in_channels}, expected {channels}, the channels of "
            "a latent; models for inpainting or editing read an image as well and are not supported"
        )
    if config.time_cond_proj_dim is not None:
        raise ValueError(
            f"'{source}': unet/config.json: got time_cond_proj_dim={config.time_cond_proj_dim}, expected none; the "
            "model is distilled with the scale of guidance as an input (LCM), which is not supported; take the model "
            "that it was distilled from"
        )


def original_steps(scheduler: Any) -> int:
    """The number of timesteps with which a consistency model was distilled; 0 for a scheduler of other models."""
    return scheduler.config.original_inference_steps if type(scheduler).__name__ in DISTILLED else 0


def consistency_times(train: int, original: int, steps: int) -> torch.Tensor:
    """``steps`` of the ``original`` timesteps of a distillation, from the last one on: LCM's choice.

    Of 1000 and 50: 999, 979, ..., 19, of which 4 steps take 999, 759, 499 and 259.
    """
    if not 1 <= steps <= original:
        raise ValueError(
            f"sampling.steps: got {steps}, expected 1 to {original}, the original_inference_steps of the checkpoint's "
            "scheduler, with which it was distilled"
        )
    falling = torch.arange(original, 0, -1) * (train // original) - 1
    return falling[torch.linspace(0, original, steps + 1, dtype=torch.float64)[:-1].floor().long()]


def ddim_scheduler(source: str, scheduler: Any) -> tuple[Any, str]:
    """The ``DDIMScheduler`` of a checkpoint's scheduler, and what its network predicts.

    As ``DDIMScheduler.from_config``, except that x0 is never clipped: that it clips by default is for pixels, and
    other schedulers do not state it. Raises ValueError for a scheduler that clips or thresholds, and for one of other
    models than denoising diffusion.
    """
    from diffusers import DDIMScheduler

    config, place = scheduler.config, f"'{source}': scheduler/scheduler_config.json"
    if getattr(scheduler, "betas", None) is None or config.get("use_flow_sigmas"):
        raise ValueError(
            f"{place}: got a {type(scheduler).__name__} of a flow or without betas, expected the scheduler of a "
            "denoising diffusion model (DDIM, DDPM, PNDM, Euler, DPM-Solver, ...)"
        )
    if config["prediction_type"] not in PREDICTIONS:
        raise ValueError(
            f"{place}: got prediction_type={config['prediction_type']}, expected one of {', '.join(PREDICTIONS)}"
        )
    for key in ("clip_sample", "thresholding"):
        if config.get(key):
            raise ValueError(
                f"{place}: got {key}=True, expected False: models of latents do not bound the clean estimate, and "
                f"transitions are scored without it; set {key} to false there"
            )
    # An offset that the pipeline has corrected counts as a default, which from_config would replace by another.
    offset = {"steps_offset": config["steps_offset"]} if "steps_offset" in config else {}
    with reading(source, "scheduler"):
        made = DDIMScheduler.from_config(config, clip_sample=False, **offset)
    return made, PREDICTIONS[config["prediction_type"]]
