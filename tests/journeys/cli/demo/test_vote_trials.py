"""The tab Vote: blind trials from the same noise, and what a visitor can name."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import gradio as gr
import pytest

from mmgrpo.cli.demo import rewards_media, vote, vote_store
from mmgrpo.cli.demo import vote_trials as trials
from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.cli.demo.vote_store import LEFT, RIGHT, VOTES
from mmgrpo.types import Media, Prompt, Text, Turn
from tests.journeys.cli.demo.ballots import (
    BUSY,
    FLAT,
    HOSTILE,
    PAIRS,
    Model,
    last,
    opened_on,
    pair,
    trial_of,
)

# Trials.


def test_both_models_start_from_the_same_noise_and_change_sides(tmp_path):
    before, after = Model(FLAT), Model(BUSY)
    opened = opened_on(tmp_path, pair(), before, after)
    made = [last(opened, [trials.Question(Prompt("a"))]) for _ in range(40)]
    for one, first, second in zip(made, before.asked, after.asked, strict=True):
        assert first == second and first.seed == one.seed and first.group_size == 1
        assert one.outputs == {BEFORE: FLAT, AFTER: BUSY} and one.shown()["left"] is one.outputs[one.left]
    assert {one.left for one in made} == {BEFORE, AFTER} and len({one.seed for one in made}) > 30


@pytest.mark.parametrize("kind", PAIRS)
def test_nothing_on_the_page_tells_the_sides_before_the_vote(kind, monkeypatch):
    """What is shown is a function of what lies left and right, whichever model made it."""
    monkeypatch.setattr(rewards_media, "clip_player", lambda clip, name: f"{name} {clip.frames.sum()}")
    one, other, _ = PAIRS[kind]
    shown = trials.sides_html(trial_of(one, other, BEFORE))
    assert shown == trials.sides_html(trial_of(other, one, AFTER)) and "training" not in shown
    told = trials.sides_html(trial_of(one, other, AFTER), told=True)
    assert "left: after training" in told and "right: before training" in told


def test_prompts_on_which_both_do_the_same_are_left_out(tmp_path):
    opened = opened_on(tmp_path, pair(), Model(FLAT), Model(FLAT, FLAT, BUSY))
    made = last(opened, [trials.Question(Prompt(name)) for name in "abcd"])
    assert made.prompt.text == "c" and made.skipped == 2 and not made.is_same
    opened = opened_on(tmp_path, pair(), Model(FLAT), Model(FLAT))
    assert last(opened, [trials.Question(Prompt("a"))]).is_same


def test_models_are_not_held_while_the_page_is_updated(tmp_path):
    opened = opened_on(tmp_path, pair(rewards=["jpeg_incompressibility"]), Model(FLAT), Model(BUSY))
    steps = []
    for step in trials.trials(opened, "a", [trials.Question(Prompt("a"))]):
        assert opened.lock.acquire(blocking=False)
        opened.lock.release()
        steps.append(step)
    assert steps[:3] == ["sampling 1 of 2", "sampling 2 of 2", "scoring"]


def test_rewards_of_the_run_give_their_verdict_after_the_vote(tmp_path):
    """One prefers the trained model, one has no answer to read, one would be downloaded, one does not exist."""
    specs = ["jpeg_incompressibility(weight=0.5)", "ocr", "clip_score(weights='nobody/nothing')", "nothing"]
    opened = opened_on(tmp_path, pair(rewards=specs), Model(FLAT), Model(BUSY))
    made = replace(last(opened, [trials.Question(Prompt("a"))]), left=AFTER)
    assert list(made.values) == ["jpeg_incompressibility", "ocr", "clip_score", "nothing"]
    assert made.values["jpeg_incompressibility"][1] > made.values["jpeg_incompressibility"][0]
    assert all(math.isnan(value) for name in ("ocr", "nothing") for value in made.values[name])
    told = trials.reveal_html(made, RIGHT)
    assert "You preferred the right one: <strong>before training</strong>." in told
    assert told.count("not known") == 3 and told.count("<td>after training</td>") == 1
    assert [trials.preference(*two) for two in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0))] == [
        "after training",
        "before training",
        "neither",
    ]


def test_texts_of_a_run_are_escaped():
    trial = trial_of(FLAT, BUSY, prompt=Prompt("a", answer=HOSTILE))
    told = trials.reveal_html(replace(trial, values={HOSTILE: (0.0, 1.0)}), LEFT)
    assert "<img" not in told and told.count("&lt;img") == 2


# Which prompts.


def test_a_typed_prompt_is_a_text_and_never_a_file():
    """Where prompts have media, the command takes the names of files; the page takes none."""
    sound = Prompt("", turns=(Turn("user", (Media("audio", "a.wav"),)),))
    texts, sounds = [trials.Question(Prompt("a"))], [trials.Question(sound)]
    assert trials.chosen(texts, pair(), "0", "/etc/passwd")[0].prompt == Prompt("/etc/passwd", id="typed")
    for one, several in ((pair(modality="speech"), sounds), (pair(modality="vlm"), texts)):
        with pytest.raises(ValueError, match="more than a text"):
            trials.chosen(several, one, "0", "/etc/passwd")


def test_prompts_are_named_by_their_place_in_the_list():
    several = [trials.Question(Prompt(f"{n}")) for n in range(20)]
    assert trials.chosen(several, pair(), "3", "") == [several[3]]
    some = trials.chosen(several, pair(), trials.ANY, " ")
    assert len({one.prompt.text for one in some}) == trials.TRIES
    for place in ("20", "-1", "../x", "٣٣"):
        with pytest.raises(ValueError, match="list"):
            trials.chosen(several, pair(), place, "")
    with pytest.raises(ValueError, match="held-out.*'a'"):
        trials.chosen([], pair(), trials.ANY, "")


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
    several = trials.questions(pair(run=tmp_path / "run", modality="vlm"))
    assert [one.prompt.text for one in several] == ["question 0", "question 1"]
    assert [medium.source for medium in several[0].prompt.media] == [str(folder / "before" / "000-0.jpg")]
    assert several[0].outputs == (Text("x"), Text("y")) and several[0].values["task"] == (1.0, 1.0)
    opened = opened_on(tmp_path, pair())
    made = last(opened, several)
    assert made.outputs == {BEFORE: Text("x"), AFTER: Text("y")} and math.isnan(made.values["none"][0])
    (folder / "after.jsonl").write_text("[]")
    assert trials.questions(pair(run=tmp_path / "run")) == []


# The page.


@pytest.fixture
def wired(tmp_path):
    """The page of one pair of models, and what is open."""
    prompts = [Prompt(HOSTILE, "0"), Prompt("b", "1")]
    opened = opened_on(tmp_path, pair(prompts=prompts), Model(FLAT), Model(BUSY))
    with gr.Blocks() as page:
        vote.tab(opened)
    return page, opened


def functions(page, name):
    return [one for one in page.fns.values() if one.name == name]


def test_a_vote_from_the_first_click_to_the_tally(wired):
    page, opened = wired
    (draw,), store = functions(page, "draw"), functions(page, "store")
    first, *_, (trial, asked, sides, reveal, *buttons) = draw.fn("a", "0", None, lambda *place, **words: None)
    assert [one["interactive"] for one in first[4:]] == [False] * 5 + [True]  # drawing can be cancelled, not voted on
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
    assert [row["vote_type"] for row in vote_store.read_votes(opened.votes)] == [LEFT]
    for function, choice in zip(store[1:4], VOTES[1:], strict=True):
        function.fn(trial)
        assert vote_store.read_votes(opened.votes)[-1]["vote_type"] == choice


def test_an_unknown_pair_opens_nothing(wired):
    page, _ = wired
    (choose,), (draw,) = functions(page, "choose"), functions(page, "draw")
    for name in ("../a", "b", None):
        with pytest.raises(gr.Error, match="not open"):
            choose.fn(name)
        with pytest.raises(gr.Error, match="not open"):
            next(draw.fn(name, trials.ANY, ""))
    prompts, typed, counts, *_ = choose.fn("a")
    assert prompts["value"] == trials.ANY, "the prompt that was chosen before may be none of these"
    assert prompts["choices"] == [("any held-out prompt", trials.ANY), (HOSTILE, "0"), ("b", "1")] and typed["visible"]
    assert "No vote on a yet" in counts


def test_without_a_trained_model_the_page_says_what_to_do(tmp_path):
    with gr.Blocks() as page:
        vote.tab(opened_on(tmp_path, pair(weights="")))
    assert any(getattr(one, "value", None) == vote.EMPTY for one in page.blocks.values()) and not page.fns


def drawing(opened, place="0", typed=""):
    """All that the button that draws shows, and what it tells of its progress."""
    with gr.Blocks() as page:
        vote.tab(opened)
    told = []
    (draw,) = functions(page, "draw")
    steps = list(draw.fn("a", place, typed, lambda *given, **words: told.append((*given, words["desc"]))))
    return steps, told


def test_a_cancellation_and_another_pair_leave_nothing_to_vote_on(wired):
    page, _ = wired
    (cancelled,), (choose,) = functions(page, "cancelled"), functions(page, "choose")
    state, sides, *buttons = cancelled.fn()
    assert state is None and "Cancelled." in sides and [one["interactive"] for one in buttons] == [False] * 6
    _, typed, _, state, *shown = choose.fn("a")
    assert typed["value"] == "" and state is None and shown[:3] == ["", "", ""]
    assert [one["interactive"] for one in shown[3:]] == [False] * 6


def test_seeds_have_31_bits_and_the_sides_are_tossed(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(trials.secrets, "randbelow", lambda below: asked.append(below) or below - 1)
    made = last(opened_on(tmp_path, pair(), Model(FLAT), Model(BUSY)), [trials.Question(Prompt("a"))])
    assert asked == [2**31, 2] and (made.seed, made.left, made.right) == (2**31 - 1, AFTER, BEFORE)
    assert (made.skipped, made.values, trial_of(FLAT, BUSY).skipped) == (0, {}, 0)


def test_a_model_that_is_not_in_memory_is_loaded_first(tmp_path):
    opened = opened_on(tmp_path, pair(), Model(FLAT), Model(BUSY))
    opened.loaded.clear()
    assert next(trials.trials(opened, "a", [trials.Question(Prompt("a"))])) == "loading and sampling 1 of 2"


def test_media_of_a_prompt_that_cannot_be_read_are_left_out(tmp_path, capsys):
    media = (Media("image", str(tmp_path / "gone.png")), Media("image", BUSY))
    assert trials.media_of(Prompt("a", turns=(Turn("user", media),))) == [BUSY]
    assert "without a medium of its prompt" in capsys.readouterr().out


def test_a_stored_vote_has_only_what_its_prompt_has():
    row = trial_of(FLAT, BUSY, prompt=Prompt("")).row(LEFT, pair(weights=""))
    assert row["prompt"] == "(no text)" and row["model_b"] == "a" and not {"id", "answer", "task", "meta"} & {*row}
    row = trial_of(FLAT, BUSY, prompt=Prompt("x", "1", 0, "count", {"k": 1})).row(LEFT, pair())
    assert (row["id"], row["answer"], row["task"], row["meta"]) == ("1", 0, "count", {"k": 1})


def test_at_most_fifty_completions_are_offered_and_none_with_a_sound(tmp_path):
    folder = tmp_path / "run" / "samples"
    folder.mkdir(parents=True)
    for name in ("before", "after"):
        rows = [completion(number, name) for number in range(52)]
        rows[1]["sound"] = "a.wav"
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    several = trials.questions(pair(run=tmp_path / "run", modality="vlm"))
    assert [one.prompt.id for one in several] == [str(number) for number in range(50) if number != 1]
    first = several[0]
    assert (first.prompt.answer, first.prompt.task, dict(first.prompt.meta)) == ("3", "t", {}) and first.prompt.turns
    (tmp_path / "empty" / "samples").mkdir(parents=True)
    assert trials.questions(pair(run=tmp_path / "empty")) == [] == trials.questions(pair())


def test_pairs_with_two_sides_are_compared(tmp_path):
    one, alone = pair(), pair(weights="")
    opened = opened_on(tmp_path, one)
    opened.pairs = {"a": one, "b": alone}
    assert trials.compared(opened) == ["a"]
