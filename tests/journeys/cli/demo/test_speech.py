"""The tab Speech: transcripts against their references, and texts that are spoken."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch

from mmgrpo.cli.demo import speech
from mmgrpo.cli.demo.compare import OWN, Examples
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.parts import one_line_errors
from mmgrpo.cli.demo.speech import changes, hears, read_upload, speak, tab, transcribe
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Audio, Text
from tests.journeys.cli.demo.fakes import answering, page, pair


def tone(seconds: float, rate: int = 8000) -> Audio:
    return Audio(torch.sin(torch.arange(round(seconds * rate)) * 0.1)[None] / 2, rate)


def write(file: Path, seconds: float) -> str:
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes((tone(seconds).samples[0].numpy() * 32767).astype(np.int16).tobytes())
    return str(file)


@pytest.fixture
def recording(tmp_path):
    return write(tmp_path / "said.wav", 1.0)


@pytest.fixture
def heldout(tmp_path, recording):
    file = tmp_path / "heldout.jsonl"
    rows = [{"audio": recording, "answer": "Could you pass me the salt?", "id": f"row-{i}"} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def recognizer(before: str, after: str, rewards=(), **options):
    one = pair(options.pop("family", "whisper"), list(rewards), options.pop("prompts", ()), **options)
    return answering(one, lambda i: Text(before), lambda i: Text(after))


def heard(found: Opened, key=OWN, file=None, question="", reference=""):
    return [shown for _, shown in transcribe(found, Examples(found), "a", key, file, question, reference)]


def spoken(found: Opened, text: str, key=OWN):
    return [shown for _, shown in speak(found, Examples(found), "a", key, text)]


def test_the_family_decides_which_half_has_a_pair():
    pairs = [pair(name, name=name) for name in ("whisper", "qwen_audio", "duration")]
    assert [hears(one) for one in pairs] == [True, True, False]
    shown = page(tab, Opened({}, {one.name: one for one in pairs}, Path("votes.jsonl")))
    assert [name for name, _ in shown["speech-recognizer"].choices] == ["whisper", "qwen_audio"]
    assert [name for name, _ in shown["speech-voice"].choices] == ["duration"]
    shown = page(tab, Opened({}, {}, Path("votes.jsonl")))
    assert not shown["events"] and "mmgrpo train" in shown["texts"]


# ---- recognition


def test_words_are_marked_against_the_reference_with_the_error_rate(recording):
    found, _ = recognizer("Could you pass me my salt", "Could you pass me the salt?", ["one_minus_wer"])
    base, trained = heard(found, file=recording, reference="could you pass me the salt")[-1].split("<h3>Trained</h3>")
    assert "substitution: reference “the”, hypothesis “my”" in base
    assert "word error rate <b>16.7%</b>" in base and "one_minus_wer <b>0.833</b>" in base
    assert "word error rate <b>0.0%</b>" in trained and "<ins" not in trained


def test_without_a_reference_the_two_transcripts_are_compared_and_rewards_fail(recording):
    found, _ = recognizer("wait for me", "wait for him", ["one_minus_wer"])
    results = heard(found, file=recording)
    base, trained = results[-1].split("<h3>Trained</h3>")
    assert "<ins" not in base and "before “me”, after “him”" in trained
    assert "1 word differs from the transcript before training" in trained
    assert results[-1].count(">failed</span>") == 2 and results[0] == ""
    assert "2 words differ from" in changes("a cat", "the bat", "english") and "0 words" in changes("a", "a", "english")


def test_an_example_is_heard_as_it_is_or_against_another_reference(heldout):
    found, (base, _) = recognizer("a", "b", prompts=None, heldout=heldout)
    examples = Examples(found)
    own = examples.of("a")["1"]
    list(transcribe(found, examples, "a", "1", None, "", "Could you pass me the salt?"))
    list(transcribe(found, examples, "a", "1", None, "", ""))
    assert base.asked[0][0] is own
    assert (base.asked[1][0].answer, base.asked[1][0].media) == (None, own.media)


def test_recordings_beyond_the_limits_are_refused_by_name_before_a_model_is_loaded(tmp_path):
    found, _ = answering(pair("whisper"))
    (text := tmp_path / "text.wav").write_text("no recording")
    with pytest.raises(Unreadable, match="31.0.*30"):
        heard(found, file=write(tmp_path / "long.wav", 31))
    with pytest.raises(gr.Error) as error, one_line_errors(str(text)):
        read_upload(found.pairs["a"], str(text))
    assert error.value.message.startswith("text.wav: ") and str(tmp_path) not in error.value.message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "recording: got none"),
        ({"key": "../../etc/passwd"}, "example: got"),
        ({"key": "0"}, "example: got '0', expected one of the 0 examples"),
        ({"reference": "x" * 4001}, "reference: got 4,001 characters"),
        ({"question": "x" * 4001}, "question: got 4,001 characters"),
    ],
)
def test_what_the_page_does_not_offer_is_refused(changes, expected):
    with pytest.raises(ValueError) as error:
        heard(answering(pair("whisper"))[0], **changes)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("language", "text", "normal"),
    [
        ("en", "plain words", "english"),
        ("english", "plain", "english"),
        ("en", "schön hier", "basic"),
        ("de", "plain words", "basic"),
        ("zh", "你好 吗", "characters"),
        ("ko", "안녕 하세요", "basic"),
    ],
)
def test_words_are_compared_as_their_language_is_written(language: str, text: str, normal: str):
    one = pair("whisper")
    config = replace(one.config, model=replace(one.config.model, language=language))
    assert speech.rule(replace(one, config=config), text) == normal


# ---- synthesis


def test_a_text_is_spoken_with_playback_rate_and_rewards():
    found, (base, _) = answering(pair("duration", ["words_a_second"]), lambda i: tone(1), lambda i: tone(2))
    results = spoken(found, "  four words\nare here ")
    assert base.asked[0][0].text == "four words are here" and results[0] == ""
    base_page, trained = results[-1].split("<h3>Trained</h3>")
    assert "1.00 s, 4.0 words a second" in base_page and "2.00 s, 2.0 words a second" in trained
    assert "words_a_second <b>2.000</b>" in trained and "Trained: four words are here" in trained
    assert (base_page.count("<audio controls"), trained.count("data:audio/wav;base64,")) == (1, 1)
    assert (base_page.count("<rect"), trained.count("<rect")) == (speech.BARS // 2, speech.BARS)


@pytest.mark.parametrize(
    ("text", "expected"), [("", "got ''"), ("?!", "expected words"), ("a " * 151 + "b", "got 303")]
)
def test_texts_that_cannot_be_spoken_are_refused(text, expected):
    with pytest.raises(ValueError, match="text: ") as error:
        spoken(answering(pair("duration"))[0], text)
    assert expected in str(error.value)
