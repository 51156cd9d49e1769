"""Scoring files from the shell."""

from __future__ import annotations

import json
import wave

import numpy as np
import PIL.Image
import pytest
import torch

from mmgrpo.cli.score import answer_of, read_output
from mmgrpo.types import Prompt, Text
from tests.journeys.cli.running import call

FAILING = """
def length(prompts, outputs):
    return [float("nan") if output.text == "bad" else len(output.text) for output in outputs]
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, level in (("grey.png", 128), ("white.png", 255)):
        PIL.Image.fromarray(np.full((32, 32, 3), level, np.uint8)).save(tmp_path / name)
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "bad.txt").write_text("bad")
    (tmp_path / "own.py").write_text(FAILING)
    return tmp_path


def test_pictures_in_a_table(files, capsys):
    call("score", "--reward", "jpeg_compressibility", "--reward", "jpeg_incompressibility", "grey.png", "white.png")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "file       jpeg_compressibility  jpeg_incompressibility", "as wide as the longest name"
    head, grey, white = map(str.split, lines)
    assert head == ["file", "jpeg_compressibility", "jpeg_incompressibility"]
    assert (grey[0], white[0]) == ("grey.png", "white.png")
    assert float(grey[1]) == -float(grey[2]) < 0


@pytest.mark.parametrize("batch", [1, 16])
def test_failures_are_shown_and_end_with_status_1(files, capsys, batch):
    options = ["score", "--reward", "own:length(process=False)", "good.txt", "bad.txt", "--batch-size", batch]
    for form in ([], ["--json"]):
        with pytest.raises(SystemExit) as end:
            call(*options, *form)
        assert end.value.code == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split() for line in lines[:3]] == [["file", "length"], ["good.txt", "4"], ["bad.txt", "failed"]]
    assert [json.loads(line) for line in lines[3:]] == [
        {"file": "good.txt", "rewards": {"length": 4.0}},
        {"file": "bad.txt", "rewards": {"length": None}},
    ]
    assert said.err == "1 of 2 files could not be scored by every reward\n" * 2


def test_a_file_that_one_of_two_rewards_cannot_score_is_a_failure(files, capsys):
    rewards = ["--reward", "own:length(process=False)", "--reward", f"{__name__}:seen(process=False)"]
    with pytest.raises(SystemExit):
        call("score", *rewards, "bad.txt", "good.txt", "bad.txt")
    said = capsys.readouterr()
    assert [line.split() for line in said.out.splitlines()][1] == ["bad.txt", "failed", "3"]
    assert said.err.startswith("2 of 3 files")


def test_the_prompt_the_answer_and_the_task_reach_the_reward(files, capsys):
    (files / "three.txt").write_text("<answer>3</answer>")
    for task, answer in (("numeric", "3"), ("numeric", "4")):
        call("score", "--json", "--reward", "task", "--task", task, "--answer", answer, "three.txt")
    right, wrong = (json.loads(line)["rewards"]["task"] for line in capsys.readouterr().out.splitlines())
    assert (right, wrong) == (1.0, 0.0)
    assert [answer_of(text) for text in ("", "3", "[1, 2]", "a red circle")] == [None, 3, [1, 2], "a red circle"]


def test_files_are_read_by_their_kind(files):
    assert read_output("good.txt") == Text("good")
    assert torch.equal(read_output("white.png").pixels, torch.ones(3, 32, 32))
    pytest.importorskip("soundfile")
    with wave.open("tone.wav", "wb") as sound:
        sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(8000)
        sound.writeframes((np.arange(8000) % 100 * 100).astype("<i2").tobytes())
    tone = read_output("tone.wav")
    assert (tone.rate, list(tone.samples.shape)) == (8000, [1, 8000])


def test_a_clip_is_read_whole(files):
    av = pytest.importorskip("av")
    with av.open("clip.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = 32
        for level in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 50 * level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    clip = read_output("clip.mp4")
    assert list(clip.frames.shape) == [5, 3, 32, 32] and clip.fps == 8.0
    assert torch.allclose(clip.frames * 255, (clip.frames * 255).round(), atol=1e-3)
    assert clip.frames.min() >= 0 and 0.7 < clip.frames[4].mean() < 0.85


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["good.txt"], "got no reward"),
        (["--reward", "own:length"], "got no files"),
        (["--reward", "own:length", "a.pkl"], "a.pkl.*'.pkl'"),
        (["--reward", "jpeg_compressibility", "gone.png"], "gone.png"),
        (["--reward", "own:length(process=False)", "latin.txt"], "latin.txt.*UTF-8"),
    ],
)
def test_what_cannot_be_scored_is_named(files, arguments, words):
    (files / "latin.txt").write_bytes(b"\xe9")
    with pytest.raises(ValueError, match=words):
        call("score", *arguments)


def seen(prompts, outputs):
    """Remembers what it is asked, and scores letters."""
    CALLS.append(list(zip(prompts, outputs, strict=True)))
    return [len(output.text) for output in outputs]


CALLS: list[list[tuple[Prompt, Text]]] = []


@pytest.fixture
def calls():
    CALLS.clear()
    return CALLS


def test_files_are_read_and_scored_in_batches_each_for_a_prompt_of_its_own(files, capsys, calls):
    names = [f"{number}.txt" for number in range(17)]
    for name in names:
        (files / name).write_text(name)
    reward = ["--reward", f"{__name__}:seen(process=False)"]
    call("score", *reward, *names)
    assert [len(batch) for batch in calls] == [16, 1]
    assert [(prompt.id, output.text) for batch in calls for prompt, output in batch] == [(name, name) for name in names]
    asked = ["--prompt", "a", "--answer", "[1]", "--task", "b", "--batch-size", 2, "--device", "cpu"]
    call("score", *reward, *asked, *names[:3])
    assert [len(batch) for batch in calls[2:]] == [2, 1]
    assert [prompt for prompt, _ in calls[2]] == [Prompt("a", name, [1], "b") for name in names[:2]]
    assert calls[0][0][0] == Prompt("", "0.txt")
    assert capsys.readouterr().out.splitlines()[:2] == ["file         seen", "0.txt           5"]


def test_nothing_is_scored_before_all_files_are_known_to_be_of_a_kind(files, capsys, calls):
    with pytest.raises(ValueError, match="b.pkl.*'.pkl'"):
        call("score", "--reward", f"{__name__}:seen(process=False)", "good.txt", "b.pkl")
    assert calls == [] and capsys.readouterr().out == ""
