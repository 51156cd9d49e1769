"""The pieces of a Stable Diffusion 3 checkpoint: where it lies, how it reads, shows and is saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from pipelines.lora import load_lora, lora_weights
from pipelines.visual.words import WordEncoder

LORA_FILE = "pytorch_lora_weights.safetensors"
"""Where diffusers keeps adapters."""

OTHER_SCHEDULES = (
    "use_dynamic_shifting",
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "shift_terminal",
    "invert_sigmas",
)
"""Settings of diffusers' flow scheduler that make another schedule than a constant shift."""


def locate(path: str | Path) -> str | Path:
    """A model folder (a Path), or a hub id (a string) where there is no such folder."""
    folder, text = Path(path), str(path)
    if folder.is_dir():
        if has_words(folder) or (folder / "model_index.json").is_file():
            return folder
        inside = ", ".join(sorted(entry.name for entry in folder.iterdir())) or "nothing"
        raise FileNotFoundError(
            f"'{folder}' is no Stable Diffusion 3 model: it holds {inside}. Wanted model_index.json "
            "beside transformer/, vae/ and text encoders (a diffusers folder), or transformer/, words/ and "
            "scheduler/"
        )
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text):
        return text
    raise FileNotFoundError(
        f"there is no model folder '{text}', and it is no hub id either; give an existing folder or "
        "owner/name, e.g. stabilityai/stable-diffusion-3.5-medium"
    )


def has_words(source: str | Path) -> bool:
    return isinstance(source, Path) and (source / "words").is_dir()


def read_transformer(source: str | Path, dtype: torch.dtype) -> Any:
    """The network of a checkpoint; a file that lacks weights is an error, not a warning."""
    from diffusers import SD3Transformer2DModel

    try:
        loaded: Any = SD3Transformer2DModel.from_pretrained(
            str(source), subfolder="transformer", dtype=dtype, output_loading_info=True
        )
    except OSError as error:
        raise FileNotFoundError(
            f"no transformer could be read from '{source}' (a folder with transformer/ in it, or a hub id "
            f"that this machine can reach): {error}"
        ) from error
    network, found = loaded
    if found["missing_keys"]:
        raise ValueError(f"'{source}': the transformer's file lacks weights, e.g. {sorted(found['missing_keys'])[:3]}")
    return network.eval()


def read_pipeline(source: str | Path, network: nn.Module, dtype: torch.dtype, device: torch.device) -> Any:
    """diffusers' own pipeline around the network: encoders in ``dtype``, VAE in fp32, both frozen."""
    from diffusers import AutoencoderKL, StableDiffusion3Pipeline

    vae: Any = AutoencoderKL.from_pretrained(str(source), subfolder="vae", dtype=torch.float32)
    pipeline = StableDiffusion3Pipeline.from_pretrained(str(source), transformer=network, vae=vae, dtype=dtype)
    for frozen in (vae, pipeline.text_encoder, pipeline.text_encoder_2, pipeline.text_encoder_3):
        if frozen is not None:
            frozen.to(device).eval().requires_grad_(False)
    return pipeline


def latent_shape(config: Any, height: int, width: int, factor: int) -> tuple[int, int, int]:
    """(channels, height, width) of latents, one place for ``factor`` pixels; a size that does not fit raises."""
    unit, most = factor * config.patch_size, factor * config.patch_size * config.pos_embed_max_size
    for name, size in (("height", height), ("width", width)):
        if size < unit or size % unit or size > most:
            raise ValueError(f"{name}: came {size} pixels, wanted a multiple of {unit} that is at most {most}")
    return config.in_channels, height // factor, width // factor


def static_shift(config: Any, source: str) -> float:
    """The constant time shift of a flow scheduler; other schedules are refused by name."""
    for name in OTHER_SCHEDULES:
        if config.get(name):
            raise ValueError(
                f"'{source}': its scheduler sets {name}={config[name]}, which is not done here; wanted "
                "the constant shift of Stable Diffusion 3 (edit scheduler/scheduler_config.json)"
            )
    return float(config["shift"])


def read_prompt(pipeline: Any, length: int, device: torch.device, text: str) -> tuple[Tensor, Tensor]:
    """Hidden states and pooled vector of one prompt by CLIP, CLIP and T5, as diffusers makes them."""
    hidden, _, pooled, _ = pipeline.encode_prompt(
        prompt=text,
        prompt_2=None,
        prompt_3=None,
        device=device,
        do_classifier_free_guidance=False,
        max_sequence_length=length,
    )
    return hidden[0], pooled[0]


def read_words(words: WordEncoder, text: str) -> tuple[Tensor, Tensor]:
    """Hidden states and pooled vector of one prompt by word vectors."""
    hidden, pooled = words(words.tokenize([text]))
    return hidden[0], pooled[0]


def forgotten(text: str) -> NoReturn:
    """Stands where the encoders were."""
    raise KeyError(f"prompt '{text}' was not among those given to forget_encoders, and the encoders are gone")


def pixels_of_latents(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1], up to what the VAE overshoots."""
    scaled = latents.float() / vae.config.scaling_factor + vae.config.shift_factor
    return vae.decode(scaled, return_dict=False)[0] / 2 + 0.5


def pixels_of_signed(latents: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1] of latents that are pixels in [-1, 1]."""
    return (latents.float() + 1) / 2


def save_adapters(folder: Path, network: Any) -> None:
    """Adapters with their rank and alpha, for diffusers' ``load_lora_weights``."""
    from diffusers import StableDiffusion3Pipeline

    weights, config = lora_weights(network)
    StableDiffusion3Pipeline.save_lora_weights(
        folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=config
    )


def save_transformer(folder: Path, network: Any) -> None:
    network.save_pretrained(folder / "transformer")


def save_whole(words: WordEncoder, scheduler: Any, folder: Path, network: Any) -> None:
    """All three parts of a model without VAE."""
    network.save_pretrained(folder / "transformer")
    words.save(folder / "words")
    scheduler.save_pretrained(folder / "scheduler")


def continue_adapters(network: nn.Module, path: Path, rank: int) -> None:
    """Put the adapters of a folder (or file) into the network; ``rank`` 0 takes theirs."""
    file = path / LORA_FILE if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"lora_path: there is no '{file}'; wanted a folder that holds {LORA_FILE}")
    with safe_open(file, framework="pt") as opened:
        header = json.loads((opened.metadata() or {}).get("lora_adapter_metadata", "{}"))
        weights = {name.removeprefix("transformer."): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    config = {name.removeprefix("transformer."): value for name, value in header.items()}
    if not {"r", "lora_alpha", "target_modules"} <= set(config):
        raise ValueError(f"'{file}' does not say its rank, alpha and targets; wanted adapters saved by this library")
    if rank not in (0, config["r"]):
        raise ValueError(f"lora_rank: came {rank}, but the adapters of '{file}' have rank {config['r']}")
    load_lora(network, weights, config)
