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


def clip_tokenizer(padding: str = "<|endoftext|>") -> Any:
    """A tokenizer over bytes, which fills up with ``padding``: the end, or "!", whose id is 0 (Stable Diffusion 2.x,
    the second of XL)."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77, pad_token=padding)


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
