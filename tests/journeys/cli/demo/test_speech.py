"""Transcripts and synthesis in the demo."""

from __future__ import annotations

import json
import wave

import gradio as gr
import numpy as np
import pytest
import torch

from mmgrpo.cli.demo import speech
from mmgrpo.cli.demo.models import BEFORE, Opened
from mmgrpo.cli.demo.sampled import OWN, Drawn, Examples
from mmgrpo.cli.demo.speech import hears, read_upload, speak, tab, transcribe, waveform
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Audio, Media, Prompt, Text, Turn
from tests.journeys.cli.demo import told

HOSTILE = "<img src=x onerror=alert(1)>"


def tone(seconds: float, rate: int = 8000) -> Audio:
    return Audio(torch.sin(torch.arange(round(seconds * rate)) * 0.1)[None] / 2, rate)


def write(file, seconds: float) -> str:
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes((tone(seconds).samples[0].numpy() * 32767).astype(np.int16).tobytes())
    return str(file)


@pytest.fixture
def sound(tmp_path):
    return write(tmp_path / "said.wav", 1.0)


@pytest.fixture
def heldout(tmp_path, sound):
    file = tmp_path / "heldout.jsonl"
    rows = [{"audio": sound, "answer": "Could you pass me the salt?", "id": f"clip-{i}"} for i in range(3)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def recognizer(before: str, after: str, rewards=(), heldout=""):
    pair = told.pair("one", "whisper", list(rewards), heldout)
    return told.opened(pair, lambda i: Text(before), lambda i: Text(after))


def heard(found: Opened, key=OWN, file=None, question="", reference=""):
    return list(transcribe(found, Examples(found), "one", key, file, question, reference))


def spoken(found: Opened, text: str, key=OWN):
    return list(speak(found, Examples(found), "one", key, text))


def test_the_family_decides_which_half_has_a_pair():
    pairs = [told.pair(name, name, []) for name in ("whisper", "qwen_audio", "duration")]
    assert [hears(pair) for pair in pairs] == [True, True, False]
    found = Opened({}, {pair.name: pair for pair in pairs}, told.Path("votes.jsonl"))
    page = told.page(tab, found)
    assert [name for name, _ in page["speech-recognizer"].choices] == ["whisper", "qwen_audio"]
    assert [name for name, _ in page["speech-voice"].choices] == ["duration"]


def test_words_are_marked_against_the_reference_with_the_error_rate(sound):
    found, _ = recognizer("Could you pass me my salt", "Could you pass me the salt?", ["one_minus_wer"])
    _, _, page = heard(found, file=sound, reference="could you pass me the salt")[-1]
    base, trained = page.split("<h3>Trained</h3>")
    assert "substitution: reference “the”, hypothesis “my”" in base
    assert "word error rate <b>16.7%</b>" in base
    assert "one_minus_wer <b>0.833</b>" in base
    assert "word error rate <b>0.0%</b>" in trained
    assert "<ins" not in trained


def test_without_a_reference_the_two_transcripts_are_compared_and_rewards_fail(sound):
    found, _ = recognizer("wait for me", "wait for him", ["one_minus_wer"])
    results = [page for _, _, page in heard(found, file=sound)]
    base, trained = results[-1].split("<h3>Trained</h3>")
    assert "<ins" not in base
    assert "before “me”, after “him”" in trained
    assert "1 word differs from the transcript before training" in trained
    assert results[-1].count('<b class="failed">failed</b>') == 2
    assert any("<h3>Base</h3>" in page and "<h3>Trained</h3>" not in page for page in results)


def test_an_example_is_heard_as_it_is_or_against_another_reference(heldout):
    found, (base, _) = recognizer("a", "b", heldout=heldout)
    examples = Examples(found)
    own = examples.of("one")["1"]
    list(transcribe(found, examples, "one", "1", None, "", "Could you pass me the salt?"))
    list(transcribe(found, examples, "one", "1", None, "", ""))
    assert base.asked[0][0] is own
    assert (base.asked[1][0].answer, base.asked[1][0].media) == (None, own.media)


def test_another_instruction_of_an_example_is_asked_about_its_sound():
    medium = Media("audio", tone(1))
    example = Prompt("Transcribe.", "a", "hello", turns=(Turn("user", (medium, "Transcribe.")),))
    prompt = speech.sound_prompt(told.pair("one", "qwen_audio", []), example, None, " Translate. ", "hello")
    assert (prompt.text, prompt.answer, prompt.turns) == (
        "Translate.",
        "hello",
        (Turn("user", (medium, "Translate.")),),
    )


def test_an_instruction_stands_after_the_sound(sound):
    found, (base, _) = told.opened(told.pair("one", "qwen_audio", []), lambda i: Text("a"), lambda i: Text("b"))
    heard(found, file=sound, question="Translate.")
    prompt = base.asked[0][0]
    assert (prompt.text, prompt.id) == ("Translate.", "said.wav")
    assert [part if isinstance(part, str) else part.kind for part in prompt.turns[0].parts] == ["audio", "Translate."]


def test_sounds_beyond_the_limits_are_refused_by_name_before_a_model_is_loaded(tmp_path):
    pair = told.pair("one", "whisper", [])
    found, _ = told.opened(pair)
    (text := tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(Unreadable, match="31.0.*30"):
        heard(found, file=write(tmp_path / "long.wav", 31))
    with pytest.raises(gr.Error) as error, speech.one_line_errors(str(text)):
        read_upload(pair, str(text))
    assert error.value.message.startswith("text.wav: cannot be read as a recording")
    assert str(tmp_path) not in error.value.message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "sound: got none"),
        ({"key": "../../etc/passwd"}, "example: got"),
        ({"key": "0"}, "example: got '0', expected one of the 0 examples"),
        ({"reference": "x" * 4001}, "reference: got 4,001 characters"),
        ({"question": "x" * 4001}, "question: got 4,001 characters"),
    ],
)
def test_what_the_page_does_not_offer_is_refused(changes, expected):
    found, _ = told.opened(told.pair("one", "whisper", []))
    with pytest.raises(ValueError) as error:
        heard(found, **changes)
    assert expected in str(error.value)


def test_texts_are_escaped(tmp_path):
    file = write(tmp_path / f"{HOSTILE[:4]}.wav", 1.0)
    found, _ = recognizer(HOSTILE, HOSTILE)
    for reference in ("", HOSTILE):
        assert "<img" not in heard(found, file=file, reference=reference)[-1][2]
    found, _ = told.opened(told.pair("one", "duration", []), lambda i: tone(1), lambda i: tone(1))
    page = spoken(found, HOSTILE)[-1][2]
    assert "<img" not in page
    assert "“&lt;img" in page


@pytest.mark.parametrize(
    ("language", "text", "normal"),
    [
        ("en", "Hello", "english"),
        ("de", "Guten Tag", "basic"),
        ("en", "schöne Welt", "basic"),
        ("zh", "你好", "characters"),
    ],
)
def test_words_are_those_of_the_language(language, text, normal):
    pair = told.pair("one", "whisper", [])
    pair.config.model.language = language
    assert speech.rule(pair, text) == normal


def test_a_text_is_spoken_with_playback_rate_and_rewards():
    pair = told.pair("one", "duration", ["words_a_second"])
    found, (base, _) = told.opened(pair, lambda i: tone(1), lambda i: tone(2))
    results = spoken(found, "  four words\nare here ")
    assert base.asked[0][0].text == "four words are here"
    base_page, trained = results[-1][2].split("<h3>Trained</h3>")
    assert "1.00 s, 4.0 words a second" in base_page
    assert "2.00 s, 2.0 words a second" in trained
    assert "words_a_second <b>2.000</b>" in trained
    assert (base_page.count("<audio controls"), trained.count("data:audio/wav;base64,")) == (1, 1)
    assert (base_page.count("<rect"), trained.count("<rect")) == (speech.BARS // 2, speech.BARS)
    assert results[0][2] == ""


def test_the_bars_of_a_waveform_are_the_peaks_of_its_parts():
    samples = torch.cat([torch.full((100,), 0.5), torch.full((100,), 0.25)])[None]
    heights = [bar.split('"')[0] for bar in waveform(Audio(samples, 100), 2 / speech.BARS).split('height="')[1:]]
    assert heights == ["52.0", "26.0"]


@pytest.mark.parametrize(
    ("text", "expected"), [("", "got ''"), ("?!", "expected words"), ("a " * 151 + "b", "got 303")]
)
def test_texts_that_cannot_be_spoken_are_refused(text, expected):
    found, _ = told.opened(told.pair("one", "duration", []))
    with pytest.raises(ValueError, match="text: ") as error:
        spoken(found, text)
    assert expected in str(error.value)


def test_without_a_model_the_tab_says_what_to_do(tmp_path):
    page = told.page(tab, Opened({}, {}, tmp_path / "votes.jsonl"))
    assert not page["events"]
    assert any("mmgrpo train" in str(getattr(block, "value", "")) for block in page["all"])


def test_a_sound_that_nobody_hears_has_low_bars_and_one_of_few_samples_few():
    faint = Audio(torch.full((2, 10), 5e-7), 100)
    assert waveform(faint, 0.0).count('height="26.0"') == 2  # half of the least peak that fills the height
    assert waveform(Audio(torch.ones(1, 10), 100), 1.0).count("<rect") == 10


def test_words_that_a_reward_heard_otherwise_are_marked():
    notes = {"heard": "one too", "aligned": [("equal", "one", "one"), ("replace", "two", "too")]}
    made = speech.sounds(Prompt("one two"), {BEFORE: Drawn([tone(1)], [], [notes])})[BEFORE]
    assert "a recognizer hears: “one too”" in made and made.count('<ins class="replace"') == 1
    assert "Base: one two" in made
