"""Rewards of recognized speech: hypotheses against the reference transcript in ``Prompt.answer``.

With S substituted, D deleted and I inserted words and N words of the reference, WER = (S + D + I) / N; CER is the same
over characters. Both sides are normalized by one rule (see ``transcripts.normalizer``): that of the row's ``language``,
without one that of the letters of the reference, or ``normal``. Where a language has no spaces between words, every
character is a word. The reference is empty where the recording has no speech; WER is the number of words of the
hypothesis then. ``cap`` bounds it, because a single looping hypothesis would otherwise dominate the statistics of its
group.

All samples of a group share one reference, so ``neg_wer``, ``one_minus_wer`` and (without a cap) ``neg_errors``
give equal advantages where rewards are divided by the std of the group, and different ones where they are not.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.rules.lengths import repeated_fraction
from reward_models.rules.parsing import malformed, texts
from reward_models.rules.transcripts import (
    BY_LANGUAGE,
    align,
    error_rate,
    letters_of,
    normalizer,
    rule_for,
    word_errors,
)

speech_reward = functools.partial(
    reward,
    "Text",
    reads=("answer",),
    packages=("rapidfuzz", "transformers", "whisper_normalizer"),
    extra="speech",
    version=3,
    rates="reward_models.rules.corpus:rates",
    annotate="reward_models.rules.corpus:annotate",
)


def transcript(prompt: Prompt) -> str:
    """The reference of a prompt: a text, empty for a clip without speech."""
    if not isinstance(prompt.answer, str):
        malformed(prompt, 'the transcript as a text ("" for a clip without speech)')
    return prompt.answer


class Row(NamedTuple):
    """A normalized reference and hypothesis, and the name of their rule."""

    prompt: Prompt
    reference: str
    hypothesis: str
    rule: str

    @property
    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        """The words of both."""
        return self.reference.split(), self.hypothesis.split()

    @property
    def letters(self) -> tuple[Sequence[str], Sequence[str]]:
        """The characters of both, spaces included except where every character is a word."""
        split = letters_of(self.rule)
        return split(self.reference), split(self.hypothesis)


def pairs(prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, normal: str) -> list[Row]:
    """Reference and hypothesis of every row, normalized."""
    rows = []
    for prompt, text in zip(prompts, texts(outputs, reward), strict=True):
        reference = transcript(prompt)
        name = rule_for(prompt, normal, reference)
        rule = normalizer(name)
        rows.append(Row(prompt, rule(reference), rule(text.text), name))
    return rows


@speech_reward(range=(-inf, 0.0))
def neg_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """-min(cap, WER), in [-cap, 0] (arXiv:2509.01939, equation 7; the cap is ours)."""
    return [-rate for rate in _rates(prompts, outputs, "neg_wer", cap, normal)]


@speech_reward(range=(-inf, 1.0))
def one_minus_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """1 - min(cap, WER), in [1 - cap, 1] (arXiv:2509.18569)."""
    return [1 - rate for rate in _rates(prompts, outputs, "one_minus_wer", cap, normal)]


@speech_reward(range=(-inf, 0.0))
def neg_errors(
    prompts: Sequence[Prompt], outputs: Sequence[Output], most: float = math.inf, normal: str = BY_LANGUAGE
) -> list[float]:
    """-min(most, S + D + I), which weights long clips more (arXiv:2509.01939, equation 9)."""
    rows = pairs(prompts, outputs, "neg_errors", normal)
    return [-float(min(most, word_errors(*row.words))) for row in rows]


@speech_reward()
def exact_transcript(prompts: Sequence[Prompt], outputs: Sequence[Output], normal: str = BY_LANGUAGE) -> list[float]:
    """1 where hypothesis and reference are equal, otherwise 0 (arXiv:2509.01939, equation 8).

    With normal="raw" case, punctuation and the spelling of numbers count too; only spaces are normalized, and the
    composition of characters (NFC).
    """
    rows = pairs(prompts, outputs, "exact_transcript", normal)
    return [float(row.hypothesis == row.reference) for row in rows]


@speech_reward(range=(-inf, 1.0))
def one_minus_cer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """1 - min(cap, CER), in [1 - cap, 1]. Spaces are characters, except where every character is a word."""
    return [1 - error_rate(*row.letters, cap) for row in pairs(prompts, outputs, "one_minus_cer", normal)]


@speech_reward(range=(-1.0, 1.0))
def cer_wer_blend(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cer: float = 0.6, normal: str = BY_LANGUAGE
) -> list[float]:
    """cer max(0, 1 - CER) + (1 - cer) max(0, 1 - WER): characters smooth the steps of WER in short utterances.

    An empty hypothesis is worth -1 against a reference with words; against an empty reference every one is worth 0.
    """
    if not 0 <= cer <= 1:
        raise ValueError(f"cer_wer_blend: got cer {cer}, expected a weight from 0 to 1")
    values = []
    for row in pairs(prompts, outputs, "cer_wer_blend", normal):
        if not row.reference:
            values.append(0.0)
        elif not row.hypothesis:
            values.append(-1.0)
        else:
            values.append(cer * (1 - error_rate(*row.letters, 1)) + (1 - cer) * (1 - error_rate(*row.words, 1)))
    return values


@speech_reward()
def exp_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], steepness: float = 2.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """exp(-steepness WER), in (0, 1] (Inworld TTS-1, where a recognizer transcribes generated speech)."""
    return [math.exp(-steepness * rate) for rate in _rates(prompts, outputs, "exp_wer", math.inf, normal)]


@speech_reward()
def tanh_cer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], steepness: float = 3.0, normal: str = BY_LANGUAGE
) -> list[float]:
    """1 - tanh(steepness CER), in [0, 1] (CosyVoice 2, Llasa). It saturates: a group of bad hypotheses is near 0."""
    rows = pairs(prompts, outputs, "tanh_cer", normal)
    return [1 - math.tanh(steepness * error_rate(*row.letters)) for row in rows]


@speech_reward(range=(-1.0, 0.0))
def hallucination(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    repeated: float = 0.3,
    invented: float = 0.5,
    alike: float = 0.5,
    normal: str = BY_LANGUAGE,
) -> list[float]:
    """-1 for a hallucinated transcript, otherwise 0 (after the rule-based detector of arXiv:2509.18569).

    Hallucinations are: words against an empty reference; a loop, whose fraction of repeated 3-grams exceeds that of the
    reference by more than ``repeated``; at least 3 inserted words that are more than ``invented`` N; another text or
    language: at least 3 words, none of them correct, and a similarity in characters below ``alike``.
    """
    rows = pairs(prompts, outputs, "hallucination", normal)
    return [-float(_hallucinates(row.reference, row.hypothesis, repeated, invented, alike)) for row in rows]


def _hallucinates(reference: str, hypothesis: str, repeated: float, invented: float, alike: float) -> bool:
    from rapidfuzz.distance import Indel

    if not reference:
        return bool(hypothesis)
    if repeated_fraction(hypothesis.split(), 3) - repeated_fraction(reference.split(), 3) > repeated:
        return True
    kinds = [pair.kind for pair in align(reference, hypothesis, "raw")]
    inserted, words = kinds.count("insert"), len(reference.split())
    if inserted >= 3 and inserted > invented * words:
        return True
    return (
        "equal" not in kinds
        and min(words, len(hypothesis.split())) >= 3
        and Indel.normalized_similarity(reference, hypothesis) < alike
    )


@speech_reward()
def keywords(prompts: Sequence[Prompt], outputs: Sequence[Output], normal: str = BY_LANGUAGE) -> list[float]:
    """Mean of precision and recall of the words or phrases in ``meta.keywords`` (arXiv:2509.18569).

    The list may hold phrases that the reference lacks. 1 where neither reference nor hypothesis holds any of them, 0
    where only one of the two does.
    """
    values = []
    for prompt, reference, hypothesis, name in pairs(prompts, outputs, "keywords", normal):
        phrases = {*_keywords(prompt, name)}
        counts = [Counter({phrase: _count(phrase, text) for phrase in phrases}) for text in (reference, hypothesis)]
        common, expected, predicted = ((counts[0] & counts[1]).total(), counts[0].total(), counts[1].total())
        both = expected and predicted
        values.append((common / predicted + common / expected) / 2 if both else float(expected == predicted))
    return values


@speech_reward(range=(-inf, 0.0))
def biased_wer(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weight: float = 5.0,
    cap: float = 1.5,
    normal: str = BY_LANGUAGE,
) -> list[float]:
    """-min(cap, weighted errors / weighted words of the reference): words of ``meta.keywords`` count ``weight`` times.

    For contextual recognition, where rare names matter (RLBR, arXiv:2601.13409). The paper's own formula was not found:
    the form is ours, and 5 is named in a note on the paper. A substituted or deleted word has the weight of the
    reference's, an inserted one its own. Reference "call zoe now", keyword zoe: "call so now" has -5/7, "fall zoe now"
    -1/7. With ``weight=1``, or an empty list, it is ``neg_wer``.
    """
    if weight <= 0:
        raise ValueError(f"biased_wer: got weight={weight}, expected a number above 0")
    values = []
    for prompt, reference, hypothesis, name in pairs(prompts, outputs, "biased_wer", normal):
        rare = {word for entry in _keywords(prompt, name) for word in entry.split()}
        errors = [pair for pair in align(reference, hypothesis, "raw") if pair.kind != "equal"]
        wrong = sum(weight if (pair.reference or pair.hypothesis) in rare else 1.0 for pair in errors)
        words = sum(weight if word in rare else 1.0 for word in reference.split())
        values.append(-min(cap, wrong / (words or 1.0)))
    return values


def _keywords(prompt: Prompt, normal: str) -> list[str]:
    """The words or phrases in ``meta.keywords``, normalized; ValueError for a prompt without such a list."""
    rule, entries = normalizer(normal), prompt.meta.get("keywords")
    if not isinstance(entries, list | tuple) or not all(isinstance(word, str) and rule(word) for word in entries):
        malformed(prompt, "a list of words or phrases", "meta.keywords")
    return [rule(word) for word in entries]


def _count(phrase: str, text: str) -> int:
    """The number of occurrences of a phrase in a text, word by word."""
    pattern, words = phrase.split(), text.split()
    return sum(words[start : start + len(pattern)] == pattern for start in range(len(words)))


@speech_reward(range=(-inf, 0.0))
def transcript_length(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = BY_LANGUAGE
) -> list[float]:
    """-min(cap, |words of the hypothesis - N| / max(1, N)): a reward of the length, not of the words."""
    lengths = [map(len, row.words) for row in pairs(prompts, outputs, "transcript_length", normal)]
    return [-min(cap, abs(hypothesis - reference) / max(1, reference)) for reference, hypothesis in lengths]


def _rates(prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, cap: float, normal: str) -> list[float]:
    return [error_rate(*row.words, cap) for row in pairs(prompts, outputs, reward, normal)]
