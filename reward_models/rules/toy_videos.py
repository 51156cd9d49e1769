"""Exact verifiers of clips of moving shapes: number, identity, direction, order and speed of objects.

The objects of every frame are detected as in images of scenes, without the prompt, and then compared with the video in
``Prompt.answer``. One frame of a clip may be wrong (``RIGHT``). A path is the straight line with the least squared
distance to the centres of an object over the frames; an object that leaves its path by more than ``STRAY`` pixels does
not move along it. A clip takes about a millisecond, without weights or network access.

Every function is a reward: prompts and outputs to one value in [0, 1] each. NaN pixels give NaN. ``film_clean``
monitors quality and should not be trained on.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from mmgrpo.scoring.manifest import reward
from mmgrpo.toy.clips import WAYS
from mmgrpo.toy.scenes import SIZE as IMAGE_SIZE
from mmgrpo.toy.videos import FRAMES, SIZE, SPEEDS, Actor, VideoScene
from mmgrpo.types import Output, Prompt, Video
from reward_models.rules.scenes import Detection, cleanness, see

RIGHT = 1 - 1 / FRAMES
"""Smallest share of the frames that have to be right."""

SLOWEST = 0.5
"""Smallest speed along the way, in pixels per frame, and the largest across it."""

STRAY = 1.5
"""Largest distance, in pixels, of an object from its straight path."""

Frames = list[list[Detection]]


@reward("Video", reads=("answer",))
def film_count(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if (almost) every frame has as many objects as it should, otherwise 0; one at a time in "a then b"."""
    return _score(prompts, outputs, lambda scene, frames: float(_share(_counts(scene, frames)) >= RIGHT))


@reward("Video", reads=("answer",))
def film_things(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if (almost) every frame has exactly the objects of the prompt by colour and shape, otherwise 0."""
    return _score(prompts, outputs, lambda scene, frames: float(_share(_things(scene, frames)) >= RIGHT))


@reward("Video", reads=("answer",))
def film_same(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the objects keep their colours and shapes from frame to frame, whatever they are, otherwise 0.

    In "a then b" they may change once.
    """
    return _score(prompts, outputs, _same)


@reward("Video", reads=("answer",))
def film_direction(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if every object moves the way of the prompt, or appears in its order, otherwise 0."""
    return _score(prompts, outputs, lambda scene, frames: float(all(way for way, _ in _motion(scene, frames))))


@reward("Video", reads=("answer",))
def film_speed(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if every object has the speed of the prompt, any where none is mentioned, otherwise 0."""
    return _score(prompts, outputs, lambda scene, frames: float(all(speed for _, speed in _motion(scene, frames))))


@reward("Video", reads=("answer",))
def film_all(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if objects (colour, shape, count), directions, order and speeds are those of the prompt, otherwise 0."""
    return _score(prompts, outputs, _all)


@reward("Video", reads=("answer",))
def film_score(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A graded reward for training: the mean of four parts, each in [0, 1].

    Parts, the first three as means over the frames, with d detected and n requested objects: count, max(0, 1 - |d - n|
    / n); colours, size of the intersection of multisets / max(d, n); (colour, shape) pairs, likewise; and motion, the
    share of the requested objects that move their way (or appear in order), half of it for the speed.
    """
    return _score(prompts, outputs, _grade)


@reward("Video", reads=("answer",))
def film_clean(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Cleanness of the pixels as in ``scene_clean``, 1 on clips of the data set, whatever the prompt."""
    return [cleanness(clip) for clip in _clips(prompts, outputs)]


REWARDS: Mapping[str, Callable[[Sequence[Prompt], Sequence[Output]], list[float]]] = {
    fn.__name__: fn
    for fn in (film_count, film_things, film_same, film_direction, film_speed, film_all, film_score, film_clean)
}
"""The verifiers by name."""


def _clips(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[Float[np.ndarray, "frames 16 16 3"]]:
    if len(prompts) != len(outputs):
        raise ValueError(f"video rewards: got {len(prompts)} prompts and {len(outputs)} outputs, expected equally many")
    arrays = []
    for output in outputs:
        if not isinstance(output, Video):
            raise TypeError(f"video rewards: got an output of kind {type(output).__name__}, expected a Video")
        if output.frames.shape != (FRAMES, 3, SIZE, SIZE):
            raise ValueError(
                f"video rewards: got a clip of shape {tuple(output.frames.shape)}, expected ({FRAMES}, 3, {SIZE}, "
                f"{SIZE}): frames, colours, height and width"
            )
        arrays.append(output.frames.detach().cpu().float().permute(0, 2, 3, 1).numpy())
    return arrays


def _score(
    prompts: Sequence[Prompt], outputs: Sequence[Output], check: Callable[[VideoScene, Frames], float]
) -> list[float]:
    values = []
    for prompt, clip in zip(prompts, _clips(prompts, outputs), strict=True):
        if not isinstance(prompt.answer, list) or not prompt.answer:
            raise ValueError(
                f"prompt '{prompt.text}' has no video as its answer; make such prompts with "
                "mmgrpo.toy.videos.prompt(mmgrpo.toy.videos.parse(text)) or read assets/films/*.jsonl"
            )
        scene = VideoScene.from_json(prompt.answer)
        values.append(check(scene, _watch(clip)) if np.isfinite(clip).all() else math.nan)
    return values


def _watch(clip: Float[np.ndarray, "frames 16 16 3"]) -> Frames:
    """The objects of every frame."""
    return _watch_once(clip.astype(np.float32).tobytes())


@functools.lru_cache(maxsize=1024)
def _watch_once(pixels: bytes) -> Frames:
    """The same of the pixels in fp32; clips are remembered, since a run has several of these rewards.

    A white margin makes a frame as large as an image of a scene.
    """
    frames = np.ones((FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3), np.float32)
    frames[:, :SIZE, :SIZE] = np.frombuffer(pixels, np.float32).reshape(FRAMES, SIZE, SIZE, 3)
    return [see(frame) for frame in frames]


def _share(right: Sequence[float]) -> float:
    return sum(right) / FRAMES


def _expected_names(scene: VideoScene, objects: list[Detection]) -> list[tuple[str, str]]:
    """(colour, shape) of the objects that a frame should have; in "a then b" of the one that it rather has."""
    names = [actor.name for actor in scene.objects]
    if scene.kind != "order":
        return names
    shown = {d.colour for d in objects}
    return names[1:] if names[1][0] in shown and names[0][0] not in shown else names[:1]


def _counts(scene: VideoScene, frames: Frames) -> list[float]:
    return [len(objects) == len(_expected_names(scene, objects)) for objects in frames]


def _things(scene: VideoScene, frames: Frames) -> list[float]:
    return [_names(objects) == Counter(_expected_names(scene, objects)) for objects in frames]


def _names(objects: list[Detection]) -> Counter[tuple[str, str]]:
    return Counter((d.colour, d.shape) for d in objects)


def _same(scene: VideoScene, frames: Frames) -> float:
    casts = Counter(frozenset(_names(objects).items()) for objects in frames)
    kept = casts.most_common(2 if scene.kind == "order" else 1)
    known = all(names and all(colour and shape for (colour, shape), _ in names) for names, _ in kept)
    return float(known and sum(times for _, times in kept) >= RIGHT * FRAMES)


def _motion(scene: VideoScene, frames: Frames) -> list[tuple[bool, bool]]:
    """Of every requested object, whether it moves the way and with the speed of the prompt, known by its colour.

    In "a then b" once for both, whether the order is right.
    """
    if scene.kind == "order":
        first, second = ([t for t, o in enumerate(frames) if {d.colour for d in o} == {a.colour}] for a in scene.actors)
        right = bool(first and second) and first[-1] < second[0]
        return [(right, right)]
    return [motion for actor in scene.actors for motion in _paths(actor, frames)]


def _paths(actor: Actor, frames: Frames) -> list[tuple[bool, bool]]:
    """The same of the objects of one actor; those of several are distinguished across the way."""
    along = np.array(WAYS[actor.way])
    times, places = [], []
    for time, objects in enumerate(frames):
        centres = [np.array((d.x, d.y)) for d in objects if d.colour == actor.colour]
        if len(centres) == actor.count:
            times.append(time)
            places.append(sorted(centres, key=lambda centre: float(centre @ along[::-1])))
    if len(times) < RIGHT * FRAMES:
        return [(False, False)] * actor.count
    motions = []
    for path in np.array(places).swapaxes(0, 1):
        line = np.polynomial.polynomial.polyfit(times, path, 1)
        strayed = np.abs(path - np.polynomial.polynomial.polyval(np.array(times), line).T).max()
        speed, across = float(line[1] @ along), float(np.abs(line[1] @ along[::-1]))
        right = speed >= SLOWEST and across <= SLOWEST and bool(strayed <= STRAY)
        motions.append((right, right and (not actor.speed or abs(speed - SPEEDS[actor.speed]) < 1)))
    return motions


def _all(scene: VideoScene, frames: Frames) -> float:
    return float(_share(_things(scene, frames)) >= RIGHT and all(speed for _, speed in _motion(scene, frames)))


def _grade(scene: VideoScene, frames: Frames) -> float:
    count = colours = things = 0.0
    for objects in frames:
        expected = _expected_names(scene, objects)
        most = max(len(expected), len(objects))
        count += max(0.0, 1 - abs(len(objects) - len(expected)) / len(expected))
        colours += (Counter(d.colour for d in objects) & Counter(colour for colour, _ in expected)).total() / most
        things += (_names(objects) & Counter(expected)).total() / most
    motion = [(way + speed) / 2 for way, speed in _motion(scene, frames)]
    return ((count + colours + things) / FRAMES + sum(motion) / len(motion)) / 4
