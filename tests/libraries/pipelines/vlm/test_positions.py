"""Positions of pictures and clips on the axes time, height and width, in numbers of the released models."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.policies.token_model import next_position
from mmgrpo.types import Image, Media, Prompt, Turn, Video
from pipelines.vlm import qwen_vl
from pipelines.vlm.qwen_vl import grid_positions
from tests.building import load
from tests.tiny import tiny_checkpoint

MARK = 9


@pytest.fixture(scope="module")
def model():
    return load(qwen_vl, tiny_checkpoint(qwen_vl.tiny))


def asked(medium: Media) -> Prompt:
    return Prompt("what is it ?", turns=(Turn("user", (medium, "what is it ?")),))


@pytest.mark.parametrize(("frames", "times", "text"), [(6, [3, 5, 7], 8), (20, [*range(3, 22, 2)], 22)])
def test_text_behind_a_clip_stands_behind_its_time(model, frames, times, text):
    """Two frames a second are one second a grid, and two positions a second."""
    clip = Media("video", Video(torch.rand(frames, 3, 16, 16), 2.0))
    context = model.encode([asked(clip)])
    time, row, column = context.positions[0].tolist()
    tokens = 4 * len(times)
    assert time[:3] == row[:3] == column[:3] == [0, 1, 2]
    assert time[3 : 3 + tokens] == [place for place in times for _ in range(4)]
    assert row[3 : 3 + tokens] == [3, 3, 4, 4] * len(times) and column[3 : 3 + tokens] == [3, 4, 3, 4] * len(times)
    assert time[3 + tokens :] == row[3 + tokens :] == column[3 + tokens :] == [*range(text, text + 8)]
    assert next_position(context).tolist() == [text + 8]


def test_text_behind_a_picture_stands_behind_its_larger_side(model):
    context = model.encode([asked(Media("image", Image(torch.rand(3, 16, 16))))])
    assert context.positions[0, 0].tolist() == [0, 1, 2, 3, 3, 3, 3, *range(5, 13)]
    assert next_position(context).tolist() == [13]


@pytest.mark.parametrize(
    ("grid", "step", "times", "text"),
    [
        ((1, 2, 2), 0.0, [3], 5),  # a picture
        ((3, 2, 2), 2.0, [3, 5, 7], 8),  # a second a grid, two positions a second
        ((3, 2, 2), 1.0, [3, 4, 5], 6),  # half a second, and Qwen2-VL whatever the rate
        ((3, 2, 2), 0.5, [3, 3, 4], 5),
        ((4, 2, 2), 2 / 3, [3, 3, 4, 5], 6),  # 2 is no 1.9999999
        ((2, 2, 5), 1.0, [3, 4], 8),  # the widest axis counts
    ],
)
def test_a_grid_is_counted_by_its_largest_axis(grid, step, times, text):
    size = grid[1] * grid[2]
    found = grid_positions([1, 2, 3, *[MARK] * (grid[0] * size), 4, 5], {MARK}, [grid], [step])
    assert found[0, 3:-2].tolist() == [time for time in times for _ in range(size)]
    assert found[:, -2:].tolist() == [[text, text + 1]] * 3 and found[:, :3].tolist() == [[0, 1, 2]] * 3


def test_media_and_prompts_of_a_batch_have_positions_of_their_own(model):
    clip, picture = Media("video", Video(torch.rand(6, 3, 16, 16), 2.0)), Media("image", Image(torch.rand(3, 16, 24)))
    prompts = [Prompt("a", turns=(Turn("user", (picture, "a", clip, picture)),)), Prompt("is it"), asked(picture)]
    together = model.encode(prompts)
    for row, prompt in enumerate(prompts):
        alone = model.encode([prompt])
        assert torch.equal(together.positions[row][:, together.real[row]], alone.positions[0])


def test_pictures_stand_where_the_library_puts_them(model):
    """Independent code: the model's own rule, which is the released one for pictures."""
    picture = Media("image", Image(torch.rand(3, 16, 40)))
    context = model.encode([Prompt("a", turns=(Turn("user", ("a", picture, "is", picture, "it")),))])
    kinds = (context.ids == model.network.config.image_token_id).long()
    grids = torch.tensor([one.grid for one in context.media[0]])
    library, _ = model.network.model.get_rope_index(context.ids, kinds, grids)
    assert torch.equal(library[:, 0], context.positions[0])


def test_a_published_template_of_qwen_counts_its_system_prompt_and_thought(model):
    from tests.tiny.image_text import QWEN_CLIP, QWEN_MARK, chatml

    before = model.tokenizer.chat_template
    try:
        model.tokenizer.chat_template = chatml(QWEN_MARK, QWEN_CLIP, "the red one", "<think>\n")
        model.set_up({}, qwen_vl.MARKS)
        context = model.encode([asked(Media("video", Video(torch.rand(6, 3, 16, 16), 2.0)))])
    finally:
        model.tokenizer.chat_template = before
        model.set_up({}, qwen_vl.MARKS)
    text = "".join(model.tokenizer.decode(context.ids[0]).split())
    assert text.startswith("<|im_start|>systemtheredone<|im_end|>") and text.endswith(
        "whatisit?<|im_end|><|im_start|>assistant<think>"
    )
    assert context.prefilled == ["<think>\n"] and next_position(context).tolist() == [16 + 6 + 1]
