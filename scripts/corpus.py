"""What is told of all transcripts of a file at once: error rates as papers report them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmgrpo.evaluation import ErrorRate
    from mmgrpo.report.audio_player import Aligned
    from mmgrpo.types import Output, Prompt

NORMAL = "english"
"""The rule that makes transcripts comparable where no reward names another."""

Count = Callable[["Sequence[Prompt]", "Sequence[Output]"], "list[float]"]


def error_rates(rewards: Sequence[str]) -> list[ErrorRate]:
    """Word and character error rate of runs whose rewards compare transcripts (reward_models.SPEECH); else none.

    Both sides are normalized as the first of these rewards does it.
    """
    from mmgrpo.evaluation import ErrorRate
    from reward_models.rules.transcripts import letters_of

    if not (normal := normal_of(rewards)):
        return []
    letters = letters_of(normal)
    return [
        ErrorRate("wer", errors_in(str.split, normal), units_in(str.split, normal)),
        ErrorRate("cer", errors_in(letters, normal), units_in(letters, normal)),
    ]


def normal_of(rewards: Sequence[str]) -> str:
    """How the first reward that compares transcripts normalizes them; empty where there is no such reward."""
    from mmgrpo.registry import parse
    from reward_models import SPEECH

    said = [parameters.get("normal", NORMAL) for name, parameters in map(parse, rewards) if name in SPEECH]
    return said[0] if said else ""


def errors_in(cut: Callable[[str], Sequence[str]], normal: str) -> Count:
    """Substitutions, deletions and insertions of each transcript, in what ``cut`` makes of it."""
    from reward_models.rules.speech import pairs
    from reward_models.rules.transcripts import word_errors

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        rows = pairs(prompts, outputs, "an error rate", normal)
        return [float(word_errors(cut(wanted), cut(said))) for _, wanted, said in rows]

    return count


def units_in(cut: Callable[[str], Sequence[str]], normal: str) -> Count:
    """Words (or characters) of each reference."""
    from reward_models.rules.speech import pairs

    def count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
        return [float(len(cut(wanted))) for _, wanted, _ in pairs(prompts, outputs, "an error rate", normal)]

    return count


def aligner(rewards: Sequence[str]) -> Callable[[Prompt, Output], Aligned]:
    """A transcript word by word beside what was said, normalized as ``error_rates``.

    Nothing without such rewards, and where it is not known what was said.
    """
    from mmgrpo.types import Text
    from reward_models.rules.speech import transcript
    from reward_models.rules.transcripts import aligned

    normal = normal_of(rewards)

    def align(prompt: Prompt, output: Output) -> Aligned:
        if not normal or not isinstance(output, Text) or not isinstance(prompt.answer, str):
            return []
        return [tuple(pair) for pair in aligned(transcript(prompt), output.text, normal)]

    return align
