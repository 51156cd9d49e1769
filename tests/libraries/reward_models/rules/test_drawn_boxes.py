"""Boxes as people see them in the picture."""

from __future__ import annotations

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.rewards import scorer
from mmgrpo.types import Image, Media, Prompt, Text, Turn, Video
from reward_models.rules.drawn_boxes import boxes_of


@pytest.fixture
def turns(tmp_path) -> tuple[Turn, ...]:
    """A question about a picture 32 pixels wide and 24 high."""
    Pil.new("RGB", (32, 24)).save(tmp_path / "0.png")
    return (Turn("user", (Media("image", str(tmp_path / "0.png")), "which?")),)


def test_boxes_are_fractions_of_the_picture_whatever_pixels_the_model_speaks_of(turns):
    meta = {"coordinates": "resized", "size": [24, 32]}
    prompt = Prompt("", task="box_iou", answer=[8, 6, 16, 12], meta=meta, turns=turns)
    # Said in a picture of 64 x 48 that shows one of 32 x 24.
    answer = Text("<think>[1, 1, 2, 2]</think><answer>[0, 0, 32, 48]</answer>", seen=((48, 64),))
    assert boxes_of(prompt, answer) == {"boxes": {"gold": [(0.25, 0.25, 0.5, 0.5)], "said": [(0, 0, 0.5, 1)]}}
    assert boxes_of(prompt, Text("nothing"))["boxes"]["said"] == []


def test_all_objects_of_a_detection_are_drawn(turns):
    prompt = Prompt("", task="detection_ap", answer=[{"bbox_2d": [0, 0, 16, 24], "label": "cup"}], turns=turns)
    answer = Text('<answer>```json\n[{"bbox_2d": [0, 0, 32, 24]}, {"bbox_2d": [16, 12, 32, 24]}]\n```</answer>')
    boxes = {"gold": [(0, 0, 0.5, 1)], "said": [(0, 0, 1, 1), (0.5, 0.5, 1, 1)]}
    assert boxes_of(prompt, answer) == {"boxes": boxes}


def test_a_task_about_something_else_has_no_boxes(turns):
    assert boxes_of(Prompt("", task="exact", answer="red", turns=turns), Text("[1, 1, 2, 2]")) == {}
    assert boxes_of(Prompt("", task="box_iou", answer=[0, 0, 1, 1]), Text("[1, 1, 2, 2]")) == {}  # no picture


def test_only_answers_about_pictures_have_boxes(turns):
    grey = Image(torch.zeros(3, 24, 32))
    task = {"task": "box_iou", "answer": "[0, 0, 32, 24]"}
    clip = Prompt("", **task, turns=(Turn("user", (Media("video", Video(torch.zeros(2, 3, 24, 32), 1.0)), "?")),))
    shown = Prompt("", **task, turns=(Turn("user", (Media("image", grey), "?")),))
    assert boxes_of(clip, Text("[1, 1, 2, 2]")) == boxes_of(shown, grey) == {}
    # the gold box may be a text, the picture in memory, and the answer without tags
    for prompt in (shown, Prompt("", **task, turns=turns)):
        boxes = boxes_of(prompt, Text("at [0, 0, 16, 24]"))["boxes"]
        assert boxes == {"gold": [(0, 0, 1, 1)], "said": [(0, 0, 0.5, 1)]}


def test_rewards_of_tasks_note_the_boxes_of_every_sample(turns):
    prompt = Prompt("", task="box_iou", answer=[0, 0, 32, 24], turns=turns)
    for name in ("task", "box_iou"):
        note = scorer(name).annotate
        assert note is not None
        (one,) = note([prompt], [Text("<answer>[0, 0, 16, 24]</answer>")])
        assert one["boxes"] == {"gold": [(0, 0, 1, 1)], "said": [(0, 0, 0.5, 1)]}


def test_the_first_box_of_a_sentence_is_drawn(turns):
    prompt = Prompt("", task="box_iou", answer=[0, 0, 32, 24], turns=turns)
    answer = Text("<answer>It is at [0, 0, 16, 24], I think.</answer>")
    assert boxes_of(prompt, answer)["boxes"]["said"] == [(0, 0, 0.5, 1)]
