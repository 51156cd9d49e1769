"""The frozen parts of random checkpoints of a few hundred kilobytes, of the real classes: encoders, tokenizers, VAE.

Nothing is downloaded: the vocabularies are bytes (CLIP, Qwen) or printable characters (T5, Gemma), without words.
"""

from __future__ import annotations

from typing import Any


def clip(projection: bool = True, old: bool = False) -> Any:
    """A CLIP text encoder of width 16, with or without its projection.

    ``old`` writes the id 2 for the end of a text, as the files before transformers 4.31 have it, for which transformers
    takes the largest id of a text.
    """
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=16,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=2 if old else tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config) if projection else CLIPTextModel(config)


def vae(channels: int, scaling_factor: float, shift_factor: float | None) -> Any:
    """An autoencoder that halves height and width; without a shift (Stable Diffusion 1.x, 2.x, XL) it has the
    convolutions between posterior and latents that later ones lack."""
    from diffusers import AutoencoderKL

    autoencoder: Any = AutoencoderKL  # diffusers' annotations allow one level only
    return autoencoder(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=16,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=shift_factor is None,
        use_post_quant_conv=shift_factor is None,
    )


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


def clip_tokenizer(padding: str = "<|endoftext|>") -> Any:
    """A tokenizer over bytes, which fills up with ``padding``: the end, or "!", whose id is 0 (Stable Diffusion 2.x,
    the second of XL)."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77, pad_token=padding)


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


def clip_vision(projection: bool = False) -> Any:
    """A CLIP image encoder of width 16 for images of 16 x 16 pixels, with or without its projection."""
    from transformers import CLIPVisionConfig, CLIPVisionModel, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    return CLIPVisionModelWithProjection(config) if projection else CLIPVisionModel(config)


def clip_processor() -> Any:
    """What prepares images for ``clip_vision``."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
