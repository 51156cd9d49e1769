"""Adapters of image and video models under the names that ComfyUI and kohya's scripts read.

Their loaders do not read the header of a file, in which diffusers states alpha. An adapter is scaled there by
``alpha / rank`` where the file has a tensor ``<name>.alpha``, and by 1 where it has none. So either that tensor stands
beside the two matrices, or the scale is multiplied into the second one. Names follow ComfyUI's
``comfy/lora.py`` and sd-scripts' ``networks/lora.py``, checked by diffusers' converters (neither program was run); a
family whose names are not known is not in ``WRITERS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

Pairs = Mapping[str, tuple[Float[Tensor, "rank *inputs"], Float[Tensor, "outputs rank *_"]]]
"""Name of a module in diffusers' network to its matrices A and B."""

Writer = Callable[[Pairs, float], dict[str, Tensor]]
"""Pairs and ``alpha`` (the scale is alpha / rank) to the tensors of a file; ValueError for a module without a name."""


def kohya(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """``lora_unet_<name with underscores>.lora_down``, ``lora_up`` and ``alpha``: Stable Diffusion 1.x, 2.x and XL."""
    return beside({f"lora_unet_{name.replace('.', '_')}": pair for name, pair in pairs.items()}, alpha)


def beside(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """The matrices as ``lora_down`` and ``lora_up``, with ``alpha`` beside them."""
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}
        tensors[f"{name}.alpha"] = torch.tensor(float(alpha))
    return tensors


def folded(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """The matrices as ``lora_A`` and ``lora_B``, with alpha / rank multiplied into the second, so that the scale is
    1."""
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up * (alpha / len(down))}
    return tensors


def transformer(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """diffusers' own names, which ComfyUI has a table of: Stable Diffusion 3, FLUX.1."""
    return folded({f"transformer.{name}": pair for name, pair in pairs.items()}, alpha)


def original(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """Models whose authors name blocks as diffusers does, or of which ComfyUI has a table: Qwen-Image, Z-Image."""
    return beside({f"diffusion_model.{name}": pair for name, pair in pairs.items()}, alpha)


def ltx(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """LTX-Video, whose blocks have diffusers' names; other modules have not."""
    for name in pairs:
        if not name.startswith("transformer_blocks."):
            raise nameless(name)
    return folded({f"diffusion_model.{name}": pair for name, pair in pairs.items()}, alpha)


WAN = (
    (r"blocks\.(\d+)\.attn1\.to_([qkv])", r"blocks.\1.self_attn.\2"),
    (r"blocks\.(\d+)\.attn1\.to_out\.0", r"blocks.\1.self_attn.o"),
    (r"blocks\.(\d+)\.attn2\.to_([qkv])", r"blocks.\1.cross_attn.\2"),
    (r"blocks\.(\d+)\.attn2\.to_out\.0", r"blocks.\1.cross_attn.o"),
    (r"blocks\.(\d+)\.attn2\.add_([kv])_proj", r"blocks.\1.cross_attn.\2_img"),
    (r"blocks\.(\d+)\.ffn\.net\.0\.proj", r"blocks.\1.ffn.0"),
    (r"blocks\.(\d+)\.ffn\.net\.2", r"blocks.\1.ffn.2"),
)
"""Modules of diffusers' Wan to those of its authors'."""


def wan(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """The names of Wan's authors."""
    return beside({f"diffusion_model.{renamed(name, WAN)}": pair for name, pair in pairs.items()}, alpha)


FLUX2 = (
    (r"transformer_blocks\.(\d+)\.attn\.to_out\.0", r"double_blocks.\1.img_attn.proj"),
    (r"transformer_blocks\.(\d+)\.attn\.to_add_out", r"double_blocks.\1.txt_attn.proj"),
    (r"transformer_blocks\.(\d+)\.ff\.linear_in", r"double_blocks.\1.img_mlp.0"),
    (r"transformer_blocks\.(\d+)\.ff\.linear_out", r"double_blocks.\1.img_mlp.2"),
    (r"transformer_blocks\.(\d+)\.ff_context\.linear_in", r"double_blocks.\1.txt_mlp.0"),
    (r"transformer_blocks\.(\d+)\.ff_context\.linear_out", r"double_blocks.\1.txt_mlp.2"),
    (r"single_transformer_blocks\.(\d+)\.attn\.to_qkv_mlp_proj", r"single_blocks.\1.linear1"),
    (r"single_transformer_blocks\.(\d+)\.attn\.to_out", r"single_blocks.\1.linear2"),
)
"""Modules of diffusers' FLUX.2 to those of its authors', except for queries, keys and values."""

THIRDS = {
    **{name: ("img_attn.qkv", number) for number, name in enumerate(("to_q", "to_k", "to_v"))},
    **{name: ("txt_attn.qkv", number) for number, name in enumerate(("add_q_proj", "add_k_proj", "add_v_proj"))},
}
"""Projections that FLUX.2's authors have in one matrix, with their place in it."""


def flux2(pairs: Pairs, alpha: float) -> dict[str, Tensor]:
    """The names of FLUX.2's authors, who have queries, keys and values in one matrix.

    Three adapters of rank r are one of rank 3 r: A = [A_q; A_k; A_v] and B = diag(B_q, B_k, B_v), with zeros for one
    that is not adapted.
    """
    single: dict[str, tuple[Tensor, Tensor]] = {}
    joined: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}
    for name, (down, up) in pairs.items():
        pair = down, up * (alpha / len(down))
        third = re.fullmatch(r"transformer_blocks\.(\d+)\.attn\.(\w+)", name)
        if third and third[2] in THIRDS:
            matrix, number = THIRDS[third[2]]
            joined.setdefault(f"double_blocks.{third[1]}.{matrix}", {})[number] = pair
        else:
            single[renamed(name, FLUX2)] = pair
    for name, parts in joined.items():
        down, up = next(iter(parts.values()))
        parts = {number: parts.get(number, (torch.zeros_like(down), torch.zeros_like(up))) for number in range(3)}
        single[name] = (
            torch.cat([parts[n][0] for n in range(3)]),
            torch.block_diag(*(parts[n][1] for n in range(3))),
        )
    tensors = {}
    for name, (down, up) in single.items():
        tensors |= {f"diffusion_model.{name}.lora_A.weight": down, f"diffusion_model.{name}.lora_B.weight": up}
    return tensors


def renamed(name: str, table: tuple[tuple[str, str], ...]) -> str:
    """The name of a module by the first pattern of a table that it is."""
    for pattern, target in table:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, target, name)
    raise nameless(name)


def nameless(name: str) -> ValueError:
    """The error for an adapted module of which no name elsewhere is known."""
    return ValueError(
        f"--format comfyui: the adapted module '{name}' has no name there that is known here; take --format diffusers "
        "or merged, or leave it out of model.lora_targets"
    )


WRITERS: Mapping[str, Writer] = {
    "stable_diffusion": kohya,
    "sdxl": kohya,
    "sd3": transformer,
    "flux": transformer,
    "flux_kontext": transformer,
    "flux2_klein": flux2,
    "qwen_image": original,
    "qwen_image_edit": original,
    "z_image": original,
    "ltx_video": ltx,
    "ltx_i2v": ltx,
    "wan": wan,
    "wan_i2v": wan,
}
"""Family to how its adapters are written. ComfyUI knows no adapters of Sana, and of HunyuanVideo only such that its
authors' fused matrices have."""
