"""What reports show of transcripts: error rates of a whole file, and the alignment of each transcript.

Word and character error rates divide all errors by all words (or characters) of the references, as papers report them;
neither is the mean of the sentences' rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmgrpo.scoring import ErrorRate
from mmgrpo.types import Output, Prompt, Text
from reward_models.rules.speech import pairs, transcript
from reward_models.rules.transcripts import aligned, letters_of, word_errors

Split = Callable[[str], Sequence[str]]
Count = Callable[[Sequence[Prompt], Sequence[Output]], list[float]]


def rates(normal: str = "english", **others: Any) -> list[ErrorRate]:
    """Word and character error rate, both sides normalized as in the reward."""
    letters = letters_of(normal)
    return [
        ErrorRate("wer", errors_in(str.split, normal), units_in(str.split, normal)),
        ErrorRate("cer", errors_in(letters, normal), units_in(letters, normal)),
    ]


def annotate(normal: str = "english", **others: Any) -> Callable[..., list[Mapping[str, Any]]]:
    """``aligned``: the words of a transcript beside those of the reference; nothing where there is no reference."""

    def note(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Mapping[str, Any]]:
        return [
            {"aligned": [tuple(pair) for pair in aligned(transcript(prompt), output.text, normal)]}
            if isinstance(output, Text) and isinstance(prompt.answer, str)
            else {}
            for prompt, output in zip(prompts, outputs, strict=True)
        ]

    return note


def errors_in(split: Split, normal: str) -> Count:
    """Substitutions + deletions + insertions of each transcript, in the units into which ``split`` divides a text."""

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        rows = pairs(prompts, outputs, "an error rate", normal)
        return [float(word_errors(split(reference), split(hypothesis))) for _, reference, hypothesis in rows]

    return count


def units_in(split: Split, normal: str) -> Count:
    """Number of words (or characters) of each reference."""

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(split(reference))) for _, reference, _ in pairs(prompts, outputs, "an error rate", normal)]

    return count
