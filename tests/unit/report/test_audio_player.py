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
from mmgrpo.report.audio_player import alignment, player, wav
from mmgrpo.report.cards import selection
from mmgrpo.report.completions import completions_html, write_sounds
from mmgrpo.types import Audio, Prompt, Text

HUM = Audio((torch.sin(torch.arange(16_000) * 0.05) / 2)[None], 16_000)
ALIGNED = [("equal", "the", "the"), ("replace", "cat", "bat"), ("delete", "sat", ""), ("insert", "", "up")]
BAD = '"><script>alert(1)</script>'


def test_words_are_marked_and_counted_and_the_marks_do_not_need_colour():
    html = alignment(ALIGNED)
    # the; bat for cat; sat deleted; up inserted: three errors against the three words of the reference.
    assert "3 errors in 3 words: 1 substitution, 1 deletion, 1 insertion" in html
    assert "<span>the</span>" in html
    assert '<ins class="replace">bat</ins><del class="replace">cat</del><sup>S</sup>' in html
    assert '<del class="delete">sat</del><sup>D</sup>' in html and '<ins class="insert">up</ins><sup>I</sup>' in html
    assert page.errors(ALIGNED) == 3 and page.errors([]) == 0
    assert "0 errors in 1 word<" in alignment([("equal", "a", "a")])


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


def test_sounds_that_a_policy_makes_are_played_side_by_side(tmp_path):
    prompt = Prompt("Say the cat sat.", id="a", answer="the cat sat")
    for title in ("before", "after"):
        shown = Shown([prompt], [HUM], [{"neg_wer": -0.5}])
        write_sounds(tmp_path / title, shown, [wav(HUM)], aligned=[ALIGNED], transcripts=["the bat up"])
    html = completions_html(tmp_path)
    assert html.count('src="data:audio/wav;base64,') == 2 and "before · 1.0 s" in html
    assert "Say the cat sat." in html and html.count("3 errors in 3 words") == 2 and "bat</ins>" in html
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


def changed(*gains, media="a.ogg"):
    """Prompts c0, c1, ... with these gains of the reward ``r``; another reward changes the other way."""

    def row(value):
        return {"media": [media], "aligned": [], "rewards": {"other": -value, "r": value}}

    return {f"c{i}": [("before", row(0.0)), ("after", row(gain))] for i, gain in enumerate(gains)}


def test_six_prompts_stand_for_all_from_the_largest_gain_to_the_largest_loss():
    # Ranked by gain: c10, c9, ..., c0; of 11 the ranks 0, 2, 4, 6, 8, 10.
    choice = selection(changed(*range(-5, 6)), "r")
    assert choice[:6] == ["c10", "c8", "c6", "c4", "c2", "c0"]
    assert choice[6:] == ["c1", "c9", "c3", "c7", "c5"]  # changes of 4, 4, 2, 2, 0, the first of the file first
    assert selection(changed(*range(-5, 6)))[:6] == choice[5::-1]  # by the first reward of a row, if none is named


def test_of_few_prompts_and_of_those_that_did_not_change_all_are_shown_in_order():
    assert selection(changed(0, 2, 1), "r") == ["c1", "c2", "c0"]
    assert selection(changed(*[0] * 11), "r") == [f"c{i}" for i in (0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9)]


def test_word_errors_count_before_rewards():
    before, after = rows(3, lambda i: 2), rows(3, lambda i: (3, 2, 0)[i])
    assert selection({id: [("before", before[id]), ("after", after[id])] for id in before}) == ["c2", "c1", "c0"]


@pytest.mark.parametrize(("media", "count"), [("a.ogg", 24), ("a.jpg", 99)])
def test_a_page_with_recordings_has_fewer_prompts(media, count):
    assert len(selection(changed(*[0] * 99, media=media))) == count
    alone = {id: pair[:1] for id, pair in changed(*range(99), media=media).items()}
    assert selection(alone) == [f"c{i}" for i in range(count)]  # nothing to compare: as in the file
