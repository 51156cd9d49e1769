"""Tiles whose patterns cannot be seen from afar: nothing of the overview depends on them."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.cli import questions as written
from mmgrpo.toy import peek
from mmgrpo.toy.questions import split_of
from mmgrpo.toy.scenes import COLOURS
from mmgrpo.types import Image, Prompt
from tests.unit.toy.test_worlds_stay import content, digest


def pixels_of(prompt: Prompt) -> torch.Tensor:
    """Of its only image, 0 to 1."""
    (shown,) = prompt.media
    assert isinstance(shown.source, Image)
    return shown.source.pixels


def test_a_pattern_inks_half_of_every_block():
    """8 of its 16 pixels, so the mean lies halfway from the paper to the colour: red (220, 35, 35) is
    (238, 145, 145) on white, as 237.5 is rounded to the even number, and (206, 113, 145) on the paper (191, 191, 255)
    of the right column and the lower row."""
    for pattern in peek.PATTERNS:
        tiles = 4 * [("red", pattern)]
        inked = (peek.tile(tiles, 0)[..., 1] == 35).reshape(2, 4, 2, 4)
        assert (inked.sum((1, 3)) == 8).all()
        for place, mean in ((0, (238, 145, 145)), (3, (206, 113, 145))):
            assert (peek.overview(peek.tile(tiles, place)) == mean).all()


@pytest.mark.parametrize("colours", [("red", "green", "blue", "yellow"), ("black", "purple", "red", "blue")])
def test_all_256_images_of_four_colours_have_one_overview(colours):
    seen = {
        peek.overview(peek.whole([*zip(colours, patterns)])).tobytes()
        for patterns in product(peek.PATTERNS, repeat=len(colours))
    }
    assert len(seen) == 1


def test_from_near_all_tiles_differ_and_from_afar_all_colours():
    for place in range(4):
        tiles = [peek.tile(4 * [one], place).tobytes() for one in product(COLOURS, peek.PATTERNS)]
        assert len(set(tiles)) == len(tiles) == 24
    far = [
        peek.overview(peek.tile(4 * [(colour, "bars")], place))[0, 0].astype(int)
        for colour in COLOURS
        for place in range(4)
    ]
    assert min(abs(one - other).max() for one, other in combinations(far, 2)) > 10


def test_a_prompt_shows_the_overview_and_asks_for_one_of_its_tiles():
    for prompt in peek.prompts("tune", 40):
        tiles, asked = prompt.meta["tiles"], prompt.meta["asked"]
        assert len({colour for colour, _ in tiles}) == 4
        assert prompt.text == f"which pattern has the {tiles[asked][0]} tile?" and prompt.answer == tiles[asked][1]
        pixels = (pixels_of(prompt) * 255).round().byte().permute(1, 2, 0).numpy()
        assert pixels.shape == (16, 16, 3) and (pixels == peek.overview(peek.whole(tiles))).all()
        row, column = divmod(asked, 2)
        mean = np.add(COLOURS[tiles[asked][0]], (255 - 64 * column, 255 - 64 * row, 255)) / 2
        assert abs(pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] - mean).max() <= 0.5


def test_places_and_patterns_are_asked_for_equally_often_and_splits_share_no_image():
    """Of 800 a quarter is 200, with a std of 12."""
    made = peek.prompts("train", 800)
    for counts in (Counter(one.answer for one in made), Counter(one.meta["asked"] for one in made)):
        assert len(counts) == 4 and all(abs(count - 200) < 60 for count in counts.values())
    for split in ("train", "tune", "heldout"):
        tiles = [tuple(map(tuple, one.meta["tiles"])) for one in peek.prompts(split, 100)]
        assert len(set(tiles)) == 100 and {split_of(one) for one in tiles} == {split}


@pytest.mark.parametrize(
    ("split", "seed", "expected"), [("train", 0, "b6b3c88970dae890"), ("heldout", 0, "1a94812897df8c9b")]
)
def test_a_seed_asks_the_same_questions(split, seed, expected):
    assert digest(content(peek.prompts(split, 80, seed))) == expected
    longer = peek.prompts(split, 81, seed)[:80]
    assert digest(content(longer)) == expected


def test_the_command_writes_them(tmp_path, capsys):
    from mmgrpo.data.images import decode_image
    from mmgrpo.data.prompts import load_prompts

    written.main(["--peek", "--output", str(tmp_path), "--train", "6", "--tune", "2", "--heldout", "3"])
    assert capsys.readouterr().out.count("questions") == 3
    for split, count in (("train", 6), ("tune", 2), ("heldout", 3)):
        wanted, read = peek.prompts(split, count), load_prompts(tmp_path / f"{split}.jsonl")
        assert [(one.id, one.text, one.answer, one.meta) for one in read] == [
            (one.id, one.text, one.answer, one.meta) for one in wanted
        ]
        for one, other in zip(wanted, read):
            source: Any = other.media[0].source
            assert torch.equal(decode_image(source).pixels, pixels_of(one))
