"""Recognizers with a CTC head, through transformers' AutoModelForCTC and AutoProcessor: Parakeet, wav2vec 2.0, HuBERT,
WavLM; one clip in, its transcript out, one decision per transcript (``mmgrpo.policies.ctc``).

Every clip goes through the network alone, since padding changes what some of these models compute (group
normalization over time), and once for all transcripts of its group.

    load(options)        an ordinary folder or hub id: facebook/wav2vec2-base-960h, nvidia/parakeet-ctc-0.6b
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Prompt, Reference
from pipelines import require
from pipelines.pretrained import locate, read_network, read_part, save_network
from pipelines.speech.audio import clip_samples, setting_to_raise
from pipelines.speech.options import CtcOptions
from pipelines.training import PLAIN, Training, checkpoint_layers, make_trainable

if TYPE_CHECKING:
    from mmgrpo.config.settings import Config
    from mmgrpo.policies.ctc import CtcPolicy

EXAMPLE = "facebook/wav2vec2-base-960h"
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "Ctc", "load", "policy"]

LORA_TARGETS: Mapping[str, Sequence[str]] = {"wavlm": ("intermediate_dense", "output_dense")}
"""Model type to the adapted modules, where these are not queries and values. WavLM reads the weights of its attention
projections past the modules, so adapters there would have no effect."""

FRONT_ENDS = ("feature_extractor", "subsampling")
"""Names of the convolutions that read the recording."""

SHORTEST = 0.1
"""Seconds; the convolutions of these models need up to 80 ms for one frame."""


@dataclass
class Ctc:
    """A recognizer as the model of a ``CtcPolicy``; ``load`` returns one."""

    network: nn.Module
    processor: Any
    """Feature extractor and tokenizer."""
    seconds: float
    """Maximum duration of a clip."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    checkpointing: bool

    def __post_init__(self) -> None:
        network: Any = self.network
        self.blank = int(network.config.pad_token_id)
        self.rate = int(self.processor.feature_extractor.sampling_rate)

    def encode(self, prompt: Prompt) -> Mapping[str, Tensor]:
        """The input of the network for a prompt, which has exactly one clip: samples, or a spectrogram."""
        if [medium.kind for medium in prompt.media] != ["audio"]:
            kinds = ", ".join(medium.kind for medium in prompt.media) or "nothing"
            raise ValueError(f"prompt '{prompt.id}': got media of kind {kinds}, expected one recording (ctc)")
        if text := prompt.text.strip():
            raise ValueError(
                f"prompt '{prompt.id}': got the text {text!r}, expected none, since a CTC recognizer takes no "
                "instruction; leave it empty, or train a model that takes one (qwen_audio)"
            )
        samples = clip_samples(prompt, prompt.media[0], self.rate, self.seconds, setting_to_raise(self.seconds))
        if len(samples) < SHORTEST * self.rate:
            raise ValueError(
                f"prompt '{prompt.id}': its clip of {len(samples) / self.rate:.3f} s is too short, expected at least "
                f"{SHORTEST:g} s; remove the row"
            )
        inputs = self.processor(audio=samples, sampling_rate=self.rate, return_tensors="pt")
        return {name: put(value, self.device) for name, value in inputs.items()}

    def logits(self, network: Any, clip: Mapping[str, Tensor]) -> Float[Tensor, "frames labels"]:
        """Logits of the frames of a clip, without those of padding."""
        checkpoint_layers(network, self.checkpointing and torch.is_grad_enabled())
        with autocast(self.dtype, self.device):
            logits = network(**clip).logits[0]
        # A spectrogram can end with a frame that is not of the clip, which some models mask.
        model: Any = self.network
        if "attention_mask" not in clip or not hasattr(model, "_get_output_attention_mask"):
            return logits
        return logits[model._get_output_attention_mask(clip["attention_mask"], target_length=len(logits))[0]]

    def decode(self, transcript: Sequence[int]) -> str:
        """The text of labels without blanks; equal ones that follow each other are two letters."""
        return self.processor.tokenizer.decode(list(transcript), skip_special_tokens=True, group_tokens=False).strip()

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, (self.processor,))


def load(options: CtcOptions, training: Training = PLAIN) -> Ctc:
    """Load a CTC recognizer for training.

    Raises FileNotFoundError for a folder that is no model, ValueError for a model of
    another kind.
    """
    require("speech", "transformers", "peft")
    from transformers import AutoConfig, AutoModelForCTC, AutoProcessor
    from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES

    if not 0 < options.seconds <= 30:
        raise ValueError(f"seconds: got {options.seconds:g}, expected more than 0 and at most 30")
    source = locate(options.path, EXAMPLE)
    kind = read_part(AutoConfig, source, trust_remote_code=False).model_type
    if kind not in MODEL_FOR_CTC_MAPPING_NAMES:
        raise ValueError(
            f"'{source}': got a model of type '{kind}', expected one that transformers lists as CTC; choose another "
            "model.family"
        )
    # SpecAugment's mask, which published checkpoints lack, is used in training mode only.
    network = read_network(AutoModelForCTC, source, training, optional=("masked_spec_embed",))
    if any(name.endswith("bias_u") for name, _ in network.named_parameters()):
        # Relative positions are a bias of the attention, whose gradient some fused kernels lack: with and without
        # gradients others would run, and differ in bfloat16 by a tenth of a nat.
        network.set_attn_implementation("eager")
    front = [module for name, module in network.named_modules() if name.rpartition(".")[2] in FRONT_ENDS]
    layers = {name.rpartition(".")[2] for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    usual = [name for name in ("q_proj", "v_proj", "linear_q", "linear_v") if name in layers]
    targets = LORA_TARGETS.get(kind, usual or sorted(layers))
    reference = make_trainable(network, training, targets, front if options.freeze_front_end else [])
    return Ctc(
        network,
        read_part(AutoProcessor, source, trust_remote_code=False),
        options.seconds,
        training.compute_dtype,
        torch.device(training.device),
        reference,
        training.gradient_checkpointing,
    )


def policy(model: Ctc, config: Config, device: str) -> CtcPolicy:
    """The policy of a recognizer."""
    from mmgrpo.policies.ctc import CtcPolicy

    if config.data.reference_in_group:
        raise ValueError(
            "data.reference_in_group: got true, expected false with family 'ctc', whose transcripts are one decision "
            "each; leave it out"
        )
    sampling = config.sampling
    return CtcPolicy(
        model,
        temperature=sampling.temperature,
        search=sampling.search,
        evaluation_temperature=sampling.evaluation_temperature,
        device=device,
    )
