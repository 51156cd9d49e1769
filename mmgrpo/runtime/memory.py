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
    activations    the most that is alive in the backward pass of a micro batch: inputs and outputs of the matrices of
                   all blocks, at the positions of the output or of the prompt, and gradients (``peak``), divided by
                   distributed.sequence, whose processes have a part of the positions each; with
                   model.gradient_checkpointing the inputs of the blocks (of one with model.offload_activations), and
                   one block; of tokens also the logits of sampling.logits_chunk_size positions
    cache          keys and values of language models: of the completions of a rollout on this process, or of
                   sampling.draw_batch_size that are drawn at a time, and of prompts once per group, or where nothing is
                   shared (sampling.share_prefix, windows) once per completion

Activations are an estimate from names and shapes of weights: attention that stores its probabilities and what a VAE
needs while it decodes are not in it. Images and prompts of language models count with
model.max_prompt_tokens where that is set.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
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
UNET = (1.02, 0.9)
"""Numbers that a UNet keeps for each input and output of its matrices, where all weights train and with adapters:
measured of Stable Diffusion's."""
PROMPT = (
    r"\.context_refiner\.|\.add_[qkv]_proj\.|\.to_add_out\.|_context\.|\.txt_\w+\.|\.(audio_)?attn2\.to_[kv]\."
    r"|\.encoder_attn\.[kv]_proj\."
)
"""Matrices that are applied to the prompt's own sequence."""
SOUND = r"\.audio_(attn\d|ff|proj_in|proj_out)\.|\.audio_to_video_attn\.to_[kv]\.|\.video_to_audio_attn\.to_(q|out)\b"
"""Matrices that are applied to the sound of a clip (LTX-2)."""
SOUND_RATE = 25
"""Its tokens a second."""
BOTH = r"single_transformer_blocks|^transformer\.layers\."
"""Matrices that are applied to output and prompt as one sequence."""
SINGLE = r"^transformer\.(transformer_blocks\.|proj_out\.)"
"""The same of a network all of whose blocks are of that kind, whatever they are called."""
HIDDEN = r"\.(fc1|gate_proj|gate_layer|net\.0\.proj|proj_mlp|w1|linear_in|to_qkv_mlp_proj|conv_inverted)\.weight"
"""Matrices with which a feed-forward network begins."""
FIRST = HIDDEN + r"|\.(to_q|add_q_proj|q_proj|qkv)\.weight"
"""Matrices with which a branch of a block begins, after a norm."""
LAST = (
    r"\.(to_out|to_out\.0|to_add_out|o_proj|out_proj|fc2|down_proj|img_mlp\.out|net\.2|proj_out|w2|linear_out"
    r"|conv_point)\.weight"
)
"""Matrices with which it ends, before it is added."""
ATTENDED = r"(.*)\.(to_[qkv]|add_[qkv]_proj|(?<=encoder_attn\.)[kv]_proj)\.weight"
"""Matrices of queries, keys and values of a module of attention; of one to audio, those of the audio."""
GATE = r"\.(gate_proj|gate_layer|w1)\.weight"
"""Matrices of a gate, of which both sides of its nonlinearity are kept; such models have norms without a bias."""
FUSED = r"\.(linear_in|to_qkv_mlp_proj)\.weight"
"""Matrices of a gate and what it is multiplied with (and of queries, keys and values)."""
QUERY_OR_KEY = r"\.(to|add)_[qk](_proj)?\.weight"
NORMED = r"\.norm_(q|k|added_q|added_k)\.weight"
SCALED = r"norm\w*\.linear\.weight|scale_shift_table|_mod\."
"""Weights of norms whose scale, shift and gate depend on the noise level."""
CONTEXT = r"^(?!.*(time_text_embed|\.norm)).*\.(context_embedder|text_embedder|(audio_)?caption_projection|txt_in)\."
"""Matrices that bring the prompt to the network's width, once for all blocks."""
SMALL = r"\.(norm|time|mod|adaln|av_cross_attn|\w+_mod|\w*embed)\w*\.|scale_shift_table"
"""Weights of what is computed once a sample or has no matrix."""
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
    others = {name: sum(map(prod, some.values())) for name, some in every.items() if name not in NETWORKS}
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
    given: bool = False,
) -> dict[str, float]:
    """Bytes on each process by what needs them, for the ``Config`` of a run.

    ``guided``: with classifier-free guidance; ``given``: the network reads an image of the prompt with the output.
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
    sizes |= _activations(learning, config, compute, samples, targets if rank else (), 1 + guided, given, together)
    return {name: size for name, size in sizes.items() if size}


def _activations(
    folder: Folder,
    config: Any,
    compute: int,
    samples: int,
    adapted: Sequence[str],
    passes: int,
    given: bool,
    together: int,
) -> dict[str, float]:
    """Activations of a micro batch, whose tokens so many processes divide, and the cache of a rollout."""
    inside = {**folder.config, **folder.config.get("text_config", {})}
    longest = getattr(config.sampling, "max_tokens", 0)
    rows = min(config.optim.micro_batch_size, samples * getattr(config.sampling, "steps", 1)) * passes
    checkpointed = getattr(config.model, "gradient_checkpointing", False)
    offloaded = getattr(config.model, "offload_activations", False)
    if not longest and not {"height", "width"} <= vars(config.model).keys():
        return {}  # audio of a length that the headers do not say
    if not longest:
        numbers = peak(folder, places_of(folder, config, given), adapted, checkpointed, offloaded)
        return {"activations": numbers * rows * compute / together}
    layers = inside.get("num_hidden_layers") or inside.get("decoder_layers", 0)
    heads = inside.get("num_attention_heads") or inside.get("decoder_attention_heads", 1)
    size = inside.get("head_dim") or (inside.get("hidden_size") or inside.get("d_model", 0)) // heads
    drawn = min(samples, getattr(config.sampling, "draw_batch_size", 0) or samples)
    prompt, prompts = getattr(config.model, "max_prompt_tokens", 0), -(-rows // config.data.group_size)
    shared = getattr(config.sampling, "share_prefix", True) and {*inside.get("layer_types", ())} <= {"full_attention"}
    keys = 2.0 * layers * inside.get("num_key_value_heads", heads) * size
    cache = keys * (longest * drawn + prompt * (samples // config.data.group_size if shared else drawn))
    # A prompt, or the audio of one, is computed once for all of its samples in the batch.
    share = prompts / rows
    completion = 1.0 if checkpointed else longest / (longest + prompt * share)
    places = Places(longest + prompt * share, inside.get("max_source_positions", 0) * share, at_once=completion)
    numbers = peak(folder, places, adapted, checkpointed, offloaded) + keys * (longest + prompt) * (not checkpointed)
    logits = LOGITS * min(config.sampling.logits_chunk_size, rows * longest) * inside.get("vocab_size", 0)
    return {"activations": numbers * rows * compute / together + logits, "cache": cache * compute}


def peak(folder: Folder, places: Places, adapted: Sequence[str], checkpointed: bool, offloaded: bool = False) -> float:
    """The most numbers of one sample that are alive in a backward pass: what the network keeps for it, and the
    gradients of a moment (``Block``). With ``checkpointed`` only the inputs of its blocks are kept, and one block,
    which is computed again; with ``offloaded`` the inputs of that block alone. ``adapted`` are the layers with
    adapters; none: all weights train.

    Of a matrix the output is kept, and its input where it trains (of queries, keys and values once); before the first
    matrix of a branch what its norm is of, and what the norm's result is scaled from; of normalized queries and keys
    both sides of the norm; the output of a last matrix only for a gate that trains. Of a UNet, whose parts are smaller
    and of more kinds, a multiple of all inputs and outputs that was measured. Gradients of the keys and values of audio
    wait in all blocks, since they are summed over the samples of a clip.
    """
    full, names = not adapted, folder.network.keys()
    scaled, gated = (
        full and any(re.search(SCALED, name) for name in names),
        any(re.search(GATE, name) for name in names),
    )
    normed = {name.rpartition(".")[0].rpartition(".")[0] for name in names if re.search(NORMED, name)}
    joint = any(".add_q_proj." in name for name in names)
    blocks, inputs = defaultdict[str, Block](Block), dict[str, float]()
    outside = waiting = 0.0
    for name, shape in folder.network.items():
        match = re.match(r".*?_block(s\.\d+)?\.\w+\.\d+(?=\.)" if places.sides else r".*?\.\d+(?=\.)", name)
        if len(shape) == 2 and re.search(CONTEXT, name):
            outside += places.prompt * (shape[0] + shape[1] * full)
        elif re.search(r"\.encoder_attn\.k_proj\.weight", name):
            outside = places.prompt * shape[1]
        if len(shape) < 2 or match is None or re.search(SMALL, name):
            continue
        count, (wide, narrow), block = places.of(name, joint), shape[:2], blocks[match[0]]
        first, last = re.search(FIRST, name), re.search(LAST, name)
        gate = wide if re.search(GATE, name) else 0
        if re.search(FUSED, name):
            gate = (wide - 3 * narrow * ("qkv" in name)) / 2
        both = bool(re.search(QUERY_OR_KEY, name) and name.split(".to_")[0].split(".add_")[0] in normed)
        trains = full or f".{name}".endswith(tuple(f".{target}.weight" for target in adapted))
        audio = ".encoder_attn." in name
        if places.sides:
            numbers = (wide + narrow) * (UNET[0] if full else UNET[1])
            inputs[match[0]] = max(inputs.get(match[0], 0), count * narrow)
        else:
            numbers = wide * (not last or scaled) + narrow * bool(trains and (first or last))
            numbers += narrow * (1 + scaled + (gated and full)) * bool(first) + gate
            numbers += wide * (1 + full) * both
            if first:
                inputs[f"{match[0]} {count}"] = count * narrow
        block.kept += count * numbers
        if re.search(HIDDEN, name):
            hidden = 1.5 if places.sides or re.search(FUSED, name) else 3 if gate else 1 if full else 2
            block.hidden = max(block.hidden, count * (hidden * wide + narrow * (1 + scaled)))
        if module := re.match(ATTENDED, name):
            block.attention[module[1]] += count * wide * (1 + both) * bool(trains or not audio)
            waiting += count * wide * bool(trains and audio)
        else:
            block.others += count * numbers
    if checkpointed:
        again = max((block.most for block in blocks.values()), default=0.0)
        blocks_inputs = defaultdict[str, float](float)
        for name, numbers in inputs.items():
            blocks_inputs[name.partition(" ")[0]] += numbers
        kept = max(blocks_inputs.values(), default=0.0) if offloaded else sum(blocks_inputs.values())
        return outside + kept + again * places.at_once
    moment = max((block.most - block.kept for block in blocks.values()), default=0.0)
    return outside + waiting + sum(block.kept for block in blocks.values()) + moment * places.at_once


@dataclass
class Block:
    """Numbers of one sample in a block: what it keeps, and gradients that are alive for a moment.

    The backward pass begins at the block's end, while all that it keeps is there, with its feed-forward network. Then
    come, when what that kept is gone, the gradients of an attention.
    """

    kept: float = 0.0
    hidden: float = 0.0
    """Gradients of a feed-forward network: of its hidden numbers on both sides of the nonlinearity (one, where the
    second matrix trains and has let its input go; three of a gate, with both products; of a UNet's gate, whose matrix
    makes both of its sides, three halves), and of the width, before and after a gate that depends on the noise."""
    others: float = 0.0
    """What is kept outside of attention."""
    attention: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Gradients of queries, keys and values of each attention; twice of normalized ones, whose norm is several
    operations."""

    @property
    def most(self) -> float:
        """The most that is alive of it."""
        return max(self.kept + self.hidden, self.kept - self.others + max(self.attention.values(), default=0.0))


@dataclass(frozen=True)
class Places:
    """Positions of one sample at which a network's matrices are applied."""

    output: float
    """Patches or tokens."""
    prompt: float = 0
    """Tokens of the prompt, or of what else is attended to, where they are a sequence of their own."""
    image: float = 0
    """States of a given image that are attended to."""
    sides: tuple[int, ...] = ()
    """Height and width of a UNet's input."""
    levels: int = 1
    """Its levels, each of half the sides of the one before."""
    sound: float = 0
    """Tokens of the sound of a clip."""
    at_once: float = 1.0
    """The part of them through which the backward pass goes first: completions, whose prompt comes by itself; one
    branch of guidance, where prompts of another length are a pass of their own."""
    single: bool = False
    """Whether all blocks are applied to output and prompt as one sequence."""

    def of(self, name: str, joint: bool = False) -> float:
        """The positions of a matrix; ``joint``: of a network that attends to output and prompt together, whose other
        attention is of the output alone."""
        if re.search(PROMPT, name) and not (joint and ".attn2." in name):
            return self.prompt if joint or not re.search(r"\.add_[kv]_proj\.", name) else self.image
        if re.search(SOUND, name):
            return self.sound
        if not self.sides:
            return self.output + self.prompt * bool(re.search(SINGLE if self.single else BOTH, name))
        place = re.search(r"(down|up)_blocks\.(\d+)", name)
        level = self.levels - 1 if place is None else int(place[2])
        level = self.levels - 1 - level if place and place[1] == "up" else level
        return prod(side >> level for side in self.sides)


def places_of(folder: Folder, config: Any, given: bool = False) -> Places:
    """The positions of one sample of a denoising model; ``given``: the latents of an image of the prompt follow
    those of the output."""
    model, inside, vae = config.model, folder.config, folder.vae
    factor, pace = (1, 1) if folder.words else compression(vae)
    default = inside.get("sample_size", 64)
    default = (default if isinstance(default, int) else 64) * factor
    sides = [getattr(model, side, 0) or default for side in ("height", "width")]
    longest = getattr(model, "max_sequence_length", 0)
    prompt = longest + (folder.prompt if not longest or "text_encoder_3" in folder.others else 0)
    if folder.words:  # a given image is further channels
        prompt, given = folder.words, False
    if "down_block_types" in inside:
        latents = tuple(side // factor for side in sides)
        return Places(prod(latents), prompt, sides=latents, levels=len(inside["block_out_channels"]))
    patch = inside.get("all_patch_size", [inside.get("patch_size", 1)])[0]
    long, *cells = patch if isinstance(patch, Sequence) else [inside.get("patch_size_t", 1), patch, patch]
    if inside.get("in_channels") == 4 * vae.get("latent_channels", vae.get("z_dim", 0)):
        cells = [2, 2]  # latents are packed two by two before the network sees them
    frames = -(-(1 + ((getattr(model, "frames", 0) or 1) - 1) // pace) // long)

    def grid(sides: Sequence[int]) -> int:
        return prod(side // factor // cell for side, cell in zip(sides, cells, strict=True))

    size = getattr(model, "given_size", 0)
    output = frames * grid(sides) + given * grid([size, size] if size else sides)
    filled, single = getattr(model, "tokens_filled", 1), getattr(model, "one_sequence", False)
    if filled > 1:
        output, prompt = -(-output // filled) * filled, -(-prompt // filled) * filled
    at_once = 0.5 if single and model.guidance != 1 else 1.0
    heard = "audio_in_channels" in inside
    sound = round((model.frames or 1) / (model.fps or 24) * SOUND_RATE) if heard else 0
    return Places(output, prompt, folder.image, sound=sound, at_once=at_once, single=single)


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
    where = "on one process" if processes == 1 else f"on each of {processes} processes"
    lines = [
        *mesh(config.distributed, processes),
        f"memory:    {total:.3g} GB {where}, distributed.shard {config.distributed.shard}: "
        + ", ".join(f"{name} {size / 1e9:.3g}" for name, size in sizes.items()),
        f"           {fits(total)}; activations are {'an estimate' if 'activations' in sizes else 'not in it'} "
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
