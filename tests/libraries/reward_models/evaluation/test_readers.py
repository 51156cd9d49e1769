"""What each reader makes of a row: prompt, outputs, ranks, category, and what the prompt asks about."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo.types import Text
from reward_models.evaluation.comparison import FIRST, SECOND, TIE
from reward_models.evaluation.readers import answers, images
from reward_models.evaluation.readers.rows import Row, read_rows

ROOT = Path("/data")


def row(**values) -> Row:
    return Row(values, "f: row 3", ROOT)


def shown(output) -> str:
    """The text of an output, or its kind, file and the key that holds it."""
    if isinstance(output, Text):
        return output.text
    assert isinstance(output.source, Path)
    return f"{output.kind} {output.source.relative_to(ROOT)} {output.place.removeprefix('f: row 3: ')}"


def summary(one) -> tuple:
    assert one.place == "f: row 3"
    return one.prompt.text, [*map(shown, one.candidates)], one.ranks, one.category, [*map(shown, one.about)]


IMAGES = {"prompt": "p", "left_image": "a", "right_image": "b"}
CLIPS = {"prompt": "p", "left_video": "a", "right_video": "b"}
EDIT = {"instruct_prompt": "p", "source_image": "s", "left_output_image": "a", "right_output_image": "b"}
PICK = {"caption": "p", "jpg_0": "a", "jpg_1": "b"}
VIDEOS = {"prompt": "p", "path_A": "a", "path_B": "b", "VQ": "A", "MQ": "B", "TA": "same", "Overall": "B"}
VL = {"query": "p", "response": ["x", "y"], "human_ranking": [0, 1], "image": "i"}
MM = {"Text": "p", "Image": "i", "Output1": "x", "Output2": "y", "Better": "Output2"}
QUESTION = {"prompt": "p", "video": "v", "chosen": "x", "rejected": "y", "dimension": "safety"}
TWO = ["image a left_image", "image b right_image"]


@pytest.mark.parametrize(
    ("reader", "values", "expected"),
    [
        (images.hpdv2, {"prompt": "p", "image_path": ["a", "b"], "rank": [2, 1]},
         (["image a image_path", "image b image_path"], (2, 1), "", [])),
        (images.hpdv3, {"prompt": "p", "path1": "a", "path2": "b"},
         (["image a path1", "image b path2"], FIRST, "", [])),
        (images.imagereward, {"prompt": "p", "generations": ["a", "b", "c"], "ranking": [2, 1, 2]},
         ([f"image {one} generations" for one in "abc"], (2, 1, 2), "", [])),
        *[(images.pickapic, PICK | {"label_0": first, "label_1": 1 - first},
           (["image a jpg_0", "image b jpg_1"], (-first, first - 1), "", [])) for first in (0, 0.5, 1)],
        *[(images.genai, IMAGES | {"vote_type": vote}, (TWO, ranks, "", []))
          for vote, ranks in (("leftvote", FIRST), ("rightvote", SECOND), ("tievote", TIE), ("bothbad_vote", TIE))],
        (images.genai, CLIPS | {"vote_type": "leftvote"},
         (["video a left_video", "video b right_video"], FIRST, "", [])),
        (images.genai, EDIT | {"vote_type": "rightvote"},
         (["image a left_output_image", "image b right_output_image"], SECOND, "", ["image s source_image"])),
        *[(images.mjbench, {"caption": "p", "image0": "a", "image1": "b", "label": label, **info},
           (["image a image0", "image b image1"], ranks, info.get("info") or "", []))
          for label, ranks in ((0, FIRST), (1, SECOND), ("0", FIRST), ("1", SECOND))
          for info in ({}, {"info": "toxic"}, {"info": None})],
        (images.votes, {"prompt": "p", "left": {"text": "x"}, "right": "b.WAV", "vote_type": "leftvote"},
         (["x", "audio b.WAV right"], FIRST, "", [])),
        (images.votes, {"prompt": "p", "left": "a.mp4", "right": {"path": "b"}, "vote_type": "tievote",
                          "category": "c", "about": ["i.png", {"text": "no medium"}, "v.webm"]},
         (["video a.mp4 left", "image b right"], TIE, "c", ["image i.png about", "video v.webm about"])),
        (images.votes, {"prompt": "p", "left": "a", "right": "b", "vote_type": "tievote", "about": None},
         (["image a left", "image b right"], TIE, "", [])),
        (images.ratings, {"prompt": "p", "outputs": ["a", {"text": "x"}], "ratings": [1, 3.5]},
         (["image a outputs", "x"], (-1, -3.5), "", [])),
        (answers.videogen, VIDEOS, (["video a path_A", "video b path_B"], SECOND, "", [])),
        *[(answers.vlrewardbench, VL | {"id": name}, (["x", "y"], (0, 1), group, ["image i image"]))
          for name, group in (("VLFeedback-1", "general"), ("wildvision-1", "general"), ("povid-1", "hallucination"),
                              ("RLHF-V-1", "hallucination"), ("rlaif-1", "hallucination"),
                              ("hallucination_pair-1", "hallucination"), ("mathverse_1", "reasoning"),
                              ("mmmu_pro", "reasoning"), ("reasoning_1", "reasoning"))],
        (answers.vlrewardbench, VL | {"id": "povid", "query_source": "MMMU"},
         (["x", "y"], (0, 1), "reasoning", ["image i image"])),
        (answers.vlrewardbench, VL | {"id": "povid", "query_source": ""},
         (["x", "y"], (0, 1), "hallucination", ["image i image"])),
        *[(answers.mmrewardbench, MM | {"ID": name, "Meta": {"Category": category}},
           (["x", "y"], SECOND, group, ["image i Image"]))
          for name, category, group in (("PAIRS-1", "safety", "safety/bias"), ("hate-1", "safety", "safety/toxicity"),
                                        ("MathVista", "reasoning", "reasoning/math"),
                                        ("x", "reasoning", "reasoning/coding"),
                                        ("math", "vqa", "vqa"), ("pairs", "general", "general"))],
        (answers.videorewardbench, QUESTION, (["x", "y"], FIRST, "safety", ["video v video"])),
        (answers.rewardbench2, {"id": "4", "prompt": "p", "chosen": ["x", "y"], "rejected": ["z"], "subset": "Math"},
         (["x", "y", "z"], (0, 0, 1), "Math", [])),
    ],
)  # fmt: skip
def test_a_row_is_read_as_its_benchmark_says(reader, values, expected):
    one = reader(row(**values))
    assert summary(one) == ("p", *expected)
    assert one.prompt.id == "f: row 3"


@pytest.mark.parametrize(("dimension", "ranks"), [("VQ", FIRST), ("MQ", SECOND), ("TA", TIE), ("Overall", SECOND)])
def test_clips_are_compared_in_one_dimension(dimension, ranks):
    assert answers.videogen(row(**VIDEOS), dimension).ranks == ranks
    with pytest.raises(ValueError, match="videogen.*dimension.*'vq'"):
        answers.videogen(row(**VIDEOS), "vq")


def test_votes_and_ratings_keep_what_verifiers_need():
    votes = {"prompt": "p", "left": "a", "right": "b", "vote_type": "leftvote"}
    plain, full = (
        images.votes(row(**votes, **more))
        for more in ({}, {"answer": [1], "task": "box_iou", "meta": {"size": 3}, "user": 7})
    )
    assert (plain.prompt.answer, plain.prompt.task, plain.prompt.meta, plain.user) == (None, "", {}, "")
    assert (full.prompt.answer, full.prompt.task, full.prompt.meta, full.user) == ([1], "box_iou", {"size": 3}, "7")
    rated = images.ratings(row(prompt="p", outputs=["a", "b"], ratings=[1, 2]))
    assert rated.ratings == (1, 2) and plain.ratings == ()
    assert (
        answers.rewardbench2(row(id="tied:3", prompt="p", chosen=["x"], rejected=["y"], subset="Ties")).prompt.task
        == "tied:3"
    )


@pytest.mark.parametrize("labels", [(1, 1), (0, 0), (2, -1), (0.25, 0.75)])
def test_labels_of_a_pair_are_one_in_all(labels):
    with pytest.raises(ValueError, match="label_0.*label_1"):
        images.pickapic(row(**PICK, label_0=labels[0], label_1=labels[1]))


def test_lines_without_a_row_and_files_without_a_suffix(tmp_path):
    (tmp_path / "a.jsonl").write_text('\n{"n": 1}\n  \n{"n": 2}\n')
    assert [(one.values["n"], one.place[-5:], one.root) for one in read_rows(str(tmp_path / "a.jsonl"))] == [
        (1, "row 1", tmp_path), (2, "row 2", tmp_path),
    ]  # fmt: skip
    (tmp_path / "plain").write_text("")
    with pytest.raises(ValueError, match="plain"):
        list(read_rows(str(tmp_path / "plain")))
