"""What the events of the tabs fill in: each function as the page calls it, without a server."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image as Pil

from mmgrpo.cli.demo import rewards, runs, speech, vision_language, vote
from mmgrpo.cli.demo.opened import Opened
from mmgrpo.runtime.identity import MARKER
from mmgrpo.types import Audio, Media, Prompt, Text, Turn
from tests.cli.demo.told import opened, page, pair


def event(shown: dict[str, Any], name: str, kind: str = "click") -> Any:
    """The function of an event of a component."""
    return next(e.fn for e in shown["events"] if (shown[name]._id, kind) in e.targets and e.fn is not None)


def sound(folder: Path, seconds: float = 1.0) -> str:
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes((np.sin(np.arange(int(8000 * seconds)) * 0.3) * 9000).astype("<i2").tobytes())
    return str(folder / "a.wav")


def skipped(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"__type__"}


# ---- Vision-language


@pytest.fixture
def looking(tmp_path):
    """The tab of a pair with two held-out prompts, and its models' requests."""
    Pil.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    one = pair("p", "qwen_vl", [])
    seen = Media("image", str(tmp_path / "a.png"))
    one.__dict__["_heldout"] = [
        Prompt("how many?", "0", 3, "numeric", turns=(Turn("user", (seen, "how many?")),)),
        Prompt("why?", "1", turns=(Turn("system", ("be brief",)), Turn("user", ("why?",)))),
    ]
    found, sides = opened(one, *[lambda n: Text(f"a{n}", tokens=n)] * 2)
    return page(vision_language.tab, found), sides, tmp_path


def test_a_pair_offers_its_examples_and_fills_in_the_first(looking):
    shown, *_ = looking
    offered, first, question, answer, task, file, preview = event(shown, "vlm-pair", "change")("p")
    assert [label for label, _ in offered.choices] == [
        "my own question",
        "1. how many? (image, numeric)",
        "2. why? (text)",
    ]
    assert (offered.value, first, question, answer, task, file) == ("0", "0", "how many?", "3", "numeric", None)
    assert "<img" in preview and "be brief" not in preview
    with pytest.raises(gr.Error, match="model.*&#x27;x&#x27"):
        event(shown, "vlm-pair", "change")("x")


def test_an_example_fills_the_fields_and_the_own_question_empties_them(looking):
    choose = event(looking[0], "vlm-example", "input")
    last, question, answer, task, file, preview = choose("1", "0", "p", "1")
    assert (last, question, answer, task, file) == ("1", "why?", "", "", None) and "be brief" in preview
    last, question, *rest = choose("", "1", "p", "")
    assert last == "" and skipped(question) and rest == ["", "", None, ""]
    same = choose("1", "1", "p", "1")
    assert len(same) == 6 and all(map(skipped, same))


def test_a_task_that_is_not_in_the_list_is_left_empty():
    one = pair("p", "qwen_vl", [])
    one.__dict__["_heldout"] = [Prompt("q", "0", task="a task of one's own")]
    shown = page(vision_language.tab, opened(one)[0])
    assert event(shown, "vlm-example", "input")("0", "", "p", "0")[3] == ""


def test_an_upload_is_shown_or_refused(looking):
    shown, _, folder = looking
    upload = event(shown, "vlm-file", "upload")
    assert upload(None) == ["", "", "", "", ""]
    assert upload(str(folder / "a.png"))[:4] == ["", "", "", ""] and "<img" in upload(str(folder / "a.png"))[4]
    (folder / "b.png").write_bytes(b"x")
    refused = upload(str(folder / "b.png"))
    assert refused[:4] == ["", "", "", ""] and 'role="alert"' in refused[4] and str(folder) not in refused[4]


def test_an_upload_is_asked_with_the_system_turns_of_the_pairs_own_prompts(looking):
    shown, sides, folder = looking
    told: list[Any] = []
    ask = event(shown, "vlm-ask")
    values = ["p", "", str(folder / "a.png"), "what?", "", "", "resized", 1, 0.0, 5]
    results = list(ask(lambda *parts: told.append(parts), *values))
    assert told[0] == (0.0, "Base is sampling: 0 of 1") and told[-1] == (1.0, "") and len(told) == len(results)
    assert results[0][0] == '<p role="status" aria-live="polite" class=unseen>Base is sampling: 0 of 1</p>'
    assert results[0][1] == "" and "a0" in results[-1][1] and "“what?”" in results[-1][1]
    prompt, _, _, seed, _ = sides[0].asked[0]
    assert (prompt.text, prompt.id, seed) == ("what?", "upload", 5) and prompt.meta["size"] == [64, 64]
    assert prompt.turns[0].role == "user"  # the first example has no system turn
    with pytest.raises(gr.Error, match="question"):
        list(ask(lambda *parts: None, *values[:3], " ", *values[4:]))


def test_the_question_and_the_answer_of_an_example_can_be_changed(looking):
    shown, sides, _ = looking
    ask = event(shown, "vlm-ask")
    list(ask(lambda *p: None, "p", "1", None, "why not?", "because", " exact ", "resized", 1, 0.0, 0))
    prompt = sides[0].asked[-1][0]
    assert (prompt.text, prompt.answer, prompt.task) == ("why not?", "because", "exact")
    assert [turn.role for turn in prompt.turns] == ["system", "user"] and prompt.turns[1].parts == ("why not?",)
    list(ask(lambda *p: None, "p", "0", None, "how many?", "3", "numeric", "resized", 1, 0.0, 0))
    assert sides[0].asked[-1][0].answer == 3 and sides[0].asked[-1][0].media


# ---- Speech


def test_a_recognizer_offers_its_examples_and_hears_uploads(tmp_path):
    file = sound(tmp_path)
    one = pair("w", "whisper", [])
    one.__dict__["_heldout"] = [Prompt("", "clip-a", "hello", turns=(Turn("user", (Media("audio", file),)),))]
    found, sides = opened(one, *[lambda n: Text("hello", tokens=1)] * 2)
    shown = page(speech.tab, found)
    offered, first, answer, text, heard, preview = event(shown, "speech-recognizer", "change")("w")
    assert [label for label, _ in offered.choices] == ["my own sound", "1. clip-a"] and offered.value == first == "0"
    assert (answer, text.value, text.visible, heard) == ("hello", "", False, None) and "<audio" in preview
    choose = event(shown, "speech-example", "input")
    last, answer, question, heard, preview = choose("", "0", "w", "")
    assert (last, answer, preview) == ("", "", "") and skipped(question) and skipped(heard)
    upload = event(shown, "speech-file", "upload")
    assert upload is event(shown, "speech-file", "stop_recording") and all(map(skipped, upload("w", None)))
    assert upload("w", file) == ["", "", "", '<p class="soft">a.wav: 1.0 s at 8,000 Hz</p>']
    (tmp_path / "b.wav").write_bytes(b"x")
    assert 'role="alert"' in upload("w", str(tmp_path / "b.wav"))[3]
    told: list[Any] = []
    values = ["w", "", file, "", " hello "]
    results = list(event(shown, "speech-transcribe")(lambda *parts: told.append(parts), *values))
    assert told[-1] == (1.0, "") and len(told) == len(results) and "class=unseen" in results[0][0]
    assert results[0][1] == ""
    prompt = sides[0].asked[0][0]
    assert (prompt.text, prompt.id, prompt.answer, prompt.task) == ("", "a.wav", "hello", "transcribe")
    assert "word error rate <b>0.0%</b>" in results[-1][1] and '<p class="soft">a.wav</p>' in results[-1][1]
    with pytest.raises(gr.Error, match="sound"):
        list(event(shown, "speech-transcribe")(lambda *parts: None, "w", "", None, "", ""))


def test_a_recognizer_that_takes_words_shows_the_field_for_them():
    one = pair("q", "qwen_audio", [])
    one.__dict__["_heldout"] = [Prompt("what?", "a", "x")]
    shown = page(speech.tab, opened(one)[0])
    _, _, _, text, *_ = event(shown, "speech-recognizer", "change")("q")
    assert (text.value, text.visible) == ("what?", True)


def test_a_voice_offers_its_texts_and_speaks():
    one = pair("d", "duration", [])
    one.__dict__["_heldout"] = [Prompt("x" * 61, "0"), Prompt("two words", "1")]
    import torch

    found, sides = opened(one, *[lambda n: Audio(torch.ones(1, 8000), 16_000)] * 2)
    shown = page(speech.tab, found)
    offered, first, text = event(shown, "speech-voice", "change")("d")
    assert [label for label, _ in offered.choices] == ["my own text", f"1. {'x' * 60}", "2. two words"]
    assert (offered.value, first, text) == ("0", "0", "x" * 61)
    assert event(shown, "speech-said", "input")("", "0", "d", "") == ["", ""]
    told: list[Any] = []
    results = list(event(shown, "speech-speak")(lambda *parts: told.append(parts), "d", "1", "two  words"))
    assert told[-1] == (1.0, "") and len(told) == len(results) and "class=unseen" in results[0][0]
    assert sides[0].asked[0][0].id == "1" and "0.50 s, 4.0 words a second" in results[-1][1]
    assert "“two words”" in results[-1][1]
    for text, words in ((" ,.", "words"), ("x" * 301, "301.*300")):
        with pytest.raises(gr.Error, match=words):
            list(event(shown, "speech-speak")(lambda *parts: None, "d", "", text))
    list(event(shown, "speech-speak")(lambda *parts: None, "d", "", "x" * 300))


def test_of_the_changes_of_an_attack_the_last_is_always_shown():
    shown = page(rewards.tab, Opened({}, {}, Path("v")))
    changes = [one for one in shown["events"] if any(event == "input" for _, event in one.targets)]
    assert [one.trigger_mode for one in changes] == ["always_last"]


@pytest.mark.parametrize(
    ("text", "names", "which", "other"),
    [(" ", ["length"], "blur", ""), ("words", [], "blur", "x"), ("words", ["length"], rewards.scoring.SWAP, " ")],
)
def test_a_slider_attacks_nothing_before_there_is_a_text_a_reward_and_what_the_attack_needs(text, names, which, other):
    shown = page(rewards.tab, Opened({}, {}, Path("v")))
    moved = event(shown, "rewards-strength", "input")
    assert [all(map(skipped, one)) for one in moved(None, text, "", "", "", names, which, 1.0, other)] == [True]


def test_without_runs_to_compare_the_tab_of_votes_is_a_note():
    shown = page(vote.tab, Opened({}, {}, Path("v")))
    assert "vote-empty" in {one.elem_id for one in shown["all"]} and not shown["events"]


def test_without_a_model_a_tab_says_how_to_get_one():
    for tab, command in ((speech.tab, "speech/whisper_adapt"), (vision_language.tab, "vlm/demo")):
        shown = page(tab, Opened({}, {}, Path("v")))
        texts = [one.value for one in shown["all"] if isinstance(one, gr.Markdown)]
        assert any(f"mmgrpo train --recipe {command}" in text for text in texts) and not shown["events"]


# ---- Runs


def written(folder: Path, finished: bool = True) -> Path:
    (folder / "samples").mkdir(parents=True)
    (folder / MARKER).write_text("{}")
    (folder / "config.yaml").write_text("seed: 0\n")
    rows = [{"step": s, "seconds": float(s), "loss": 10.0 * s, "lr": 1.0} for s in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "summary.json").write_text('{"steps": 2}')
    for moment in ("before", "step-000001", "after"):
        Pil.new("RGB", (8, 8), "red").save(folder / "samples" / f"{moment}.png")
    return folder


@pytest.fixture
def compared(tmp_path):
    """The tab of two runs."""
    found = Opened({name: written(tmp_path / name) for name in "ab"}, {}, Path("v"), folders=[str(tmp_path)])
    return page(runs.tab, found), found, tmp_path


def test_the_parts_of_the_chosen_runs_are_shown(compared):
    shown, *_ = compared
    metric, curves, details, differences, at, samples, timer, seen = event(shown, "runs-choose", "input")(
        ["a"], "loss", "optimizer step", 0
    )
    assert metric.value == "loss" and ("loss", "loss") in metric.choices and "polyline" in curves + "polyline"
    assert "a" in details and "Choose two" in differences and len(seen) == 1
    assert (at.minimum, at.maximum, at.value, at.step, at.visible) == (1, 3, 3, 1, True)
    assert at.label == "samples: after (3 of 3)" and "Samples of a, after" in samples and not timer.active
    draw = event(shown, "runs-metric", "input")
    assert draw(["a"], "loss", "optimizer step", 0) == curves != draw(["a"], "loss", "seconds", 0)
    assert draw(["a"], None, "optimizer step", 0) != curves
    slider, picture = event(shown, "runs-moment", "input")(["a"], 2)
    assert slider.label == "samples: step 1 (2 of 3)" and "step 1" in picture
    for at, label in ((0, "before (1 of 3)"), (9, "after (3 of 3)")):
        assert event(shown, "runs-moment", "input")(["a"], at)[0].label == f"samples: {label}"
    slider, picture = event(shown, "runs-moment", "input")([], 1)
    assert slider.label == "samples" and "img" not in picture


def test_nothing_is_drawn_again_until_a_file_has_changed(compared):
    shown, _, folder = compared
    tick = next(e.fn for e in shown["events"] if any(name == "tick" for _, name in e.targets))
    *_, seen = event(shown, "runs-choose", "input")(["a"], "loss", "optimizer step", 0)
    same = tick(seen, ["a"], "loss", "optimizer step", 0, 2)
    assert len(same) == 8 and all(map(skipped, same))
    (folder / "a" / "metrics.jsonl").write_text('{"step": 1, "seconds": 1.0, "loss": 1.0}\n')
    again = tick(seen, ["a"], "loss", "optimizer step", 0, 2)
    assert again[4].value == 2 and again[7] != seen


def test_new_runs_are_found_and_a_page_that_is_opened_shows_what_is_there(compared):
    shown, found, folder = compared
    written(folder / "c", finished=False)
    several, note = event(shown, "runs-refresh")(["a"])
    assert several.value == ["a", "c"] and [*found.runs] == ["a", "b", "c"] and note.visible is False
    first = next(e.fn for e in shown["events"] if any(name == "load" for _, name in e.targets))
    chosen, metric, *_, timer, seen = first(["a", "gone"], None, "optimizer step", 0)
    assert chosen.value == ["a"] and len(chosen.choices) == 3 and metric.value and not timer.active and len(seen) == 1
    *_, timer, _ = first(["c"], None, "optimizer step", 0)
    assert timer.active
    empty = first(None, None, "optimizer step", 0)
    assert empty[0].value == [] and empty[5].visible is False
    more = SimpleNamespace(**{name: written(folder / name) for name in "defghijk"})
    assert len(vars(more)) == 8 and len(event(shown, "runs-refresh")(["a"])[0].value) == 8
