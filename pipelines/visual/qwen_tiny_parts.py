"""Random parts of a few hundred kilobytes for the families that read their prompts with a Qwen model; of the real
classes."""

from __future__ import annotations

from typing import Any

from pipelines.vlm import qwen_vl_tiny

CHAT = qwen_vl_tiny.TEMPLATE


def tokenizer(text: str = "") -> Any:
    """A Qwen tokenizer over bytes, to which every word of ``text`` is one token, as to Qwen's own.

    The pipelines cut off the first tokens of their templates, whose number they know.
    """
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    special = list(qwen_vl_tiny.SPECIAL)
    letters = sorted(ByteLevel.alphabet())
    splitter = Qwen2Tokenizer(vocab={letter: i for i, letter in enumerate(letters)}, extra_special_tokens=special)
    words = {word for word, _ in splitter.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)}
    # A word grows from its left; those with a space at their start come first, lest a merge of others break them.
    ordered = sorted(words, key=lambda word: (word[0] != "Ġ", word))
    merges: Any = list(dict.fromkeys((word[:i], word[i]) for word in ordered for i in range(1, len(word))))
    if any(set(word) == {"Ġ"} for word in words):  # runs of spaces grow by doubling, as in Qwen's own
        merges = [("Ġ" * n, "Ġ" * n) for n in (1, 2, 4)] + [pair for pair in merges if set("".join(pair)) != {"Ġ"}]
    pieces = [*letters, *("".join(pair) for pair in merges)]
    return Qwen2Tokenizer(
        vocab={piece: i for i, piece in enumerate(dict.fromkeys(pieces))},
        merges=merges,
        extra_special_tokens=special,
        chat_template=CHAT,
    )


def vision_language(words: Any) -> Any:
    """A Qwen2.5-VL of width 32 over the vocabulary of a tokenizer; an image has a token per 8 x 8 pixels."""
    from transformers import Qwen2_5_VLForConditionalGeneration

    shape = {"width": 32, "layers": 2, "heads": 2, "vision_width": 32, "vision_layers": 2, "patch": 4}
    return Qwen2_5_VLForConditionalGeneration(qwen_vl_tiny.configuration(words.get_vocab(), **shape))


def vae(channels: int = 4) -> Any:
    """Qwen-Image's autoencoder, which halves height and width, with statistics of its latents."""
    from diffusers import AutoencoderKLQwenImage

    autoencoder: Any = AutoencoderKLQwenImage  # diffusers' annotations allow one level only
    return autoencoder(
        base_dim=8,
        z_dim=channels,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1 * i - 0.2 for i in range(channels)],
        latents_std=[1.0 + 0.3 * i for i in range(channels)],
    )


def transformer(channels: int = 4, zero_cond_t: bool = False) -> Any:
    """Qwen-Image's transformer, 2 blocks of width 32, for latents of ``channels`` channels; with ``zero_cond_t`` (2511)
    it is informed that the given image is clean."""
    from diffusers import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        in_channels=4 * channels,
        out_channels=channels,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
        zero_cond_t=zero_cond_t,
    )


def scheduler() -> Any:
    """Qwen-Image's own, whose last level above 0 is .02."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, max_image_seq_len=8192, max_shift=0.9, shift_terminal=0.02
    )
