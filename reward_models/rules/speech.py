"""Rewards of recognized speech: a transcript against what was said (``Prompt.answer``; empty where nothing was).

With S, D, I substituted, deleted and inserted words and N words of the reference, WER = (S + D + I) / N; CER is the
same over characters. Both sides are normalized (``normal``: see ``transcripts.normalizer``). Against an empty
reference WER is the number of words said. ``cap`` bounds it, since one hypothesis that loops would otherwise own the
statistics of its group.

Within a group the reference is one, so that ``neg_wer``, ``one_minus_wer`` and (without a cap) ``neg_errors`` give
the same advantages where they are divided by the group's std; they differ where they are not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mmgrpo.types import Output, Prompt
from reward_models.rules.lengths import repeated_share
from reward_models.rules.reading import malformed
from reward_models.rules.tags import texts
from reward_models.rules.transcripts import aligned, error_rate, letters_of, normalizer, word_errors


def transcript(prompt: Prompt) -> str:
    """The reference of a prompt: a text, empty where nothing is said in the clip."""
    if not isinstance(prompt.answer, str):
        malformed(prompt, 'the transcript as a text ("" where nothing is said)')
    return prompt.answer


def pairs(
    prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, normal: str
) -> list[tuple[Prompt, str, str]]:
    """Of every row its prompt and the normalized reference and hypothesis."""
    rule = normalizer(normal)
    rows = zip(prompts, texts(outputs, reward), strict=True)
    return [(prompt, rule(transcript(prompt)), rule(text.text)) for prompt, text in rows]


def neg_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = "english"
) -> list[float]:
    """-min(cap, WER): in [-cap, 0] (arXiv:2509.01939, equation 7, with the cap)."""
    return [-rate for rate in _rates(prompts, outputs, "neg_wer", cap, normal)]


def one_minus_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = "english"
) -> list[float]:
    """1 - min(cap, WER): in [1 - cap, 1] (arXiv:2509.18569)."""
    return [1 - rate for rate in _rates(prompts, outputs, "one_minus_wer", cap, normal)]


def neg_errors(
    prompts: Sequence[Prompt], outputs: Sequence[Output], most: float = math.inf, normal: str = "english"
) -> list[float]:
    """-min(most, S + D + I): bad and long clips weigh more (arXiv:2509.01939, equation 9)."""
    rows = pairs(prompts, outputs, "neg_errors", normal)
    return [-float(min(most, word_errors(wanted.split(), said.split()))) for _, wanted, said in rows]


def exact_transcript(prompts: Sequence[Prompt], outputs: Sequence[Output], normal: str = "english") -> list[float]:
    """1 where hypothesis and reference are the same, otherwise 0 (arXiv:2509.01939, equation 8).

    With normal="raw" case, punctuation and how numbers are written count too, only spaces do not.
    """
    return [float(said == wanted) for _, wanted, said in pairs(prompts, outputs, "exact_transcript", normal)]


def one_minus_cer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = "english"
) -> list[float]:
    """1 - min(cap, CER). Spaces are characters, except with normal="characters"."""
    cut = letters_of(normal)
    rows = pairs(prompts, outputs, "one_minus_cer", normal)
    return [1 - error_rate(cut(wanted), cut(said), cap) for _, wanted, said in rows]


def cer_wer_blend(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cer: float = 0.6, normal: str = "english"
) -> list[float]:
    """cer max(0, 1 - CER) + (1 - cer) max(0, 1 - WER): characters smooth what words make steep in short utterances.

    An empty hypothesis is worth -1 where something was said; against an empty reference all are worth 0.
    """
    if not 0 <= cer <= 1:
        raise ValueError(f"cer_wer_blend: the weight cer is {cer}; wanted 0 to 1")
    cut, values = letters_of(normal), []
    for _, wanted, said in pairs(prompts, outputs, "cer_wer_blend", normal):
        if not wanted:
            values.append(0.0)
        elif not said:
            values.append(-1.0)
        else:
            letters = 1 - error_rate(cut(wanted), cut(said), 1)
            values.append(cer * letters + (1 - cer) * (1 - error_rate(wanted.split(), said.split(), 1)))
    return values


def exp_wer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], steepness: float = 2.5, normal: str = "english"
) -> list[float]:
    """exp(-steepness WER): in (0, 1] (Inworld TTS-1, where a recognizer judges what was spoken)."""
    return [math.exp(-steepness * rate) for rate in _rates(prompts, outputs, "exp_wer", math.inf, normal)]


def tanh_cer(
    prompts: Sequence[Prompt], outputs: Sequence[Output], steepness: float = 3.0, normal: str = "english"
) -> list[float]:
    """1 - tanh(steepness CER): in [0, 1] (CosyVoice 2, Llasa). It saturates: all of a bad group are near 0."""
    cut = letters_of(normal)
    rows = pairs(prompts, outputs, "tanh_cer", normal)
    return [1 - math.tanh(steepness * error_rate(cut(wanted), cut(said))) for _, wanted, said in rows]


def hallucination(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    repeated: float = 0.3,
    invented: float = 0.5,
    alike: float = 0.5,
    normal: str = "english",
) -> list[float]:
    """-1 where the transcript is not of this clip, otherwise 0 (after the rule-based detector of arXiv:2509.18569).

    It is one of: words against an empty reference; a loop (the share of repeated 3-grams is above that of the
    reference by more than ``repeated``); at least 3 inserted words that are more than ``invented`` N; another text
    or language (3 words or more, none of them right, and similarity in characters below ``alike``).
    """
    rows = pairs(prompts, outputs, "hallucination", normal)
    return [-float(_hallucinates(wanted, said, repeated, invented, alike)) for _, wanted, said in rows]


def _hallucinates(wanted: str, said: str, repeated: float, invented: float, alike: float) -> bool:
    from rapidfuzz.distance import Indel

    if not wanted or not said:
        return bool(said)
    if repeated_share(said.split(), 3) - repeated_share(wanted.split(), 3) > repeated:
        return True
    kinds = [pair.kind for pair in aligned(wanted, said, "raw")]
    inserted, words = kinds.count("insert"), len(wanted.split())
    if inserted >= 3 and inserted > invented * words:
        return True
    return (
        "equal" not in kinds
        and min(words, len(said.split())) >= 3
        and Indel.normalized_similarity(wanted, said) < alike
    )


def keywords(prompts: Sequence[Prompt], outputs: Sequence[Output], normal: str = "english") -> list[float]:
    """Mean of precision and recall of the words or phrases in ``meta.keywords`` (arXiv:2509.18569).

    The list may name more than is said in the clip. 1 where none of them is said and none is heard; 0 where only one
    of the two holds.
    """
    rule, values = normalizer(normal), []
    for prompt, wanted, said in pairs(prompts, outputs, "keywords", normal):
        listed = prompt.meta.get("keywords")
        if not isinstance(listed, list | tuple) or not all(isinstance(word, str) and rule(word) for word in listed):
            malformed(prompt, "a list of words or phrases", "meta.keywords")
        phrases = {rule(word) for word in listed}
        spoken, heard = (Counter({phrase: _count(phrase, text) for phrase in phrases}) for text in (wanted, said))
        right, named, there = (counts.total() for counts in (spoken & heard, heard, spoken))
        values.append((right / named + right / there) / 2 if named and there else float(named == there))
    return values


def _count(phrase: str, text: str) -> int:
    """How often the words of a phrase stand in a text, one after the other."""
    wanted, words = phrase.split(), text.split()
    return sum(words[place : place + len(wanted)] == wanted for place in range(len(words)))


def transcript_length(
    prompts: Sequence[Prompt], outputs: Sequence[Output], cap: float = 1.5, normal: str = "english"
) -> list[float]:
    """-min(cap, |words said - N| / N): it asks for the right length, not for the right words."""
    lengths = [
        (len(wanted.split()), len(said.split()))
        for _, wanted, said in pairs(prompts, outputs, "transcript_length", normal)
    ]
    return [-min(cap, abs(said - wanted) / max(1, wanted)) for wanted, said in lengths]


def _rates(prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, cap: float, normal: str) -> list[float]:
    rows: list[tuple[Prompt, str, str]] = pairs(prompts, outputs, reward, normal)
    return [error_rate(wanted.split(), said.split(), cap) for _, wanted, said in rows]
