"""Prompts whose pictures and clips are blank: the form stays, and what there was to see is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmgrpo.types import Image, Media, Prompt, Turn, Video
from pipelines.vlm import qwen_vl
from pipelines.vlm.blank import with_blank_media
from pipelines.vlm.media import read_video
from tests.building import load
from tests.journeys.cli.quick import write_media


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    return write_media(tmp_path_factory.mktemp("media"))


def question(*media: Media, text: str = "which?") -> Prompt:
    return Prompt(text, id="q", turns=(Turn("user", (*media, text)),))


def test_blank_prompts_keep_their_form_and_lose_what_there_was_to_see(media):
    video = Media("video", str(media / "0.mp4"), {"fps": 2})
    prompts = [question(Media("image", str(media / "0.png")), video, text="a"), Prompt("b")]
    blank, words = with_blank_media(prompts)
    assert words == Prompt("b") and blank.turns[0].parts[-1] == "a"
    picture, clip = blank.media
    assert isinstance(picture.source, Image) and picture.source.pixels.shape == (3, 24, 32)
    assert isinstance(clip.source, Video) and clip.source.frames.shape == (8, 3, 24, 32) and clip.source.fps == 4
    assert picture.source.pixels.unique().tolist() == [0.5] == clip.source.frames.unique().tolist()
    assert clip.source.frames.untyped_storage().nbytes() == 4  # however long it is
    seen, unseen = read_video(video), read_video(clip)
    assert seen.seconds == unseen.seconds and seen.frames.shape == unseen.frames.shape


def test_where_no_prompt_shows_anything_none_is_blank():
    assert with_blank_media([Prompt("b")]) == []
    assert with_blank_media([question(Media("audio", "a.wav"))]) == []


def test_a_blank_prompt_has_the_tokens_of_the_one_that_sees(media, tmp_path):
    family = load(qwen_vl, qwen_vl.tiny(tmp_path))
    prompts = [question(Media("image", str(media / "0.png")), Media("video", str(media / "1.mp4")))]
    seen, unseen = family.encode(prompts), family.encode(with_blank_media(prompts))
    assert torch.equal(seen.ids, unseen.ids) and torch.equal(seen.positions, unseen.positions)
    assert seen.seen == unseen.seen
