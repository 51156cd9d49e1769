"""Any audio-language model of transformers, through its own processor and its own forward pass.

A family of its own is faster where there is one (``qwen_audio``): it encodes a frozen clip once per run and batches
prompts. Here every prompt is read by the network alone, recordings included, and what the samples of its group share is
tried when the model is loaded (``pipelines.generic_lm``). Two more trials refuse a model whose logits do not depend
on the recording, and a duration beyond which its processor drops the end of a clip.

    load(options)  an ordinary folder or hub id: mistralai/Voxtral-Mini-3B-2507, ibm-granite/granite-speech-3.3-2b,
                   Qwen/Qwen2.5-Omni-3B (its thinker, which hears and writes), zai-org/GLM-ASR-Nano-2512, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.data.chat import conversation
from mmgrpo.data.values import reason_of
from mmgrpo.policies.token_model import Context
from mmgrpo.types import Audio, Media, Prompt, Reference, Turn
from pipelines import require
from pipelines.generic_lm import OwnForward, Read, choose_way, train_decoder
from pipelines.pretrained import locate, read_network, read_part
from pipelines.speech.audio import LONGEST, clip_samples, setting_to_raise
from pipelines.speech.granite import read_granite
from pipelines.speech.options import AudioTextOptions
from pipelines.speech.processors import chat_of_processor, process, read_hearing_processor
from pipelines.training import PLAIN, Training

EXAMPLE = "mistralai/Voxtral-Mini-3B-2507"
"""A hub id, for errors."""

__all__ = ["AudioText", "check_hearing", "load", "thinker_of", "tone"]

THINKERS = {"qwen2_5_omni": "Qwen2_5OmniThinker", "qwen3_omni_moe": "Qwen3OmniMoeThinker"}
"""Models that also speak, and the beginning of the class of their part that hears and writes."""

RATE = 16_000


@dataclass
class AudioText(OwnForward):
    """A model of transformers as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    processor: Any
    seconds: float
    """Maximum duration of a clip; a longer one is refused, not truncated."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    instruction: str = ""
    """Text behind the clips of a prompt that has none."""
    adapted: bool = False
    """The network includes an adapter that its authors switch off for prompts without sound, which are refused."""

    def __post_init__(self) -> None:
        places = ("audio_token", "audio_bos_token", "audio_eos_token", "image_token", "video_token")
        self._set_up(places, chat_of_processor(self.processor))

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Every prompt by the model's processor."""
        return self._context([self._read(prompt) for prompt in prompts])

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder.

        Granite-Speech's own method would add the whole model to the adapters.
        """
        from accelerate.utils import extract_model_from_parallel
        from transformers import PreTrainedModel

        plain: Any = extract_model_from_parallel(network)
        PreTrainedModel.save_pretrained(plain, folder)
        self.processor.save_pretrained(folder)

    def _read(self, prompt: Prompt) -> Read:
        """A prompt as its processor's tensors."""
        for medium in prompt.media:
            if medium.kind != "audio":
                raise ValueError(f"prompt '{prompt.id}': got a medium of kind {medium.kind}, expected audio")
        if self.adapted and not prompt.media:
            raise ValueError(f"prompt '{prompt.id}': got no recording, expected at least one for this model; remove it")
        sounds: Any = getattr(self.processor, "audio_processor", None) or self.processor.feature_extractor
        setting = setting_to_raise(self.seconds, most=LONGEST)
        clips = [clip_samples(prompt, medium, sounds.sampling_rate, self.seconds, setting) for medium in prompt.media]
        messages = conversation(prompt, self.marks, lambda _: [{"type": "audio"}])
        if self.instruction and not prompt.text.strip():
            messages[-1]["content"].append({"type": "text", "text": self.instruction})
        try:
            inputs = process(self.processor, messages, clips, sounds.sampling_rate)
        except Exception as error:  # whatever a processor raises for a prompt that it does not take
            reason = reason_of(error)
            raise ValueError(f"prompt '{prompt.id}': the model's processor does not take it: {reason}") from error
        return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}, ()


def load(options: AudioTextOptions, training: Training = PLAIN) -> AudioText:
    """Load any audio-language model for training.

    Raises FileNotFoundError for a folder that is no model, ValueError for a model of another kind and for one that does
    not hear clips of this duration to their end, ImportError where its processor needs a package.
    """
    require("speech", "transformers", "peft")
    import transformers
    from transformers.models.auto import modeling_auto

    source = locate(options.path, EXAMPLE)
    config = read_part(transformers.AutoConfig, source, trust_remote_code=False)
    kind = str(config.model_type)
    listed = {
        **modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        **modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
    name = thinker_of(kind) or listed.get(kind)
    network_class = getattr(transformers, str(name), None)
    if getattr(config, "is_encoder_decoder", False) or "audio" not in getattr(network_class, "input_modalities", ()):
        raise ValueError(
            f"'{source}': got a model of type '{kind}', expected an audio-language model of transformers; set "
            "model.family to whisper for Whisper, image_text for a model of images, causal_lm for one of text"
        )
    processor = read_hearing_processor(source, config)
    read = read_granite if kind.startswith("granite_speech") else read_network
    network = read(network_class, source, training)
    model = AudioText(
        network,
        processor,
        options.seconds,
        training.compute_dtype,
        torch.device(training.device),
        train_decoder(network, training, options.freeze_encoder),
        training.gradient_checkpointing,
        options.instruction,
        bool(getattr(config, "has_lora_adapter", False)),
    )
    check_hearing(model, model.seconds, f"{source} ({kind})")
    choose_way(model, f"{source} ({kind})", example(tone(min(1.0, options.seconds))))
    return model


def thinker_of(kind: str) -> str:
    """The class of the part that hears and writes of a type of models that also speak; empty for another type."""
    thinker = THINKERS.get(kind.removesuffix("_thinker"))
    return f"{thinker}ForConditionalGeneration" if thinker else ""


def tone(seconds: float, last: float = 0.5) -> Tensor:
    """A tone whose last tenth of a second has the amplitude ``last``."""
    samples = torch.sin(torch.arange(round(seconds * RATE)) * 0.1) / 2
    samples[-RATE // 10 :] *= 2 * last
    return samples


def example(samples: Tensor) -> Prompt:
    """A question about a recording."""
    sound = Media("audio", Audio(samples[None], RATE))
    return Prompt("what is said?", "example", turns=(Turn("user", (sound, "what is said?")),))


@torch.no_grad()
def check_hearing(model: OwnForward, seconds: float, name: str) -> None:
    """ValueError where the end of a clip of ``seconds``, the longest, leaves the inputs as they are, or a recording
    the network's logits."""
    media, other = [model.encode([example(tone(seconds, last))]).media[0] for last in (0.5, 0.1)]
    if all(torch.equal(value, other[key]) for key, value in media.items()):
        raise ValueError(
            f"{name}: its processor drops the end of a clip of model.seconds={seconds:g}, or every recording; "
            "lower model.seconds to what the model hears"
        )
    short = min(1.0, seconds)
    contexts = [model.encode([example(samples)]) for samples in (tone(short), tone(short).flip(0) / 3)]
    first, second = (model.own_logits(context.ids[0].to(model.device), context.media[0])[-1] for context in contexts)
    if torch.equal(first, second):
        raise ValueError(f"{name}: its logits do not depend on the recording, so it would be trained without hearing")
