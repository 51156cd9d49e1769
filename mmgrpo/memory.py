"""Memory that training needs on each process, by arithmetic on the headers of a checkpoint: no weights are read.

With P parameters of the network of which T train (of adapters: A), b bytes for each of the base, and N processes that
divide a copy of the model (``distributed.shard`` full; else N = 1), in bytes

    weights        (b P + 4 A) / N
    gradients      4 T / N
    optimizer      8 T / N              both averages of AdamW; 2 T of adamw_8bit
    copies         4 T / N each         optim.ema, optim.interpolation below 1
    reference      b P / N              where all weights train and the loss compares with the network before training
    gathered       two blocks, of families whose calls are in step, with their gradients; else all weights
    encoders, VAE  whole, in the precision of computation; encoders none with model.forget_encoders
    activations    with model.gradient_checkpointing the inputs of all blocks, positions x width x blocks for each
                   evaluation of optim.micro_batch_size, and one block; without it about 17 times the inputs; of
                   tokens the logits of sampling.logits_chunk_size positions
    cache          keys and values of all samples of a rollout on this process, of language models

Activations are an estimate: attention that stores its probabilities, and what a VAE needs while it decodes, are not in
it. Images and prompts of language models count with model.max_prompt_tokens where that is set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

CARDS, RESERVE = (24, 80), 2.0
"""GB of cards (10^9 bytes), and what is left of one for the libraries and fragments."""
NETWORKS = ("transformer", "transformer_2", "unet")
"""Folders of a pipeline of diffusers that are the trained network."""
STORED = {"float32": 4, "bfloat16": 2, "float16": 2}
SAVED = 17
"""Activations that a block of a transformer keeps for its backward pass, in units of its input: two norms, queries,
keys, values, the output of attention and both sides of a feed-forward network of four times the width."""
LOGITS = 6
"""Bytes for each logit of a chunk: the logits in fp32, which become their gradient, and that in lower precision."""
FROZEN = {
    "freeze_encoder": r"(^|\.)(encoder|audio_tower|decoder\.embed_tokens)\.",
    "freeze_vision": r"(^|\.)(visual|vision_\w+)\.",
}
"""Options that freeze a part of a network, and the names of its weights."""

Shapes = Mapping[str, tuple[int, ...]]


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
        kept = {n: shape for n, shape in self.network.items() if not any(re.search(one, n) for one in frozen)}
        return replace(self, network=kept)

    def adapters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of adapters of this rank on the matrices whose names end in one of ``targets``."""
        ends = tuple(f".{target}.weight" for target in targets)
        matrices = [shape for name, shape in self.network.items() if f".{name}".endswith(ends)]
        return sum(rank * (shape[0] + prod(shape[1:])) for shape in matrices)


def read_folder(path: Path) -> Folder | None:
    """The headers of a folder of diffusers or transformers; None for one without safetensors."""
    parts = {part.name: shapes for part in sorted(path.iterdir()) if part.is_dir() and (shapes := shapes_of(part))}
    own = [name for name in NETWORKS if name in parts]
    if own:
        network = {f"{name}.{key}": shape for name in own for key, shape in parts[name].items()}
        others = {name: sum(map(prod, shapes.values())) for name, shapes in parts.items() if name not in NETWORKS}
        return Folder(network, _json(path / own[0]), others, _json(path / "vae"))
    shapes = shapes_of(path)
    return Folder(shapes, _json(path)) if shapes else None


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights in a folder's safetensors files; of several variants of them the first."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        for name, one in header.items():
            if name != "__metadata__":
                shapes.setdefault(name, tuple(one["shape"]))
    return shapes


def _json(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def needs(
    folder: Folder,
    config: Any,
    *,
    processes: int,
    in_step: bool = False,
    targets: Sequence[str] = (),
    reference: bool = False,
) -> dict[str, float]:
    """Bytes on each process by what needs them, for the ``Config`` of a run."""
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
    found: dict[str, float] = {
        "weights": (stored * total + 4 * adapters) / shards,
        "gradients": 4 * trained / shards,
        "optimizer": moments * trained / shards,
        "copies": 4 * trained * ((optim.ema > 0) + (optim.interpolation != 1)) / shards,
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
        found["gathered"] = max(phases)
    frozen = {name: size * compute for name, size in folder.others.items()}
    vae = STORED[getattr(model, "vae_dtype", "float32")] * folder.others.get("vae", 0)
    encoders = sum(size for name, size in frozen.items() if name != "vae")
    found |= {"encoders": 0 if getattr(model, "forget_encoders", False) else encoders, "VAE": vae}
    samples = -(-config.data.prompts_per_step // processes) * config.data.group_size
    return {name: size for name, size in {**found, **_activations(folder, config, compute, samples)}.items() if size}


def _activations(folder: Folder, config: Any, compute: int, samples: int) -> dict[str, float]:
    """Activations of a micro batch, and the cache of a rollout."""
    inside = {**folder.config, **folder.config.get("text_config", {})}
    heads = inside.get("num_attention_heads", 1)
    width = inside.get("hidden_size") or inside.get("d_model")
    if not width and isinstance(heads, int):
        width = heads * inside.get("attention_head_dim", 0)
    layers = inside.get("num_hidden_layers") or inside.get("num_layers", 0)
    layers = layers + inside.get("num_single_layers", 0) if isinstance(layers, int) else 0
    positions, cache = positions_of(folder, config), 0.0
    if "max_position_embeddings" in inside or "max_target_positions" in inside:
        size = inside.get("head_dim") or (width or 0) // heads
        rows = min(samples, getattr(config.sampling, "forward_batch_size", samples))
        cache = 2.0 * layers * inside.get("num_key_value_heads", heads) * size * positions * rows * compute
    guided = 2 if getattr(config.model, "guidance", 1.0) != 1 else 1
    rows = min(config.optim.micro_batch_size, samples) * guided
    each = positions * (width or 0) * rows * compute
    tokens = min(getattr(config.sampling, "logits_chunk_size", 0), rows * getattr(config.sampling, "max_tokens", 0))
    logits = LOGITS * tokens * inside.get("vocab_size", 0)
    kept = layers + SAVED if getattr(config.model, "gradient_checkpointing", False) else layers * SAVED
    return {"activations": float(each * kept + logits), "cache": cache}


def positions_of(folder: Folder, config: Any) -> int:
    """Tokens of one sample with its prompt; 0 where the checkpoint does not say."""
    model, inside = config.model, folder.config
    if tokens := getattr(config.sampling, "max_tokens", 0):
        return tokens + getattr(model, "max_prompt_tokens", 0)
    patch = inside.get("patch_size", 1)
    patches = patch if isinstance(patch, list) else [1, patch, patch]
    factor = 2 ** (len(folder.vae.get("block_out_channels", folder.vae.get("dim_mult", [1, 1, 1, 1]))) - 1)
    default = inside.get("sample_size", 64)
    default = (default if isinstance(default, int) else 64) * factor
    sides = [getattr(model, side, 0) or default for side in ("height", "width")]
    frames = getattr(model, "frames", 0) or 1
    latents = 1 + (frames - 1) // 4
    grid = prod(side // factor // cell for side, cell in zip(sides, patches[1:], strict=True))
    return grid * -(-latents // patches[0]) + getattr(model, "max_sequence_length", 0)


def report(folder: Folder, config: Any, processes: int, **known: Any) -> list[str]:
    """The lines of a dry run: what this run needs on each process, and what it would need divided among more."""
    found = needs(folder, config, processes=processes, **known)
    total = sum(found.values()) / 1e9
    lines = [
        f"memory:    {total:.3g} GB on each of {processes} process(es), distributed.shard {config.distributed.shard}: "
        + ", ".join(f"{name} {size / 1e9:.3g}" for name, size in found.items()),
        f"           {fits(total)}; activations are an estimate (docs/scaling.md)",
    ]
    full = replace(config, distributed=replace(config.distributed, shard="full", replicate=1))
    divided = {n: sum(needs(folder, full, processes=n, **known).values()) / 1e9 for n in (2, 4, 8)}
    shown = ", ".join(f"{size:.3g} GB with {n}" for n, size in divided.items())
    return [*lines, f"           divided (distributed.shard full): {shown} processes"]


def fits(gigabytes: float) -> str:
    """On which cards so many GB fit."""
    cards = [f"{card} GB" for card in CARDS if gigabytes + RESERVE <= card]
    return f"fits a card of {' and of '.join(cards)}" if cards else f"does not fit a card of {CARDS[-1]} GB"
