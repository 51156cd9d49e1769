"""The world that shows tiles from near."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.toy.peek import image, tile
from mmgrpo.types import Prompt
from pipelines.tools import schemas
from pipelines.vlm.peek import Peek

TILES = [["red", "bars"], ["green", "stripes"], ["blue", "checks"], ["black", "bars"]]


def begun(asked: int = 2) -> Peek:
    made = Peek()
    made.reset(Prompt("", meta={"tiles": TILES, "asked": asked}))
    return made


@pytest.mark.parametrize(("row", "column", "place"), [(1, 1, 0), (1, 2, 1), (2, 1, 2), (2, 2, 3)])
def test_a_look_shows_the_tile_of_its_row_and_column(row, column, place):
    made = begun()
    assert torch.equal(made.look(row, column).pixels, image(tile(TILES, place)).pixels)
    assert made.state() == [place] and made.reward() == (place == 2)


def test_what_was_seen_is_a_state_in_any_order_and_the_reward_once():
    made, other = begun(), begun()
    assert made.state() == [] and made.reward() == 0
    for row, column in ((2, 2), (2, 1), (2, 2)):
        made.look(row, column)
    for row, column in ((2, 1), (2, 2)):
        other.look(row, column)
    assert made.state() == other.state() == [2, 3] and made.reward() == 1


@pytest.mark.parametrize(("row", "column", "named"), [(0, 1, "row 0"), (3, 1, "row 3"), (1, 3, "column 3")])
def test_a_place_that_is_none_is_an_error_and_shows_nothing(row, column, named):
    made = begun()
    with pytest.raises(ValueError, match=f"{named}.*1 to 2"):
        made.look(row, column)
    assert made.state() == []


def test_it_is_described_with_its_two_numbers():
    (described,) = schemas([Peek])
    assert described["function"]["name"] == "look"
    assert [one["type"] for one in described["function"]["parameters"]["properties"].values()] == ["integer"] * 2
