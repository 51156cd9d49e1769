"""Memory of training a published image or video model: arithmetic from its configuration, nothing is downloaded.

    python -m pipelines.visual.memory

    full        16 bytes per parameter: weights, gradients and both moments of AdamW in fp32 (a KL adds 4: its
                reference)
    LoRA        2 bytes per parameter of the frozen base in bf16; the adapters are below 2 % of it
    kept        per trained sample and network evaluation, with gradient checkpointing: the input of every block in
                bf16, tokens x width x blocks x 2 bytes
    encoders    in bf16, until --model.forget-encoders frees them

On top come the activations of the one block that is recomputed (some 20 to 40 x tokens x width x 2 bytes), the VAE
while it decodes (--model.vae-tiling, --model.decode-batch-size), and about 1 GB of PyTorch's own. Parameters are
counted on modules without storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GB = 1e9
CARDS = (24, 80)
"""GB of the cards."""
RESERVE = 4.0
"""GB left for the recomputed block, the VAE and PyTorch."""

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "CLIP-L": ("CLIPTextConfig", {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}),
    "OpenCLIP-bigG": (
        "CLIPTextConfig",
        {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20},
    ),
    "T5-XXL": ("T5Config", {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "d_kv": 64}),
    "ByT5-small": (
        "T5Config",
        {"d_model": 1472, "d_ff": 3584, "num_layers": 12, "num_heads": 6, "d_kv": 64, "vocab_size": 384},
    ),
    "UMT5-XXL": (
        "UMT5Config",
        {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "d_kv": 64, "vocab_size": 256384},
    ),
    "Gemma2-2B": ("Gemma2Config", {}),
    "Qwen3-4B": (
        "Qwen3Config",
        {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_key_value_heads": 8},
    ),
    "Llama-8B": (
        "LlamaConfig",
        {"hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128320},
    ),
    "Mistral-24B": (
        "MistralConfig",
        {
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 131072,
        },
    ),
    "Qwen2.5-7B": (
        "Qwen2Config",
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
    ),
    "Qwen3-8B": (
        "Qwen3Config",
        {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8},
    ),
}
"""Text encoders: the class of their configuration in transformers, and what differs from its defaults."""


@dataclass(frozen=True)
class Model:
    """A published model at the size of its recipe."""

    name: str
    kind: str
    """Class of its network in diffusers."""
    config: dict[str, Any]
    """What differs from the defaults of the class."""
    width: int
    blocks: int
    tokens: int
    """Tokens (of a UNet: positions of its widest level) of one sample, the prompt's included."""
    sample: str
    encoders: Sequence[str]


SD35 = {"num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536, "pos_embed_max_size": 384}
SD35 |= {"dual_attention_layers": tuple(range(13)), "qk_norm": "rms_norm", "joint_attention_dim": 4096}
SDXL = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
KLEIN = {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680}
LONGCAT = {"num_layers": 10, "num_single_layers": 20}
WAN_SMALL = {"num_attention_heads": 12, "attention_head_dim": 128, "ffn_dim": 8960, "num_layers": 30}
MODELS = (
    Model("SD 1.4", "UNet2DConditionModel", {"cross_attention_dim": 768}, 320, 25, 4096, "512 x 512", ["CLIP-L"]),
    Model("SDXL", "UNet2DConditionModel", SDXL, 640, 70, 4096, "1024 x 1024", ["CLIP-L", "OpenCLIP-bigG"]),
    Model(
        "SD 3.5 Medium",
        "SD3Transformer2DModel",
        SD35,
        1536,
        24,
        1024 + 333,
        "512 x 512",
        ["CLIP-L", "OpenCLIP-bigG", "T5-XXL"],
    ),
    Model("Sana 1.6B", "SanaTransformer2DModel", {}, 2240, 20, 1024 + 300, "1024 x 1024", ["Gemma2-2B"]),
    Model(
        "SANA-Video 2B",
        "SanaVideoTransformer3DModel",
        {"mlp_ratio": 3.0},
        2240,
        20,
        21 * 30 * 52,
        "480 x 832 x 81",
        ["Gemma2-2B"],
    ),
    Model("FLUX.2-klein 4B", "Flux2Transformer2DModel", KLEIN, 3072, 25, 1024 + 512, "512 x 512", ["Qwen3-4B"]),
    Model("Z-Image", "ZImageTransformer2DModel", {}, 3840, 34, 1024 + 512, "512 x 512", ["Qwen3-4B"]),
    Model(
        "LongCat-Image",
        "LongCatImageTransformer2DModel",
        LONGCAT,
        3072,
        30,
        1024 + 512,
        "512 x 512",
        ["Qwen2.5-7B"],
    ),
    Model("FLUX.1-dev", "FluxTransformer2DModel", {}, 3072, 57, 2025 + 512, "720 x 720", ["CLIP-L", "T5-XXL"]),
    Model("Qwen-Image", "QwenImageTransformer2DModel", {}, 3072, 60, 1024 + 512, "512 x 512", ["Qwen2.5-7B"]),
    Model("Qwen-Image-2.1", "QwenImage21Transformer2DModel", {}, 4096, 32, 1024 + 512, "512 x 512", ["Qwen3-8B"]),
    Model("FLUX.2-dev", "Flux2Transformer2DModel", {}, 6144, 56, 1024 + 512, "512 x 512", ["Mistral-24B"]),
    Model("LTX-Video", "LTXVideoTransformer3DModel", {}, 2048, 28, 4 * 22 * 15, "480 x 704 x 25", ["T5-XXL"]),
    Model("Wan 2.1 1.3B", "WanTransformer3DModel", WAN_SMALL, 1536, 30, 9 * 15 * 26, "240 x 416 x 33", ["UMT5-XXL"]),
    Model("Wan 14B", "WanTransformer3DModel", {}, 5120, 40, 9 * 15 * 26, "240 x 416 x 33", ["UMT5-XXL"]),
    Model(
        "HunyuanVideo 1.5",
        "HunyuanVideo15Transformer3DModel",
        {},
        2048,
        54,
        31 * 30 * 53 + 1000,
        "480 x 848 x 121",
        ["Qwen2.5-7B", "ByT5-small"],
    ),
    Model(
        "HunyuanVideo",
        "HunyuanVideoTransformer3DModel",
        {},
        3072,
        60,
        14 * 30 * 30 + 256,
        "480 x 480 x 53",
        ["CLIP-L", "Llama-8B"],
    ),
)


def network_of(kind: str, config: dict[str, Any]) -> Any:
    """A network of diffusers without storage."""
    import diffusers
    import torch

    with torch.device("meta"):
        return getattr(diffusers, kind)(**config)


def parameters(kind: str, config: dict[str, Any]) -> int:
    """Parameters of a network of diffusers."""
    return sum(parameter.numel() for parameter in network_of(kind, config).parameters())


def encoder_parameters(name: str) -> int:
    """Parameters of a text encoder of transformers."""
    import torch
    import transformers

    kind, config = ENCODERS[name]
    if kind in ("T5Config", "UMT5Config"):
        model: Any = getattr(transformers, kind.replace("Config", "EncoderModel"))
        settings = getattr(transformers, kind)(**config, feed_forward_proj="gated-gelu")
    else:
        text = kind == "CLIPTextConfig"
        model = transformers.CLIPTextModel if text else getattr(transformers, kind.replace("Config", "Model"))
        settings = getattr(transformers, kind)(**config)
    with torch.device("meta"):
        encoder = model(settings)
    return sum(parameter.numel() for parameter in encoder.parameters())


def fits(gigabytes: float) -> str:
    """The smallest card on which it fits with the reserve; weights are not sharded over cards yet."""
    return next((f"{card} GB" for card in CARDS if gigabytes + RESERVE <= card), "sharding")


def row(model: Model) -> str:
    """One line of the table."""
    count = parameters(model.kind, model.config)
    lora, full = 2 * count / GB, 16 * count / GB
    kept = model.tokens * model.width * model.blocks * 2 / GB
    encoders = sum(2 * encoder_parameters(name) for name in model.encoders) / GB
    cells = (model.name, model.sample, f"{count / GB:.2f} B", f"{lora:.1f}", f"{full:.0f}", f"{kept:.2f}")
    return "| " + " | ".join((*cells, f"{encoders:.1f}", fits(lora + kept), fits(full + kept))) + " |"


def main() -> None:
    print("| model | sample | parameters | LoRA | full | kept | encoders | LoRA needs | full needs |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        print(row(model), flush=True)


if __name__ == "__main__":
    main()
