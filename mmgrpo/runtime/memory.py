"""Memory that training needs on each process, by arithmetic on the headers of a checkpoint: no weights are read.

With P parameters of the network of which T train (of adapters: A), b bytes for each of the base, and N processes that
divide a copy of the model (``distributed.shard`` full; else N = 1), in bytes

    weights        (b P + 4 A) / N
    gradients      4 T / N
    optimizer      8 T / N              both averages of AdamW; 2 T of adamw_8bit
    copies         4 T / N each         optim.ema, optim.interpolation below 1
    networks       4 T / N each         algorithm.networks; of one that learns, as a critic, 12 T / N
    reference      b P / N              where all weights train and the loss compares with the network before training
    gathered       two blocks, of families whose calls are in step, with their gradients; else all weights
    encoders, VAE  whole, in the precision of computation; encoders none with model.forget_encoders
    activations    the most that is alive in the backward pass of a micro batch, counted on the network without its
                   weights (``Pass``), divided by distributed.sequence, whose processes have a part of the positions
                   each; of tokens also the logits of sampling.logits_chunk_size positions
    cache          keys and values of language models: of the completions of a rollout on this process, or of
                   sampling.draw_batch_size that are drawn at a time, and of prompts once per group, or where nothing is
                   shared (sampling.share_prefix, windows) once per completion

Activations are an estimate: attention that stores its probabilities, towers of media and what a VAE needs while it
decodes are not in it. Images and prompts of language models count with model.max_prompt_tokens where that is set. A
network that cannot be counted is named, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from mmgrpo.config.registry import parse

CARDS, RESERVE = (24, 80), 2.0
"""GB of cards (10^9 bytes), and what is left of one for the libraries and fragments."""
NETWORKS = ("transformer", "transformer_2", "unet")
"""Folders of a pipeline of diffusers that are the trained network."""
STORED = {"float32": 4, "bfloat16": 2, "float16": 2}
LOGITS = 6
"""Bytes for each logit of a chunk: the logits in fp32, which become their gradient, and that in lower precision."""
FROZEN = {
    "freeze_encoder": r"(^|\.)(encoder|audio_tower|decoder\.embed_tokens)\.",
    "freeze_vision": r"(^|\.)(visual|vision_\w+)\.",
}
"""Options that freeze a part of a network, and the names of its weights."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Pass:
    """What a network computes and keeps for one sample, as its family counts it (``mmgrpo.runtime.counting``)."""

    operations: float = 0.0
    """Floating-point operations of the forward pass."""
    kept: float = 0.0
    """Numbers that the forward pass keeps for the backward pass."""
    most: float = 0.0
    """The most that are alive in both, gradients of weights left out."""
    prompt: float = 0.0
    """Operations of the prompt, which the samples of a group share,"""
    prompt_kept: float = 0.0
    """and numbers that are kept for it."""
    uncounted: str = ""
    """Why nothing could be counted."""


@dataclass(frozen=True)
class Folder:
    """What the headers of a checkpoint's files say."""

    network: Shapes
    """Shapes of the trained network's weights, by name."""
    config: Mapping[str, Any]
    """Its configuration."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Parameters of the frozen parts, by folder."""
    vae: Mapping[str, Any] = field(default_factory=dict)
    prompt: int = 0
    """Tokens that a text encoder with learned positions reads."""
    image: int = 0
    """States of an image encoder."""
    words: int = 0
    """Words that a small model in pixel space reads, which has no VAE."""

    @property
    def parameters(self) -> int:
        """Parameters of the trained network."""
        return sum(map(prod, self.network.values()))

    @property
    def block(self) -> int:
        """Parameters of its largest block."""
        return max(self.blocks.values(), default=self.parameters)

    @property
    def blocks(self) -> dict[str, int]:
        """Parameters of its blocks: weights whose names are equal up to the first number."""
        blocks: dict[str, int] = {}
        for name, shape in self.network.items():
            parts = name.split(".")
            first = next((place for place, part in enumerate(parts) if part.isdigit()), None)
            if first is not None:
                key = ".".join(parts[: first + 1])
                blocks[key] = blocks.get(key, 0) + prod(shape)
        return blocks

    def trainable(self, model: Any) -> Folder:
        """Without the parts that options of the model freeze."""
        frozen = [pattern for option, pattern in FROZEN.items() if getattr(model, option, False)]
        kept = {n: shape for n, shape in self.network.items() if not any(re.search(pattern, n) for pattern in frozen)}
        return replace(self, network=kept)

    def adapters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of adapters of this rank on the matrices whose names end in one of ``targets``."""
        ends = tuple(f".{target}.weight" for target in targets)
        matrices = [shape for name, shape in self.network.items() if f".{name}".endswith(ends)]
        return sum(rank * (shape[0] + prod(shape[1:])) for shape in matrices)


def read_folder(path: Path) -> Folder | None:
    """The headers of a folder of diffusers or transformers; None for one without safetensors, or with a part of what an
    index names."""
    files = sorted([*path.glob("*.safetensors"), *path.glob("*/*.safetensors")])
    for index in [*path.glob("*.safetensors.index.json"), *path.glob("*/*.safetensors.index.json")]:
        named = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values()
        wanted = {index.parent / name for name in named}
        if wanted & {*files} and not wanted <= {*files}:
            return None
    return folder_of(
        [file.relative_to(path).as_posix() for file in files], lambda name: _header(path / name), json_in(path)
    )


def folder_of(
    files: Sequence[str], header: Callable[[str], Shapes], config: Callable[[str], dict[str, Any]]
) -> Folder | None:
    """A model by the names of its files of weights; of several variants of the same weights the first counts."""
    parts: dict[str, list[str]] = {}
    for name in files:
        parts.setdefault(name.rpartition("/")[0], []).append(name)

    def shapes(part: str) -> dict[str, tuple[int, ...]]:
        merged: dict[str, tuple[int, ...]] = {}
        for name in parts.get(part, ()):
            merged = {**header(name), **merged}
        return merged

    networks = [name for name in NETWORKS if name in parts]
    if not networks:
        weights = shapes("")
        return Folder(weights, config("")) if weights else None
    every = {part: shapes(part) for part in parts if part and "/" not in part}
    network = {f"{name}.{key}": shape for name in networks for key, shape in every[name].items()}
    others = {name: sum(map(prod, sizes.values())) for name, sizes in every.items() if name not in NETWORKS}
    read = [
        next((shape[0] for name, shape in every.get(part, {}).items() if "position_embedding" in name), 0)
        for part in ("text_encoder", "image_encoder")
    ]
    words = every.get("words", {}).get("place", (0,))[0] if "patches" not in parts else 0
    return Folder(network, config(networks[0]), others, config("vae"), *read, words=words)


def _header(file: Path) -> Shapes:
    """Shapes of the weights in a safetensors file."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def json_in(path: Path) -> Callable[[str], dict[str, Any]]:
    """The configuration of a part of a model in a folder, empty where there is none."""

    def read(part: str) -> dict[str, Any]:
        file = path / part / "config.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    return read


def needs(
    folder: Folder,
    config: Any,
    *,
    processes: int,
    in_step: bool = False,
    targets: Sequence[str] = (),
    reference: bool = False,
    guided: bool = False,
    counts: Pass = Pass(),
) -> dict[str, float]:
    """Bytes on each process by what needs them, for the ``Config`` of a run.

    ``guided``: with classifier-free guidance; ``counts``: of its network.
    """
    model, optim = config.model, config.optim
    rank = getattr(model, "lora_rank", 0)
    compute = STORED[getattr(model, "dtype", "float32")]
    stored = {"8bit": 1.0, "4bit": 0.5}.get(getattr(model, "quantize", "none"), compute if rank else 4)
    learning = folder.trainable(model)
    total, adapters = folder.parameters, learning.adapters(rank, targets) if rank else 0
    trained = adapters or learning.parameters
    divided = config.distributed.shard == "full" and processes > 1
    shards = processes // config.distributed.replicate if divided else 1
    moments = 2 if optim.optimizer.endswith("8bit") else 8
    sizes: dict[str, float] = {
        "weights": (stored * total + 4 * adapters) / shards,
        "gradients": 4 * trained / shards,
        "optimizer": moments * trained / shards,
        "copies": 4 * trained * ((optim.ema > 0) + (optim.interpolation != 1)) / shards,
        "networks": trained * sum(12 if "lr" in parse(rule)[1] else 4 for rule in config.algorithm.networks) / shards,
        "reference": stored * total * (reference and not rank) / shards,
    }
    if divided:
        lower = stored if rank else min(4, compute)
        phases = [2 * folder.block * (stored if rank else 2 * lower + 4)]
        if not in_step:  # what is outside of blocks is whole, also its gradients
            phases[0] += (total - sum(folder.blocks.values())) * (stored if rank else 8)
        if config.distributed.rollout_weights == "whole" or (
            not in_step and config.distributed.rollout_weights == "auto"
        ):
            phases.append(lower * total + 4 * adapters)
        sizes["gathered"] = max(phases)
    frozen = {name: size * compute for name, size in folder.others.items()}
    vae = STORED[getattr(model, "vae_dtype", "float32")] * folder.others.get("vae", 0)
    encoders = sum(size for name, size in frozen.items() if name != "vae")
    sizes |= {"encoders": 0 if getattr(model, "forget_encoders", False) else encoders, "VAE": vae}
    together = config.distributed.sequence if processes > 1 else 1
    samples = -(-config.data.prompts_per_step * together // processes) * config.data.group_size
    sizes |= _activations(folder, config, compute, samples, 1 + guided, counts, together)
    return {name: size for name, size in sizes.items() if size}


def _activations(
    folder: Folder, config: Any, compute: int, samples: int, passes: int, counts: Pass, together: int
) -> dict[str, float]:
    """Activations of a micro batch, whose tokens so many processes divide, and the cache of a rollout."""
    inside = {**folder.config, **folder.config.get("text_config", {})}
    longest = getattr(config.sampling, "max_tokens", 0)
    rows = min(config.optim.micro_batch_size, samples * getattr(config.sampling, "steps", 1)) * passes
    if not longest:
        alone = 0.5 if passes > 1 and getattr(config.model, "passes_by_length", False) else 1
        numbers = counts.kept + (counts.most - counts.kept) * alone
        return {"activations": numbers * rows * compute / together}
    checkpointed = getattr(config.model, "gradient_checkpointing", False)
    layers = inside.get("num_hidden_layers") or inside.get("decoder_layers", 0)
    heads = inside.get("num_attention_heads") or inside.get("decoder_attention_heads", 1)
    size = inside.get("head_dim") or (inside.get("hidden_size") or inside.get("d_model", 0)) // heads
    drawn = min(samples, getattr(config.sampling, "draw_batch_size", 0) or samples)
    prompt, prompts = getattr(config.model, "max_prompt_tokens", 0), -(-rows // config.data.group_size)
    shared = getattr(config.sampling, "share_prefix", True) and {*inside.get("layer_types", ())} <= {"full_attention"}
    keys = 2.0 * layers * inside.get("num_key_value_heads", heads) * size
    cache = keys * (longest * drawn + prompt * (samples // config.data.group_size if shared else drawn))
    if counts.uncounted:
        return {"cache": cache * compute}
    # A prompt, or the audio of one, is computed once for all of its samples in the batch, and completions come first in
    # the backward pass.
    shared_part = counts.prompt_kept * (1 - prompts / rows)
    left = counts.kept - (shared_part if checkpointed or not prompt else counts.prompt_kept)
    numbers = counts.kept - shared_part + (counts.most - counts.kept) * left / max(counts.kept, 1)
    numbers += keys * (longest + prompt) * (not checkpointed)
    logits = LOGITS * min(config.sampling.logits_chunk_size, rows * longest) * inside.get("vocab_size", 0)
    return {"activations": numbers * rows * compute / together + logits, "cache": cache * compute}


def compression(vae: Mapping[str, Any]) -> tuple[int, int]:
    """Pixels and frames for each latent, by the configuration of a VAE of diffusers."""
    if (halved := vae.get("spatio_temporal_scaling")) is not None:  # LTX-Video
        side, pace = (vae.get(name, 1) * 2 ** sum(halved) for name in ("patch_size", "patch_size_t"))
    else:
        levels = vae.get("encoder_block_out_channels") or vae.get("block_out_channels") or vae.get("dim_mult", [1] * 4)
        side, pace = 2 ** (len(levels) - 1), 4
    named = [
        ("scale_factor_spatial", "spatial_compression_ratio"),
        ("scale_factor_temporal", "temporal_compression_ratio"),
    ]
    factors = [
        next((vae[name] for name in names if vae.get(name)), value)
        for names, value in zip(named, (side, pace), strict=True)
    ]
    return factors[0], factors[1]


def report(folder: Folder, config: Any, processes: int, **known: Any) -> list[str]:
    """The lines of a dry run: what this run needs on each process, and what it would need divided among more."""
    sizes = needs(folder, config, processes=processes, **known)
    total = sum(sizes.values()) / 1e9
    reason = known.get("counts", Pass()).uncounted
    where = "on one process" if processes == 1 else f"on each of {processes} processes"
    lines = [
        *mesh(config.distributed, processes),
        f"memory:    {total:.3g} GB {where}, distributed.shard {config.distributed.shard}: "
        + ", ".join(f"{name} {size / 1e9:.3g}" for name, size in sizes.items()),
        f"           {fits(total)}; activations are {f'not in it: {reason}' if reason else 'an estimate'} "
        "(docs/scaling.md)",
    ]
    full = replace(config, distributed=replace(config.distributed, shard="full", replicate=1))
    divided = {n: sum(needs(folder, full, processes=n, **known).values()) / 1e9 for n in (2, 4, 8)}
    shown = ", ".join(f"{size:.3g} GB with {n}" for n, size in divided.items())
    return [*lines, f"           divided (distributed.shard full): {shown} processes"]


def mesh(distributed: Any, processes: int) -> list[str]:
    """A line of what several processes divide among them; none of processes that divide nothing but prompts."""
    if processes == 1 or (distributed.shard == "none" and distributed.sequence == 1):
        return []
    copies, together = distributed.replicate if distributed.shard == "full" else processes, distributed.sequence
    return [
        f"mesh:      {processes} processes: data {processes // together} x sequence {together}; "
        f"weights: copies {copies} x shards {processes // copies}"
    ]


def fits(gigabytes: float) -> str:
    """On which cards so many GB fit."""
    cards = [f"{card} GB" for card in CARDS if gigabytes + RESERVE <= card]
    return f"fits a card of {' and of '.join(cards)}" if cards else f"does not fit a card of {CARDS[-1]} GB"
