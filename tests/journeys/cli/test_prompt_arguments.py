"""Prompts of the command line with pictures, clips and sounds."""

from __future__ import annotations

import json

import pytest

from mmgrpo.cli.prompt_arguments import Given, given_prompts, is_given, rows_of
from mmgrpo.cli.train import read
from mmgrpo.family import family
from tests.journeys.cli.running import call, read_lines
from tests.unit.data.layouts import png, wav


@pytest.fixture
def files(tmp_path, monkeypatch):
    """a.png, b.png, a.wav and bad.png in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, content in {"a.png": png(), "b.png": png("blue"), "a.wav": wav(), "bad.png": b"x"}.items():
        (tmp_path / name).write_bytes(content)


def prompts(name, **options):
    config = read(
        ["--model.family", name, "--model.path", "x"] if name == "causal_lm" else ["--model.family", name], ""
    )
    return given_prompts(Given(**options), config, family(name))


def test_every_prompt_shows_all_media_and_has_its_answer(files):
    one, two = prompts(
        "qwen_vl",
        prompts=["how many?", "<image> or <image>?"],
        image=["a.png", "b.png"],
        answers=["1", "b"],
        task="exact",
    )
    assert [medium.source for medium in one.media] == ["a.png", "b.png"] == [m.source for m in two.media]
    assert one.turns[0].parts[-1] == "how many?" and two.turns[0].parts[1] == " or "
    assert [(p.answer, p.task, p.id) for p in (one, two)] == [("1", "exact", "prompt-0"), ("b", "exact", "prompt-1")]


def test_sounds_without_a_question_are_prompts_of_their_own(files):
    (one,) = prompts("whisper", audio=["a.wav"])
    assert (one.text, one.media[0].kind, one.media[0].source) == ("", "audio", "a.wav")
    (asked,) = prompts("qwen_audio", prompts=["Who speaks?"], audio=["a.wav"])
    assert asked.text == "Who speaks?" and asked.media == one.media


def test_a_picture_from_which_a_clip_starts(files):
    (one,) = prompts("wan_i2v", prompts=["a cat"], image=["a.png"])
    assert one.media[0].source == "a.png"


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("qwen_vl", {"image": ["a.png"]}, "--image.*--prompts"),
        ("qwen_vl", {"prompts": ["?"], "image": ["bad.png"]}, "bad.png"),
        ("qwen_vl", {"prompts": ["?"], "image": ["none.png"]}, "none.png"),
        ("qwen_vl", {"prompts": ["?"], "answers": ["1", "2"]}, "--answers.*2.*1"),
        ("qwen_vl", {"prompts": ["<image> <image>"], "image": ["a.png"]}, "2 <image>"),
        (
            "sd3",
            {"prompts": ["a cat"], "image": ["a.png"]},
            "1 media",
        ),
    ],
)
def test_what_a_family_cannot_read_is_an_error(files, name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        prompts(name, **options)


def test_a_sound_is_named_also_where_a_file_of_prompts_might_skip_it(files):
    config = read(["--model.family", "whisper", "--data.skip-limit", "0.5"], "")
    with pytest.raises(ValueError, match="^--prompts.*bad.png"):
        given_prompts(Given(audio=["a.wav", "bad.png"]), config, family("whisper"))


def test_answers_or_a_task_alone_belong_to_the_prompts(files):
    one, two = prompts("qwen_vl", prompts=["a", "b"], answers=["1", "2"])
    assert [(p.text, p.answer, p.task) for p in (one, two)] == [("a", "1", ""), ("b", "2", "")]
    (one,) = prompts("qwen_vl", prompts=["a"], task="exact")
    assert (one.text, one.answer, one.task, one.media) == ("a", None, "exact", ())
    with pytest.raises(ValueError, match="--answers.*1.*2"):
        prompts("qwen_vl", prompts=["a", "b"], answers=["1"])


def test_every_kind_of_medium_makes_prompts():
    given = [Given(image=["a"]), Given(video=["a"]), Given(audio=["a"]), Given(prompts=["a"])]
    assert all(map(is_given, given)) and not is_given(Given(task="a")) and not is_given(Given())


def test_rows_have_all_media_or_one_sound_each():
    media = {"image": ["a.png", "b.png"], "audio": ["c.wav"]}
    row = {"images": ["a.png", "b.png"], "audios": ["c.wav"]}
    assert rows_of(["x", "y"], media) == [{"text": "x", **row}, {"text": "y", **row}]
    assert rows_of([], {"audio": ["c.wav", "d.wav"]}) == [{"text": "", "audio": name} for name in ("c.wav", "d.wav")]
    with pytest.raises(ValueError, match="--image"):
        rows_of([], media)


def test_texts_alone_are_left_to_the_family():
    assert is_given(Given(prompts=["a"])) and is_given(Given(video=["a.mp4"])) and not is_given(Given(answers=["a"]))
    assert [prompt.text for prompt in prompts("sd3", prompts=["a cat"])] == ["a cat"]
    assert rows_of(["a"], {"video": ["c.mp4"]}) == [{"text": "a", "videos": ["c.mp4"]}]


@pytest.mark.slow
def test_a_picture_of_the_command_line_is_sampled_and_evaluated(qwen_folder, media, tmp_path):
    model = ["--model.family", "qwen_vl", "--model.path", qwen_folder, "--sampling.max-tokens", 4, "--threads", 1]
    asked = ["--prompts", "how many?", "--image", media / "0.png"]
    call("sample", *model, *asked, "--output", tmp_path)
    (row,) = read_lines(tmp_path / "after.jsonl")
    assert row["prompt"] == "[image] how many?"
    call("evaluate", *model, *asked, "--answers", "3", "--rewards", "exact", "--output", tmp_path / "e.json")
    result = json.loads((tmp_path / "e.json").read_text())
    assert (result["prompts"], result["file"], result["values"][0]["id"]) == (1, "", "prompt-0")
    assert "blind" in result
