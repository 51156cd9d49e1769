"""Whisper (arXiv:2212.04356), an encoder-decoder: a clip of at most 30 seconds in, or windows of 30 seconds, text out.

The decoder's prefix states language and task and is no decision of the policy; a row's own ``language`` and ``task``
choose it before the options do. Tokens that Whisper's generation config suppresses, and time stamps, have probability 0
in sampling and in scoring alike. With a frozen encoder, the states of a clip are computed once for all its completions.

    load(options)  an ordinary folder or hub id: openai/whisper-tiny.en
    tiny(folder)   the real architecture with random weights and a small vocabulary
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.data.chat import completion_ids, end_tokens
from mmgrpo.data.values import quote, show_value
from mmgrpo.policies.token_model import Context, Features
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Prompt, Reference
from pipelines import require
from pipelines.decoder import head_logits
from pipelines.kv import attention_mask, maskable
from pipelines.pretrained import locate, read_network, read_part, save_network
from pipelines.speech.audio import MAX_SECONDS, clip_samples, duration_of, in_windows, setting_to_raise
from pipelines.speech.by_clip import ClipCache, Clips, attend_by_clip
from pipelines.speech.options import WhisperOptions
from pipelines.speech.whisper_tiny import tiny
from pipelines.training import PLAIN, Training, make_trainable

__all__ = ["LORA_TARGETS", "Whisper", "load", "tiny"]

LORA_TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "encoder_attn.q_proj", "encoder_attn.v_proj")
"""Queries and values of the decoder's self-attention and cross-attention."""

RATE = 16_000
"""Sampling rate in Hz of every Whisper."""

STATES_PER_SECOND = 50
"""Encoder states per second of sound."""


@dataclass
class Whisper:
    """Whisper as the model of a token policy; ``load`` returns one."""

    network: nn.Module
    tokenizer: Any
    extractor: Any
    """The feature extractor, which computes log-mel spectrograms."""
    prefix: tuple[int, ...]
    """Tokens before a transcript: start, language and task of a multilingual model, no time stamps."""
    seconds: float
    """Maximum duration of a clip. The encoder reads 30 seconds, padding included; states beyond this are dropped."""
    dtype: torch.dtype
    device: torch.device
    reference: Reference
    multilingual: bool = False
    language: str = "en"
    """Code of the language of rows that have none."""
    task: str = "transcribe"
    """Task of rows that have none."""
    media_tokens: frozenset[int] = frozenset()
    exact_head: bool = False
    """Compute the output layer in fp32 (``head_logits``)."""

    def __post_init__(self) -> None:
        network: Any = self.network
        config = network.generation_config
        self.end_ids = end_tokens(network, self.tokenizer)
        self.pad_id = int(self.tokenizer.pad_token_id)
        special = {self.tokenizer.convert_tokens_to_ids(token) for token in self.tokenizer.all_special_tokens}
        stamps = range(self.prefix[-1] + 1, network.config.vocab_size)  # <|notimestamps|> is the last token before
        self.suppress_tokens = frozenset({*(config.suppress_tokens or ()), *special, *stamps}) - self.end_ids
        self.begin_suppress_tokens: frozenset[int] = frozenset(config.begin_suppress_tokens or ())
        self.checkpointing = False
        self.frozen_media = not any(p.requires_grad for p in network.model.encoder.parameters())

    @property
    def masks(self) -> bool:
        """Whether ``hidden`` can be given which tokens each token attends to."""
        return maskable(self.network.config)

    def encode(self, prompts: Sequence[Prompt]) -> Context:
        """The decoder's prefix and the spectrogram of every prompt, which has exactly one clip."""
        ids = torch.tensor([self.prefix_of(prompt) for prompt in prompts])
        positions = torch.arange(len(self.prefix)).expand(len(prompts), 1, -1)
        return Context(ids, torch.ones_like(ids, dtype=torch.bool), positions, [self._spectrogram(p) for p in prompts])

    def prefix_of(self, prompt: Prompt) -> tuple[int, ...]:
        """The prefix of a row, by its ``language`` and ``task`` where it has them; ValueError for unknown ones."""
        try:
            language, task = language_of(prompt), task_of(prompt)
            if not (language or task):
                return self.prefix
            return prefix_ids(self.tokenizer, self.multilingual, language or self.language, task or self.task)
        except ValueError as error:
            raise ValueError(f"prompt '{prompt.id}': {error}") from error

    def features(self, network: Any, context: Context) -> Features:
        """The encoder's states of each clip."""
        network.eval()
        mel = put(torch.stack(list(context.media)), self.device)
        with autocast(self.dtype, self.device):
            flat = mel.reshape(-1, *mel.shape[-2:]).to(next(network.parameters()).dtype)  # windows one by one
            states = network.model.encoder(flat).last_hidden_state
        states = states.reshape(len(mel), -1, states.shape[-1])  # those of a clip's windows behind each other
        return list(states[:, : round(self.seconds * STATES_PER_SECOND)].unbind())

    def hidden(
        self,
        network: Any,
        ids: Int[Tensor, "rows length"],
        real: Tensor,
        positions: Int[Tensor, "rows axes length"],
        features: Features,
        cache: Any,
    ) -> tuple[Float[Tensor, "rows length width"], Any]:
        """Last hidden states of the decoder."""
        if network.training:
            network.eval()
        # A cache contains the keys and values of the clips; the decoder then only checks that there are states.
        states = torch.stack(list(features)) if len(features) else torch.empty(len(ids), 1, 1, device=ids.device)
        clips = cache.clips if cache else Clips.of(torch.arange(len(ids)), ids.device)
        with autocast(self.dtype, self.device):
            out = network.model.decoder(
                input_ids=ids,
                attention_mask=attention_mask(network.model.decoder.config, real, self.dtype, ids),
                encoder_hidden_states=states,
                past_key_values=cache.cache if cache else None,
                position_ids=positions[:, 0],
                use_cache=True,
                clip=clips,
            )
        return out.last_hidden_state, ClipCache(out.past_key_values, clips)

    def spread(self, cache: Any, rows: Int[Tensor, "rows"]) -> Any:
        """The cache with rows of transcripts repeated; keys and values of a clip are stored once."""
        return cache.spread(rows)

    def reserve(self, cache: Any, rows: Sequence[int], room: int) -> Any:
        """The same with room for tokens behind each."""
        return cache.reserve(rows, room)

    def logits(self, network: Any, hidden: Float[Tensor, "N width"]) -> Float[Tensor, "N vocabulary"]:
        """Logits of the next token."""
        return head_logits(network.get_output_embeddings(), hidden, self.dtype, self.exact_head)

    def decode(self, ids: Sequence[int]) -> str:
        """The transcript, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True).strip()

    def spell(self, text: str) -> list[int]:
        """Ids of a transcript; Whisper's first word begins with a space."""
        return completion_ids(self.tokenizer, f" {text}", self.end_ids)

    def save(self, folder: Path, network: nn.Module) -> None:
        """Adapters in peft's format, or an ordinary model folder."""
        save_network(folder, network, (self.tokenizer, self.extractor))

    def _spectrogram(self, prompt: Prompt) -> Float[Tensor, "mel frames"] | Float[Tensor, "windows mel frames"]:
        if [medium.kind for medium in prompt.media] != ["audio"]:
            kinds = ", ".join(medium.kind for medium in prompt.media) or "nothing"
            raise ValueError(f"prompt '{prompt.id}': got media of kind {kinds}, expected one recording (Whisper)")
        if text := prompt.text.strip():
            raise ValueError(
                f"prompt '{prompt.id}': got the text {text!r}, expected none, since Whisper takes no instruction; "
                "leave it empty (model.task selects transcription or translation), or train a model that takes one "
                "(qwen_audio)"
            )
        samples = clip_samples(
            prompt, prompt.media[0], RATE, self.seconds, setting_to_raise(self.seconds, windows=True)
        )
        parts = in_windows(samples, RATE)
        parts += [samples[:0]] * (math.ceil(self.seconds / MAX_SECONDS) - len(parts))  # all clips have as many
        mel = self.extractor(parts, sampling_rate=RATE, return_tensors="pt").input_features
        return mel if self.seconds > MAX_SECONDS else mel[0]


TASKS = ("transcribe", "translate")
ENGLISH_START = 50257
"""Id of <|startoftranscript|> in the published English-only vocabulary; in the multilingual ones it is 50258."""


def language_code(name: str) -> str:
    """The code of a language by its code or English name: de, German, mandarin. ValueError for an unknown name; whether
    a code is known depends on the tokenizer (``prefix_ids``)."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

    plain = name.strip().lower()
    code = TO_LANGUAGE_CODE.get(plain, plain)
    if code not in LANGUAGES and not re.fullmatch(r"[a-z]{2,3}", code):  # a language of a fine-tune's own
        raise ValueError(f"unknown language {quote(name)}.{nearest(plain, [*LANGUAGES, *TO_LANGUAGE_CODE])}")
    return code


def language_of(prompt: Prompt) -> str:
    """The code of a row's ``language``; empty where it has none."""
    value = prompt.meta.get("language")
    if value is None or value == "":
        return ""
    if not isinstance(value, str):
        raise ValueError(f"language: got {show_value(value)}, expected a language as a string, e.g. en")
    return language_code(value)


def task_of(prompt: Prompt) -> str:
    """A row's ``task``; empty where it has none."""
    if prompt.task and prompt.task not in TASKS:
        raise ValueError(f"unknown task {quote(prompt.task)}.{nearest(prompt.task, TASKS)}")
    return prompt.task


def check_row(prompt: Prompt) -> None:
    """ValueError, before a model is loaded, for a language or a task that no Whisper knows."""
    try:
        language_of(prompt)
        task_of(prompt)
    except ValueError as error:
        raise ValueError(f"prompt '{prompt.id}': {error}") from error


def is_multilingual(tokenizer: Any, generation: Any, config: Any) -> bool:
    """Whether a checkpoint's prompts state language and task.

    ``is_multilingual`` of its generation config says so; fine-tunes often lack the key. There the tables of languages
    and tasks, forced tokens of both, or else the vocabulary tell: the published English-only one has another id of
    <|startoftranscript|>, although it has the tokens of all languages too.
    """
    if (declared := getattr(generation, "is_multilingual", None)) is not None:
        return bool(declared)
    if getattr(generation, "lang_to_id", None) or getattr(generation, "task_to_id", None):
        return True
    names = {token_id(tokenizer, f"<|{task}|>") for task in TASKS} - {None}
    forced = getattr(generation, "forced_decoder_ids", None) or getattr(config, "forced_decoder_ids", None) or ()
    if any(number in names for _, number in forced):
        return True
    return bool(names) and token_id(tokenizer, "<|startoftranscript|>") != ENGLISH_START


def token_id(tokenizer: Any, token: str) -> int | None:
    """Id of a token; None where the vocabulary lacks it."""
    number = tokenizer.convert_tokens_to_ids(token)
    return None if number is None or number == tokenizer.unk_token_id else int(number)


def prefix_ids(tokenizer: Any, multilingual: bool, language: str, task: str) -> tuple[int, ...]:
    """Ids of start of transcript, language and task of a multilingual model, and no time stamps.

    ValueError where the vocabulary lacks one of them, and for an English-only model that is asked for anything else
    than English transcripts.
    """
    if not multilingual and (language, task) != ("en", "transcribe"):
        setting = f"language {language}" if language != "en" else f"task {task}"
        raise ValueError(f"got {setting}, expected en and transcribe, since this Whisper is English-only")
    middle = [f"<|{language}|>", f"<|{task}|>"] if multilingual else []
    ids = []
    for token in ["<|startoftranscript|>", *middle, "<|notimestamps|>"]:
        if (number := token_id(tokenizer, token)) is None:
            raise ValueError(
                f"the tokenizer of this Whisper has no {token}; choose another language or task (model.language, "
                "model.task, or the row's own)"
            )
        ids.append(number)
    return tuple(ids)


def declared_language(tokenizer: Any, generation: Any, config: Any) -> str:
    """The language that a checkpoint names as its own, as fine-tunes to one language do; empty where it names none."""
    if isinstance(name := getattr(generation, "language", None), str) and name:
        return language_code(name.strip("<|>"))
    for place, number in (
        getattr(generation, "forced_decoder_ids", None) or getattr(config, "forced_decoder_ids", None) or ()
    ):
        if place == 1 and number is not None:
            return str(tokenizer.convert_ids_to_tokens(number)).strip("<|>")
    return ""


def load(options: WhisperOptions, training: Training = PLAIN, *, freeze_embeddings: bool = True) -> Whisper:
    """Load a Whisper model for training.

    Where the network itself trains, ``freeze_embeddings`` freezes its token embedding. An English-only model takes
    en and transcribe only. Lower ``seconds`` are faster, since the decoder attends to fewer encoder states. With
    several ``windows`` of 30 s longer clips are read, whose states follow each other; Whisper was trained on one.

    Raises FileNotFoundError for a folder that is no model, ValueError for options that the checkpoint does not take.
    """
    require("speech", "transformers", "peft")
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
    from transformers.models.whisper import WhisperTokenizerFast  # type: ignore[attr-defined]

    seconds = duration_of(options.seconds, options.windows)
    if training.gradient_checkpointing:
        raise ValueError("gradient_checkpointing: got True, expected False, since family 'whisper' does not support it")
    source = locate(options.path, "openai/whisper-tiny.en")
    network = read_network(WhisperForConditionalGeneration, source, training)
    tokenizer: Any = read_part(WhisperTokenizerFast, source)
    generation = network.generation_config
    multilingual = is_multilingual(tokenizer, generation, network.config)
    try:
        language = language_code(options.language)
        prefix = prefix_ids(tokenizer, multilingual, language, options.task)
    except ValueError as error:
        raise ValueError(f"model.language, model.task: {error}") from error
    if multilingual and (named := declared_language(tokenizer, generation, network.config)) not in ("", language):
        print(
            f"{source}: warning: its generation config names the language {named}, and rows without a language are "
            f"read as {language}; set model.language to {named} if that is what they speak",
            flush=True,
        )
    frozen = [network.model.encoder] if options.freeze_encoder else []
    frozen += [network.get_input_embeddings()] if freeze_embeddings else []
    attend_by_clip(network)
    reference = make_trainable(network, training, LORA_TARGETS, frozen)
    return Whisper(
        network,
        tokenizer,
        read_part(WhisperFeatureExtractor, source),
        prefix,
        seconds,
        training.compute_dtype,
        torch.device(training.device),
        reference,
        multilingual,
        language,
        options.task,
    )
