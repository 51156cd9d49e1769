"""Text to speech with several codebooks: Higgs Audio v2 of transformers (``HiggsAudioV2ForConditionalGeneration``).

A step of the network draws one code of each of C codebooks, independent of one another given those of earlier steps, by
one head of C x V logits. Each is a decision, so the log-prob of a step is their sum. Codebook c of frame f is
drawn at step 1 + f + c (the delay pattern). As in the library's own sampler,

    step s <= c                        codebook c has the mark of the beginning,
    the first mark of an end at e      codebook c has that mark from step e + c + 1 on, and any may have it before,
    all codebooks have that mark       the utterance ends,

and such a mark is no decision, since nothing else can be drawn there. Top-k, top-p and the resampling of repeated codes
(``ras_win_len``) are off: they are not of the distribution that is scored. There is no voice to clone: rows have no
recordings.

    load(options)  a folder or hub id in transformers' format, and its codec (``model.vocoder_path``), whose class in
                   transformers needs torchaudio
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.data.chat import pad_left, positions_of, token_ids
from mmgrpo.policies.parallel_tokens import Conditions
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Audio, Output, Prompt, Reference
from pipelines import require
from pipelines.conditions import refuse_media
from pipelines.pretrained import locate, read_network, save_network
from pipelines.processors import load_tokenizer
from pipelines.speech import vocoders
from pipelines.speech.options import HiggsAudioOptions
from pipelines.training import PLAIN, Training, checkpoint_layers, make_trainable

EXAMPLE = HiggsAudioOptions.path
"""A hub id, for errors."""

__all__ = ["LORA_TARGETS", "HiggsAudio", "load"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
"""The attention of the model."""


@dataclass
class HiggsAudio:
    """Higgs Audio v2 as the model of a policy that draws tokens several at a time; ``load`` returns one."""

    network: nn.Module
    tokenizer: Any
    voice: vocoders.Vocoder
    training: Training
    reference: Reference
    system: str
    scene: str
    passes: int = 0
    """S, the longest utterance in steps."""
    causal: bool = True
    evaluations_per_row: int = 1

    def __post_init__(self) -> None:
        network: Any = self.network
        self.config = network.config
        self.codebooks = int(self.config.num_codebooks)
        self.device = torch.device(self.training.device)

    def variant(self, passes: int) -> HiggsAudio:
        """The same network with utterances of at most ``passes`` steps; ValueError for too few to hold a frame."""
        if passes <= self.codebooks:
            raise ValueError(
                f"steps: got {passes}, expected more than {self.codebooks}: with its {self.codebooks} codebooks the "
                f"first frame of the model is whole after {self.codebooks + 1} steps"
            )
        return replace(self, passes=passes)

    def order(self, generator: torch.Generator) -> Int[Tensor, "S*C"]:
        """The step of each code: place s C + c is codebook c at step s."""
        return torch.arange(self.passes).repeat_interleave(self.codebooks)

    def encode(self, prompts: Sequence[Prompt]) -> Conditions:
        """Token ids of the conversations, padded on the left."""
        ids, real = pad_left([self.ids(prompt) for prompt in prompts], self.config.pad_token_id)
        return {"ids": put(ids, self.device), "real": put(real, self.device)}

    def ids(self, prompt: Prompt) -> list[int]:
        """A system turn, the scene, and the text as the user's, up to the mark behind which the model speaks;
        ValueError for media, for no text, and for a text with a mark of the model."""
        refuse_media(prompt)
        words = " ".join(prompt.text.split())
        marks = [mark for mark in self.tokenizer.get_added_vocab() if mark in words]
        if not words or marks:
            got = f"a text with {marks[0]}, a mark of the model" if marks else "no text"
            raise ValueError(f"prompt '{prompt.id}': got {got}, expected the words to be spoken; change the row")
        said = [("system", self.system), ("scene", self.scene), ("user", words)]
        turns = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said if text]
        text = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        ids = token_ids(self.tokenizer, text)
        if ids[-1] != self.config.audio_bos_token_id:
            raise ValueError(
                f"model.path: the chat template ends with {text[-40:]!r}, expected the token "
                f"{self.config.audio_bos_token_id} (audio_bos_token_id), behind which the model speaks; take the "
                "chat_template.jinja of transformers' version of the checkpoint"
            )
        return ids

    def check(self, prompt: Prompt) -> None:
        """ValueError for a prompt that the model cannot speak."""
        self.ids(prompt)

    def logits(
        self,
        network: nn.Module,
        conditions: Conditions,
        tokens: Int[Tensor, "N S*C"],
        order: Int[Tensor, "N S*C"],
        number: Int[Tensor, "N"],
    ) -> Float[Tensor, "N S*C V"]:
        """Logits of all codes, in one pass over the prompt and all steps but the last."""
        ids, real, steps = conditions["ids"], conditions["real"], self._steps(tokens)
        spoken = ids.new_full((len(ids), steps.shape[1] - 1), self.config.audio_token_id)
        real = torch.cat([real, torch.ones_like(spoken, dtype=torch.bool)], 1)
        checkpoint_layers(network, self.training.gradient_checkpointing and torch.is_grad_enabled())
        with autocast(self.training.compute_dtype, ids.device):
            out = network(
                input_ids=torch.cat([ids, spoken], 1),
                audio_input_ids=steps[:, :-1],
                attention_mask=real,
                position_ids=positions_of(real)[:, 0],
                use_cache=False,
                logits_to_keep=steps.shape[1],
            )
        return self._mask_codes(out.logits, self._only(steps)).flatten(1, 2)

    def next_logits(
        self, network: nn.Module, conditions: Conditions, tokens: Int[Tensor, "N S*C"], cache: dict[str, Any]
    ) -> Float[Tensor, "N C V"]:
        """Logits of the codes of the next step, with the keys and values of what is before them in the cache."""
        step, real = cache.get("step", 0), conditions["real"]
        steps = self._steps(tokens)[:, : step + 1]
        if step == 0:
            inputs = {"input_ids": conditions["ids"], "position_ids": positions_of(real)[:, 0]}
        else:
            real = torch.cat([real, real.new_ones(len(real), step)], 1)
            inputs = {"audio_input_ids": steps[:, -2:-1], "position_ids": positions_of(real)[:, 0, -1:]}
        checkpoint_layers(network, False)
        with autocast(self.training.compute_dtype, real.device):
            past = cache.get("past")
            out = network(**inputs, attention_mask=real, past_key_values=past, use_cache=True, logits_to_keep=1)
        cache.update(step=step + 1, past=out.past_key_values)
        return self._mask_codes(out.logits, self._only(steps)[:, -1:])[:, 0]

    @torch.no_grad()
    def render(self, prompts: Sequence[Prompt], tokens: Int[Tensor, "N S*C"]) -> list[Output]:
        """The codec's recordings of the frames; one of none is silent for the length of a frame."""
        return [self._recording(prompt, steps) for prompt, steps in zip(prompts, self._steps(tokens), strict=True)]

    def frames(self, steps: Int[Tensor, "S C"]) -> Int[Tensor, "C F"]:
        """The codes of the frames of an utterance without delay; as in the library, marks become the last code."""
        ended = (steps == self.config.audio_stream_eos_id).all(-1).nonzero()
        end = int(ended[0]) if len(ended) else len(steps)
        count = max(0, end - self.codebooks)
        codes = torch.stack([steps[1 + book : 1 + book + count, book] for book in range(self.codebooks)])
        return codes.clamp(max=self.config.audio_stream_bos_id - 1)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, (self.tokenizer,))

    def _recording(self, prompt: Prompt, steps: Int[Tensor, "S C"]) -> Audio:
        codes = self.frames(steps)
        if codes.shape[1]:
            return self.voice.render(prompt, codes)
        silence = self.voice.render(prompt, codes.new_zeros(self.codebooks, 1))
        return replace(silence, samples=torch.zeros_like(silence.samples))

    def _steps(self, tokens: Int[Tensor, "N S*C"]) -> Int[Tensor, "N S C"]:
        return tokens.view(len(tokens), -1, self.codebooks)

    def _only(self, steps: Int[Tensor, "N S C"]) -> Int[Tensor, "N S C"]:
        """The mark that alone can stand at a place, which follows from the steps before it; -1: any code can."""
        begin, end = self.config.audio_stream_bos_id, self.config.audio_stream_eos_id
        book = torch.arange(self.codebooks, device=steps.device)
        number = torch.arange(steps.shape[1], device=steps.device)[:, None]
        marks = (steps == end).long()
        since = marks.amax(-1).cummax(1).values.cumsum(1)  # steps from the first mark of an end on
        over = marks.amin(-1).cummax(1).values
        since, over = (nn.functional.pad(counted[:, :-1], (1, 0))[..., None] for counted in (since, over))
        only = torch.where(number <= book, begin, -1).expand_as(steps)
        return only.masked_fill((since > book) | (over > 0), end)

    def _mask_codes(self, logits: Float[Tensor, "N L C*V"], only: Int[Tensor, "N L C"]) -> Float[Tensor, "N L C V"]:
        """Logits by codebook, -inf for all codes but the one of ``only``."""
        parts = logits.float().unflatten(-1, (self.codebooks, -1))
        codes = torch.arange(parts.shape[-1], device=parts.device)
        only = only[..., None]
        return parts.masked_fill((only >= 0) & (codes != only), -torch.inf)


def load(options: HiggsAudioOptions, training: Training = PLAIN) -> HiggsAudio:
    """Load Higgs Audio v2 for training, and its frozen codec.

    Raises FileNotFoundError for a folder that is no model, and ValueError for a codec of other codes.
    """
    require("speech", "transformers", "peft")
    from transformers import HiggsAudioV2ForConditionalGeneration

    source = locate(options.path, EXAMPLE)
    tokenizer = load_tokenizer(source)
    network = read_network(HiggsAudioV2ForConditionalGeneration, source, training)
    config = network.config
    voice = vocoders.vocoder(options.vocoder, options.vocoder_path, training.device, config.num_codebooks)
    if config.audio_stream_bos_id > voice.size():
        raise ValueError(
            f"model.vocoder: got one of {voice.size()} codes, expected the {config.audio_stream_bos_id} of "
            f"'{options.path}'; name the model's own codec"
        )
    reference = make_trainable(network, training, LORA_TARGETS)
    return HiggsAudio(network, tokenizer, voice, training, reference, options.system, options.scene)
