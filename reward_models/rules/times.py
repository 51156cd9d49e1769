"""Temporal grounding and tracking: intervals (start, end) in seconds, and a box for each frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.boxes import as_box, check_inside, iou, to_original
from reward_models.rules.parsing import (
    MAX_CHARACTERS,
    between,
    complete,
    literal,
    malformed,
    meta_number,
    numbers,
    with_signs,
)
from reward_models.rules.quantities import folded, quantity

Span: TypeAlias = tuple[float, float]

_CLOCK = r"(?:\d+:)?\d{1,2}:\d{2}(?:\.\d+)?"
_TIME = rf"({_CLOCK}|-?\d+(?:\.\d*)?)(?:\s*(ms|s|secs?|seconds?|mins?|minutes?|h|hours?)\b\.?)?"
_SPAN = re.compile(
    rf"(?<![\w.,:/+-])(?<![\w.,:/+-]\s-){_TIME}\s+(?:to|and|until)\s+{_TIME}(?![\w%:/]|[.,]\d|\s?-\s?\d)(?!\s*(?:frames?|%)\b)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(rf"(?<![\w.,:/+-])(?<![/+-]\s)(?!-){_TIME}(?:\s?-\s?)(?=\d)", re.IGNORECASE)
_ANGLED = re.compile(rf"<\s?{_TIME}\s?>", re.IGNORECASE)
_ANGLED_PAIR = re.compile(rf"<\s?{_TIME}\s?>(?:,\s?|\s?-\s?|\s)(?=<)", re.IGNORECASE)
_SECONDS = {"m": 60.0, "h": 3600.0, "s": 1.0}


def as_span(value: Any) -> Span | None:
    """A pair of finite numbers, the first not above the second; None for everything else."""
    pair = numbers(value, 2)
    return (pair[0], pair[1]) if pair and pair[0] <= pair[1] else None


def temporal_overlap(a: Span, b: Span) -> float:
    """Length of the intersection / length of the hull, which is the union where the two overlap."""
    common = min(a[1], b[1]) - max(a[0], b[0])
    hull = max(a[1], b[1]) - min(a[0], b[0])
    return max(0.0, common) / hull if hull > 0 else 0.0


def time_r1(prediction: Span, gold: Span, duration: float) -> float:
    """Overlap * (1 - |start - start'| / duration) * (1 - |end - end'| / duration) (Time-R1, arXiv:2503.13377).

    Factors are at least 0: two negative ones, of ends further off than the clip is long, would give a positive reward.
    """
    start, end = (max(0.0, 1 - abs(s - g) / duration) for s, g in zip(prediction, gold))
    return temporal_overlap(prediction, gold) * start * end


def merge(spans: Sequence[Span]) -> list[Span]:
    """The union of spans as disjoint spans in order."""
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = (disjoint[-1][0], max(end, disjoint[-1][1]))
        else:
            disjoint.append((start, end))
    return disjoint


def overlap_of_many(a: Sequence[Span], b: Sequence[Span]) -> float:
    """Length of the intersection of two unions of spans / length of their union; 1 where both are empty."""
    if not a and not b:
        return 1.0
    a, b = merge(a), merge(b)
    common = sum(max(0.0, min(p[1], q[1]) - max(p[0], q[0])) for p in a for q in b)
    union = sum(end - start for start, end in (*a, *b)) - common
    return common / union if union > 0 else 0.0


def read_span(text: str) -> Span | None:
    """The span of JSON with start_time and end_time, of a pair, or of the last "12.5 to 17" or "12.5 and 17".

    Case is ignored, as in the released patterns of Time-R1 and VideoChat-R1. Times may be written with their unit
    ("1 to 2 minutes" is 60 to 120) or as a clock shows them ("1:02 to 1:30"), with a dash of any kind between them
    ("5.0s - 10.0s", TimeChat's) or in angles ("<5>, <10>"). "-5 - 10", where a dash may be a sign, is unreadable.
    """
    value = literal(text)
    if isinstance(value, dict):
        return as_span([read_time(value.get(end)) for end in ("start_time", "end_time")])
    if isinstance(value, list | tuple):
        return as_span([read_time(end) for end in value])
    plain = _ANGLED.sub(_inside, _ANGLED_PAIR.sub(lambda pair: f"{_inside(pair)} to ", folded(text[:MAX_CHARACTERS])))
    plain = _BETWEEN.sub(lambda start: f"{_inside(start)} to ", plain)
    matches = _SPAN.findall(with_signs(plain))
    if not matches:
        return None
    start, first, end, second = matches[-1]
    return as_span([_seconds(start, first or second), _seconds(end, second or first)])


def _inside(match: re.Match[str]) -> str:
    """The time that a pattern with ``_TIME`` has read, with its unit."""
    return f"{match[1]} {match[2]}" if match[2] else match[1]


def read_time(value: Any) -> Any:
    """A time in seconds of a number or of a text such as "12.5", "12.5 s", "2 min" or "1:02"."""
    if not isinstance(value, str):
        return value
    if clock := re.fullmatch(_CLOCK, folded(value).strip()):
        return _seconds(clock[0], "")
    found = quantity(value)
    if found is None or found.kind not in ("", "time"):
        return None
    return float(found.value * found.factor) if found.kind else float(found.value)


def _seconds(text: str, unit: str) -> float | None:
    """Seconds of a number in a unit (none: seconds), or of what a clock shows."""
    if ":" in text:
        *hours, minutes, seconds = text.split(":")
        sixty = float(seconds) < 60 and (int(minutes) < 60 or not hours)
        return int(hours[0] if hours else 0) * 3600 + int(minutes) * 60 + float(seconds) if sixty else None
    return float(text) * (0.001 if unit.lower() == "ms" else _SECONDS[(unit.lower() or "s")[0]])


@verifier(version=2)
def temporal_iou(answer: str, prompt: Prompt, output: Text) -> float:
    """``temporal_overlap`` with the gold span (VideoChat-R1, Time-R1); 0 for a reversed span."""
    gold, prediction = _gold_span(prompt), read_span(answer)
    return temporal_overlap(prediction, gold) if prediction else 0.0


@verifier(version=2)
def temporal_time_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """``time_r1``; ``meta.duration`` is the duration of the clip in seconds."""
    gold, prediction, duration = _gold_span(prompt), read_span(answer), meta_number(prompt, "duration")
    if duration <= 0:
        malformed(prompt, "the duration of the clip in seconds, above 0", "meta.duration")
    return time_r1(prediction, gold, duration) if prediction else 0.0


@verifier()
def temporal_multi(answer: str, prompt: Prompt, output: Text) -> float:
    """``overlap_of_many`` with the gold spans (VideoChat-R1); 0 if any span is reversed.

    The answer is a list of (start, end), the content of ``<glue>`` where the completion has one.
    """
    gold = _spans(prompt.answer)
    if gold is None:
        malformed(prompt, "a list of [start, end], which may be empty")
    glue = between(output.text, "<glue>", "</glue>")
    prediction = _spans(literal(glue[-1] if glue else answer))
    return 0.0 if prediction is None else overlap_of_many(prediction, gold)


@verifier()
def tracking_iou(answer: str, prompt: Prompt, output: Text) -> float:
    """Mean IoU over the frames; 0 unless there are exactly as many boxes as in the gold answer (VideoChat-R1)."""
    gold = complete(map(as_box, prompt.answer)) if isinstance(prompt.answer, list | tuple) else None
    if not gold:
        malformed(prompt, "a list of one [x1, y1, x2, y2] for each frame")
    check_inside(prompt, gold)
    prediction = literal(answer)
    if not isinstance(prediction, list | tuple) or len(prediction) != len(gold):
        return 0.0
    pairs = zip(map(as_box, prediction), gold, strict=True)
    return sum(iou(to_original(box, prompt, output), reference) for box, reference in pairs if box) / len(gold)


def _gold_span(prompt: Prompt) -> Span:
    span = read_span(prompt.answer) if isinstance(prompt.answer, str) else as_span(prompt.answer)
    if span is None or span[0] == span[1]:
        malformed(prompt, "[start, end] with start < end")
    return span


def _spans(value: Any) -> list[Span] | None:
    return complete(map(as_span, value)) if isinstance(value, list | tuple) else None
