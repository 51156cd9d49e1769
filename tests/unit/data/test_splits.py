"""The prompts of a run: files of training and of evaluation, and none in both."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.data.splits import Splits, content, describe_repeats, extra_files, read_splits
from mmgrpo.data.streaming import Joined
from mmgrpo.types import Audio, Image, Media, Prompt, Turn, Video


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["a/natural.jsonl", "b/natural.txt"], "'a/natural.jsonl'.*'b/natural.txt'.*'natural'"),
        (["x/heldout.jsonl"], "'x/heldout.jsonl'.*'heldout'.*data.heldout"),
        ([""], "''.*file name"),
    ],
)
def test_further_files_need_names_of_their_own(extra, message):
    with pytest.raises(ValueError, match=f"^eval.extra.*{message}"):
        extra_files(extra)


def test_further_files_are_named_by_their_stems():
    assert extra_files(["a/one.two.jsonl", "hf:me/data@test"]) == {
        "one.two": "a/one.two.jsonl",
        "data-test": "hf:me/data@test",
    }


FILES = {
    "train": [Prompt("a", "1"), Prompt("b", "2")],
    "heldout": [Prompt("c", "3")],
    "x.jsonl": [Prompt("b", "4")],
    "y.jsonl": [Prompt("d", "5"), Prompt("e", "6")],
    "z.jsonl": [Prompt("f", "7")],
}


def test_a_prompt_of_evaluation_that_is_trained_on_is_an_error():
    with pytest.raises(ValueError, match=r"^x.jsonl.*'4' \('b'\)"):
        read_splits(FILES.__getitem__, ["train"], "heldout", ["x.jsonl"])
    with pytest.raises(ValueError, match=r"^x.jsonl.*'4' \('b'\)"):
        read_splits(FILES.__getitem__, ["train"], "x.jsonl")
    with pytest.raises(ValueError, match=r"^y.jsonl.*'5' \('d'\).*y.jsonl"):
        read_splits(FILES.__getitem__, ["train", "y.jsonl", "z.jsonl"], "heldout", ["y.jsonl"])


def test_a_prompt_that_two_files_of_training_have_is_an_error():
    with pytest.raises(ValueError, match=r"^x.jsonl.*'4' \('b'\)"):
        read_splits(FILES.__getitem__, ["train", "x.jsonl"])


def test_files_of_training_are_joined_and_those_of_evaluation_stay_apart():
    splits = read_splits(FILES.__getitem__, ["train", "z.jsonl"], "heldout", ["y.jsonl"])
    assert splits == Splits([*FILES["train"], *FILES["z.jsonl"]], FILES["heldout"], {"y": FILES["y.jsonl"]})
    assert [prompt.text for prompt in splits.every()] == ["a", "b", "f", "c", "d", "e"]
    assert read_splits(FILES.__getitem__, ["train"]) == Splits(FILES["train"], [], {})


def test_a_limit_counts_the_prompts_of_each_file_of_evaluation_and_none_of_training():
    splits = read_splits(FILES.__getitem__, ["train"], "heldout", ["y.jsonl"], limit=1)
    assert splits == Splits(FILES["train"], FILES["heldout"], {"y": FILES["y.jsonl"][:1]})


def test_a_change_of_splits_reaches_all_of_them():
    splits = read_splits(FILES.__getitem__, ["train"], "heldout", ["y.jsonl"]).map(lambda prompts: prompts[-1:])
    assert [prompt.text for prompt in splits.every()] == ["b", "c", "e"]


def question(medium: Media) -> Prompt:
    return Prompt("which?", id="q", turns=(Turn("user", (medium, "which?")),))


def test_the_same_words_about_another_picture_are_another_question():
    one, other = question(Media("image", "a.png")), question(Media("image", "b.png"))
    assert content(one) != content(other) and content(one) == content(question(Media("image", "a.png")))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("image", lambda level: Image(torch.full((3, 40, 40), level))),
        ("video", lambda level: Video(torch.full((2, 3, 4, 4), level), 2.0)),
        ("audio", lambda level: Audio(torch.full((1, 40), level), 16_000)),
    ],
)
def test_media_in_memory_are_compared_by_what_they_show(kind, make):
    black, again, white = (content(question(Media(kind, make(level)))) for level in (0.0, 0.0, 1.0))
    assert black == again != white


def test_unlabelled_prompts_lose_their_answers_and_may_be_those_of_the_evaluation():
    labelled = [Prompt("a", "1", answer="x", columns={"solution": "x"}), Prompt("b", "2", answer=["y"])]
    splits = read_splits(lambda path: labelled, ["train"], "heldout", unlabelled=True)
    assert [(one.text, one.answer, one.columns) for one in splits.train] == [("a", None, {}), ("b", None, {})]
    assert splits.heldout == labelled and splits.heldout[0].answer == "x"
    with pytest.raises(ValueError, match=r"^y.jsonl.*'5'"):  # two files of training are still two
        read_splits(FILES.__getitem__, ["y.jsonl", "y.jsonl"], unlabelled=True)
    with pytest.raises(ValueError, match=r"data.unlabelled.*train.*data.stream"):
        read_splits(lambda path: Joined([labelled]), ["train"], unlabelled=True)


def test_another_span_of_a_recording_is_another_prompt():
    spans: list[dict[str, float]] = [{}, {"start": 0.0}, {"start": 0.0, "end": 2.0}, {"start": 2.0, "end": 4.0}]
    prompts = [question(Media("audio", "a.flac", options)) for options in spans]
    assert len({content(prompt) for prompt in prompts}) == 4
    assert content(prompts[0]) == content(question(Media("audio", "a.flac", {"fps": 2})))


def test_repeated_prompts_are_counted_and_the_first_two_are_named():
    texts = ["a", "b", "c", "b", "a", "b"]
    found = describe_repeats([Prompt(text, f"x:{number}") for number, text in enumerate(texts, 1)])
    assert found.startswith("3 ") and "x:2 and x:4" in found
    assert describe_repeats([Prompt(text, text) for text in "abc"]) == ""
