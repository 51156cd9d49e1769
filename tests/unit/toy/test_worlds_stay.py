"""The embedded worlds are those that the embedded models were trained on: what a seed draws never changes unseen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

from mmgrpo.toy import clips, questions, scenes
from mmgrpo.types import Image, Prompt


def digest(parts: Iterator[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part + b"\0")
    return whole.hexdigest()[:16]


def content(prompts: list[Prompt]) -> Iterator[bytes]:
    """Texts, answers, meta and pixels in 255 levels."""
    for prompt in prompts:
        source = prompt.media[0].source
        pixels = source.pixels if isinstance(source, Image) else source.frames
        yield repr((prompt.id, prompt.text, prompt.answer, prompt.task, sorted(prompt.meta.items()))).encode()
        yield (pixels * (255 if pixels.is_floating_point() else 1)).round().byte().numpy().tobytes()


@pytest.mark.parametrize(
    ("split", "seed", "expected"),
    [("train", 0, "7eb0b909accb86f5"), ("heldout", 0, "6815e6bd9330260d"), ("tune", 3, "053df747c7f21637")],
)
def test_a_seed_asks_the_same_questions_about_the_same_pictures_and_clips(split, seed, expected):
    assert digest(content(clips.mixture(split, 80, seed))) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("one", "71e156bc0e2f74c9"),
        ("many", "1b2d66c19d0cb1ea"),
        ("mixed", "b4febf1d6fd0ef7e"),
        ("relation", "4f7394873afa9d6b"),
    ],
)
def test_a_seed_draws_the_same_pictures_of_a_scene(kind, expected):
    """Without written words, whose letters are those of a font."""
    some = scenes.scenes(kind)[::7]
    drawn = [scenes.render(scene, seed) for scene in some for seed in (0, 1)]
    assert digest(one.tobytes() for one in drawn) == expected


def test_prompts_of_scenes_are_those_of_the_files():
    texts = [scenes.text(scene) for kind in scenes.KINDS for scene in scenes.scenes(kind)]
    assert digest(text.encode() for text in texts) == "39e019f95f8d512f"
    assert len(texts) == len(set(texts)) and all(scenes.text(scenes.parse(text)) == text for text in texts)
    assert digest(word.encode() for word in scenes.vocabulary()) == "c5d32a0641d60eb7"


def test_a_picture_has_one_to_six_things_that_never_touch():
    drawn = [questions.image(np.random.default_rng(seed)) for seed in range(400)]
    counts = [len(things) for things in drawn]
    assert sorted(set(counts)) == [1, 2, 3, 4, 5, 6] and min(counts.count(n) for n in range(1, 7)) > 40
    for things in drawn:
        smallest, largest = {1: (16, 40), 2: (14, 28), 3: (14, 28), 4: (14, 28)}.get(len(things), (10, 18))
        for number, thing in enumerate(things):
            left, top, right, bottom = thing.box
            assert right - left == bottom - top and smallest <= right - left <= largest
            assert left >= 0 and top >= 0 and right <= 64 and bottom <= 64
            for other in things[:number]:
                apart = other.box[0] > right or left > other.box[2] or other.box[1] > bottom or top > other.box[3]
                assert apart
