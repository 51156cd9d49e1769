"""Processors of language models that hear, also where a package that transformers needs for them is not installed.

torchvision       Qwen2.5-Omni without its parts for images and clips
torchaudio        Granite-Speech with the same spectrogram, computed here
mistral-common    Voxtral with an ordinary tokenizer (tokenizer.json); its own (tekken.json) cannot do without
"""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mmgrpo.data.chat import ChatTemplate, special_tokens
from pipelines import require
from pipelines.pretrained import read_json, read_part
from pipelines.processors import load_tokenizer, read_processor
from pipelines.speech.granite import granite_extractor

Clips = Sequence[Float[np.ndarray, "_"]]


def read_hearing_processor(source: str, config: Any) -> Any:
    """The processor of a checkpoint with this configuration. ``ImportError`` where a package is missing."""
    import transformers
    from transformers.utils import is_torchaudio_available, is_torchvision_available

    kind = str(config.model_type)
    if kind == "voxtral":
        if find_spec("mistral_common") is not None:
            return read_part(transformers.VoxtralProcessor, source)
        if read_json(source, "tokenizer.json") is None:
            raise ImportError(
                f"'{source}': got a Voxtral whose tokenizer is a tekken.json, expected the package mistral-common, "
                "which reads it; pip install 'mistral-common[audio]'"
            )
        extractor = read_part(transformers.WhisperFeatureExtractor, source)
        return VoxtralProcessor(extractor, load_tokenizer(source), config.audio_config)
    if kind.startswith("granite_speech") and not is_torchaudio_available():
        tokenizer = load_tokenizer(source)
        extractor = read_part(granite_extractor(), source)
        return transformers.GraniteSpeechProcessor(extractor, tokenizer, chat_template=tokenizer.chat_template)
    if kind.startswith("qwen2_5_omni") and not is_torchvision_available():
        tokenizer = load_tokenizer(source)
        extractor = read_part(transformers.WhisperFeatureExtractor, source)
        return omni_processor()(extractor, tokenizer, chat_template=tokenizer.chat_template)
    return read_processor(source, kind)


def process(processor: Any, messages: Sequence[Mapping[str, Any]], clips: Clips, rate: int) -> Mapping[str, Any]:
    """What a processor makes of a conversation whose parts of type ``audio`` stand for ``clips``.

    ValueError where its chat template has not one mark for each clip, which would then not be heard.
    """
    if type(processor).__module__.endswith(
        "processing_voxtral"
    ):  # its tokenizer takes recordings, and no text with marks
        return processor.apply_chat_template(with_sounds(messages, clips, rate))
    chat: Any = chat_of_processor(processor)
    text = chat.text(messages)
    if (marks := text.count(processor.audio_token)) != len(clips):
        raise ValueError(
            f"got {marks} placeholders from the model's chat template, expected {len(clips)}, one per clip; use the "
            "template of the checkpoint"
        )
    return processor(
        text=[text],
        audio=list(clips) or None,
        sampling_rate=rate,
        return_tensors="pt",
        **special_tokens(processor.tokenizer, text),
    )


def chat_of_processor(processor: Any) -> ChatTemplate | None:
    """The chat template of a processor, with its mark for a recording where the template reads texts only; None for
    Voxtral's own, which writes conversations without one."""
    if type(processor).__module__.endswith("processing_voxtral"):
        return None
    return ChatTemplate(processor, marks={"audio": processor.audio_token})


def with_sounds(messages: Sequence[Mapping[str, Any]], clips: Clips, rate: int) -> list[dict[str, Any]]:
    """The messages with each recording inside, as the bytes of a wav file (32-bit floats, so nothing is
    rounded)."""
    require("speech", "soundfile")
    import soundfile

    remaining, filled = iter(clips), copy.deepcopy([dict(message) for message in messages])
    for part in (part for message in filled for part in message["content"] if part["type"] == "audio"):
        file = io.BytesIO()
        soundfile.write(file, next(remaining), rate, format="WAV", subtype="FLOAT")
        part["base64"] = base64.b64encode(file.getvalue()).decode()
    return filled


class VoxtralProcessor:
    """Voxtral's processor over an ordinary tokenizer, whose chat template writes one mark per clip.

    A clip is padded to a multiple of 30 s and cut into chunks of 30 s, each of as many features as the projector makes
    of it (375).
    """

    audio_token = "[AUDIO]"

    def __init__(self, feature_extractor: Any, tokenizer: Any, config: Any) -> None:
        self.feature_extractor, self.tokenizer = feature_extractor, tokenizer
        self.chat_template = tokenizer.chat_template
        self.frames = 2 * config.max_source_positions
        self.features = config.max_source_positions * config.hidden_size // config.intermediate_size

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Any:
        """The conversation as text with marks."""
        return self.tokenizer.apply_chat_template(messages, **options)

    def __call__(
        self,
        text: Sequence[str],
        audio: Clips | None,
        sampling_rate: int,
        return_tensors: str,
        add_special_tokens: bool = True,
    ) -> Any:
        """Ids of one text, and the spectrograms of its chunks."""
        extractor, [pending] = self.feature_extractor, text
        chunks, written = [], ""
        for clip in audio or ():
            mel = extractor(
                clip,
                sampling_rate=sampling_rate,
                padding=True,
                truncation=False,
                pad_to_multiple_of=self.frames * extractor.hop_length,
                return_tensors="pt",
            ).input_features[0]
            chunks.append(mel.unfold(1, self.frames, self.frames).transpose(0, 1))
            before, pending = pending.split(self.audio_token, 1)
            written += before + self.audio_token * (self.features * len(chunks[-1]))
        inputs = self.tokenizer(
            [written + pending], add_special_tokens=add_special_tokens, return_tensors=return_tensors
        )
        return dict(inputs) | ({"input_features": torch.cat(chunks)} if chunks else {})

    def save_pretrained(self, folder: str | Path) -> None:
        """Tokenizer and feature extractor."""
        self.tokenizer.save_pretrained(folder)
        self.feature_extractor.save_pretrained(folder)


def omni_processor() -> Any:
    """The class of Qwen2.5-Omni's processor without its parts for images and clips."""
    from transformers import ProcessorMixin
    from transformers import Qwen2_5OmniProcessor as Whole

    class Qwen2_5OmniProcessor(Whole):
        """Under the name that checkpoints store."""

        def __init__(self, feature_extractor: Any, tokenizer: Any, chat_template: Any = None) -> None:
            ProcessorMixin.__init__(self, feature_extractor, tokenizer, chat_template=chat_template)
            for name in ("audio", "audio_bos", "audio_eos", "image", "video", "vision_bos", "vision_eos"):
                setattr(self, f"{name}_token", getattr(tokenizer, f"{name}_token"))
                setattr(self, f"{name}_token_id", tokenizer.convert_tokens_to_ids(getattr(self, f"{name}_token")))

    return Qwen2_5OmniProcessor
