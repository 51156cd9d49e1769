"""What the family of policies that speak answers, and the engines that it speaks with, each replaced by a stand-in."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.evaluation import Shown
from mmgrpo.family import family
from mmgrpo.types import Audio, Prompt
from pipelines.speech import renderers

SPEAKS = family("duration")


def config(**changes):
    made = config_class(SPEAKS.sections)()
    for name, value in changes.items():
        setattr(made.model, name, value)
    return made


def test_every_text_of_a_file_or_a_command_line_is_a_prompt(tmp_path):
    (tmp_path / "say.txt").write_text("Good morning!\nGood night.\n")
    prompts, skipped = SPEAKS.read(config(), str(tmp_path / "say.txt"))
    assert [prompt.text for prompt in prompts] == ["Good morning!", "Good night."] and skipped == []
    assert SPEAKS.accept(config(), None, prompts) == (prompts, [])
    typed = SPEAKS.prompts(config(), ["Good morning!", "Bye."])
    assert [(one.text, one.id) for one in typed] == [("Good morning!", "prompt-0"), ("Bye.", "prompt-1")]
    assert SPEAKS.blank(prompts) == [] and SPEAKS.summary(config(), None) == {}
    assert SPEAKS.check(config()) is None and SPEAKS.decisions(config()) == "tokens"


@pytest.mark.parametrize("name", ["duration", "flow_speech", "codec_speech"])
def test_a_transcript_is_the_text_to_be_spoken_in_the_voice_of_the_next_row(name, tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for number in range(2):
        soundfile.write(tmp_path / f"{number}.wav", np.sin(np.arange(8_000) * 0.1) / 2, 16_000)
    (tmp_path / "metadata.csv").write_text("file_name,text\n0.wav,Good morning.\n1.wav,Good night.\n")
    config = config_class(family(name).sections)()
    [one, two], skipped = family(name).read(config, str(tmp_path))
    assert (one.text, one.meta["reference_text"], two.text, skipped) == (
        "Good morning.",
        "Good night.",
        "Good night.",
        [],
    )
    assert [Path(prompt.media[0].source).name for prompt in (one, two)] == ["1.wav", "0.wav"]
    if name != "duration":  # a header tells it from LJSpeech's file of this name
        assert [prompt.text for prompt in family(name).read(config, str(tmp_path / "metadata.csv"))[0]] == [
            one.text,
            two.text,
        ]
    (tmp_path / "rows.jsonl").write_text('{"text": "", "audio": "0.wav"}')
    with pytest.raises(ValueError, match="rows.jsonl:1.*no text"):
        family(name).read(config, str(tmp_path / "rows.jsonl"))


def test_samples_are_written_with_their_sounds_and_a_page_plays_them(tmp_path):
    sound = Audio(torch.sin(torch.arange(800) * 0.3)[None] * 0.5, 8_000)
    shown = Shown([Prompt("Good morning!", "a")], [sound], [{"seconds": 0.1}], [{}])
    SPEAKS.write_samples(tmp_path / "samples" / "after", shown)
    [row] = [json.loads(line) for line in (tmp_path / "samples" / "after.jsonl").read_text().splitlines()]
    assert "Good morning!" in json.dumps(row) and len(list((tmp_path / "samples").rglob("*"))) >= 2
    page = SPEAKS.write_page(tmp_path / "drawn", {"": shown}, 1, 4)
    assert page == tmp_path / "drawn" / "completions.html"
    assert "Good morning!" in page.read_text() and "<audio" in page.read_text()


def test_the_policy_is_pretrained_on_the_training_texts_alone_with_the_sizes_that_are_asked_for(tmp_path, monkeypatch):
    from pipelines.speech import duration
    from tests.speaking import hummer

    (tmp_path / "train.txt").write_text("One.\nTwo.\n")
    voice = hummer()
    monkeypatch.setitem(renderers.RENDERERS, "hum", lambda: voice)
    asked = []
    monkeypatch.setattr(duration, "pretrain", lambda network, texts, **given: asked.append((texts, given)))
    sizes = {"classes": 24, "frames_a_class": 40, "width": 32, "layers": 1, "heads": 2, "inner": 64}
    made = config(renderer="hum", pace=12.0, spread=0.5, pretrain_steps=7, **sizes)
    made.data.train, made.seed, made.sampling.temperature = str(tmp_path / "train.txt"), 3, 0.5
    policy = SPEAKS.policy(made, "cpu", prompts=[Prompt("held out", "h")])
    assert asked == [(["One.", "Two."], {"pace": 12.0, "spread": 0.5, "steps": 7, "seed": 3})]
    assert policy.temperature == 0.5 and policy.settings is not None
    shape = policy.network.shape
    assert {name: getattr(shape, name) for name in sizes} == sizes
    policy.save(tmp_path / "model")
    again = SPEAKS.policy(config(renderer="hum", path=str(tmp_path / "model")), "cpu")
    other = SPEAKS.policy(config(renderer="hum", path="nowhere"), "cpu", weights=str(tmp_path / "model"))
    for loaded in (again, other):
        assert loaded.model.voice is policy.model.voice is voice
        assert all(torch.equal(a, b) for a, b in zip(policy.network.parameters(), loaded.network.parameters()))
    assert len(asked) == 1


# Engines


def wav(samples: list[int], channels: int = 1, width: int = 2, rate: int = 22_050) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels), file.setsampwidth(width), file.setframerate(rate)
        file.writeframes(np.array(samples, np.int16).tobytes())
    return content.getvalue()


@pytest.fixture
def program(monkeypatch) -> SimpleNamespace:
    """espeak-ng: what it was asked, and what it answers."""
    made = SimpleNamespace(asked=[], output=wav([0, 16384, -32768]), returncode=0, stderr=b"")
    monkeypatch.setattr(renderers.shutil, "which", lambda name: f"/bin/{name}")

    def run(command, *, input, capture_output):
        made.asked.append((command, input))
        assert capture_output
        return subprocess.CompletedProcess(command, made.returncode, made.output, made.stderr)

    monkeypatch.setattr(renderers.subprocess, "run", run)
    return made


def test_espeak_is_asked_for_words_a_minute_and_its_samples_are_read(program):
    engine = renderers.renderer("espeak")
    assert engine.speak("Good morning!", 1.2).tolist() == [0.0, 0.5, -1.0]
    assert program.asked == [
        (["/bin/espeak-ng", "-v", "en-us", "-s", "210", "--stdin", "--stdout"], b"Good morning!")  # 1.2 x 175
    ]
    assert engine.rate == 22_050
    assert (engine.slowest * 175, engine.fastest * 175) == (pytest.approx(80), pytest.approx(450))


def test_an_espeak_that_fails_or_speaks_in_another_format_is_an_error(program, monkeypatch):
    engine = renderers.espeak()
    program.output = b""
    with pytest.raises(RuntimeError, match="espeak-ng -v en-us"):
        engine.speak("a", 1.0)
    program.output, program.returncode, program.stderr = wav([1]), 1, b"no such voice"
    with pytest.raises(RuntimeError, match="failed"):
        engine.speak("a", 1.0)
    program.returncode = 0
    for wrong in (wav([1, 2], channels=2), wav([1], width=1), wav([1], rate=16_000)):
        program.output = wrong
        with pytest.raises(ValueError, match="16.*22050"):
            engine.speak("a", 1.0)
    monkeypatch.setattr(renderers.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="espeak-ng"):
        renderers.espeak()


def test_hibari_speaks_with_a_fixed_seed_at_half_to_double_speed(monkeypatch):
    asked = []

    class Hibari:
        sample_rate = 44_100

        def __call__(self, text, **given):
            asked.append((text, given))
            return np.ones(3, np.float32)

    monkeypatch.setitem(sys.modules, "hibari", SimpleNamespace(Hibari=Hibari))
    monkeypatch.setattr(renderers, "require", lambda *names: None)
    engine = renderers.renderer("hibari")
    assert engine.speak("a", 1.5).tolist() == [1, 1, 1] and asked == [("a", {"speed": 1.5, "seed": 0})]
    assert (engine.rate, engine.slowest, engine.fastest) == (44_100, 0.5, 2.0)


@pytest.mark.parametrize(
    ("samples", "kept"),
    [
        ([0.0, 0.5, -1.0, 0.02, 0.0], 3),  # up to a hundredth of the peak is silence
        ([0.01, 0.5, -1.0, -0.01, 0.0], 2),
        ([0.0, 0.0, 0.3], 1),
        ([0.004, 0.006, -0.5, 0.006, 0.004], 3),
    ],
)
def test_silence_at_the_ends_is_no_speech(samples, kept):
    engine = renderers.SpeedRenderer(lambda text, speed: np.array(samples), 100, 0.5, 2.0)
    assert engine.natural(Prompt("a", "a")) == kept / 100
    engine.natural_seconds["b"] = 7.0
    assert engine.natural(Prompt("b", "b")) == 7.0  # measured once


def test_an_engine_that_is_not_linear_is_asked_once_more_and_no_more_than_it_must(monkeypatch):
    asked, stretched = [], []
    stretch = renderers.stretch
    monkeypatch.setattr(renderers, "stretch", lambda *given: stretched.append(given[1:]) or stretch(*given))

    def curved(text: str, speed: float) -> np.ndarray:
        asked.append(round(speed, 4))
        return np.ones(round(1000 / speed**0.5))

    engine = renderers.SpeedRenderer(curved, 1000, 0.25, 4.0)
    # Natural is 1 s. For 0.8 s: speed 1.25 gives 894 samples; corrected by 894 / 800 to 1.3969: 846, then stretched.
    sound = engine.render(Prompt("a", "a"), 0.8)
    assert asked == [1.0, 1.25, round(1.25 * 894 / 800, 4)] and sound.samples.shape == (1, 800)
    assert stretched == [(1000, 846 / 800)]
    asked.clear(), stretched.clear()
    # 0.97 s: 1 / 0.97 gives 985 samples, which is near enough.
    assert engine.render(Prompt("a", "a"), 0.97).samples.shape == (1, 970) and asked == [round(1 / 0.97, 4)]
    assert not stretched
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="0"):
            engine.render(Prompt("a", "a"), seconds)
    assert engine.render(Prompt("a", "a"), 1e-9).samples.shape == (1, 1)


def test_a_sound_that_is_too_loud_is_cut_off_and_one_that_ends_early_is_padded():
    """One sample of a hundred lacks, which needs no other synthesis."""
    loud = renderers.SpeedRenderer(lambda text, speed: np.array([1.5, -1.5] * 50), 100, 0.5, 2.0)
    samples = loud.render(Prompt("a", "a"), 1.01).samples[0]
    assert samples[:2].tolist() == [1.0, -1.0] and samples[99] == -1.0 and samples[100] == 0 and len(samples) == 101
    assert loud.render(Prompt("a", "a"), 0.99).samples.shape == (1, 99)
