"""Changes of what a prompt shows."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.config.registry import bind
from mmgrpo.data.perturbations import CHANGES, Mask, Pixels, check_changes, mask_pixels
from mmgrpo.randomness import derive
from mmgrpo.types import Audio, Image, Media, Prompt, Turn, Video


def test_a_medium_that_no_change_hides_is_shown_as_it_is():
    pixels = torch.ones(3, 2, 2)
    assert mask_pixels(Media("image", "a.png", {"max_pixels": 4}), pixels) is pixels
    assert not mask_pixels(Media("image", "a.png", {"mask": Mask(1.0, level=0.0)}), pixels).any()


def prompt(*media: Media) -> Prompt:
    return Prompt("which?", "q", turns=(Turn("user", ("look:", *media)), Turn("assistant", ("yes",))))


def changed(text: str, asked: Prompt, seen=(), seed: int = 1) -> Prompt:
    return bind(text, CHANGES, "change")({"prompt": asked, "seen": seen, "seed": seed})


SHOWN = Image(torch.ones(3, 8, 12))
PICTURE = Media("image", SHOWN)
CLIP = Media("video", Video(torch.ones(4, 3, 8, 8), 2.0), {"fps": 1.0})
SOUND = Media("audio", Audio(torch.ones(1, 10), 10))


def test_the_ratio_of_whole_patches_is_black_and_the_rest_is_as_it_was():
    pixels = torch.rand(3, 8, 12, generator=torch.Generator().manual_seed(0)) + 0.1
    hidden = Mask(0.5, level=0.0, patch=4).apply(pixels)  # 2 x 3 patches, of which three are black
    patches = hidden.view(3, 2, 4, 3, 4).permute(1, 3, 0, 2, 4).reshape(6, -1)
    before = pixels.view(3, 2, 4, 3, 4).permute(1, 3, 0, 2, 4).reshape(6, -1)
    black = (patches == 0).all(1)
    assert black.sum() == 3 and torch.equal(patches[~black], before[~black])


@pytest.mark.parametrize(("ratio", "count"), [(0.6, 15), (0.1, 2), (1.0, 25)])  # 25 patches, rounded
def test_as_many_patches_are_hidden_as_the_ratio_says(ratio, count):
    assert (Mask(ratio, level=0.0, patch=1).apply(torch.ones(3, 5, 5))[0] == 0).sum() == count


def test_a_patch_has_its_size_in_the_picture_that_the_model_sees():
    """A picture of 8 x 16 pixels that is seen at 4 x 4: a patch of 2 covers 4 x 8 of its pixels."""
    hidden = Mask(0.25, level=0.0, patch=2, seen=(4, 4)).apply(torch.ones(3, 8, 16))[0]
    rows, columns = (hidden == 0).any(1).nonzero()[:, 0].tolist(), (hidden == 0).any(0).nonzero()[:, 0].tolist()
    assert (hidden == 0).sum() == 4 * 8
    assert rows in ([0, 1, 2, 3], [4, 5, 6, 7]) and columns in (list(range(8)), list(range(8, 16)))


def test_bytes_stay_bytes_and_every_frame_hides_the_same():
    frames = torch.full((4, 3, 8, 8), 200, dtype=torch.uint8)
    hidden = Mask(0.5, level=0.5, patch=2).apply(frames)
    assert hidden.dtype == torch.uint8 and hidden.unique().tolist() == [128, 200]
    assert all(torch.equal(frame, hidden[0]) for frame in hidden)
    assert Mask(1.0, level=1.0).apply(frames).unique().tolist() == [255]


def test_a_mask_is_that_of_its_seed_and_of_the_place_of_its_medium():
    asked = prompt(PICTURE, PICTURE)
    first, second = (mask_pixels(one, SHOWN.pixels) for one in changed("mask_patches(patch=2)", asked).media)
    again = mask_pixels(changed("mask_patches(patch=2)", asked).media[0], SHOWN.pixels)
    other = mask_pixels(changed("mask_patches(patch=2)", asked, seed=2).media[0], SHOWN.pixels)
    assert torch.equal(first, again) and not torch.equal(first, second) and not torch.equal(first, other)


def test_patches_are_of_14_pixels_and_six_in_ten_of_them_black_as_in_papo():
    assert changed("mask_patches", prompt(PICTURE)).media[0].options["mask"] == Mask(
        0.6, level=0.0, seed=derive(1, "mask", 0), patch=14, seen=None
    )
    assert Mask(0.6, level=0.0) == Mask(0.6, level=0.0, seed=0, patch=14, seen=None)


@pytest.mark.parametrize(
    ("scores", "known"), [(["reference@blank", "policy"], True), (["policy", "policy@blnk"], False)]
)
def test_a_score_names_a_change_behind_its_mark(scores, known):
    if known:
        check_changes(scores)
    else:
        with pytest.raises(ValueError, match="change.*'blnk'"):
            check_changes(scores)


def test_a_change_leaves_text_order_and_other_options():
    after = changed("mask_patches", prompt(CLIP, SOUND, PICTURE), seen=[(4, 4), (0, 0), (8, 12)])
    assert [part for part in after.turns[0].parts if isinstance(part, str)] == ["look:"] and len(after.turns) == 2
    clip, sound, picture = after.media
    assert sound is SOUND and clip.source is CLIP.source
    assert (
        clip.options["fps"] == 1.0 and clip.options["mask"].seen == (4, 4) and picture.options["mask"].seen == (8, 12)
    )


def test_blank_hides_everything_and_shuffling_concerns_clips_only():
    blank = changed("blank", prompt(CLIP, SOUND, PICTURE))
    assert all("mask" in one.options for one in blank.media)
    assert mask_pixels(blank.media[2], SHOWN.pixels).unique().tolist() == [0.5]
    shuffled = changed("shuffle_frames", prompt(CLIP, PICTURE))
    assert "shuffle" in shuffled.media[0].options and shuffled.media[1] is PICTURE


@pytest.mark.parametrize("text", list(CHANGES))
def test_a_prompt_with_nothing_to_change_is_returned_itself(text):
    words = Prompt("a")
    assert changed(text, words) is words
    if text != "blank":
        heard = prompt(SOUND)
        assert changed(text, heard) is heard


def test_a_pixelated_image_keeps_its_layout_and_size():
    halves = torch.zeros(3, 20, 20)
    halves[:, :, 10:] = 1.0
    halves[:, ::2] += torch.where(halves[:, ::2] > 0, -0.2, 0.2)  # detail that a tenth of the rows cannot show
    few = Pixels(0.1).apply(halves)
    assert few.shape == halves.shape and few.unique().numel() <= 4
    assert (few[:, :, :10] < 0.3).all() and (few[:, :, 10:] > 0.7).all()
    assert torch.equal(Pixels(1.0).apply(halves), halves)
    clip = (halves * 255).round().to(torch.uint8).expand(2, 3, 20, 20)
    assert Pixels(0.1).apply(clip).dtype == torch.uint8 and Pixels(0.1).apply(clip).shape == clip.shape
    heard, shown = prompt(SOUND), changed("pixelated(ratio=0.5)", prompt(PICTURE))
    assert changed("pixelated", heard) is heard and shown.media[0].options["mask"] == Pixels(0.5)
