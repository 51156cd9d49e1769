"""Small models of several architectures for ``audio_text``, each with its own processor, over letters.

Their configurations have dropout, as those of fine-tunes and of Granite-Speech's Q-Former have it, and LayerDrop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.speech.granite import granite_extractor
from pipelines.speech.processors import VoxtralProcessor, omni_processor
from tests.tiny.qwen_audio import END, START, STOP, amplify, letter_tokenizer

WIDTH = 32
DROPOUT = 0.1

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% for part in message['content'] %}
{%- if part['type'] == 'audio' %}SOUND{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

DEFAULT_SYSTEM = """\
{%- if messages[0]['role'] != 'system' %}<|im_start|>system
SYSTEM<|im_end|>
{% endif %}"""
"""Before a template that writes a system turn where the conversation has none."""

GRANITE = """\
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] %}{%- set turns = messages[1:] %}
{%- else %}
{%- set system = "Today's Date: " + strftime_now('%B %d, %Y') + ".\\nYou are Granite." %}
{%- set turns = messages %}
{%- endif %}
{{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}
{%- for message in turns %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Granite-Speech's, which concatenates contents, texts with ``<|audio|>`` in them, and writes today's date."""

TEMPLATES = {
    "granite_speech": GRANITE,
    "qwen2_5_omni": DEFAULT_SYSTEM.replace("SYSTEM", "You are Qwen, a virtual human.") + TEMPLATE,
    "audioflamingo3": DEFAULT_SYSTEM.replace("SYSTEM", "You are a helpful assistant.") + TEMPLATE,
}
"""Kind to its template, where it has one of its own."""

BOS = "<s>"
BEGINNINGS = ("", "template", "tokenizer", "both")
"""Who writes the beginning-of-sequence token: nobody, or one of these, or both."""

Ids = Mapping[str, int]


def tiny(folder: str | Path, kind: str = "voxtral", beginning: str = "") -> str:
    """Write a random model of some 100,000 parameters with its processor; ``kind`` is of ``KINDS``, and ``beginning``
    of ``BEGINNINGS``."""
    import transformers

    special, mark, name, config_of, processor_of = KINDS[kind]
    tokenizer = letter_tokenizer((END, START, STOP, *special, *[BOS] * bool(beginning)))
    template = TEMPLATES.get(kind, TEMPLATE).replace("SOUND", mark)
    tokenizer.chat_template = f"{BOS}{template}" if beginning in ("template", "both") else template
    if beginning:
        tokenizer.bos_token = BOS
    if beginning in ("tokenizer", "both"):
        from tokenizers.processors import TemplateProcessing

        number = tokenizer.convert_tokens_to_ids(BOS)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, number)]
        )
    ids = tokenizer.get_vocab()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: Any = getattr(transformers, name)(config_of(ids))
        amplify(network)
    network.generation_config.eos_token_id = [ids[STOP], ids[END]]
    network.generation_config.pad_token_id = ids[END]
    network.save_pretrained(folder)
    processor_of(tokenizer, network.config).save_pretrained(folder)
    return str(folder)


def text(kind: str, ids: Ids, **more: Any) -> dict[str, Any]:
    """A language model of two layers."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "head_dim": WIDTH // 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8192}
    ends = {"bos_token_id": None, "eos_token_id": ids[STOP], "pad_token_id": ids[END]}
    return {"model_type": kind, "vocab_size": len(ids), **sizes, **heads, **ends, **more}


def tower(kind: str, **more: Any) -> dict[str, Any]:
    """Whisper's encoder of two layers."""
    sizes = {"d_model": WIDTH, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 2 * WIDTH}
    drops = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop"), DROPOUT)
    return {"model_type": kind, "num_mel_bins": 128, **sizes, **drops, **more}


def whisper_extractor() -> Any:
    """Log-mel spectrograms of 128 bands."""
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=128)


def voxtral(ids: Ids) -> Any:
    """Voxtral: chunks of 30 s, each of as many features whatever its content; here 100 instead of 375."""
    from transformers import VoxtralConfig

    audio = tower("voxtral_encoder", encoder_ffn_dim=15 * WIDTH)
    return VoxtralConfig(audio_config=audio, text_config=text("llama", ids), audio_token_id=ids["[AUDIO]"])


def granite_speech(ids: Ids) -> Any:
    """Granite-Speech: a conformer of two blocks, whose frames a Q-Former reduces to 3 of 15."""
    from transformers import GraniteSpeechConfig

    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 2, "encoder_hidden_size": WIDTH}
    projector = {"model_type": "blip_2_qformer", "num_hidden_layers": 1, "vocab_size": 2, **sizes}
    return GraniteSpeechConfig(
        text_config=text("granite", ids),
        encoder_config={
            **{"num_layers": 2, "hidden_dim": WIDTH, "num_heads": 2, "context_size": 20, "max_pos_emb": 32},
            "dropout": DROPOUT,
        },
        projector_config=projector | {"hidden_dropout_prob": DROPOUT, "attention_probs_dropout_prob": DROPOUT},
        audio_token_index=ids["<|audio|>"],
        has_lora_adapter=False,
        tie_word_embeddings=False,
    )


def qwen2_5_omni(ids: Ids) -> Any:
    """Qwen2.5-Omni's thinker: positions of three axes, as many features as the clip has sound."""
    from transformers import Qwen2_5OmniThinkerConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    vision = {"depth": 1, "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_heads": 2, "out_hidden_size": WIDTH}
    undeclared: dict[str, Any] = {"vision_start_token_id": ids["<|vision_bos|>"]}  # which the network reads
    return Qwen2_5OmniThinkerConfig(
        audio_config=tower("qwen2_5_omni_audio_encoder", output_dim=WIDTH, n_window=50),
        vision_config={"model_type": "qwen2_5_omni_vision_encoder", **vision},
        text_config=text("qwen2_5_omni_text", ids, rope_parameters=rope),
        audio_token_index=ids["<|AUDIO|>"],
        image_token_index=ids["<|IMAGE|>"],
        video_token_index=ids["<|VIDEO|>"],
        audio_start_token_id=ids["<|audio_bos|>"],
        audio_end_token_id=ids["<|audio_eos|>"],
        **undeclared,
    )


def named(tokenizer: Any, names: Mapping[str, str]) -> Any:
    """The tokenizer, which its processor asks for marks by these names."""
    for name, token in names.items():
        tokenizer.init_kwargs[name] = token
        setattr(tokenizer, name, token)
    return tokenizer


def omni(tokenizer: Any, config: Any) -> Any:
    """Qwen2.5-Omni's processor."""
    named(tokenizer, OMNI)
    return omni_processor()(whisper_extractor(), tokenizer, chat_template=tokenizer.chat_template)


def audioflamingo3(ids: Ids) -> Any:
    """Audio Flamingo 3: one clip of any duration, in windows of 30 s."""
    from transformers import AudioFlamingo3Config

    return AudioFlamingo3Config(
        audio_config=tower("audioflamingo3_encoder"), text_config=text("qwen2", ids), audio_token_id=ids["<sound>"]
    )


def glmasr(ids: Ids) -> Any:
    """GLM-ASR: a tower with rotary positions, four of whose frames are one feature."""
    from transformers import GlmAsrConfig

    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    return GlmAsrConfig(
        audio_config={"model_type": "glmasr_encoder", **sizes},
        text_config=text("llama", ids),
        audio_token_id=ids["<|pad|>"],
        tie_word_embeddings=False,
    )


def qwen3_asr(ids: Ids) -> Any:
    """Qwen3-ASR: a tower that reads a second at a time."""
    from transformers import Qwen3ASRConfig

    audio = tower("qwen3_asr_encoder", output_dim=WIDTH, downsample_hidden_size=8)
    return Qwen3ASRConfig(
        audio_config=audio,
        text_config=text("qwen3", ids),
        audio_token_id=ids["<|audio_pad|>"],
        pad_token_id=ids[END],
        eos_token_id=[ids[STOP], ids[END]],
        tie_word_embeddings=False,
    )


def processor_named(name: str, **options: Any) -> Callable[[Any, Any], Any]:
    """A processor of transformers over Whisper's spectrograms, by its class's name."""

    def build(tokenizer: Any, config: Any) -> Any:
        import transformers

        kind = getattr(transformers, name)
        return kind(whisper_extractor(), tokenizer, chat_template=tokenizer.chat_template, **options)

    return build


def granite(tokenizer: Any, config: Any) -> Any:
    """Granite-Speech's processor."""
    from transformers import GraniteSpeechProcessor

    return GraniteSpeechProcessor(granite_extractor()(), tokenizer, chat_template=tokenizer.chat_template)


def qwen3_asr_processor(tokenizer: Any, config: Any) -> Any:
    """Qwen3-ASR's processor."""
    from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    template = tokenizer.chat_template
    return Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), named(tokenizer, QWEN3), chat_template=template)


QWEN3 = {
    "audio_token": "<|audio_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}

OMNI = {
    "audio_token": "<|AUDIO|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}

Kind = tuple[Sequence[str], str, str, Callable[[Ids], Any], Callable[[Any, Any], Any]]

KINDS: Mapping[str, Kind] = {
    "voxtral": (
        ("[BEGIN_AUDIO]", "[AUDIO]"),
        "[BEGIN_AUDIO][AUDIO]",
        "VoxtralForConditionalGeneration",
        voxtral,
        lambda tokenizer, config: VoxtralProcessor(whisper_extractor(), tokenizer, config.audio_config),
    ),
    "granite_speech": (("<|audio|>",), "<|audio|>", "GraniteSpeechForConditionalGeneration", granite_speech, granite),
    "qwen2_5_omni": (
        tuple(OMNI.values()),
        "<|audio_bos|><|AUDIO|><|audio_eos|>",
        "Qwen2_5OmniThinkerForConditionalGeneration",
        qwen2_5_omni,
        omni,
    ),
    "audioflamingo3": (
        ("<sound>",),
        "<sound>",
        "AudioFlamingo3ForConditionalGeneration",
        audioflamingo3,
        processor_named("AudioFlamingo3Processor"),
    ),
    "glmasr": (
        ("<|begin_of_audio|>", "<|pad|>", "<|end_of_audio|>"),
        "<|begin_of_audio|><|pad|><|end_of_audio|>",
        "GlmAsrForConditionalGeneration",
        glmasr,
        processor_named("GlmAsrProcessor"),
    ),
    "qwen3_asr": (
        tuple(QWEN3.values()),
        "<|audio_start|><|audio_pad|><|audio_end|>",
        "Qwen3ASRForConditionalGeneration",
        qwen3_asr,
        qwen3_asr_processor,
    ),
}
"""Kind to its special tokens, the mark of a clip in its template, and its network, configuration and processor."""
