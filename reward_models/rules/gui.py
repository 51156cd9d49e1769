"""Actions on a screen, written as {"action": "click", "point": [x, y], "input_text": "..."}."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from mmgrpo.types import Prompt, Text
from reward_models.rules import verifier
from reward_models.rules.grounding import Box, as_box, check_inside, inside, scale
from reward_models.rules.parsing import literal, malformed, numbers, words

NEAR = 140
"""Pixels within which GUI-R1 counts a click as one on the gold point."""

NEAR_FRACTION = 0.14
"""Fraction of the screen within which TON counts a click as one on the gold position."""

PLACED = ("click", "swipe")
"""Actions of Mobile-R1 that have a place."""

TEXT_ACTIONS = ("type", "select", "scroll")
"""Actions whose ``input_text`` GUI-R1 compares."""


@verifier(range=(0, 2))
def ui_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """[same action] + [same action and, for a click, its point in the gold box]: 0, 1 or 2 (UI-R1).

    The gold answer is {"action": ..., "box": [x1, y1, x2, y2]} (arXiv:2503.21620); the edge belongs to the box.
    """
    gold, prediction = _gold(prompt), _action(literal(answer))
    if gold["action"] == "click" and gold["box"] is None:
        malformed(prompt, '"box": [x1, y1, x2, y2] for a click')
    if prediction is None or prediction["action"] != gold["action"]:
        return 0.0
    return 1.0 + (prediction["action"] != "click" or _hit(prediction, gold["box"], prompt, output))


@verifier()
def mobile_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """1 for the right action, otherwise 0: a click or swipe whose point, its first one, is in the gold box, any other
    action that is the gold one in kind and text (the action-level reward of Mobile-R1, arXiv:2506.20332).

    The gold answer is {"action": "click", "box": [x1, y1, x2, y2]}; the edge belongs to the box.
    """
    gold, prediction = _gold(prompt), _action(literal(answer))
    if gold["action"] in PLACED and gold["box"] is None:
        malformed(prompt, f'"box": [x1, y1, x2, y2] for a {gold["action"]}')
    if prediction is None or prediction["action"] != gold["action"]:
        return 0.0
    if gold["action"] in PLACED:
        return float(_hit(prediction, gold["box"], prompt, output))
    return float(prediction["input_text"] == gold["input_text"])


@verifier()
def gui_r1(answer: str, prompt: Prompt, output: Text) -> float:
    """1 if the action is correct by the rule of GUI-R1 (arXiv:2504.10458), otherwise 0.

    The action must be the gold one; a click must be inside the gold box, not on its edge, or within 140 pixels of the
    gold point; the text of an action that types, selects or scrolls needs a word F1 of at least 0.5.
    """
    gold, prediction = _gold(prompt), _action(literal(answer))
    kind = gold["action"]
    if kind == "click" and gold["box"] is None and gold["point"] is None:
        malformed(prompt, '"box": [x1, y1, x2, y2] or "point": [x, y] for a click')
    if kind in TEXT_ACTIONS and not gold["input_text"]:
        malformed(prompt, f'a non-empty "input_text" for "{kind}"')
    if prediction is None or prediction["action"] != kind:
        return 0.0
    if kind == "click" and gold["box"] is None:
        point = prediction["point"]
        return float(point is not None and math.dist(_pixels(prediction, prompt, output), gold["point"]) <= NEAR)
    if kind == "click":
        left, top, right, bottom = gold["box"]  # type: ignore[misc]
        x, y = _pixels(prediction, prompt, output) if prediction["point"] else (math.nan, math.nan)
        return float(left < x < right and top < y < bottom)
    return float(kind not in TEXT_ACTIONS or word_f1(prediction["input_text"], gold["input_text"]) >= 0.5)


@verifier(range=(0, 2))
def ton(answer: str, prompt: Prompt, output: Text) -> float:
    """[same action] + [same action and, for a click, at most 0.14 from the gold position]: 0, 1 or 2 (TON).

    Both sides are {"action": "click", "position": [x, y]}, in fractions of width and height (arXiv:2505.16854). In the
    released code, which evaluates the answer as Python, an action without a place is worth 1 at most.
    """
    gold, prediction = _gold(prompt), _action(literal(answer))
    if gold["action"] == "click" and gold["position"] is None:
        malformed(prompt, '"position": [x, y] for a click, in fractions of width and height')
    if prediction is None or prediction["action"] != gold["action"]:
        return 0.0
    if gold["action"] != "click":
        return 2.0
    place = prediction["position"]
    return 1.0 + float(place is not None and math.dist(place, gold["position"]) <= NEAR_FRACTION + 1e-9)


def word_f1(prediction: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words."""
    prediction_counts, gold_counts = Counter(words(prediction).split()), Counter(words(gold).split())
    common = (prediction_counts & gold_counts).total()
    return 2 * common / (prediction_counts.total() + gold_counts.total()) if common else 0.0


def _action(value: Any) -> dict[str, Any] | None:
    """The action of a dictionary, or of a list of one; ``coordinate`` is accepted for ``point``.

    ``position`` is a list or, as in TON's data, the text of one.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict) or not isinstance(value.get("action"), str):
        return None
    input_text, position = value.get("input_text", ""), value.get("position")
    return {
        "action": words(value["action"]),
        "point": numbers(value.get("point", value.get("coordinate")), 2),
        "position": numbers(literal(position) if isinstance(position, str) else position, 2),
        "box": as_box(value.get("box")),
        "input_text": input_text if isinstance(input_text, str) else "",
    }


def _gold(prompt: Prompt) -> dict[str, Any]:
    action = _action(prompt.answer)
    if action is None:
        malformed(prompt, '{"action": "click", "box": [...]} or another action')
    check_inside(prompt, [box for box in [action["box"]] if box])
    return action


def _pixels(prediction: dict[str, Any], prompt: Prompt, output: Text) -> tuple[float, float]:
    x, y = scale(prompt, output)
    return prediction["point"][0] * x, prediction["point"][1] * y


def _hit(prediction: dict[str, Any], box: Box, prompt: Prompt, output: Text) -> bool:
    return prediction["point"] is not None and inside(_pixels(prediction, prompt, output), box)
