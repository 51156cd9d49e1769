"""Transcripts, waveforms and votes in words and numbers: what the tabs Speech and Vote say, each by itself."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.cli.demo import vote_store, vote_trials
from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.cli.demo.sampled import Drawn
from mmgrpo.cli.demo.speech import against, changes, rule, sounds, waveform
from mmgrpo.cli.demo.vote_store import BOTH_BAD, LEFT, RIGHT, TIE, Tally, append_vote, read_votes, stored, tally
from mmgrpo.cli.demo.vote_trials import ANY, Question, Trial, chosen, preference, reveal_html, same, tally_html
from mmgrpo.types import Audio, Image, Media, Prompt, Text, Turn, Video
from tests.journeys.cli.demo.told import pair

NAN = math.nan


# ---- speech


@pytest.mark.parametrize(
    ("language", "text", "normal"),
    [
        ("en", "plain words", "english"),
        ("english", "plain", "english"),
        ("en", "schön hier", "basic"),
        ("de", "plain words", "basic"),
        ("de", "plain", "basic"),
        ("zh", "你好吗", "characters"),
        ("zh", "你好 吗", "characters"),
        ("ko", "안녕 하세요", "basic"),
    ],
)
def test_words_are_compared_as_their_language_is_written(language: str, text: str, normal: str):
    one = pair("w", "whisper", [])
    config = replace(one.config, model=replace(one.config.model, language=language))
    assert rule(replace(one, config=config), text) == normal


def test_a_transcript_beside_its_reference_has_the_rate_of_errors():
    assert "word error rate <b>50.0%</b>" in against("a cat", "a bat", "english")
    assert "word error rate <b>100.0%</b>" in against("cat", "", "english")
    assert "word error rate" not in against("", "cat", "english")


def test_what_two_transcripts_do_not_share_is_counted():
    assert "1 word differs from" in changes("a cat", "a bat", "english")
    assert "2 words differ from" in changes("a cat", "the bat", "english")
    assert "0 words differ from" in changes("a", "a", "english")
    text = changes("a cat", "a bat", "english")
    assert "before “cat”, after “bat”" in text and "before “a”" not in text


def test_a_waveform_has_bars_as_high_as_its_peaks_and_as_many_as_its_share():
    half = torch.cat([torch.full((1, 100), 0.25), torch.full((1, 100), -0.5)], dim=1)
    text = waveform(Audio(half, 100), 2 / 120)
    # Two bars: 26 high around the middle, 28, and 52 high.
    assert re.findall(r'x="(\d+)" y="([\d.]+)" width="3" height="([\d.]+)"', text) == [
        ("0", "15.0", "26.0"),
        ("4", "2.0", "52.0"),
    ]
    assert 'viewBox="0 0 480 56"' in text
    assert waveform(Audio(half, 100), 1.0).count("<rect") == 120 and waveform(Audio(half, 100), 0.0).count("<rect") == 2
    silent = waveform(Audio(torch.zeros(1, 10), 100), 0.0)
    assert silent.count('height="1.0"') == 2
    quiet = waveform(Audio(torch.tensor([[1.0, 0.0]]), 100), 0.0)
    assert 'height="52.0"' in quiet and 'height="1.0"' in quiet


def test_the_longest_sound_fills_the_width_and_what_a_recognizer_heard_is_told():
    long, short = (Audio(torch.ones(2, rate), 100) for rate in (200, 50))
    sides = {
        BEFORE: Drawn([long], [{"r": 1.0}], [{"heard": "<a>", "aligned": []}]),
        AFTER: Drawn([short], [], [{}]),
    }
    made = sounds(Prompt("one two"), sides)
    assert made[BEFORE].count("<rect") == 120 and made[AFTER].count("<rect") == 30
    assert "2.00 s, 1.0 words a second" in made[BEFORE] and "0.50 s, 4.0 words a second" in made[AFTER]
    assert "hears: “&lt;a&gt;”" in made[BEFORE] and "hears" not in made[AFTER] and "r <b>1.000</b>" in made[BEFORE]


# ---- votes


def trial(left: str = BEFORE, **options: Any) -> Trial:
    outputs = {BEFORE: Text("a"), AFTER: Text("b")}
    return Trial("<p>", options.pop("prompt", Prompt("q", "0")), 5, outputs, left, options.pop("values", {}), **options)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (Text("a"), Text("a", tokens=3), True),
        (Text("a"), Text("b"), False),
        (Image(torch.zeros(3, 2, 2)), Image(torch.zeros(3, 2, 2)), True),
        (Image(torch.zeros(3, 2, 2)), Image(torch.ones(3, 2, 2)), False),
        (Video(torch.zeros(1, 3, 2, 2), 1.0), Video(torch.zeros(1, 3, 2, 2), 1.0), True),
        (Audio(torch.zeros(1, 4), 8), Audio(torch.ones(1, 4), 8), False),
        (Audio(torch.zeros(1, 4), 8), Audio(torch.zeros(1, 4), 8), True),
        (Text("a"), Image(torch.zeros(3, 2, 2)), False),
    ],
)
def test_outputs_that_nobody_can_tell_apart_are_the_same(one: Any, other: Any, equal: bool):
    assert same(one, other) is same(other, one) is equal


def test_the_reference_and_the_rewards_are_told_after_the_vote():
    values = {"<r>": (1.0, 2.0), "s": (NAN, 1.0), "t": (3.0, 3.0), "u": (2.0, -0.0)}
    text = reveal_html(trial(AFTER, values=values, prompt=Prompt("q", answer="<x>" * 200)), LEFT)
    assert f"The reference is “{'&lt;x&gt;' * 166}&lt;x”." in text
    rows = re.findall(r"<tr><th scope='row'>(.*?)</th>(.*?)</tr>", text)
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", row) for name, row in rows}
    assert cells == {
        "&lt;r&gt;": ["2", "1", "after training"],
        "s": ["1", "failed", "not known"],
        "t": ["3", "3", "neither"],
        "u": ["0", "2", "before training"],
    }
    before = reveal_html(trial(BEFORE, values={"r": (1.0, 2.0)}), LEFT)
    assert before.index(">1<") < before.index(">2<") and "The reference" not in before
    assert "The reference is “3”" in reveal_html(trial(prompt=Prompt("q", answer=3)), "")
    assert "The reference" not in reveal_html(trial(prompt=Prompt("q", answer=["a"])), "")
    assert preference(1.0, NAN) == "not known"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (Tally(), "<p class='mm-note'>No vote on &lt;p&gt; yet.</p>"),
        (Tally(1, 0, 0), "wins 100 %</strong> [21, 100] of 1 vote (ties half"),
        (Tally(2, 1, 1), "wins 62 %</strong> [22, 91] of 4 votes (ties half"),
    ],
)
def test_the_votes_so_far_in_words(counts: Tally, words: str):
    text = tally_html(counts, "<p>")
    assert words in text
    end = f"{counts.after} for it, {counts.before} for the initial one, {counts.neither} for neither.</p>"
    assert text.endswith(end if counts.votes else "</p>")


def test_what_is_tried_is_what_was_typed_or_chosen_or_some_of_all():
    one, several = pair("p", "sd3", []), [Question(Prompt(str(n), str(n))) for n in range(9)]
    assert chosen(several, one, ANY, " a cat ")[0].prompt == Prompt(" a cat ", "typed")
    assert chosen(several, one, "8", "") == [several[8]] and chosen(several, one, "0", " ") == [several[0]]
    some = chosen(several, one, ANY, "")
    assert (
        len(some) == 8
        and len({question.prompt.id for question in some}) == 8
        and len(chosen(several[:3], one, ANY, "")) == 3
    )
    for place in ("9", "-1", "x"):
        with pytest.raises(ValueError, match=f"'{place}'"):
            chosen(several, one, place, "")
    with pytest.raises(ValueError, match="held-out.*'p'"):
        chosen([], one, ANY, "")
    picture = Question(Prompt("q", turns=(Turn("user", (Media("image", "a.png"),)),)))
    kept = Question(Prompt("q"), (Text("a"), Text("b")))
    for several_, of in (([picture], one), ([*several, kept], one), (several, pair("p", "qwen_vl", []))):
        with pytest.raises(ValueError, match="more than a text"):
            chosen(several_, of, ANY, "a")


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), (0.5, 0.5), (True, NAN), ("1", NAN), (None, NAN)])
def test_values_that_a_run_kept_are_numbers(value: Any, number: float):
    assert repr(vote_trials._float(value)) == repr(number)


@pytest.mark.parametrize(("name", "kind"), [("a.PNG", "image"), ("a.wav", "audio"), ("a.txt", ""), ("a", "")])
def test_media_that_a_run_kept_are_known_by_their_suffix(name: str, kind: str):
    assert vote_trials._kind(name) == kind


def test_lines_that_are_no_votes_do_not_count(tmp_path):
    file = tmp_path / "v.jsonl"
    assert read_votes(file) == [] and tally(file, "p") == Tally()
    row = {"pair": "p", "vote_type": LEFT, "sides": {"left": AFTER, "right": BEFORE}}
    lines = [row, {**row, "vote_type": RIGHT}, {**row, "vote_type": TIE}, {**row, "vote_type": BOTH_BAD}]
    lines += [{**row, "pair": "q"}, {**row, "vote_type": "x"}, {**row, "sides": 3}, [1]]
    lines += [{**row, "sides": {"left": "elsewhere"}}]
    file.write_text("{\n" + "".join(json.dumps(line) + "\n" for line in lines))
    assert len(read_votes(file)) == 8 and tally(file, "p") == Tally(after=1, before=1, neither=3)


@pytest.mark.parametrize(("left", "whole"), [('{"a": 1}', 2), ('{"a": ', 1), ("", 1)])
def test_a_part_of_a_line_is_removed_and_a_whole_one_ended(left: str, whole: int, tmp_path, monkeypatch):
    file = tmp_path / "folder" / "v.jsonl"
    file.parent.mkdir()
    file.write_text('{"b": 2}\n' + left)
    append_vote(file, {"vote_type": TIE}, {"left": Text("a"), "right": Text("b")}, [Text("c")])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == whole + 1 and rows[-1] == {
        **{"vote_type": TIE, "left": {"text": "a"}, "right": {"text": "b"}, "about": [{"text": "c"}]},
    }
    monkeypatch.setattr(vote_store, "MAX_VOTES", len(rows))
    with pytest.raises(ValueError, match=rf"v\.jsonl.*{len(rows)}"):
        append_vote(file, {"vote_type": TIE}, {})


def test_media_lie_beside_the_votes_without_loss(tmp_path):
    from pipelines.vlm.frames import decode

    picture = Image(torch.arange(48).reshape(3, 4, 4) / 255)
    name = stored(picture, tmp_path / "v.jsonl")
    assert re.fullmatch(r"v-media/[0-9a-f]{32}\.png", name) and stored(picture, tmp_path / "v.jsonl") == name
    sound = stored(Audio(torch.zeros(1, 80), 8000), tmp_path / "v.jsonl")
    assert sound.endswith(".wav") and (tmp_path / sound).read_bytes()[:4] == b"RIFF"
    frames = (torch.arange(3 * 3 * 16 * 16).reshape(3, 3, 16, 16) % 256) / 255
    clip = Video(torch.cat([frames, frames.new_full((1, 3, 16, 16), 1.7)]), 8.0)
    film = stored(clip, tmp_path / "v.jsonl")
    read = decode(str(tmp_path / film), lambda count, fps: range(count))
    assert film.endswith(".mp4") and read.fps == 8.0
    assert torch.equal(read.frames, (clip.frames.clamp(0, 1) * 255).round().byte())


def test_a_file_of_votes_has_its_suffix_and_a_vote_is_one_of_four(tmp_path: Path):
    for name, got in (("v.txt", ".txt"), ("v", "no suffix")):
        with pytest.raises(ValueError, match=f"{got}"):
            append_vote(tmp_path / name, {"vote_type": TIE}, {})
    with pytest.raises(ValueError, match="'maybe'"):
        append_vote(tmp_path / "v.jsonl", {"vote_type": "maybe"}, {})
    assert not (tmp_path / "v.jsonl").exists() and vote_store.MAX_VOTES == 5_000
