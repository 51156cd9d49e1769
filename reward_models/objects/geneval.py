"""GenEval (arXiv:2310.11513): does an image contain the objects of its prompt, so many, in these colours and places.

These are its rules, apart from the detector: a function ``detector`` names what it sees, and the clauses of the prompt
are compared with it. ``meta.include`` and ``meta.exclude`` are those of GenEval's metadata.jsonl, lists of clauses

    {"class": "cup", "count": 1, "color": "red", "position": ["left of", 0]}

where ``color`` and ``position`` may be missing, and 0 is the place of another clause in the list. Its accuracy is that
of the detector: with another one than Mask2Former the numbers are not those of the benchmark.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from jaxtyping import Bool

from mmgrpo.config import plugins
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.pixels import image_outputs

geneval_reward = functools.partial(reward, "Image", range=(-inf, 1), source="GenEval, arXiv:2310.11513")

MOST = 16
"""Detections of a class that count, the surest first."""

RELATIONS = ("left of", "right of", "above", "below")


@dataclass(frozen=True)
class Detected:
    """An object that a detector sees."""

    name: str
    """Its class."""
    box: tuple[float, float, float, float]
    """x1, y1, x2, y2, in any unit; y grows downwards."""
    score: float = 1.0
    """How sure the detector is, in [0, 1]."""
    colour: str = ""
    """Empty where the detector tells none, which is an error only for prompts that name colours."""
    mask: Bool[np.ndarray, "height width"] | None = None


Detector = Callable[[Sequence[Image]], Sequence[Sequence[Detected]]]


@geneval_reward(reads=("meta.include", "meta.exclude", "meta.tag"))
def geneval(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    detector: str,
    mode: str = "official",
    threshold: float = 0.3,
    counting_threshold: float = 0.9,
) -> list[float]:
    """Whether the objects of the prompt are in the image, seen by ``detector``, a function ``module:function`` from
    images to lists of ``Detected``.

    ``mode``: official (0 or 1; more objects than requested are right), strict (0 or 1; the exact number), flow_grpo
    (graded, at most 1; see ``graded_score``). Only detections surer than ``threshold`` count, in prompts with
    ``meta.tag`` "counting" than ``counting_threshold``; both are those of Mask2Former, and have to be chosen anew for
    another detector. An image that is not finite is NaN.
    """
    if mode not in MODES:
        raise ValueError(f"geneval: got mode {mode!r}, expected one of {', '.join(MODES)}")
    images = image_outputs(outputs, "geneval")
    finite = [image for image in images if image is not None]
    detections = iter(_detector(detector)(finite) if finite else ())
    values = []
    for prompt, image in zip(prompts, images, strict=True):
        least = counting_threshold if prompt.meta.get("tag") == "counting" else threshold
        clauses = clauses_of(prompt, "include"), clauses_of(prompt, "exclude")
        values.append(math.nan if image is None else MODES[mode](*clauses, objects(next(detections), least)))
    return values


@geneval_reward(reads=("answer", "meta.include", "meta.exclude"))
def geneval_lite(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    detector: str = "reward_models.objects.scenes:detect",
    mode: str = "strict",
    threshold: float = 0.3,
) -> list[float]:
    """``geneval`` with one threshold for all prompts and a detector that needs no large weights: by default the one of
    the embedded scenes, which sees nothing but their shapes."""
    return geneval(prompts, outputs, detector, mode, threshold, threshold)


def clauses_of(prompt: Prompt, kind: str) -> Sequence[Mapping[str, Any]]:
    """The clauses ``include`` or ``exclude`` of a prompt; those to include, of an embedded scene, are its things."""
    clauses = prompt.meta.get(kind, [])
    if kind == "include" and not clauses and isinstance(prompt.answer, Mapping) and "things" in prompt.answer:
        return scene_clauses(prompt.answer)
    where = f"geneval: prompt '{prompt.id}' ({prompt.text!r}): meta.{kind}"
    if not isinstance(clauses, Sequence) or (kind == "include" and not clauses):
        raise ValueError(f"{where}: got {clauses!r}, expected a list of clauses as in GenEval's metadata.jsonl")
    for place, clause in enumerate(clauses):
        count = clause.get("count") if isinstance(clause, Mapping) else None
        if not isinstance(clause, Mapping) or not isinstance(clause.get("class"), str):
            raise ValueError(f'{where}[{place}]: got {clause!r}, expected {{"class": ..., "count": ...}}')
        if type(count) is not int or count < 1:
            raise ValueError(f"{where}[{place}]: count: got {count!r}, expected a whole number of at least 1")
        position = clause.get("position")
        if position is not None and not _is_position(position, place):
            raise ValueError(
                f"{where}[{place}]: position: got {position!r}, expected [one of {', '.join(RELATIONS)}, place of an "
                "earlier clause]"
            )
    return clauses


def _is_position(position: Any, place: int) -> bool:
    two = isinstance(position, Sequence) and len(position) == 2
    return two and position[0] in RELATIONS and type(position[1]) is int and 0 <= position[1] < place


def scene_clauses(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The clauses of a scene (mmgrpo/toy/scenes.py), whose detector gives objects of a colour a class of their own. In
    a relation the second thing is looked for first, as in GenEval; the place of a lone thing is no clause."""
    things = [{"class": f"{colour} {shape}", "count": count} for count, colour, shape in answer["things"]]
    if answer["place"] in RELATIONS:
        first, second = things
        return [second, {**first, "position": [answer["place"], 0]}]
    return things


def objects(detections: Sequence[Detected], threshold: float) -> dict[str, list[Detected]]:
    """Class to its detections above the threshold, the surest first, at most ``MOST``."""
    by_class: dict[str, list[Detected]] = {}
    for detection in sorted(detections, key=lambda detection: -detection.score):
        of_class = by_class.setdefault(detection.name, [])
        if detection.score > threshold and len(of_class) < MOST:
            of_class.append(detection)
    return by_class


Clauses = Sequence[Mapping[str, Any]]
Found = Mapping[str, Sequence[Detected]]


def correct(include: Clauses, exclude: Clauses, detections: Found, exact: bool = False) -> float:
    """1 if every clause of ``include`` and none of ``exclude`` holds, else 0.

    The ``count`` surest objects of a clause's class must exist, be as many of its colour, and all be in relation to all
    objects of the other clause, which must hold itself. With ``exact`` there must be no more objects of the class.
    """
    right, groups = True, list[Sequence[Detected] | None]()
    for clause in include:
        of_class, count = detections.get(clause["class"], ()), clause["count"]
        group = of_class if exact else of_class[:count]
        holds = len(group) == count and ("color" not in clause or _of_colour(group, clause["color"]) == count)
        if holds and clause.get("position"):
            relation, target = clause["position"]
            others = groups[target]
            holds = others is not None and all(relation in relations(a, b) for a in group for b in others)
        right = right and holds
        groups.append(group if holds else None)
    return float(right and all(len(detections.get(clause["class"], ())) < clause["count"] for clause in exclude))


def graded_score(include: Clauses, exclude: Clauses, detections: Found) -> float:
    """The reward on which Flow-GRPO (arXiv:2505.05470) trained, in its released form: the mean of these terms.

    Of every clause 1 - |count - found| / count, which may be negative. If the number is wrong, a clause with a colour
    or a position adds 0. Otherwise a colour adds 1 - |count - of this colour| / count; a position adds 0 where the
    other clause does not hold, 1 where all pairs are in relation, and 0 and 1 where one is not, so such an image
    gets half a point more than its authors may have meant. ``exclude`` does not count.
    """
    terms, groups = list[float](), list[Sequence[Detected] | None]()
    for clause in include:
        group, count = detections.get(clause["class"], ()), clause["count"]
        terms.append(1 - abs(count - len(group)) / count)
        holds = len(group) == count
        if not holds and ("color" in clause or clause.get("position")):
            terms.append(0.0)
        if holds and "color" in clause:
            coloured = _of_colour(group, clause["color"])
            terms.append(1 - abs(count - coloured) / count)
            holds = coloured == count
        if holds and clause.get("position"):
            relation, target = clause["position"]
            others = groups[target]
            holds = others is not None and all(relation in relations(a, b) for a in group for b in others)
            terms += [0.0] if others is None else [1.0] if holds else [0.0, 1.0]
        groups.append(group if holds else None)
    return sum(terms) / len(terms)


MODES: Mapping[str, Callable[[Clauses, Clauses, Found], float]] = {
    "official": correct,
    "strict": functools.partial(correct, exact=True),
    "flow_grpo": graded_score,
}


def relations(first: Detected, other: Detected) -> set[str]:
    """Where ``first`` is, seen from ``other``. The offset of the centres is reduced by a tenth of both sizes in x and
    in y; a direction counts where its share of the offset is more than half."""
    offset, reduced = [], []
    for low, high in ((0, 2), (1, 3)):
        size = first.box[high] - first.box[low] + other.box[high] - other.box[low]
        offset.append((first.box[low] + first.box[high] - other.box[low] - other.box[high]) / 2)
        reduced.append(math.copysign(max(abs(offset[-1]) - 0.1 * size, 0.0), offset[-1]))
    if all(abs(part) < 1e-3 for part in reduced):
        return set()
    x, y = (part / math.hypot(*offset) for part in reduced)
    return {name for name, part in (("left of", -x), ("right of", x), ("above", -y), ("below", y)) if part > 0.5}


def _of_colour(group: Sequence[Detected], colour: str) -> int:
    if not all(detection.colour for detection in group):
        raise ValueError(
            f"geneval: a prompt asks for the colour {colour!r}, and the detector tells none of a "
            f"'{next(detection.name for detection in group if not detection.colour)}'; name a detector that does"
        )
    return sum(detection.colour == colour for detection in group)


@functools.cache
def _detector(name: str) -> Detector:
    return plugins.load_object(name, "geneval: detector")
