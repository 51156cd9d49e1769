"""The file of votes: what the evaluation of rewards reads of it, what nothing loses, and its tally."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import torch

from mmgrpo.cli import evaluate_rewards
from mmgrpo.cli.demo import vote, vote_store
from mmgrpo.cli.demo import vote_trials as trials
from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.cli.demo.vote_store import BOTH_BAD, LEFT, RIGHT, TIE, Tally, append_vote, tally, wilson
from mmgrpo.runtime.folder import UNSUPPORTED
from mmgrpo.types import Audio, Media, Prompt, Text, Turn, Video
from pipelines.vlm.frames import decode
from reward_models.evaluation.protocols import read_benchmark
from tests.journeys.cli.demo.ballots import (
    BUSY,
    FLAT,
    HOSTILE,
    PAIRS,
    opened_on,
    pair,
    trial_of,
)

# From votes to the evaluation of rewards.


@pytest.mark.parametrize("kind", PAIRS)
def test_votes_are_read_by_the_evaluation_of_rewards(kind, tmp_path, capsys):
    """Four votes of each kind for the trained model, on the left and on the right: the reward agrees with all, and a
    tie and "both bad" have no preference."""
    before, after, reward = PAIRS[kind]
    prompt = Prompt(
        "how many?", "id-1", "3", "count", {"tolerance": 1}, (Turn("user", (Media("image", BUSY), "how?")),)
    )
    opened = opened_on(tmp_path, pair())
    for left, choice in ((BEFORE, RIGHT), (AFTER, LEFT), (BEFORE, TIE), (AFTER, BOTH_BAD)):
        vote.cast(opened, trial_of(before, after, left, prompt), choice)
    comparisons = read_benchmark(f"votes:{opened.votes}").comparisons
    assert [one.ranks for one in comparisons] == [(1, 0), (0, 1), (0, 0), (0, 0)]
    (asked, shown), swapped = comparisons[0].outputs(), comparisons[1].outputs()
    assert trials.same(asked, swapped[1]) and trials.same(shown, swapped[0])
    for stored, output in ((asked, before), (shown, after)):
        if isinstance(output, Audio):
            assert stored.rate == output.rate
            assert torch.allclose(stored.samples, output.samples, atol=0.5001 / 32767)
        else:
            assert trials.same(stored, output)
    read = comparisons[0].asked()
    assert (read.answer, read.task, dict(read.meta)) == ("3", "count", {"tolerance": 1})
    assert torch.equal(comparisons[0].about[0].load().pixels, BUSY.pixels)

    evaluate_rewards.main(
        ["--rewards", reward, "--data", f"votes:{opened.votes}", "--attacks", "0", "--device", "cpu"]
        + ["--output", str(tmp_path / "out")]
    )
    (result,) = json.loads((tmp_path / "out" / "evaluation.json").read_text()).values()
    (numbers,) = result["rewards"].values()
    assert (numbers["headline"], numbers["human_ties"], numbers["failed"]) == (1.0, 2, 0)


def test_a_vote_says_what_was_compared_and_nothing_of_the_visitor(tmp_path):
    opened = opened_on(tmp_path, pair())
    vote.cast(opened, trial_of(Text("x"), Text("y"), AFTER), LEFT)
    (row,) = vote_store.read_votes(opened.votes)
    assert datetime.fromisoformat(row["time"]).tzinfo == UTC and "." not in row.pop("time")
    assert row == {
        "prompt": "how many?",
        "vote_type": LEFT,
        "model_a": "a model",
        "model_b": "base",
        "sides": {"left": AFTER, "right": BEFORE},
        "pair": "a",
        "family": "sd3",
        "seed": 7,
        "id": "id-1",
        "answer": "3",
        "left": {"text": "y"},
        "right": {"text": "x"},
    }


def test_a_prompt_without_text_is_named_by_its_id(tmp_path):
    opened = opened_on(tmp_path, pair())
    vote.cast(opened, trial_of(Text("x"), Text("y"), prompt=Prompt("", "clip-7")), TIE)
    assert read_benchmark(f"votes:{opened.votes}").comparisons[0].prompt.text == "(clip-7)"


def test_what_is_no_sound_is_an_error_of_the_evaluation(tmp_path):
    row = {"prompt": "a", "left": "a.wav", "right": "a.wav", "vote_type": LEFT}
    (tmp_path / "votes.jsonl").write_text(json.dumps(row))
    (tmp_path / "a.wav").write_bytes(b"RIFF????WAVE")
    (one,) = read_benchmark(f"votes:{tmp_path / 'votes.jsonl'}").comparisons
    with pytest.raises(ValueError, match=r"votes\.jsonl.*1.*left.*readable audio"):
        one.outputs()


# The file.


def add(file, number, size=20):
    append_vote(file, {"prompt": f"{number}", "vote_type": TIE}, {side: Text("x" * size) for side in ("left", "right")})


def test_32_writers_at_once_lose_nothing(tmp_path):
    """Lines beyond the size of any buffer."""
    file = tmp_path / "new" / "votes.jsonl"
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: add(file, number, 20_000), range(64)))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(int(row["prompt"]) for row in rows) == list(range(64))
    assert {len(row["left"]["text"]) for row in rows} == {20_000}


def test_the_file_is_never_fuller_than_its_limit(tmp_path, monkeypatch):
    """Each of 32 writers counts before it writes."""
    monkeypatch.setattr(vote_store, "MAX_VOTES", 5)
    file = tmp_path / "votes.jsonl"

    def one(number):
        try:
            add(file, number, 50_000)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(32) as pool:
        refused = [message for message in pool.map(one, range(32)) if message]
    assert len(file.read_text().splitlines()) == 5 and len(refused) == 27
    assert set(refused) == {"votes.jsonl: got 5 votes, which is the most; move it away with its media"}


@pytest.mark.parametrize(
    "left_behind, kept", [('{"prompt": "half', 1), ('{"prompt": "1", "vote_type": "tievote"}', 2), ("", 1)]
)
def test_what_a_killed_process_left_is_survived(left_behind, kept, tmp_path):
    file = tmp_path / "votes.jsonl"
    add(file, 0)
    with file.open("a") as stream:
        stream.write(left_behind)
    assert len(vote_store.read_votes(file)) == kept
    add(file, 2)
    prompts = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
    assert prompts == (["0", "2"] if kept == 1 else ["0", "1", "2"])


def test_a_picture_is_stored_once(tmp_path):
    written = []
    for number in range(2):
        append_vote(tmp_path / "v.jsonl", {"prompt": f"{number}", "vote_type": TIE}, {"left": FLAT, "right": FLAT})
        (file,) = (tmp_path / "v-media").iterdir()
        written.append((file.stat().st_ino, file.stat().st_mtime_ns))
    assert written[0] == written[1]


def test_votes_can_lie_in_folders_that_there_are_not_yet(tmp_path):
    add(tmp_path / "a" / "b" / "votes.jsonl", 0)
    add(tmp_path / "a" / "b" / "votes.jsonl", 1)
    assert len(vote_store.read_votes(tmp_path / "a" / "b" / "votes.jsonl")) == 2


@pytest.mark.parametrize(
    "name, choice, message",
    [
        ("votes.csv", TIE, "csv.*jsonl"),
        ("v.jsonl", "best", "'best'"),
    ],
)
def test_what_the_evaluation_would_not_read_is_not_written(name, choice, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        append_vote(tmp_path / name, {"prompt": "a", "vote_type": choice}, {"left": FLAT, "right": FLAT})
    assert not list(tmp_path.iterdir())


# The tally.


def test_the_tally_counts_the_trained_model_wherever_it_was(tmp_path):
    """Two votes for it, one for the other, one tie, one both bad; another pair and damaged lines do not count."""
    opened = opened_on(tmp_path, pair())
    for left, choice in ((BEFORE, RIGHT), (AFTER, LEFT), (AFTER, RIGHT), (AFTER, TIE), (BEFORE, BOTH_BAD)):
        vote.cast(opened, trial_of(Text("x"), Text("y"), left), choice)
    with opened.votes.open("a") as file:
        file.write('{"pair": "b", "vote_type": "leftvote", "sides": {"left": "after"}}\n[1]\n{"pair": "a"}\nnot JSON\n')
    counts = tally(opened.votes, "a")
    assert (counts.after, counts.before, counts.neither, counts.votes) == (2, 1, 2, 5)
    assert counts.win_rate == wilson(0.6, 5)
    told = trials.tally_html(counts, HOSTILE)
    assert "the trained model wins 60 %" in told and "of 5 votes" in told and "<img" not in told
    assert tally(tmp_path / "none.jsonl", "a").win_rate is None


def test_wilson_intervals_are_those_of_the_literature():
    """Newcombe 1998, Statistics in Medicine 17, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        made = wilson(hits / n, n)
        assert (made.low, made.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_intervals_lie_between_0_and_1():
    """Also where rounding would lead out of it, as for no hit of 21 and for 11 of 11."""
    for n in range(1, 100):
        none, all_ = wilson(0.0, n), wilson(1.0, n)
        assert 0 <= none.low < 1e-15 < none.high < 1 and 0 < all_.low < 1 - 1e-15 < all_.high <= 1
    assert wilson(0.0, 21).low == 0 and wilson(1.0, 11).high == 1 and wilson(0.5, 7).n == 7


def test_without_a_vote_there_is_no_rate_and_ties_count_half():
    assert Tally().win_rate is None and Tally().votes == 0
    rate = Tally(neither=4).win_rate
    assert rate is not None and rate.mean == 0.5 and rate.n == 4


# What is on the disk.


def test_a_vote_is_on_the_disk_before_it_is_thanked(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(vote_store.os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    add(tmp_path / "votes.jsonl", 0)
    assert synced == [(tmp_path / "votes.jsonl").stat().st_size]


def test_a_line_without_its_end_counts_as_a_vote(tmp_path, monkeypatch):
    monkeypatch.setattr(vote_store, "MAX_VOTES", 2)
    file = tmp_path / "votes.jsonl"
    file.write_text('{"a": 1}')
    add(file, 1)
    assert len(file.read_text().splitlines()) == 2
    file.write_text('{"a": 1}\n{"a": 2}')
    with pytest.raises(ValueError, match="2 votes"):
        add(file, 2)


def test_where_files_cannot_be_locked_votes_are_stored_and_other_errors_are_shown(tmp_path, monkeypatch):
    def refusing(number: int):
        def flock(stream, how):
            raise OSError(number, "no")

        return flock

    monkeypatch.setattr(fcntl, "flock", refusing(next(iter(UNSUPPORTED))))
    add(tmp_path / "votes.jsonl", 0)
    monkeypatch.setattr(fcntl, "flock", refusing(errno.EIO))
    with pytest.raises(OSError, match="no") as error:
        add(tmp_path / "votes.jsonl", 1)
    assert error.value.errno == errno.EIO and len(vote_store.read_votes(tmp_path / "votes.jsonl")) == 1


def test_values_that_json_does_not_know_are_texts(tmp_path):
    append_vote(tmp_path / "v.jsonl", {"vote_type": TIE, "meta": tmp_path}, {})
    assert vote_store.read_votes(tmp_path / "v.jsonl") == [{"vote_type": TIE, "meta": str(tmp_path)}]


def test_the_frames_a_second_of_a_clip_are_a_fraction_of_at_most_1001(tmp_path):
    frames = torch.zeros(3, 3, 16, 16)
    for fps, told in ((30_000 / 1001, 30_000 / 1001), (1003 / 1002, 1002 / 1001), (2.5, 2.5)):
        (tmp_path / "a.mp4").write_bytes(vote_store.lossless(Video(frames, fps)))
        read = decode(str(tmp_path / "a.mp4"), lambda count, fps: range(count))
        assert read.fps == pytest.approx(told, rel=1e-9) and len(read.frames) == 3
