"""Qwen2.5-Omni (arXiv:2503.20215): text, images, videos and sounds in one conversation, in the order given, text out.

Only the thinker, which sees, hears and writes, is loaded and trained; the talker and the vocoder are not read. Images
and videos become patches as in Qwen2.5-VL (``qwen_vl``), sounds are read by the checkpoint's own processor, and the
network's own forward pass encodes both. Positions have three axes, on which a clip takes 25 positions a second, as
many as a sound. The sound of a video file is not heard: give it as a medium of its own.

    load(options)  an ordinary folder or hub id: Qwen/Qwen2.5-Omni-3B
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.data.chat import ChatTemplate, check_prompt_lengths, conversation_text, special_tokens
from mmgrpo.policies.token_model import Context
from mmgrpo.types import Audio, Media, Prompt, Reference, Turn
from pipelines import require
from pipelines.generic_lm import OwnForward, Read, choose_way, train_decoder
from pipelines.pretrained import locate, read_network, read_part, save_network
from pipelines.speech.audio import LONGEST, clip_samples, setting_to_raise
from pipelines.speech.audio_text import RATE, check_hearing, thinker_of, tone
from pipelines.speech.processors import read_hearing_processor
from pipelines.training import PLAIN, Training
from pipelines.vlm.image_text import EXAMPLE_IMAGE
from pipelines.vlm.options import OmniOptions
from pipelines.vlm.qwen_vl import Limits, Patches, limits_of, read_patches

EXAMPLE = "Qwen/Qwen2.5-Omni-3B"
"""A hub id, for errors."""

__all__ = ["QwenOmni", "load"]

KINDS = ("image", "video", "audio")


@dataclass
class QwenOmni(OwnForward):
    """Qwen2.5-Omni's thinker as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    processor: Any
    """The checkpoint's processor, which reads texts and sounds."""
    images: Any
    """The checkpoint's image processor, of which only the settings are used."""
    limits: Limits
    seconds: float
    """Maximum duration of a recording; a longer one is refused, not truncated."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""

    def __post_init__(self) -> None:
        self.chat = ChatTemplate(self.processor, self.template)
        ends = [f"{kind}_{end}_token" for kind in ("vision", "audio") for end in ("bos", "eos")]
        self._set_up([*(f"{kind}_token" for kind in KINDS), *ends], self.chat)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """Conversations with a placeholder for every feature of their media; a prompt that is too long is refused."""
        read = [self._read(prompt) for prompt in prompts]
        rows = [inputs["input_ids"][0].tolist() for inputs, _ in read]
        check_prompt_lengths(prompts, rows, self.limits.max_prompt_tokens, "max_pixels, fps, max_frames")
        return self._context(read)

    def prompt_length(self, prompt: Prompt) -> int:
        """Number of tokens of a prompt, media included."""
        return self._read(prompt)[0]["input_ids"].shape[1]

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder of the thinker."""
        save_network(folder, network, (self.processor, self.images))

    def _read(self, prompt: Prompt) -> Read:
        """A prompt as the tensors of the network and of its positions."""
        rate = self.processor.feature_extractor.sampling_rate
        setting = setting_to_raise(self.seconds, most=LONGEST)
        seen, sounds = [], []
        for medium in prompt.media:
            if medium.kind == "audio":
                sounds.append(clip_samples(prompt, medium, rate, self.seconds, setting))
            else:
                patches = read_patches(medium, prompt, self.limits, self.images, "Qwen2.5-Omni, which also hears")
                seen.append((medium.kind, patches))
        text = conversation_text(self.chat, prompt, self.marks, lambda medium: [{"type": medium.kind}])
        features = self.processor(
            text=[self._without_seen(text, prompt)],
            audio=sounds or None,
            sampling_rate=rate,
            return_tensors="pt",
            **special_tokens(self.tokenizer, text),
        )
        ids = torch.tensor([self._with_seen(features["input_ids"][0].tolist(), seen)])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **patch_tensors(seen)}
        if sounds:
            mask = features["feature_attention_mask"]
            inputs |= {"input_features": features["input_features"], "feature_attention_mask": mask}
            inputs["audio_seqlens"] = mask.sum(1)  # of which the positions of a sound are counted
        return inputs, tuple(patches.size for _, patches in seen)

    def _without_seen(self, text: str, prompt: Prompt) -> str:
        """The conversation with nothing between the ends of each image and clip, which the processor would ask for."""
        for kind in KINDS:
            mark, wanted = self._mark(kind), sum(medium.kind == kind for medium in prompt.media)
            if (marks := text.count(mark)) != wanted:
                raise ValueError(
                    f"prompt '{prompt.id}': got {marks} placeholders of kind {kind} from the model's chat template, "
                    f"expected {wanted}, one per medium; use the template of the checkpoint"
                )
        return text.replace(self._mark("image"), "").replace(self._mark("video"), "")

    def _with_seen(self, ids: Sequence[int], seen: Sequence[tuple[str, Patches]]) -> list[int]:
        """Ids with a placeholder for every feature of each image and clip between its ends."""
        numbers = self.tokenizer.convert_tokens_to_ids
        ends = tuple(numbers([self.processor.vision_bos_token, self.processor.vision_eos_token]))
        remaining, written = iter(seen), []
        for pair in zip(ids, [*ids[1:], -1], strict=True):
            written.append(pair[0])
            if pair == ends:
                kind, patches = next(remaining)
                written += [numbers(self._mark(kind))] * (math.prod(patches.grid) // self.images.merge_size**2)
        return written

    def _mark(self, kind: str) -> str:
        """The placeholder of a kind of media."""
        processor = self.processor
        return {"image": processor.image_token, "video": processor.video_token, "audio": processor.audio_token}[kind]


def patch_tensors(seen: Sequence[tuple[str, Patches]]) -> dict[str, Tensor]:
    """Images and clips as the network takes them, and the seconds between two grids of each clip."""
    tensors: dict[str, Tensor] = {}
    for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        if media := [patches for which, patches in seen if which == kind]:
            tensors[pixels] = torch.cat([medium.patches for medium in media])
            tensors[f"{kind}_grid_thw"] = torch.tensor([medium.grid for medium in media])
    if clips := [patches.seconds for kind, patches in seen if kind == "video"]:
        # The forward pass and the function of positions know them by two names.
        tensors["video_second_per_grid"] = tensors["second_per_grids"] = torch.tensor(clips)
    return tensors


def load(options: OmniOptions, training: Training = PLAIN) -> QwenOmni:
    """Load the thinker of a Qwen2.5-Omni for training.

    ``freeze_vision`` freezes the towers that see and hear where the network itself trains. Raises FileNotFoundError for
    a folder that is no model, ValueError for a model of another kind and for one that does not hear recordings of
    ``seconds`` to their end.
    """
    require("vlm", "transformers", "peft")
    import transformers

    source = locate(options.path, EXAMPLE)
    config = read_part(transformers.AutoConfig, source, trust_remote_code=False)
    kind = str(config.model_type)
    if not kind.startswith("qwen2_5_omni"):
        raise ValueError(
            f"'{source}': got a model of type '{kind}', expected qwen2_5_omni; set model.family to image_text for "
            "another model that sees, audio_text for one that hears"
        )
    network = read_network(getattr(transformers, thinker_of(kind)), source, training)
    images: Any = read_part(transformers.AutoImageProcessor, source, trust_remote_code=False)
    limits = limits_of(options, images)
    model = QwenOmni(
        network,
        read_hearing_processor(source, config),
        images,
        replace(limits, max_prompt_tokens=0),  # which the trials of the checkpoint exceed
        options.seconds,
        training.compute_dtype,
        torch.device(training.device),
        train_decoder(network, training, options.freeze_vision),
        training.gradient_checkpointing,
        options.template,
    )
    name = f"{source} ({kind})"
    check_hearing(model, options.seconds, name)
    sound = Media("audio", Audio(tone(min(1.0, options.seconds))[None], RATE))
    parts = (EXAMPLE_IMAGE, sound, "what is it?")
    choose_way(model, name, Prompt("what is it?", "example", turns=(Turn("user", parts),)))
    model.limits = limits
    return model
