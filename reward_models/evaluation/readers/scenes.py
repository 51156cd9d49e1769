"""The preference set of the embedded scenes: pairs of images of which one is better by a stated rule, from seeds.

A row is {"prompt", "category", "left", "right", "label"}; an image is {"scene": sentence, "seed": number} and
optionally {"damage": [name, strength]}, and is drawn when it is read, so the set is a few kilobytes of text.

The rule: the image that shows what the prompt says is better; of two that do, the undamaged one is better; two
undamaged images that both do are tied.

    colour, count, shape, position   the right image against one that is wrong in this
    noise, texture, blur             the right image, undamaged against damaged
    content_over_quality             right but damaged against wrong but undamaged: content comes first
    tie                              two right images of different seeds

Categories are given in equal numbers. No prompt is in both files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pil

from mmgrpo.report.plots import sample_grid
from mmgrpo.toy import scenes
from mmgrpo.toy.scenes import PLACES, RELATIONS, Scene, Thing
from mmgrpo.types import Image
from reward_models.evaluation import attacks
from reward_models.evaluation.comparison import FIRST, SECOND, TIE, Comparison
from reward_models.evaluation.readers.rows import Row, read_rows

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "scene_pairs"
SIZES = {"train": 3000, "heldout": 400}
"""Pairs of each file."""

DAMAGES: Mapping[str, tuple[float, float]] = {"noise": (0.08, 0.25), "texture": (0.08, 0.25), "blur": (0.8, 1.6)}
"""Damage to the range of its strength (``attacks``)."""
ERRORS = ("colour", "count", "shape", "position")
CATEGORIES = (*ERRORS, *DAMAGES, "content_over_quality", "tie")


def rows(path: str) -> Iterator[Row]:
    """The rows of ``train`` or ``heldout``, or of a file in the same form."""
    return read_rows(str(FOLDER / f"{path}.jsonl") if path in SIZES else path)


def scene_pair(row: Row) -> Comparison:
    """A pair of drawn images, with the scene as the prompt's answer, so verifiers can score them too."""
    try:
        prompt = replace(scenes.prompt(scenes.parse(row.text("prompt"))), id=row.place)
        sides = tuple(draw(row.object(side).values) for side in ("left", "right"))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"without {error}" if isinstance(error, KeyError) else f"that cannot be drawn ({error})"
        raise ValueError(f"{row.place}: got an image {problem}, expected scene, seed and damage") from error
    ranks = row.choice("label", {"left": FIRST, "right": SECOND, "tie": TIE})
    return Comparison(prompt, sides, ranks, row.place, row.text("category"))


def draw(image: Mapping[str, Any]) -> Image:
    """The image that a row describes."""
    drawn = scenes.image(scenes.parse(image["scene"]), image["seed"])
    if "damage" in image:
        name, strength = image["damage"]
        drawn = attacks.DAMAGES[name](drawn, np.random.default_rng(image["seed"]), strength)
    return drawn


def wrong(scene: Scene, error: str, generator: np.random.Generator) -> Scene | None:
    """The scene with one error in it; None where it cannot have this one (a position without a place)."""
    number = int(generator.integers(len(scene.things)))
    thing = scene.things[number]
    taken = {other.colour for other in scene.things}
    if error == "position":
        places = PLACES if len(scene.things) == 1 else RELATIONS
        others = [place for place in places if place != scene.place and _fits(replace(scene, place=place))]
        return replace(scene, place=others[int(generator.integers(len(others)))]) if scene.place and others else None
    changes: list[Thing] = {
        "colour": [replace(thing, colour=colour) for colour in scenes.COLOURS if colour not in taken],
        "shape": [replace(thing, shape=shape) for shape in scenes.SHAPES if shape != thing.shape],
        "count": [replace(thing, count=count) for count in (1, 2, 3) if count != thing.count],
    }[error]
    changed = [replace(scene, things=(*scene.things[:number], new, *scene.things[number + 1 :])) for new in changes]
    possible = [variant for variant in changed if _fits(variant)]
    return possible[int(generator.integers(len(possible)))] if possible else None


def _fits(scene: Scene) -> bool:
    """Whether a sentence describes this scene."""
    return scene in scenes.scenes(scene.kind)


def make(split: str) -> Iterator[dict[str, Any]]:
    """The rows of a split, a function of its name alone."""
    seed = int.from_bytes(hashlib.blake2b(split.encode(), digest_size=4).digest())
    generator, categories, count = np.random.default_rng(seed), itertools.cycle(CATEGORIES), 0
    category = next(categories)
    for scene in itertools.cycle(scenes.splits()[split]):
        if count == SIZES[split]:
            return
        row = _pair(scene, category, generator)
        if row is not None:
            yield row
            count, category = count + 1, next(categories)


def _pair(scene: Scene, category: str, generator: np.random.Generator) -> dict[str, Any] | None:
    def describe(shown: Scene, damage: str = "") -> dict[str, Any]:
        strength = round(float(generator.uniform(*DAMAGES[damage])), 2) if damage else 0.0
        seed = int(generator.integers(1 << 20))
        return {"scene": scenes.text(shown), "seed": seed} | ({"damage": [damage, strength]} if damage else {})

    better, worse = describe(scene), describe(scene)
    if category in DAMAGES:
        worse = describe(scene, category)
    elif category != "tie":
        error = category if category in ERRORS else ERRORS[int(generator.integers(len(ERRORS)))]
        other = wrong(scene, error, generator)
        if other is None:
            return None
        worse = describe(other)
        if category == "content_over_quality":
            better = describe(scene, tuple(DAMAGES)[int(generator.integers(len(DAMAGES)))])
    swapped = bool(generator.integers(2))
    left, right = (worse, better) if swapped else (better, worse)
    label = "tie" if category == "tie" else "right" if swapped else "left"
    return {"prompt": scenes.text(scene), "category": category, "left": left, "right": right, "label": label}


def write(folder: Path = FOLDER) -> None:
    """Write both files and a sheet of examples: python -m reward_models.evaluation.readers.scenes."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SIZES:
        lines = [json.dumps(row, separators=(",", ":")) for row in make(split)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    sheet().quantize(64).save(folder / "examples.png", optimize=True)


def sheet(split: str = "heldout", each: int = 2) -> Pil.Image:
    """The first pairs of every category side by side, for people: the better one is named below."""
    chosen = [row for name in CATEGORIES for row in itertools.islice(_of(split, name), each)]
    images = [draw(row.object(side).values) for row in chosen for side in ("left", "right")]
    captions = [f"{row.text('prompt')}\n{row.text('category')}: {row.text('label')}" for row in chosen]
    return sample_grid(images, [text for caption in captions for text in (caption, "")], columns=4 * each, tile=128)


def _of(split: str, category: str) -> Iterator[Row]:
    return (row for row in rows(split) if row.values["category"] == category)


if __name__ == "__main__":
    write()
