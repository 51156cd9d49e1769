"""Frozen parts that single families have (``pipelines.visual.tiny_parts`` has those of the families in the product)."""

from __future__ import annotations

from typing import Any

from pipelines.vlm import qwen_vl_tiny


def compressing_vae(channels: int, scaling_factor: float) -> Any:
    """A deep-compression autoencoder, which quarters height and width."""
    from diffusers import AutoencoderDC

    autoencoder: Any = AutoencoderDC  # diffusers' annotations allow one level only
    return autoencoder(
        latent_channels=channels,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
        scaling_factor=scaling_factor,
    )


def normalized_vae(channels: int) -> Any:
    """An autoencoder of FLUX.2, which halves height and width, with statistics of its latents."""
    from diffusers import AutoencoderKLFlux2

    made: Any = AutoencoderKLFlux2(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=16,
    )
    made.bn.running_mean.normal_()
    made.bn.running_var.uniform_(0.5, 2)
    return made


def gemma() -> Any:
    """A Gemma 2 of width 32."""
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(
        Gemma2Config(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
        )
    )


def gemma_tokenizer() -> Any:
    """A tokenizer over printable characters."""
    from transformers import GemmaTokenizer

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\u2581", "\n", *map(chr, range(33, 127))]
    return GemmaTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], add_bos_token=True)


def stable_diffusion_levels(prediction: str) -> dict[str, Any]:
    """The configuration of the published schedulers of Stable Diffusion 1.x, 2.x and XL, whatever their class."""
    return {
        "num_train_timesteps": 1000,
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "prediction_type": prediction,
        "timestep_spacing": "leading",
        "steps_offset": 1,
        "set_alpha_to_one": False,
        "clip_sample": False,
        "skip_prk_steps": True,
    }


def qwen3(layers: int) -> Any:
    """A Qwen 3 of width 16."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(qwen_tokenizer()),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    )


def qwen_tokenizer() -> Any:
    """A tokenizer over bytes, with a chat template."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    pieces = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet())]
    tokenizer = Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[],
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}{% if enable_thinking is false %}-{% endif %}"
    )
    return tokenizer


def unet(cross_attention_dim: int, pooled_width: int = 0, later: bool = False) -> Any:
    """A UNet of widths 8 and 16 with attention in its upper blocks, for latents of 8 x 8.

    With ``pooled_width`` it also reads a pooled text vector and six sizes, as that of SDXL. ``later`` ones (2.x) have a
    number of heads for every block, linear projections, and attention in fp32.
    """
    from diffusers import UNet2DConditionModel

    kind: Any = UNet2DConditionModel  # diffusers' annotations allow one number of heads only
    sizes: dict[str, Any] = {}
    if pooled_width:
        sizes = {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": pooled_width + 6 * 8,
        }
    return kind(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=(2, 4) if later else 2,
        use_linear_projection=later,
        upcast_attention=later,
        cross_attention_dim=cross_attention_dim,
        **sizes,
    )


def qwen_images() -> Any:
    """Qwen's image processor for at most 4096 pixels."""
    return qwen_vl_tiny.image_processor(4, min_pixels=64, max_pixels=4096)


def qwen_language(words: Any) -> Any:
    """A Qwen3 of width 32 over the vocabulary of a tokenizer."""
    from transformers import Qwen3Config, Qwen3Model

    return Qwen3Model(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=4096,
        )
    )
