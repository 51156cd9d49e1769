"""Exact verifiers of pictures of scenes: how many objects, which colours, which shapes, where.

A picture is read without looking at the prompt: pixels that differ from the background form connected
objects; an object's colour is that of its median pixel; its shape is the ideal template, stretched to its
bounding box, with which its soft mask agrees best, if the agreement (intersection over union) is at least
0.75. When some object has no shape, all of them together are compared with the words. What was read is then
compared with the scene in ``Prompt.answer``. Under a millisecond a picture; no weights, no network.

Every function is a reward: prompts and outputs to one value in [0, 1] each. NaN pixels give NaN (could not be
scored). ``scene_clean`` is for watching quality: do not train on it, so that it stays an honest witness.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from mmgrpo.toy.scenes import BACKGROUND, COLOURS, PLACES, RELATIONS, SHAPES, SIZE, WORDS, Scene, mask
from mmgrpo.types import Image, Output, Prompt

AGREEMENT = 0.75
"""Least intersection over union with an ideal template."""

SMALLEST = 8
"""Objects of fewer pixels are specks and are not counted (``scene_clean`` sees them)."""

NEAR = 4.0
"""Pixels by which the middle of the objects may be off the place that was asked for."""

_COLOURS = np.array([*COLOURS.values()], np.float32) / 255
_FLAT = np.array([*COLOURS.values(), BACKGROUND], np.float32) / 255
_STRENGTH = 220 / 255


@dataclass(frozen=True)
class Seen:
    """One object as read from the pixels: ``colour`` and ``shape`` are empty where nothing fits."""

    colour: str
    shape: str
    x: float
    y: float
    """Middle of the bounding box in pixels."""
    agreement: float
    """Intersection over union with the best template, 0 to 1."""
    agreements: Mapping[str, float]
    """The same with every template that the box may hold."""


def see(pixels: Float[np.ndarray, "32 32 3"]) -> list[Seen]:
    """Read the objects of a picture (RGB in [0, 1]); prompts play no part."""
    strength = ((1 - pixels.min(-1)) / _STRENGTH).clip(0, 1)
    labels, count = _components(strength > 0.5)
    sizes = np.bincount(labels.ravel(), minlength=count + 1)
    kept = [label for label in range(1, count + 1) if sizes[label] >= SMALLEST]
    seen = []
    for label in kept:
        own = labels == label
        seen.append(_look(pixels, strength * (own | (labels == 0)), own, SHAPES))
    if kept and not all(thing.shape for thing in seen):
        word = _look(pixels, strength, np.isin(labels, kept), WORDS)
        if word.shape:
            return [word]
    return seen


def _components(on: Bool[np.ndarray, "height width"]) -> tuple[Int[np.ndarray, "height width"], int]:
    """Number the regions that hang together by edges, from 1: runs of a row, joined to those above."""
    height, width = on.shape
    edges = np.diff(np.pad(on, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    runs = list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
    parent = list(range(len(runs)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    above = 0
    for i, (row, start, end) in enumerate(runs):
        while runs[above][0] < row - 1 or (runs[above][0] == row - 1 and runs[above][2] <= start):
            above += 1
        j = above
        while j < i and runs[j][0] == row - 1 and runs[j][1] < end:
            parent[root(j)] = root(i)
            j += 1
    numbers: dict[int, int] = {}
    labels = np.zeros((height, width), np.int64)
    for i, (row, start, end) in enumerate(runs):
        labels[row, start:end] = numbers.setdefault(root(i), len(numbers) + 1)
    return labels, len(numbers)


def _look(
    pixels: Float[np.ndarray, "height width 3"],
    soft: Float[np.ndarray, "height width"],
    own: Bool[np.ndarray, "height width"],
    shapes: Sequence[str],
) -> Seen:
    """Name the object of the pixels ``own``; ``soft`` is how strongly a pixel is painted, other objects 0."""
    rows, columns = np.flatnonzero(own.any(1)), np.flatnonzero(own.any(0))
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    paint = pixels[own]
    distance = np.square(np.median(paint, 0) - _COLOURS).sum(-1)
    best = int(distance.argmin())
    nearest = (np.square(_COLOURS).sum(-1) - 2 * paint @ _COLOURS.T).argmin(-1)
    pure = distance[best] < 0.35**2 and (nearest == best).mean() >= 0.75
    agreements = _agreements(soft, (top, left, bottom - top, right - left), shapes)
    shape = max(agreements, key=agreements.__getitem__, default="")
    agreement = agreements.get(shape, 0.0)
    colour = tuple(COLOURS)[best] if pure else ""
    middle = (left + right) / 2, (top + bottom) / 2
    return Seen(colour, shape if agreement >= AGREEMENT else "", *middle, agreement, agreements)


def _agreements(
    soft: Float[np.ndarray, "height width"], box: tuple[int, int, int, int], shapes: Sequence[str]
) -> dict[str, float]:
    """How well each template agrees with a soft mask: sum min / sum max over the box and a rim of a pixel."""
    top, left, height, width = box
    inside = soft[top : top + height, left : left + width]
    painted = soft[max(top - 1, 0) : top + height + 1, max(left - 1, 0) : left + width + 1].sum()
    agreements = {}
    for shape in shapes:
        if shape in SHAPES and not (min(height, width) >= 6 and 2 / 3 <= height / width <= 3 / 2):
            continue
        template = mask(shape, height, width)
        common = inside[template].sum()
        agreements[shape] = float(common / (painted + template.sum() - common))
    return agreements


def scene_count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the picture has as many objects as the prompt asks for, otherwise 0."""
    return _score(prompts, outputs, _count)


def scene_colour(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the colours that occur are exactly those of the prompt, however often, otherwise 0."""
    return _score(prompts, outputs, _colour)


def scene_shape(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the shapes (or word) that occur are exactly those of the prompt, however often, otherwise 0."""
    return _score(prompts, outputs, _shape)


def scene_position(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if objects are where the prompt wants them, otherwise 0; without a place, 1 if there is any object.

    For a relation the two things are told apart by colour.
    """
    return _score(prompts, outputs, _position)


def scene_all(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if exactly the objects of the prompt (colour, shape, count) are there and in place, otherwise 0."""
    return _score(prompts, outputs, _all)


def scene_score(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A graded view for training: the mean of four parts, each in [0, 1]; 1 exactly where ``scene_all`` is 1.

    Parts: count 1 - |seen - wanted| / wanted (at least 0); colours |seen and wanted| / max(seen, wanted), as
    multisets; the same for (colour, shape) pairs; position 0 or 1.
    """
    return _score(prompts, outputs, _graded)


def scene_fit(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A smooth view for training: the mean of three parts in [0, 1] that have a slope where verifiers have a step.

    Parts: count as in ``scene_score``; for every object that is wanted the agreement with its shape's template of
    the object of its colour that fits best (each object serves once), over the larger of the two counts; place,
    1 where ``scene_position`` holds and falling to 0 over 16 pixels beyond.
    """
    return _score(prompts, outputs, _fit)


def scene_clean(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """How clean and flat the pixels are: mean over pixels of max(0, 1 - distance / 0.25), 1 on real pictures.

    The distance is that to the nearest colour of the world or the background, in RGB from 0 to 1. It says
    nothing about the prompt; a run that trains on the other rewards is watched with it.
    """
    values = []
    for output in _images(prompts, outputs):
        paint = output.reshape(-1, 3)
        distance = np.stack([np.square(paint - colour).sum(-1) for colour in _FLAT]).min(0) ** 0.5
        values.append(float(np.maximum(0, 1 - distance / 0.25).mean()))
    return values


REWARDS: Mapping[str, Callable[[Sequence[Prompt], Sequence[Output]], list[float]]] = {
    fn.__name__: fn
    for fn in (scene_count, scene_colour, scene_shape, scene_position, scene_all, scene_score, scene_fit, scene_clean)
}
"""The verifiers by name."""


def _images(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Float[np.ndarray, "32 32 3"]]:
    if len(prompts) != len(outputs):
        raise ValueError(f"scene rewards got {len(prompts)} prompts but {len(outputs)} outputs; give one each")
    arrays = []
    for output in outputs:
        if not isinstance(output, Image):
            raise TypeError(f"scene rewards look at pictures; the output is a {type(output).__name__}, not an Image")
        if output.pixels.shape != (3, SIZE, SIZE):
            raise ValueError(
                f"scene rewards read pictures of 3 x {SIZE} x {SIZE}; this is {tuple(output.pixels.shape)}"
            )
        arrays.append(output.pixels.detach().cpu().float().permute(1, 2, 0).numpy())
    return arrays


def _score(
    prompts: Sequence[Prompt], outputs: Sequence[Output], check: Callable[[Scene, list[Seen]], float]
) -> list[float]:
    values = []
    for prompt, pixels in zip(prompts, _images(prompts, outputs), strict=True):
        if not isinstance(prompt.answer, Mapping) or "things" not in prompt.answer:
            raise ValueError(
                f"prompt '{prompt.text}' has no scene to compare with; make such prompts with "
                "mmgrpo.toy.scenes.prompt(mmgrpo.toy.scenes.parse(text)) or read assets/scenes/*.jsonl"
            )
        scene = Scene.from_json(prompt.answer)
        values.append(float(check(scene, see(pixels))) if np.isfinite(pixels).all() else math.nan)
    return values


def _count(scene: Scene, seen: list[Seen]) -> float:
    return len(seen) == len(scene.objects)


def _colour(scene: Scene, seen: list[Seen]) -> float:
    return {thing.colour for thing in seen} == {colour for colour, _ in scene.objects}


def _shape(scene: Scene, seen: list[Seen]) -> float:
    return {thing.shape for thing in seen} == {shape for _, shape in scene.objects}


def _position(scene: Scene, seen: list[Seen]) -> float:
    return _beyond(scene, seen) <= 0


def _beyond(scene: Scene, seen: list[Seen]) -> float:
    """By how many pixels the objects miss the place that was asked for; 0 where nothing was, infinite without them."""
    if not seen:
        return math.inf
    if scene.place in RELATIONS:
        first, second = (_middle([t for t in seen if t.colour == thing.colour]) for thing in scene.things)
        dx, dy = first - second
        x, y = RELATIONS[scene.place]
        miss = max(6 - (dx * x + dy * y), abs(dx * y - dy * x) - 6)
        return float("inf") if math.isnan(miss) else max(0.0, float(miss))
    if not scene.place:
        return 0.0
    x, y = PLACES[scene.place]
    misses = [float(np.abs(_middle(seen) - (x, y)).max())]
    if scene.place != "centre":
        misses += [abs(t.x - x if x != 16 else t.y - y) for t in seen]
    return max(0.0, max(misses) - NEAR)


def _middle(seen: list[Seen]) -> Float[np.ndarray, "2"]:
    return np.array([(t.x, t.y) for t in seen]).mean(0) if seen else np.full(2, np.nan)


def _all(scene: Scene, seen: list[Seen]) -> float:
    return Counter((t.colour, t.shape) for t in seen) == Counter(scene.objects) and _position(scene, seen)


def _graded(scene: Scene, seen: list[Seen]) -> float:
    wanted = len(scene.objects)
    most = max(wanted, len(seen))
    colours = Counter(t.colour for t in seen) & Counter(colour for colour, _ in scene.objects)
    things = Counter((t.colour, t.shape) for t in seen) & Counter(scene.objects)
    count = max(0.0, 1 - abs(len(seen) - wanted) / wanted)
    return (count + colours.total() / most + things.total() / most + _position(scene, seen)) / 4


def _fit(scene: Scene, seen: list[Seen]) -> float:
    wanted, left, shapes = scene.objects, list(seen), 0.0
    for colour, shape in wanted:
        fitting = [thing for thing in left if thing.colour == colour]
        if fitting:
            best = max(fitting, key=lambda thing: thing.agreements.get(shape, 0.0))
            shapes += best.agreements.get(shape, 0.0)
            left.remove(best)
    count = max(0.0, 1 - abs(len(seen) - len(wanted)) / len(wanted))
    place = max(0.0, 1 - _beyond(scene, seen) / 16)
    return (count + shapes / max(len(wanted), len(seen)) + place) / 3
