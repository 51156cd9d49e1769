"""Sounds and aligned transcripts as a page has them."""

from __future__ import annotations

import re
import wave
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import torch

from mmgrpo.evaluation import Shown
from mmgrpo.report import audio_player as page
from mmgrpo.report.audio_player import Sound, alignment, player, wav
from mmgrpo.report.cards import selection
from mmgrpo.report.completions import completions_html, write_completions, write_sounds
from mmgrpo.types import Audio, Media, Prompt, Text, Turn

HUM = Audio((torch.sin(torch.arange(16_000) * 0.05) / 2)[None], 16_000)
ALIGNED = [("equal", "the", "the"), ("replace", "cat", "bat"), ("delete", "sat", ""), ("insert", "", "up")]
BAD = '"><script>alert(1)</script>'


def clip(file, name="a", answer="the cat sat"):
    return Prompt("", id=name, answer=answer, turns=(Turn("user", (Media("audio", str(file)),)),))


def test_words_are_marked_and_counted_and_the_marks_do_not_need_colour():
    html = alignment(ALIGNED)
    # the; bat for cat; sat deleted; up inserted: three errors against the three words of the reference.
    assert "3 errors in 3 words: 1 substitution, 1 deletion, 1 insertion" in html
    assert "<span>the</span>" in html
    assert '<ins class="replace">bat</ins><del class="replace">cat</del><sup>S</sup>' in html
    assert '<del class="delete">sat</del><sup>D</sup>' in html and '<ins class="insert">up</ins><sup>I</sup>' in html
    assert page.errors(ALIGNED) == 3 and page.errors([]) == 0
    assert "0 errors in 1 word<" in alignment([("equal", "a", "a")])


def test_the_words_of_both_sides_are_escaped():
    html = alignment([("replace", BAD, BAD), ("equal", BAD, BAD), ("insert", "", BAD), ("delete", BAD, "")])
    assert "<script" not in html and html.count("&lt;script&gt;") == 9  # titles: 2 + 1 + 1, words: 2 + 1 + 1 + 1


def test_a_wav_of_a_sound_is_read_back_to_the_level():
    made = wav(Audio(torch.tensor([[0.0, 1.0, -1.0], [0.5, 2.0, -0.5]]), 8_000))
    with wave.open(BytesIO(made.content)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (2, 8_000, 2)
        # 0.5 * 32767 = 16383.5, rounded to the even 16384; what is beyond 1 is cut off. Channels take turns.
        assert np.frombuffer(file.readframes(9), "<i2").tolist() == [0, 16384, 32767, 32767, -32767, -16384]


def test_a_player_holds_the_file_and_what_cannot_be_played_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.opus").write_bytes(b"sound")
    html = player(tmp_path, "a.opus", BAD)
    assert html.startswith("<audio controls") and "<script" not in html
    assert b64decode(re.search('src="data:audio/ogg;base64,([^"]+)"', html)[1]) == b"sound"
    assert "(b.wav is missing)" in player(tmp_path, "b.wav", "")
    monkeypatch.setattr(page, "MAX_BYTES", 4)
    assert "(a.opus is too large for this page: 5 bytes, at most 4)" in player(tmp_path, "a.opus", "")


def test_everything_that_a_user_gives_is_escaped(tmp_path):
    prompt = Prompt(BAD, id=BAD, task=BAD, answer=BAD, meta={BAD: BAD})
    shown = Shown([prompt], [Text(BAD)], [{BAD: 1.0}])
    write_completions(tmp_path / "before", shown, [[Sound(b"x", ".ogg")]], aligned=[[("replace", BAD, BAD)]])
    write_completions(tmp_path / "after-<i>", shown, [[]])
    html = completions_html(tmp_path)
    assert "<script" not in html and "<i>" not in html and "&lt;i&gt;" in html


def test_sounds_that_a_policy_makes_are_played_side_by_side(tmp_path):
    prompt = Prompt("Say the cat sat.", id="a", answer="the cat sat")
    for title in ("before", "after"):
        shown = Shown([prompt], [HUM], [{"neg_wer": -0.5}])
        write_sounds(tmp_path / title, shown, [wav(HUM)], aligned=[ALIGNED], transcripts=["the bat up"])
    html = completions_html(tmp_path)
    assert html.count('src="data:audio/wav;base64,') == 2 and "before · 1.0 s" in html
    assert "Say the cat sat." in html and html.count("3 errors in 3 words") == 2 and "the bat up" in html
    with pytest.raises(TypeError, match="Text"):
        write_sounds(tmp_path / "x", Shown([prompt], [Text("a")], [{}]), [wav(HUM)])


def rows(count, wrong):
    """Rows of ``count`` clips; ``wrong(i)`` of the words of each are wrong."""
    return {
        f"c{i}": {
            "media": ["a.ogg"],
            "aligned": [["insert", "", "x"]] * wrong(i) + [["equal", "y", "y"]],
            "rewards": {},
        }
        for i in range(count)
    }


def test_of_many_clips_those_are_shown_that_changed_most_then_the_worst_then_the_first():
    # 40 clips: 0-9 lose i errors each, 10-19 gain i - 9, 20-29 keep i - 19 errors, 30-39 keep none.
    before = rows(40, lambda i: i if i < 10 else 0 if i < 20 else i - 19 if i < 30 else 0)
    after = rows(40, lambda i: 0 if i < 10 else i - 9 if i < 30 else 0)
    for i in range(20, 30):
        after[f"c{i}"] = before[f"c{i}"]
    choice = selection({id: [("before", before[id]), ("after", after[id])] for id in before})
    assert choice == {
        "Largest improvements": ["c9", "c8", "c7", "c6", "c5", "c4"],
        "Largest regressions": ["c19", "c18", "c17", "c16", "c15", "c14"],
        "Lowest results": ["c29", "c28", "c27", "c26", "c25", "c24"],
        "Further prompts": ["c0", "c1", "c2", "c3", "c10", "c11"],
    }


def test_without_alignment_the_first_reward_says_what_changed():
    def row(value):
        return {"media": ["a.ogg"], "aligned": [], "rewards": {"bleu": value, "other": -value}}

    sides = {f"c{i}": [("before", row(0.5)), ("after", row(value))] for i, value in enumerate((0.5, 0.9, 0.1))}
    choice = selection(sides)
    assert choice == {"Largest improvements": ["c1"], "Largest regressions": ["c2"], "Lowest results": ["c0"]}


def test_prompts_without_sounds_are_all_shown():
    silent = {f"c{i}": [("after", {"media": ["a.jpg"], "aligned": [], "rewards": {}})] for i in range(99)}
    assert selection(silent) == {"": list(silent)}


def test_prompts_without_sounds_that_changed_come_first_in_their_order():
    def row(value):
        return {"media": ["a.jpg"], "aligned": [], "rewards": {"task": value}}

    after = {"same": 0.5, "better": 0.9, "also same": 0.5, "worse": 0.1}
    sides = {id: [("before", row(0.5)), ("after", row(value))] for id, value in after.items()}
    assert selection(sides) == {"": ["better", "worse", "same", "also same"]}
