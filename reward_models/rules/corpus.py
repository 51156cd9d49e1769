"""What reports show of transcripts: error rates of a whole file, and the alignment of each transcript.

Word and character error rates divide all errors by all words (or characters) of the references, as papers report them;
neither is the mean of the sentences' rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmgrpo.scoring import ErrorRate
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.speech import Row, pairs, transcript
from reward_models.rules.spoken_forms import measures
from reward_models.rules.transcripts import (
    BY_LANGUAGE,
    SPOKEN,
    Pair,
    align,
    language_of,
    normalizer,
    rule_for,
    spoken_rule_of,
    version_of,
    word_errors,
)

Units = Callable[[Row], tuple[Sequence[str], Sequence[str]]]
Count = Callable[[Sequence[Prompt], Sequence[Output]], list[float]]


def rates(normal: str = BY_LANGUAGE, **others: Any) -> list[ErrorRate]:
    """Word and character error rate, both sides normalized as in the reward; and for the rules that merge numbers,
    signs and units the collisions: transcripts that count as right although they differ from the reference in one."""
    words: Units = lambda row: row.words  # noqa: E731
    letters: Units = lambda row: row.letters  # noqa: E731
    rule = version_of(normal)
    rates = [
        ErrorRate("wer", errors_in(words, normal), units_in(words, normal), rule),
        ErrorRate("cer", errors_in(letters, normal), units_in(letters, normal), rule),
    ]
    if normal not in (SPOKEN, "raw") and not normal.startswith(f"{SPOKEN}_"):
        single: Count = lambda prompts, outputs: [1.0] * len(outputs)  # noqa: E731
        rates.append(ErrorRate("collisions", collisions_in(normal), single, rule, watched=True))
    return rates


def collisions_in(normal: str) -> Count:
    """1 for each transcript that is equal to its reference by the rule ``normal``, and not in its numbers, signs and
    units as ``spoken`` reads them; else 0."""

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        rows = pairs(prompts, outputs, "a collision", normal)
        texts = [output.text if isinstance(output, Text) else "" for output in outputs]
        return [float(collides(row, transcript(row.prompt), text)) for row, text in zip(rows, texts, strict=True)]

    return count


def collides(row: Row, reference: str, hypothesis: str) -> bool:
    """Whether a row is right by its rule and differs in a number, a sign or a unit."""
    if row.reference != row.hypothesis or reference == hypothesis:
        return False
    spoken = normalizer(spoken_rule_of(language_of(row.prompt), reference))
    return measures(spoken(reference)) != measures(spoken(hypothesis))


def annotate(normal: str = BY_LANGUAGE, **others: Any) -> Callable[..., list[Mapping[str, Any]]]:
    """``aligned``: the words of a transcript aligned with those of the reference; nothing where there is no
    reference."""

    def note(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        return [
            {"aligned": [tuple(pair) for pair in alignment(prompt, output.text, normal)]}
            if isinstance(output, Text) and isinstance(prompt.answer, str)
            else {}
            for prompt, output in zip(prompts, outputs, strict=True)
        ]

    return note


def alignment(prompt: Prompt, text: str, normal: str = BY_LANGUAGE) -> list[Pair]:
    """The words of a transcript aligned with those of the reference, by the rule of the row."""
    reference = transcript(prompt)
    return align(reference, text, rule_for(prompt, normal, reference))


def errors_in(units: Units, normal: str) -> Count:
    """Substitutions + deletions + insertions of each transcript, in ``units``: words or characters."""

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        rows = pairs(prompts, outputs, "an error rate", normal)
        return [float(word_errors(*units(row))) for row in rows]

    return count


def units_in(units: Units, normal: str) -> Count:
    """Number of words (or characters) of each reference."""

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(units(row)[0])) for row in pairs(prompts, outputs, "an error rate", normal)]

    return count
