"""What to do on a screen: one action, written as {"action": "click", "point": [x, y], "input_text": "..."}."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from mmgrpo.types import Prompt, Text
from reward_models.rules.boxes import Box, as_box, inside, scale
from reward_models.rules.reading import literal, malformed, numbers, words

NEAR = 140
"""Pixels within which GUI-R1 takes a click for the gold point."""

TYPED = ("type", "select", "scroll")
"""Actions whose ``input_text`` GUI-R1 compares."""


def ui_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """[same action] + [same action and, if it is a click, its point in the gold box]: 0, 1 or 2 (UI-R1).

    The gold answer is {"action": ..., "box": [x1, y1, x2, y2]} (arXiv:2503.21620); the edge belongs to the box.
    """
    gold, said = _gold(prompt), _action(literal(answer))
    if gold["action"] == "click" and gold["box"] is None:
        malformed(prompt, '"box": [x1, y1, x2, y2] for a click')
    if said is None or said["action"] != gold["action"]:
        return 0.0
    return 1.0 + (said["action"] != "click" or _hit(said, gold["box"], prompt, output))


def gui_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the action is right as GUI-R1 (arXiv:2504.10458) counts it, otherwise 0.

    The action is the same; a click is inside the gold box (not on its edge), or within 140 pixels of the gold point;
    what is typed, selected or scrolled has a word F1 of at least 0.5.
    """
    gold, said = _gold(prompt), _action(literal(answer))
    kind = gold["action"]
    if kind == "click" and gold["box"] is None and gold["point"] is None:
        malformed(prompt, '"box": [x1, y1, x2, y2] or "point": [x, y] for a click')
    if kind in TYPED and not gold["input_text"]:
        malformed(prompt, f'"input_text" that is not empty for "{kind}"')
    if said is None or said["action"] != kind:
        return 0.0
    if kind == "click" and gold["box"] is None:
        return float(said["point"] is not None and math.dist(_pixels(said, prompt, output), gold["point"]) <= NEAR)
    if kind == "click":
        left, top, right, bottom = gold["box"]  # type: ignore[misc]
        x, y = _pixels(said, prompt, output) if said["point"] else (math.nan, math.nan)
        return float(left < x < right and top < y < bottom)
    return float(kind not in TYPED or word_f1(said["input_text"], gold["input_text"]) >= 0.5)


def word_f1(said: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words."""
    mine, theirs = Counter(words(said).split()), Counter(words(gold).split())
    common = (mine & theirs).total()
    return 2 * common / (mine.total() + theirs.total()) if common else 0.0


def _action(value: Any) -> dict[str, Any] | None:
    """The action in a dictionary, or in a list of one; ``coordinate`` is another word for ``point``."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict) or not isinstance(value.get("action"), str):
        return None
    typed = value.get("input_text", "")
    return {
        "action": words(value["action"]),
        "point": numbers(value.get("point", value.get("coordinate")), 2),
        "box": as_box(value.get("box")),
        "input_text": typed if isinstance(typed, str) else "",
    }


def _gold(prompt: Prompt) -> dict[str, Any]:
    action = _action(prompt.answer)
    return malformed(prompt, '{"action": "click", "box": [x1, y1, x2, y2]} or such') if action is None else action


def _pixels(said: dict[str, Any], prompt: Prompt, output: Text) -> tuple[float, float]:
    x, y = scale(prompt, output)
    return said["point"][0] * x, said["point"][1] * y


def _hit(said: dict[str, Any], box: Box, prompt: Prompt, output: Text) -> bool:
    return said["point"] is not None and inside(_pixels(said, prompt, output), box)
