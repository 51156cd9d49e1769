"""Random HunyuanVideo checkpoints of a few hundred kilobytes, of the real classes; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import tiny_parts

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How Llama 3 splits a text into words."""
SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|pad|>")


def tiny(folder: str | Path = "", seed: int = 0, image_input: bool = False) -> Path:
    """Write a complete ``HunyuanVideoPipeline`` folder (by default a new temporary one) and return it.

    With ``image_input`` it is one of ``HunyuanSkyreelsImageToVideoPipeline``. One block of each kind, of width 32;
    latents of 4 channels at an eighth of the resolution, a quarter of the frames.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import HunyuanSkyreelsImageToVideoPipeline, HunyuanVideoPipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-hunyuan-video-"))
    kind: Any = HunyuanSkyreelsImageToVideoPipeline if image_input else HunyuanVideoPipeline
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = kind(transformer=transformer(8 if image_input else 4), **frozen_parts())
    pipeline.save_pretrained(folder)
    return folder


def transformer(in_channels: int) -> Any:
    """A transformer that reads ``in_channels`` and predicts 4."""
    from diffusers import HunyuanVideoTransformer3DModel

    return HunyuanVideoTransformer3DModel(
        in_channels=in_channels,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=2,
        patch_size_t=1,
        guidance_embeds=True,
        text_embed_dim=32,
        pooled_projection_dim=16,
        rope_axes_dim=(4, 6, 6),
    )


def frozen_parts() -> dict[str, Any]:
    """Everything but the transformer, by its name in the pipeline."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    tokenizer = llama_tokenizer()
    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": vae(),
        "text_encoder": llama(len(tokenizer), tokenizer.pad_token_id),
        "tokenizer": tokenizer,
        "text_encoder_2": tiny_parts.clip(projection=False),
        "tokenizer_2": tiny_parts.clip_tokenizer(),
    }


def vae() -> Any:
    """An autoencoder of clips whose posterior is narrow, as that of a trained one is."""
    from diffusers import AutoencoderKLHunyuanVideo

    autoencoder: Any = AutoencoderKLHunyuanVideo  # diffusers' annotations allow one level only
    made = autoencoder(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
    )
    with torch.no_grad():
        made.quant_conv.bias[4:] = -30.0  # log-variances
    return made


def llama(vocabulary: int, padding: int) -> Any:
    """A Llama of width 32 with three layers, of which the pipeline skips the last two."""
    from transformers import LlamaConfig, LlamaModel

    return LlamaModel(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            pad_token_id=padding,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def llama_tokenizer() -> Any:
    """A tokenizer that splits a text as Llama 3's does; it knows the words of the prompt's template, and bytes."""
    from diffusers.pipelines.hunyuan_video import pipeline_hunyuan_video
    from tokenizers import Regex, Tokenizer, decoders, processors
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers import PreTrainedTokenizerFast

    split = Sequence([Split(Regex(SPLIT), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    text = str(pipeline_hunyuan_video.DEFAULT_PROMPT_TEMPLATE["template"]).replace("{}", SPECIAL[0])
    for name in SPECIAL:
        text = text.replace(name, SPECIAL[0])
    words = [word for part in text.split(SPECIAL[0]) for word, _ in split.pre_tokenize_str(part)]
    pieces = dict.fromkeys([*SPECIAL, *sorted(ByteLevel.alphabet()), *words])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], vocabulary[SPECIAL[0]])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[3],
        pad_token=SPECIAL[4],
        extra_special_tokens=list(SPECIAL[1:3]),
        padding_side="right",
    )
