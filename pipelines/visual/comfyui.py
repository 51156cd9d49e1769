"""Adapters of image and video models under the names that ComfyUI and kohya's scripts read.

Their loaders do not read the header of a file, in which diffusers states alpha: an adapter is scaled by
``alpha / rank`` of the file's own tensors, so ``<name>.alpha`` is written for every pair of matrices. kohya's name of a
module is ``lora_unet_`` and the authors' name with underscores, which ComfyUI reads too; ``diffusion_model.`` and the
authors' name is ComfyUI's alone.

Names follow ComfyUI's ``comfy/lora.py`` (0.19.3, commit 30860264), sd-scripts' ``networks`` (commit 48d368fa) and
musubi-tuner's (commit 30c658c4), whose own functions read the files of ``docs/visual.md`` without a key left over. A
family whose names are not known is not in ``WRITERS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Pair = tuple[Float[Tensor, "rank *inputs"], Float[Tensor, "outputs rank *_"]]
"""The matrices A and B of an adapter, which adds (alpha / rank) B A."""

Pairs = Mapping[str, Pair]
"""Name of a module in diffusers' network to its matrices."""

Part = tuple[int, Sequence[int]]
"""Number of a matrix within the one that the authors have for several, and the heights of all, as multiples of one."""

Table = Sequence[tuple[str, str, Part | None]]
"""Pattern of diffusers' name, the authors' name, and the part of its matrix where the authors have it fused."""

Targets = Mapping[str, tuple[str, Part | None]]
"""Diffusers' name of a module to the authors' and its part there; modules without a name are left out."""


def whole(*names: tuple[str, str]) -> Table:
    """Modules that the authors have as they are."""
    return [(pattern, target, None) for pattern, target in names]


def qkv_table(pattern: str, target: str, heights: Sequence[int] = (1, 1, 1)) -> Table:
    """Queries, keys and values, which the authors have in one matrix; ``@`` in the pattern stands for q, k or v."""
    return [(pattern.replace("@", letter), target, (number, heights)) for number, letter in enumerate("qkv")]


def layout(pairs: Pairs, targets: Targets) -> dict[str, Pair]:
    """The adapters by the authors' names.

    Adapters of n matrices that are one there become one whose rank is the sum of theirs:
    A = [A_1; ...; A_n] and B = diag(B_1, ..., B_n), with rows of zeros for what is not adapted.
    """
    adapters: dict[str, Pair] = {}
    parts: dict[str, list[tuple[Part, Pair]]] = {}
    for name, pair in pairs.items():
        if name not in targets:
            raise ValueError(
                f"--format comfyui: the adapted module '{name}' has no name there that is known here; take --format "
                "diffusers or merged, or leave it out of model.lora_targets"
            )
        target, part = targets[name]
        if part is None:
            adapters[target] = pair
        else:
            parts.setdefault(target, []).append((part, pair))
    for target, several in parts.items():
        several.sort(key=lambda one: one[0][0])
        (number, heights), (_, first) = several[0]
        unit = len(first) // heights[number]
        up = first.new_zeros(unit * sum(heights), sum(len(down) for _, (down, _) in several))
        column = 0
        for (number, _), (down, part_up) in several:
            row = unit * sum(heights[:number])
            up[row : row + len(part_up), column : column + len(down)] = part_up
            column += len(down)
        adapters[target] = torch.cat([down for _, (down, _) in several]), up
    return adapters


def keep_names(names: Iterable[str]) -> Targets:
    """Modules that the authors call as diffusers does."""
    return {name: (name, None) for name in names}


@dataclass(frozen=True)
class Layout:
    """The names of a family's modules in files of adapters that ComfyUI and kohya read."""

    targets: Callable[[Iterable[str]], Targets] = keep_names
    dotted: bool = False
    """ComfyUI's ``diffusion_model.`` in place of kohya's ``lora_unet_``: models of which kohya's scripts know no
    adapters, or have other names."""

    def __call__(self, pairs: Pairs, alpha: float) -> dict[str, Tensor]:
        """``<name>.lora_down.weight``, ``lora_up.weight`` and ``alpha`` (the scale is alpha / rank) of every module;
        ValueError for one without a name.

        A fused adapter of n times the rank has n times the alpha, so all have one scale.
        """
        rank = min(len(down) for down, _ in pairs.values())
        tensors = {}
        for name, (down, up) in layout(pairs, self.targets(list(pairs))).items():
            key = f"diffusion_model.{name}" if self.dotted else f"lora_unet_{name.replace('.', '_')}"
            tensors |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
            tensors[f"{key}.alpha"] = torch.tensor(alpha * len(down) / rank)
        return tensors


def by_table(table: Table) -> Callable[[Iterable[str]], Targets]:
    """Names by the first pattern of a table that matches."""

    def targets(names: Iterable[str]) -> Targets:
        matches = {name: find_name(name, table) for name in names}
        return {name: target for name, target in matches.items() if target is not None}

    return targets


def find_name(name: str, table: Table) -> tuple[str, Part | None] | None:
    """The authors' name of a module and its part there; None where no pattern matches."""
    for pattern, target, part in table:
        if match := re.fullmatch(pattern, name):
            return match.expand(target), part
    return None


RESNET = whole(
    ("conv1", "in_layers.2"),
    ("conv2", "out_layers.3"),
    ("time_emb_proj", "emb_layers.1"),
    ("conv_shortcut", "skip_connection"),
)
OUTSIDE = whole(
    ("conv_in", "input_blocks.0.0"),
    (r"time_embedding\.linear_1", "time_embed.0"),
    (r"time_embedding\.linear_2", "time_embed.2"),
    (r"add_embedding\.linear_1", "label_emb.0.0"),
    (r"add_embedding\.linear_2", "label_emb.0.2"),
    ("conv_out", "out.2"),
)
"""Modules of diffusers' UNet within a residual block and outside of the blocks to those of SDXL's authors."""


def sdxl(names: Iterable[str]) -> Targets:
    """The names of SDXL's authors, who number the layers of all resolutions in one sequence.

    With n layers a block, layer j of block i is ``input_blocks.{(n + 1) i + j + 1}`` on the way down (the last is the
    downsampler) and ``output_blocks.{(n + 1) i + j}`` on the way up. n is the number of layers that the names have.
    """
    names, layers = list(names), 1
    for name in names:
        if match := re.match(r"(down|up)_blocks\.\d+\.(?:attentions|resnets)\.(\d+)", name):
            layers = max(layers, int(match[2]) + (match[1] == "down"))
    authors: dict[str, str | None] = {}
    for name in names:
        if match := re.fullmatch(r"(down|up)_blocks\.(\d+)\.(\w+)\.(\d+)\.(.+)", name):
            down, first = match[1] == "down", (layers + 1) * int(match[2])
            place, kind = int(match[4]), match[3]
            if kind.endswith("samplers"):
                place, inner = layers, "0.op" if down else "2.conv"
            else:
                inner = _inner(match[5], 1 if kind == "attentions" else 0, kind == "attentions")
            authors[name] = inner and f"{'input' if down else 'output'}_blocks.{first + place + down}.{inner}"
        elif match := re.fullmatch(r"mid_block\.(attentions|resnets)\.(\d+)\.(.+)", name):
            attention = match[1] == "attentions"
            inner = _inner(match[3], 1 if attention else 2 * int(match[2]), attention)
            authors[name] = inner and f"middle_block.{inner}"
        elif target := find_name(name, OUTSIDE):
            authors[name] = target[0]
    return {name: (target, None) for name, target in authors.items() if target}


def _inner(name: str, number: int, attention: bool) -> str | None:
    """A module within an attention, which is called the same, or within a residual block."""
    target = (name, None) if attention else find_name(name, RESNET)
    return target and f"{number}.{target[0]}"


BLOCK, SINGLE = r"transformer_blocks\.(\d+)\.", r"single_transformer_blocks\.(\d+)\."

STABLE_DIFFUSION_3 = [
    *qkv_table(BLOCK + r"attn\.to_@", r"joint_blocks.\1.x_block.attn.qkv"),
    *qkv_table(BLOCK + r"attn\.add_@_proj", r"joint_blocks.\1.context_block.attn.qkv"),
    *qkv_table(BLOCK + r"attn2\.to_@", r"joint_blocks.\1.x_block.attn2.qkv"),
    *whole(
        (BLOCK + r"attn\.to_out\.0", r"joint_blocks.\1.x_block.attn.proj"),
        (BLOCK + r"attn\.to_add_out", r"joint_blocks.\1.context_block.attn.proj"),
        (BLOCK + r"attn2\.to_out\.0", r"joint_blocks.\1.x_block.attn2.proj"),
        (BLOCK + r"ff\.net\.0\.proj", r"joint_blocks.\1.x_block.mlp.fc1"),
        (BLOCK + r"ff\.net\.2", r"joint_blocks.\1.x_block.mlp.fc2"),
        (BLOCK + r"ff_context\.net\.0\.proj", r"joint_blocks.\1.context_block.mlp.fc1"),
        (BLOCK + r"ff_context\.net\.2", r"joint_blocks.\1.context_block.mlp.fc2"),
        (BLOCK + r"norm1\.linear", r"joint_blocks.\1.x_block.adaLN_modulation.1"),
        (r"context_embedder", "context_embedder"),
        (r"time_text_embed\.timestep_embedder\.linear_1", "t_embedder.mlp.0"),
        (r"time_text_embed\.timestep_embedder\.linear_2", "t_embedder.mlp.2"),
        (r"time_text_embed\.text_embedder\.linear_1", "y_embedder.mlp.0"),
        (r"time_text_embed\.text_embedder\.linear_2", "y_embedder.mlp.2"),
        (r"pos_embed\.proj", "x_embedder.proj"),
        (r"proj_out", "final_layer.linear"),
    ),
]
"""``norm1_context`` of the last block and ``norm_out`` have scale and shift in the other order, and no name here."""

DOUBLE_STREAM = [
    *qkv_table(BLOCK + r"attn\.to_@", r"double_blocks.\1.img_attn.qkv"),
    *qkv_table(BLOCK + r"attn\.add_@_proj", r"double_blocks.\1.txt_attn.qkv"),
    *whole(
        (BLOCK + r"attn\.to_out\.0", r"double_blocks.\1.img_attn.proj"),
        (BLOCK + r"attn\.to_add_out", r"double_blocks.\1.txt_attn.proj"),
        (BLOCK + r"ff\.(?:net\.0\.proj|linear_in)", r"double_blocks.\1.img_mlp.0"),
        (BLOCK + r"ff\.(?:net\.2|linear_out)", r"double_blocks.\1.img_mlp.2"),
        (BLOCK + r"ff_context\.(?:net\.0\.proj|linear_in)", r"double_blocks.\1.txt_mlp.0"),
        (BLOCK + r"ff_context\.(?:net\.2|linear_out)", r"double_blocks.\1.txt_mlp.2"),
        (BLOCK + r"norm1\.linear", r"double_blocks.\1.img_mod.lin"),
        (BLOCK + r"norm1_context\.linear", r"double_blocks.\1.txt_mod.lin"),
        (r"x_embedder(\.proj)?", r"img_in\1"),
        (r"proj_out", "final_layer.linear"),
    ),
]
"""Blocks with two streams of FLUX.1, FLUX.2 and HunyuanVideo."""

SINGLE_STREAM = [
    *qkv_table(SINGLE + r"attn\.to_@", r"single_blocks.\1.linear1", (1, 1, 1, 4)),
    (SINGLE + r"proj_mlp", r"single_blocks.\1.linear1", (3, (1, 1, 1, 4))),
    *whole(
        (SINGLE + r"proj_out", r"single_blocks.\1.linear2"),
        (SINGLE + r"norm\.linear", r"single_blocks.\1.modulation.lin"),
    ),
]
"""Blocks with one stream of FLUX.1 and HunyuanVideo: one matrix for queries, keys, values and the first layer of the
MLP, four times as wide as the stream."""

TIMES = r"time_(?:guidance|text)_embed\."
FLUX = [
    *DOUBLE_STREAM,
    *SINGLE_STREAM,
    *whole(
        (r"context_embedder", "txt_in"),
        (TIMES + r"timestep_embedder\.linear_1", "time_in.in_layer"),
        (TIMES + r"timestep_embedder\.linear_2", "time_in.out_layer"),
        (TIMES + r"guidance_embedder\.linear_1", "guidance_in.in_layer"),
        (TIMES + r"guidance_embedder\.linear_2", "guidance_in.out_layer"),
        (TIMES + r"text_embedder\.linear_1", "vector_in.in_layer"),
        (TIMES + r"text_embedder\.linear_2", "vector_in.out_layer"),
    ),
]
FLUX2 = [
    *whole(
        (SINGLE + r"attn\.to_qkv_mlp_proj", r"single_blocks.\1.linear1"),
        (SINGLE + r"attn\.to_out", r"single_blocks.\1.linear2"),
        (r"(double_stream_modulation_img|double_stream_modulation_txt|single_stream_modulation)\.linear", r"\1.lin"),
    ),
    *FLUX,
]
"""FLUX.2, whose blocks with one stream have one matrix in diffusers too."""

REFINER = r"context_embedder\.token_refiner\.refiner_blocks\.(\d+)\."
HUNYUAN_VIDEO = [
    *qkv_table(REFINER + r"attn\.to_@", r"txt_in.individual_token_refiner.blocks.\1.self_attn.qkv"),
    *whole(
        (REFINER + r"attn\.to_out\.0", r"txt_in.individual_token_refiner.blocks.\1.self_attn.proj"),
        (REFINER + r"ff\.net\.0\.proj", r"txt_in.individual_token_refiner.blocks.\1.mlp.0"),
        (REFINER + r"ff\.net\.2", r"txt_in.individual_token_refiner.blocks.\1.mlp.2"),
        (REFINER + r"norm_out\.linear", r"txt_in.individual_token_refiner.blocks.\1.adaLN_modulation.1"),
    ),
    *DOUBLE_STREAM,
    *SINGLE_STREAM,
]
"""HunyuanVideo. kohya's names of the MLPs and modulations are others (``fc1``, ``linear``); these are ComfyUI's."""

WAN = whole(
    (r"blocks\.(\d+)\.attn1\.to_([qkv])", r"blocks.\1.self_attn.\2"),
    (r"blocks\.(\d+)\.attn1\.to_out\.0", r"blocks.\1.self_attn.o"),
    (r"blocks\.(\d+)\.attn2\.to_([qkv])", r"blocks.\1.cross_attn.\2"),
    (r"blocks\.(\d+)\.attn2\.to_out\.0", r"blocks.\1.cross_attn.o"),
    (r"blocks\.(\d+)\.attn2\.add_([kv])_proj", r"blocks.\1.cross_attn.\2_img"),
    (r"blocks\.(\d+)\.ffn\.net\.0\.proj", r"blocks.\1.ffn.0"),
    (r"blocks\.(\d+)\.ffn\.net\.2", r"blocks.\1.ffn.2"),
    (r"condition_embedder\.(time|text)_embedder\.linear_1", r"\1_embedding.0"),
    (r"condition_embedder\.(time|text)_embedder\.linear_2", r"\1_embedding.2"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
    (r"patch_embedding", "patch_embedding"),
    (r"proj_out", "head.head"),
)

LTX = whole(
    (r"(transformer_blocks\..+|caption_projection\..+|proj_out)", r"\1"),
    (r"proj_in", "patchify_proj"),
    (r"time_embed\.(.+)", r"adaln_single.\1"),
)


WRITERS: Mapping[str, Layout] = {
    "stable_diffusion": Layout(),
    "sdxl": Layout(sdxl),
    "sd3": Layout(by_table(STABLE_DIFFUSION_3)),
    "flux": Layout(by_table(FLUX)),
    "flux_kontext": Layout(by_table(FLUX)),
    "flux2_klein": Layout(by_table(FLUX2)),
    "flux2": Layout(by_table(FLUX2)),
    "qwen_image": Layout(),
    "qwen_image_edit": Layout(),
    "z_image": Layout(dotted=True),
    "ltx_video": Layout(by_table(LTX), dotted=True),
    "ltx_i2v": Layout(by_table(LTX), dotted=True),
    "wan": Layout(by_table(WAN)),
    "wan_i2v": Layout(by_table(WAN)),
    "hunyuan_video": Layout(by_table(HUNYUAN_VIDEO)),
    "skyreels_i2v": Layout(by_table(HUNYUAN_VIDEO)),
}
"""Family to how its adapters are written. ComfyUI knows no adapters of Sana."""
