"""Exact verifiers of images of scenes: number, colours, shapes and positions of objects.

Objects are detected without the prompt. Connected pixels that differ from the background form an object; its colour
is that of its median pixel; its shape is the ideal template, stretched to its bounding box, with the largest
intersection over union with its soft mask, if that is at least 0.75. Where an object matches no shape, all of them
together are compared with the words. The detections are then compared with the scene in ``Prompt.answer``. An image
of 32 pixels takes less than a millisecond, without weights or network access. Images of 64, 96, ... pixels show the
same scenes in finer detail; tolerances grow with them.

Every function is a reward: prompts and outputs to one value in [0, 1] each. NaN pixels give NaN. An image that several
rewards look at is read once. ``scene_clean`` monitors quality and should not be trained on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from mmgrpo.scoring import once
from mmgrpo.scoring.manifest import reward
from mmgrpo.toy.scenes import BACKGROUND, COLOURS, PLACES, RELATIONS, SHAPES, SIZE, WORDS, Scene, mask
from mmgrpo.types import Image, Output, Prompt

AGREEMENT = 0.75
"""Smallest intersection over union with an ideal template that names a shape."""

SMALLEST = 8
"""Smallest object, in pixels of an image of 32; smaller specks are not counted, but lower ``scene_clean``."""

NEAR = 4.0
"""Tolerance, in pixels of an image of 32, of the centre of the objects around the requested position."""

_COLOURS = np.array([*COLOURS.values()], np.float32) / 255
_FLAT = np.array([*COLOURS.values(), BACKGROUND], np.float32) / 255
_STRENGTH = 220 / 255


@dataclass(frozen=True)
class Detection:
    """A detected object; ``colour`` and ``shape`` are empty where none fits."""

    colour: str
    shape: str
    x: float
    y: float
    """Centre (x, y) of the bounding box in pixels of an image of 32."""
    agreement: float
    """Intersection over union with the best template, in [0, 1]."""
    agreements: Mapping[str, float]
    """The same with every template that fits the proportions of the box."""
    size: tuple[float, float]
    """Width and height of the bounding box in pixels of an image of 32."""


def see(pixels: Float[np.ndarray, "size size 3"]) -> list[Detection]:
    """Detect the objects of an image (RGB in [0, 1], its size a multiple of 32), without the prompt."""
    scale = len(pixels) / SIZE
    strength = ((1 - pixels.min(-1)) / _STRENGTH).clip(0, 1)
    labels, count = _components(strength > 0.5)
    sizes = np.bincount(labels.ravel())
    objects = [label for label in range(1, count + 1) if sizes[label] >= SMALLEST * scale**2]
    detections = []
    for label in objects:
        region = labels == label
        # Background stays in the soft mask, since antialiased edges are below the threshold of connected pixels.
        detections.append(_classify(pixels, strength * (region | (labels == 0)), region, SHAPES))
    if not all(detection.shape for detection in detections):
        word = _classify(pixels, strength, np.isin(labels, objects), WORDS)
        if word.shape:
            return [word]
    return detections


def _components(on: Bool[np.ndarray, "height width"]) -> tuple[Int[np.ndarray, "height width"], int]:
    """Label 4-connected regions from 1, by joining the runs of each row to those above (union-find)."""
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

    # Runs are ordered by row and start, so the first run above which may touch run i only moves forward.
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


def _classify(
    pixels: Float[np.ndarray, "height width 3"],
    soft: Float[np.ndarray, "height width"],
    region: Bool[np.ndarray, "height width"],
    shapes: Sequence[str],
) -> Detection:
    """Classify the object of the pixels ``region``; ``soft`` is its soft mask, 0 on other objects."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    paint = pixels[region]
    distance = np.square(np.median(paint, 0) - _COLOURS).sum(1)
    best = int(distance.argmin())
    nearest = (np.square(_COLOURS).sum(1) - 2 * paint @ _COLOURS.T).argmin(1)
    pure = distance[best] < 0.35**2 and (nearest == best).mean() >= 0.75
    agreements = _agreements(soft, (top, left, bottom - top, right - left), shapes)
    shape = max(agreements, key=agreements.__getitem__, default="")
    agreement = agreements.get(shape, 0.0)
    colour = tuple(COLOURS)[best] if pure else ""
    scale = len(pixels) / SIZE
    middle = (left + right) / 2 / scale, (top + bottom) / 2 / scale
    size = (right - left) / scale, (bottom - top) / scale
    return Detection(colour, shape if agreement >= AGREEMENT else "", *middle, agreement, agreements, size)


def _agreements(
    soft: Float[np.ndarray, "height width"], box: tuple[int, int, int, int], shapes: Sequence[str]
) -> dict[str, float]:
    """Soft intersection over union of each template and a mask, over the box and a rim of one pixel."""
    top, left, height, width = box
    smallest = 6 * len(soft) / SIZE
    inside = soft[top : top + height, left : left + width]
    painted = soft[max(top - 1, 0) : top + height + 1, max(left - 1, 0) : left + width + 1].sum()
    agreements = {}
    for shape in shapes:
        if shape in SHAPES and not (min(height, width) >= smallest and 2 / 3 <= height / width <= 3 / 2):
            continue
        template = mask(shape, height, width)
        common = inside[template].sum()
        agreements[shape] = float(common / (painted + template.sum() - common))
    return agreements


@reward("Image", reads=("answer",))
def scene_count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the image has as many objects as the prompt requests, otherwise 0."""
    return _score(prompts, outputs, _count)


@reward("Image", reads=("answer",))
def scene_colour(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the set of colours is that of the prompt, otherwise 0."""
    return _score(prompts, outputs, _colour)


@reward("Image", reads=("answer",))
def scene_shape(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the set of shapes (or the word) is that of the prompt, otherwise 0."""
    return _score(prompts, outputs, _shape)


@reward("Image", reads=("answer",))
def scene_position(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the objects are at the requested position, otherwise 0; without one, 1 if there is any object.

    In a relation the two objects are distinguished by colour.
    """
    return _score(prompts, outputs, _position)


@reward("Image", reads=("answer",))
def scene_relation(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the two objects are in the requested relation, otherwise 0; NaN for a prompt without one."""
    return _score(prompts, outputs, _relation)


@reward("Image", reads=("answer",))
def scene_all(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the objects (colour, shape, count) are exactly those of the prompt and in position, otherwise 0."""
    return _score(prompts, outputs, _all)


@reward("Image", reads=("answer",))
def scene_score(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A graded reward for training: the mean of four parts, each in [0, 1]; 1 exactly where ``scene_all`` is 1.

    Parts, with d detected and n requested objects: count, max(0, 1 - |d - n| / n); colours, size of the intersection of
    multisets / max(d, n); (colour, shape) pairs, likewise; position, 0 or 1.
    """
    return _score(prompts, outputs, _grade)


@reward("Image", reads=("answer",))
def scene_fit(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A smooth reward for training: the mean of three parts in [0, 1] that have a slope where verifiers have a step.

    Parts: count as in ``scene_score``; for every requested object the agreement of its shape's template with the best
    object of its colour (each object counts once), summed and divided by the larger of the two counts; position, 1
    where ``scene_position`` is 1, falling linearly to 0 over 16 pixels.
    """
    return _score(prompts, outputs, _fit)


@reward("Image", reads=("answer",), gradient="reward_models.rules.palettes:cleanness")
def scene_clean(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Cleanness of the pixels: mean over pixels of max(0, 1 - distance / 0.25), 1 on images of the data set.

    The distance, in RGB from 0 to 1, is that to the nearest colour of the scenes or the background. It does not depend
    on the prompt and monitors runs that train on the other rewards.
    """
    return [cleanness(pixels) for pixels in _images(prompts, outputs)]


def cleanness(pixels: Float[np.ndarray, "*size 3"]) -> float:
    """Mean over pixels of max(0, 1 - distance / 0.25) from the nearest colour of the scenes or the background."""
    distance = np.stack([np.square(pixels - colour).sum(-1) for colour in _FLAT]).min(0) ** 0.5
    return float(np.maximum(0, 1 - distance / 0.25).mean())


REWARDS: Mapping[str, Callable[[Sequence[Prompt], Sequence[Output]], list[float]]] = {
    fn.__name__: fn
    for fn in (
        scene_count,
        scene_colour,
        scene_shape,
        scene_position,
        scene_relation,
        scene_all,
        scene_score,
        scene_fit,
        scene_clean,
    )
}
"""The verifiers by name."""


def _images(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Float[np.ndarray, "size size 3"]]:
    if len(prompts) != len(outputs):
        raise ValueError(f"scene rewards: got {len(prompts)} prompts and {len(outputs)} outputs, expected equally many")
    arrays = []
    for output in outputs:
        if not isinstance(output, Image):
            raise TypeError(f"scene rewards: got an output of kind {type(output).__name__}, expected an Image")
        channels, height, width = output.pixels.shape
        if channels != 3 or height != width or height % SIZE or not height:
            raise ValueError(
                f"scene rewards: got an image of shape {tuple(output.pixels.shape)}, expected (3, size, size) with a "
                f"multiple of {SIZE}"
            )
        arrays.append(output.pixels.detach().cpu().float().permute(1, 2, 0).numpy())
    return arrays


def _score(
    prompts: Sequence[Prompt], outputs: Sequence[Output], check: Callable[[Scene, Sequence[Detection]], float]
) -> list[float]:
    values = []
    for prompt, detections in zip(prompts, _detections(prompts, outputs), strict=True):
        if not isinstance(prompt.answer, Mapping) or "things" not in prompt.answer:
            raise ValueError(
                f"prompt '{prompt.text}' has no scene as its answer; make such prompts with "
                "mmgrpo.toy.scenes.prompt(mmgrpo.toy.scenes.parse(text)) or read assets/scenes/*.jsonl"
            )
        scene = Scene.from_json(prompt.answer)
        values.append(math.nan if detections is None else float(check(scene, detections)))
    return values


def _detections(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> Sequence[Sequence[Detection] | None]:
    """The objects of every image, None for one that is not finite; once for all rewards of a batch."""

    def compute() -> list[Sequence[Detection] | None]:
        return [see_once(pixels) if np.isfinite(pixels).all() else None for pixels in _images(prompts, outputs)]

    return once("objects of scenes", outputs, compute)


def see_once(pixels: Float[np.ndarray, "size size 3"]) -> Sequence[Detection]:
    """``see``, once for all rewards that look at an image in float32."""
    return _see(pixels.tobytes(), len(pixels))


@lru_cache(maxsize=512)
def _see(pixels: bytes, size: int) -> Sequence[Detection]:
    return tuple(see(np.frombuffer(pixels, np.float32).reshape(size, size, 3)))


def _count(scene: Scene, detections: Sequence[Detection]) -> float:
    return len(detections) == len(scene.objects)


def _colour(scene: Scene, detections: Sequence[Detection]) -> float:
    return {d.colour for d in detections} == {colour for colour, _ in scene.objects}


def _shape(scene: Scene, detections: Sequence[Detection]) -> float:
    return {d.shape for d in detections} == {shape for _, shape in scene.objects}


def _position(scene: Scene, detections: Sequence[Detection]) -> float:
    return _distance(scene, detections) <= 0


def _relation(scene: Scene, detections: Sequence[Detection]) -> float:
    return _position(scene, detections) if scene.place in RELATIONS else math.nan


def _distance(scene: Scene, detections: Sequence[Detection]) -> float:
    """Distance in pixels of the objects to the requested position; 0 without a request, infinite without objects."""
    if not detections:
        return math.inf
    if scene.place in RELATIONS:
        first, second = (_middle([t for t in detections if t.colour == thing.colour]) for thing in scene.things)
        dx, dy = first - second
        x, y = RELATIONS[scene.place]
        miss = max(6 - (dx * x + dy * y), abs(dx * y - dy * x) - 6)
        return float("inf") if math.isnan(miss) else max(0.0, float(miss))
    if not scene.place:
        return 0.0
    x, y = PLACES[scene.place]
    misses = [float(np.abs(_middle(detections) - (x, y)).max())]
    if scene.place != "centre":
        misses += [abs(t.x - x if x != 16 else t.y - y) for t in detections]
    return max(0.0, max(misses) - NEAR)


def _middle(detections: Sequence[Detection]) -> Float[np.ndarray, "2"]:
    return np.array([(t.x, t.y) for t in detections]).mean(0) if detections else np.full(2, np.nan)


def _all(scene: Scene, detections: Sequence[Detection]) -> float:
    return Counter((t.colour, t.shape) for t in detections) == Counter(scene.objects) and _position(scene, detections)


def _grade(scene: Scene, detections: Sequence[Detection]) -> float:
    expected = len(scene.objects)
    most = max(expected, len(detections))
    colours = Counter(t.colour for t in detections) & Counter(colour for colour, _ in scene.objects)
    kinds = Counter((t.colour, t.shape) for t in detections) & Counter(scene.objects)
    count = max(0.0, 1 - abs(len(detections) - expected) / expected)
    return (count + colours.total() / most + kinds.total() / most + _position(scene, detections)) / 4


def _fit(scene: Scene, detections: Sequence[Detection]) -> float:
    expected, free, shapes = scene.objects, list(detections), 0.0
    for colour, shape in expected:
        candidates = [d for d in free if d.colour == colour]
        if candidates:
            best = max(candidates, key=lambda d: d.agreements.get(shape, 0.0))
            shapes += best.agreements.get(shape, 0.0)
            free.remove(best)
    count = max(0.0, 1 - abs(len(detections) - len(expected)) / len(expected))
    place = max(0.0, 1 - _distance(scene, detections) / 16)
    return (count + shapes / max(len(expected), len(detections)) + place) / 3
