"""Faces of a source and of its edit, by a recognizer of one's own."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Media, Prompt, Turn
from reward_models.objects.faces import face_identity, identity_kept

HERE = "tests.libraries.reward_models.objects.test_faces"


def faces(images, *, count: int = 1):
    """The mean colour as the embedding of as many faces; none in a black image."""
    return [image.pixels.mean((1, 2)).expand(count if image.pixels.any() else 0, 3) for image in images]


def one_row(images):
    return torch.zeros(len(images), 3)


def flat(*colour: float) -> Image:
    return Image(torch.tensor(colour, dtype=torch.float32)[:, None, None].expand(3, 4, 4).clone())


def edit(source: Image) -> Prompt:
    return Prompt("smile", "row 7", turns=(Turn("user", (Media("image", source), "smile")),))


def test_cosines_of_faces_are_paired_once_and_a_lost_face_counts_nothing():
    x, y = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])
    between = torch.tensor([0.6, 0.8])
    assert identity_kept(torch.stack([x, y]), torch.stack([y, x])) == pytest.approx(1)
    assert identity_kept(torch.stack([x, y]), torch.stack([between])) == pytest.approx(0.4)  # (.8 + 0) / 2
    # .8 of y is paired first, then x has what is left, which is x itself with 1.
    assert identity_kept(torch.stack([x, y]), torch.stack([between, x])) == pytest.approx(0.9)
    assert identity_kept(x[None], torch.zeros(0, 2)) == 0
    assert math.isnan(identity_kept(torch.zeros(0, 2), x[None]))


def test_the_source_itself_has_one_and_another_source_another_score():
    name = f"{HERE}:faces(count=2)"
    red, green, black = flat(1, 0, 0), flat(0, 1, 0), flat(0, 0, 0)
    broken = Image(torch.full((3, 4, 4), math.nan))
    prompts = [edit(red), edit(red), edit(red), edit(green), edit(black), edit(red)]
    found = face_identity(prompts, [red, green, black, green, red, broken], name)
    assert found == pytest.approx([1, 0, 0, 1, math.nan, math.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("embed", "said"),
    [("arcface", "'arcface'"), (f"{HERE}:missing", "missing"), (f"{HERE}:one_row", r"\[3\].*2 images")],
)
def test_what_is_no_recognizer_is_refused(embed, said):
    with pytest.raises(ValueError, match=said):
        one = scorer(f"face_identity(embed={embed!r})")
        one.fn([edit(flat(1, 0, 0))], [flat(0, 1, 0)])
