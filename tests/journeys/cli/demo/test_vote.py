"""The tab Vote: blind trials from the same noise, the file of votes, what the evaluation reads of it, and the tally."""

from __future__ import annotations

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
import torch

from mmgrpo.cli import evaluate_rewards
from mmgrpo.cli.demo import parts, vote, vote_store
from mmgrpo.cli.demo.kept import Question, kept_questions
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.vote import ANY, Trial, questions, reveal_html, same, sides_html
from mmgrpo.cli.demo.vote_store import (
    BOTH_BAD,
    LEFT,
    RIGHT,
    TIE,
    VOTES,
    append_vote,
    read_votes,
    tally,
    wilson,
)
from mmgrpo.types import Audio, Media, Prompt, Text, Turn
from reward_models.evaluation.protocols import read_benchmark
from tests.journeys.cli.demo.fakes import BUSY, EVIL, FLAT, KINDS, NAN, Model, holding, pair, trial


def opened_on(folder: Path, one: Pair, *models: Any) -> Opened:
    """What is open: one pair, whose votes are in the folder."""
    opened = holding(one, *models)
    opened.votes = folder / "votes.jsonl"
    return opened


def last(opened: Opened, several: list[Question]) -> Trial:
    """The trial at the end of the steps."""
    *_, made = vote.trials(opened, "a", several)
    assert isinstance(made, Trial)
    return made


# Trials.


def test_both_models_start_from_the_same_noise_and_change_sides(tmp_path):
    before, after = Model(FLAT), Model(BUSY)
    opened = opened_on(tmp_path, pair(), before, after)
    made = [last(opened, [Question(Prompt("a"))]) for _ in range(40)]
    for one, first, second in zip(made, before.asked, after.asked, strict=True):
        assert first == second and first.seed == one.seed and first.group_size == 1
        assert one.outputs == {BEFORE: FLAT, AFTER: BUSY} and one.outputs_by_place()["left"] is one.outputs[one.left]
    assert {one.left for one in made} == {BEFORE, AFTER} and len({one.seed for one in made}) > 30


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_on_the_page_tells_the_sides_before_the_vote(kind, monkeypatch):
    """What is shown is a function of what lies left and right, whichever model made it."""
    monkeypatch.setattr(parts, "medium", lambda one, label: f"{label} {one}")
    one, other, _ = KINDS[kind]
    shown = sides_html(trial(one, other, BEFORE))
    assert shown == sides_html(trial(other, one, AFTER)) and "training" not in shown
    told = sides_html(trial(one, other, AFTER), named=True)
    assert "left: after training" in told and "right: before training" in told


def test_prompts_on_which_both_do_the_same_are_left_out(tmp_path):
    opened = opened_on(tmp_path, pair(), Model(FLAT), Model(FLAT, FLAT, BUSY))
    made = last(opened, [Question(Prompt(name)) for name in "abcd"])
    assert made.prompt.text == "c" and made.skipped == 2 and not same(*made.outputs.values())
    opened = opened_on(tmp_path, pair(), Model(FLAT), Model(FLAT))
    assert same(*last(opened, [Question(Prompt("a"))]).outputs.values())


def test_models_are_not_held_while_the_page_is_updated(tmp_path):
    opened = opened_on(tmp_path, pair(rewards=["jpeg_incompressibility"]), Model(FLAT), Model(BUSY))
    steps = []
    for step in vote.trials(opened, "a", [Question(Prompt("a"))]):
        assert opened.lock.acquire(blocking=False)
        opened.lock.release()
        steps.append(step)
    assert steps[:3] == [
        "Base is sampling: 0 of 1",
        "the rewards of Base are being computed",
        "Trained is sampling: 0 of 1",
    ]


def test_rewards_of_the_run_give_their_verdict_after_the_vote(tmp_path):
    """One prefers the trained model, one has no answer to read, one would be downloaded, one does not exist."""
    specs = ["jpeg_incompressibility(weight=0.5)", "ocr", "clip_score(weights='nobody/nothing')", "nothing"]
    opened = opened_on(tmp_path, pair(rewards=specs), Model(FLAT), Model(BUSY))
    made = replace(last(opened, [Question(Prompt("a"))]), left=AFTER)
    assert list(made.values) == ["jpeg_incompressibility", "ocr", "clip_score", "nothing"]
    assert made.values["jpeg_incompressibility"][1] > made.values["jpeg_incompressibility"][0]
    assert all(math.isnan(value) for name in ("ocr", "nothing") for value in made.values[name])
    words = reveal_html(made, RIGHT)
    assert "You preferred the right one: <strong>before training</strong>." in words
    assert words.count("not known") == 3 and words.count("<td>after training</td>") == 1
    assert {*made.reasons} == {"ocr", "clip_score", "nothing"} and "nobody/nothing" in made.reasons["clip_score"]
    assert words.count("</b> failed: ") == 3
    assert [vote.preference(*two) for two in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0))] == [
        "after training",
        "before training",
        "neither",
    ]


# Which prompts.


def completion(number, text, media=()):
    return {
        "id": f"{number}", "task": "t", "prompt": f"question {number}", "meta": {}, "media": list(media), "aligned": [],
        "answer": "3", "rewards": {"task": 1.0, "none": None}, "boxes": {}, "completion": text, "tokens": 1,
        "truncated": False,
    }  # fmt: skip


def test_completions_that_a_run_kept_are_voted_on_where_its_prompts_cannot_be_read(tmp_path):
    """Media outside the run are not touched; a prompt of one side alone is left out."""
    folder = tmp_path / "run" / "samples"
    folder.mkdir(parents=True)
    outside = tmp_path / "secret.png"
    outside.write_bytes(b"")
    (folder / "link.png").symlink_to(outside)
    media = ["before/000-0.jpg", "../../secret.png", str(outside), "link.png"]
    for name, text, count in (("before", "x", 2), ("after", "y", 3)):
        rows = [completion(number, text, media) for number in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    several = questions(pair("qwen_vl", run=tmp_path / "run"))
    assert [one.prompt.text for one in several] == ["question 0", "question 1"]
    assert [medium.source for medium in several[0].prompt.media] == [str(folder / "before" / "000-0.jpg")]
    assert several[0].outputs == (Text("x"), Text("y")) and several[0].values["task"] == (1.0, 1.0)
    opened = opened_on(tmp_path, pair())
    made = last(opened, several)
    assert made.outputs == {BEFORE: Text("x"), AFTER: Text("y")} and math.isnan(made.values["none"][0])
    (folder / "after.jsonl").write_text("[]")
    assert questions(pair(run=tmp_path / "run")) == []


# The page.


@pytest.fixture
def wired(tmp_path):
    """The page of one pair of models, and what is open."""
    prompts = [Prompt(EVIL, "0"), Prompt("b", "1")]
    opened = opened_on(tmp_path, pair(prompts=prompts), Model(FLAT), Model(BUSY))
    with gr.Blocks() as page:
        vote.tab(opened)
    return page, opened


def functions(page: Any, name: str) -> list[Any]:
    return [one for one in page.fns.values() if one.name == name]


def test_a_vote_from_the_first_click_to_the_tally(wired):
    page, opened = wired
    (draw,), store = functions(page, "draw"), functions(page, "store")
    first, *_, (_, trial, asked, sides, reveal, *buttons) = draw.fn("a", "0", None, None, lambda *place, **words: None)
    assert [one["interactive"] for one in first[5:]] == [False] * 5 + [True]  # drawing can be cancelled, not voted on
    assert "&lt;img src=x" in asked and "onerror=alert(1)>" not in asked
    assert sides.count("data:image/png") == 2 and not reveal and "training" not in sides
    assert [one["interactive"] for one in buttons] == [True] * 6
    assert len(store) == 5 and not opened.votes.exists()
    state, sides, reveal, counts, *buttons = store[0].fn(trial)
    assert state is None and "after training" in sides and "You preferred the left one" in reveal
    assert "of 1 vote (" in counts and [one["interactive"] for one in buttons] == [False] * 6
    with pytest.raises(gr.Error, match="has been voted on"):
        store[0].fn(state)
    store[4].fn(trial)
    assert [row["vote_type"] for row in read_votes(opened.votes)] == [LEFT]
    for function, choice in zip(store[1:4], VOTES[1:], strict=True):
        function.fn(trial)
        assert read_votes(opened.votes)[-1]["vote_type"] == choice


def test_an_unknown_pair_opens_nothing(wired):
    page, _ = wired
    (choose,), (draw,) = functions(page, "choose"), functions(page, "draw")
    for name in ("../a", "b", None):
        with pytest.raises(gr.Error, match="model: got"):
            choose.fn(name)
        with pytest.raises(gr.Error, match="model: got"):
            next(draw.fn(name, ANY, "", None))
    prompts, typed, counts, *_ = choose.fn("a")
    assert prompts["value"] == ANY, "the prompt that was chosen before may be none of these"
    assert prompts["choices"] == [("any held-out prompt", ANY), (EVIL, "0"), ("b", "1")] and typed["visible"]
    assert "No vote on a yet" in counts


def drawing(opened, place="0", typed=""):
    """All that the button that draws shows, and what it tells of its progress."""
    with gr.Blocks() as page:
        vote.tab(opened)
    told = []
    (draw,) = functions(page, "draw")
    steps = list(draw.fn("a", place, typed, None, lambda *given, **words: told.append((*given, words["desc"]))))
    return steps, told


def test_a_cancellation_and_another_pair_leave_nothing_to_vote_on(wired):
    page, _ = wired
    (cancelled,), (choose,) = functions(page, "clear"), functions(page, "choose")
    state, sides, *buttons = cancelled.fn()
    assert state is None and "Cancelled." in sides and [one["interactive"] for one in buttons] == [False] * 6
    _, typed, _, state, *shown = choose.fn("a")
    assert typed["value"] == "" and state is None and shown[:3] == ["", "", ""]
    assert [one["interactive"] for one in shown[3:]] == [False] * 6


def test_the_next_trial_is_drawn_while_the_visitor_looks_at_this_one(wired):
    """It is shown without asking a model; one for other choices is not, and what fails ahead fails when it is asked."""
    page, opened = wired
    (draw,), (prepare,) = functions(page, "draw"), functions(page, "prepare")
    *_, ready = prepare.fn("a", ANY, "")
    models = list(opened.loaded.values())
    counts = [len(one.asked) for one in models]
    *_, (used, shown, *_) = draw.fn("a", ANY, "", ready)
    assert used is None and shown is ready.trial and [len(one.asked) for one in models] == counts == [1, 1]
    *_, (_, other, *_) = draw.fn("a", "1", "", ready)
    assert other.prompt.text == "b" and [len(one.asked) for one in models] == [2, 2]
    assert list(prepare.fn("b", ANY, "")) == [None]


def test_samples_that_a_run_kept_are_ready_when_the_page_opens(tmp_path):
    """Of images as of texts, with their rewards, and without a model; clips, which are kept smaller, are drawn."""
    folder = tmp_path / "run" / "samples"
    for moment, output in (("before", FLAT), ("step-000020", BUSY)):
        (folder / moment).mkdir(parents=True)
        (folder / moment / "0.png").write_bytes(parts.png(parts.to_pil(output)))
        rows = [{**completion(n, ""), "image": f"{moment}/0.{suffix}"} for n, suffix in enumerate(("png", "webp"))]
        (folder / f"{moment}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (one,) = kept_questions(tmp_path / "run", 9)
    assert same(one.output(0), FLAT) and same(one.output(1), BUSY) and one.moment == "000020"
    opened = opened_on(tmp_path, pair(weights="", run=tmp_path / "run"))
    assert vote.comparable_pairs(opened) == ["a"]
    with gr.Blocks() as page:
        vote.tab(opened)
    (choose,) = functions(page, "choose")
    _, typed, _, shown, asked, sides, _, *buttons = choose.fn("a")
    assert same(shown.outputs[AFTER], BUSY) and "question 0" in asked and sides.count("<img") == 2
    assert not typed["visible"] and [one["interactive"] for one in buttons] == [True] * 6
    assert shown.values == {"task": (1.0, 1.0), "none": (pytest.approx(NAN, nan_ok=True),) * 2}


# From votes to the evaluation of rewards.


@pytest.mark.parametrize("kind", KINDS)
def test_votes_are_read_by_the_evaluation_of_rewards(kind, tmp_path, capsys):
    """Four votes of each kind for the trained model, on the left and on the right: the reward agrees with all, and a
    tie and "both bad" have no preference."""
    before, after, reward = KINDS[kind]
    prompt = Prompt(
        "how many?", "id-1", "3", "count", {"tolerance": 1}, (Turn("user", (Media("image", BUSY), "how?")),)
    )
    opened = opened_on(tmp_path, pair())
    for left, choice in ((BEFORE, RIGHT), (AFTER, LEFT), (BEFORE, TIE), (AFTER, BOTH_BAD)):
        vote.cast(opened, trial(before, after, left, prompt=prompt), choice)
    comparisons = read_benchmark(f"votes:{opened.votes}").comparisons
    assert [one.ranks for one in comparisons] == [(1, 0), (0, 1), (0, 0), (0, 0)]
    swapped: Any = comparisons[1].outputs()
    asked, shown = comparisons[0].outputs()
    assert same(asked, swapped[1]) and same(shown, swapped[0])
    for stored, output in ((asked, before), (shown, after)):
        if isinstance(output, Audio):
            assert isinstance(stored, Audio) and stored.rate == output.rate
            assert torch.allclose(stored.samples, output.samples, atol=0.5001 / 32767)
        else:
            assert same(stored, output)
    read = comparisons[0].to_prompt()
    assert (read.answer, read.task, dict(read.meta)) == ("3", "count", {"tolerance": 1})
    about: Any = comparisons[0].about[0].load()
    assert torch.equal(about.pixels, BUSY.pixels)

    evaluate_rewards.main(
        ["--rewards", reward, "--data", f"votes:{opened.votes}", "--attacks", "0", "--device", "cpu"]
        + ["--output", str(tmp_path / "out")]
    )
    (result,) = json.loads((tmp_path / "out" / "evaluation.json").read_text()).values()
    (numbers,) = result["rewards"].values()
    assert (numbers["headline"], numbers["human_ties"], numbers["failed"]) == (1.0, 2, 0)


def test_a_vote_says_what_was_compared_and_nothing_of_the_visitor(tmp_path):
    opened = opened_on(tmp_path, pair())
    vote.cast(opened, trial(Text("x"), Text("y"), AFTER), LEFT)
    (row,) = map(dict, read_votes(opened.votes))
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
    assert len(read_votes(file)) == kept
    add(file, 2)
    prompts = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
    assert prompts == (["0", "2"] if kept == 1 else ["0", "1", "2"])


# The tally.


def test_the_tally_counts_the_trained_model_wherever_it_was(tmp_path):
    """Two votes for it, one for the other, one tie, one both bad; another pair and damaged lines do not count."""
    opened = opened_on(tmp_path, pair())
    for left, choice in ((BEFORE, RIGHT), (AFTER, LEFT), (AFTER, RIGHT), (AFTER, TIE), (BEFORE, BOTH_BAD)):
        vote.cast(opened, trial(Text("x"), Text("y"), left), choice)
    with opened.votes.open("a") as file:
        file.write('{"pair": "b", "vote_type": "leftvote", "sides": {"left": "after"}}\n[1]\n{"pair": "a"}\nnot JSON\n')
    counts = tally(opened.votes, "a")
    assert (counts.after, counts.before, counts.neither, counts.votes) == (2, 1, 2, 5)
    assert counts.win_rate == wilson(0.6, 5)
    told = vote.tally_html(counts, EVIL)
    assert "the trained model wins 60 %" in told and "of 5 votes" in told and "<img" not in told
    assert tally(tmp_path / "none.jsonl", "a").win_rate is None


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
