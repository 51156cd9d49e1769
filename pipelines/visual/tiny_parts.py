"""The frozen parts of random checkpoints of a few hundred kilobytes, of the real classes: encoders, tokenizers, VAE.

Nothing is downloaded: the vocabularies are the bytes (CLIP) and the printable characters (T5), without words.
"""

from __future__ import annotations

from typing import Any


def clip(projection: bool = True) -> Any:
    """A CLIP text encoder of width 16, with or without its projection."""
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
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModelWithProjection(config) if projection else CLIPTextModel(config)


def t5() -> Any:
    """A T5 encoder of width 32."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4))


def vae(channels: int, scaling_factor: float, shift_factor: float) -> Any:
    """An autoencoder that halves height and width."""
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
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def clip_tokenizer() -> Any:
    """A tokenizer over bytes."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5_tokenizer() -> Any:
    """A tokenizer over printable characters."""
    from transformers import T5Tokenizer

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(letter, -3.0) for letter in ("\u2581", *map(chr, range(33, 127)))]
    return T5Tokenizer(vocab=special + letters, extra_ids=0)


def clip_vision() -> Any:
    """A CLIP image encoder of width 16 for pictures of 16 x 16 pixels."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    return CLIPVisionModel(config)


def clip_processor() -> Any:
    """What prepares pictures for ``clip_vision``."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
