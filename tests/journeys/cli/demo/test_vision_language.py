"""Questions about pictures and clips in the demo."""

from __future__ import annotations

import json
import math

import gradio as gr
import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli.demo import sampled
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened
from mmgrpo.cli.demo.sampled import OWN, Examples
from mmgrpo.cli.demo.vision_language import ask, boxes_of, prompt_of, read_upload, split, tab
from mmgrpo.data.limits import Unreadable
from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Media, Prompt, Text, Turn
from tests.journeys.cli.demo import told

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def picture(tmp_path):
    file = tmp_path / "shapes.png"
    Pil.fromarray(np.full((40, 80, 3), 255, np.uint8)).save(file)
    return str(file)


@pytest.fixture
def heldout(tmp_path, picture):
    rows = [{"text": f"how many {i}?<image>", "image": picture, "answer": str(i), "task": "numeric"} for i in range(30)]
    rows[0] = {**rows[0], "id": "first"}
    file = tmp_path / "heldout.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def asked(found: Opened, key=OWN, file=None, question="what?", answer="", task="", count=2, temperature=1.0, seed=3):
    """All results of a question."""
    examples = Examples(found)
    return list(ask(found, examples, "one", key, file, question, answer, task, "absolute", count, temperature, seed))


@pytest.mark.parametrize(
    ("completion", "reasoning", "rest"),
    [
        ("<think>a < b</think> <answer>2</answer>", "a < b", "<answer>2</answer>"),
        ("<think>maybe <answer>1</answer></think>2", "maybe <answer>1</answer>", "2"),
        ("I count\ntwo. <answer>2</answer>", "I count\ntwo.", "<answer>2</answer>"),
        ("<answer>2</answer>", "", "<answer>2</answer>"),
        ("two", "", "two"),
        ("<think>without an end", "", "<think>without an end"),
    ],
)
def test_reasoning_is_the_thought_or_what_precedes_the_answer(completion, reasoning, rest):
    assert split(completion) == (reasoning, rest)


def test_both_sides_draw_with_the_same_noise_and_only_when_asked():
    found, (base, trained) = told.opened(told.pair("one", "qwen_vl", []), lambda i: Text("x"), lambda i: Text("y"))
    examples = Examples(found)
    steps = ask(found, examples, "one", OWN, None, "what?", "", "", "absolute", 6, 0.5, 7)
    next(steps)
    assert not base.asked
    assert not found.lock.locked()
    pages = [page for _, _, page in steps]
    assert [one[1:] for one in base.asked] == [(0, 4, 7, 0.5), (1, 2, 7, 0.5)]
    assert base.asked == trained.asked
    assert base.evaluation_temperature == 0
    assert (pages[0].count("<article>"), pages[-1].count("<article>")) == (4, 12)
    first_with = [any(title in page for page in pages[:2]) for title in ("<h3>Base</h3>", "<h3>Trained</h3>")]
    assert first_with == [True, False]


def test_at_temperature_0_one_answer_is_drawn_since_all_are_equal():
    found, (base, _) = told.opened(told.pair("one", "qwen_vl", []), lambda i: Text("x"), lambda i: Text("y"))
    asked(found, count=9, temperature=0.0)
    assert [one[2] for one in base.asked] == [1]


def test_rewards_stand_under_each_answer_and_their_mean_above():
    pair = told.pair("one", "qwen_vl", ["task"])
    found, _ = told.opened(pair, lambda i: Text(f"<answer>{i}</answer>"), lambda i: Text("<answer>1</answer>"))
    done, doing, page = asked(found, answer="1", task="numeric")[-1]
    assert (done, doing) == (1.0, "")
    base, trained = page.split("<h3>Trained</h3>")
    assert [text.split("<")[0] for text in base.split("<b>")[2:]] == ["0.500", "0.000", "1.000"]
    assert trained.count("<b>1.000</b>") == 3
    assert "failed" not in page


def test_a_reward_without_its_reference_is_failed_with_the_reason():
    pair = told.pair("one", "qwen_vl", ["task", "no_such_reward", "format"])
    found, _ = told.opened(pair, lambda i: Text("red"), lambda i: Text("red"))
    _, _, page = asked(found, count=1)[-1]
    assert page.count('<b class="failed">failed</b>') == 4
    assert page.count("names no task") == 4  # as a title and in the list of reasons, for each side
    assert "there is no &#x27;no_such_reward&#x27;" in page
    assert "format <b>0.000</b>" in page


def test_every_kind_of_failure_of_a_reward_is_shown(monkeypatch):
    def broken(prompts, outputs):
        raise ZeroDivisionError("<b>no</b>")

    rewards = [
        Scorer("partial", lambda prompts, outputs: [0.25, math.inf, math.nan]),
        Scorer("broken", broken),
        Scorer("rollout", lambda prompts, outputs: [1.0] * 3, reads_rollout=True),
    ]
    monkeypatch.setattr(sampled, "scorers_of", lambda specs, device: (rewards, {"absent": "not installed"}))
    found, _ = told.opened(told.pair("one", "qwen_vl", []), lambda i: Text("x"), lambda i: Text("y"))
    _, _, page = asked(found, count=3)[-1]
    base = page.split("<h3>Trained</h3>")[0]
    # The mean has three failed rewards, the answers three, four and four.
    assert base.count(">failed</b>") == 3 + 3 + 4 + 4
    assert base.count("partial <b>0.250</b>") == 2
    reasons = base.split("why rewards failed")[1]
    for reason in (
        "absent: not installed",
        "broken: &lt;b&gt;no&lt;/b&gt;",
        "rollout: it reads the decisions of training",
    ):
        assert reason in reasons


def test_texts_of_visitors_and_models_are_escaped():
    hostile = f"<think>{HOSTILE}</think><answer>{HOSTILE}</answer>"
    found, _ = told.opened(told.pair("one", "qwen_vl", ["task"]), lambda i: Text(hostile), lambda i: Text(hostile))
    _, _, page = asked(found, question=HOSTILE, answer=HOSTILE, task=HOSTILE)[-1]
    assert "<img" not in page
    assert page.count("&lt;img src=x") > 10
    assert page.count('<span class="tag">&lt;answer&gt;</span>') == 4


def test_boxes_in_an_answer_are_drawn_into_an_upload(picture):
    found, _ = told.opened(
        told.pair("one", "qwen_vl", []),
        lambda i: Text("it is at [8, 10, 40, 20]", seen=((40, 80),)),
        lambda i: Text("in the middle", seen=((40, 80),)),
    )
    _, _, page = asked(found, file=picture, count=1)[-1]
    base, trained = page.split("<h3>Trained</h3>")
    assert ("<img" in base, "<img" in trained) == (True, False)
    assert "; boxes: <b style=" in base.split("</p>")[0]


@pytest.mark.parametrize(("coordinates", "box"), [("absolute", [0.1, 0.25, 0.5, 0.5]), ("resized", [0.2, 0.5, 1, 1])])
def test_boxes_are_fractions_of_the_picture_in_the_coordinates_of_the_model(picture, coordinates, box):
    prompt = prompt_of(None, picture, "where?", "", "", coordinates)
    assert list(boxes_of(prompt, Text("[8, 10, 40, 20]", seen=((20, 40),)))["said"][0]) == pytest.approx(box)


def test_examples_are_spread_over_the_file_and_asked_as_they_are(heldout):
    found, (base, _) = told.opened(told.pair("one", "qwen_vl", [], heldout), lambda i: Text("x"), lambda i: Text("y"))
    examples = Examples(found)
    own = examples.of("one")
    assert [prompt.answer for prompt in own.values()][:2] + [list(own.values())[-1].answer] == ["0", "1", "29"]
    assert len(own) == sampled.EXAMPLES
    list(ask(found, examples, "one", "0", None, "how many 0?", "0", "numeric", "absolute", 1, 0.0, 0))
    assert base.asked[0][0] == own["0"]
    list(ask(found, examples, "one", "0", None, "how few?", "5", "numeric", "absolute", 1, 0.0, 0))
    other = base.asked[1][0]
    assert (other.text, other.answer, other.media) == ("how few?", 5, own["0"].media)
    assert other.turns[-1].parts[-1] == "how few?"


def test_an_upload_is_asked_with_the_system_turn_of_the_pair(picture):
    system = (Turn("system", ("Think first.",)),)
    prompt = prompt_of(None, picture, "  where? ", "[1, 2]", "box_iou", "resized", system)
    assert (prompt.text, prompt.answer, prompt.task) == ("where?", [1, 2], "box_iou")
    assert prompt.meta == {"coordinates": "resized", "size": [40, 80]}
    assert prompt.turns[0] == system[0]
    assert isinstance(prompt.media[0].source, Image)
    example = Prompt("old", turns=(*system, Turn("user", (prompt.media[0], "old"))))
    assert prompt_of(example, None, "new", "", "", "resized").turns[0] == system[0]


@pytest.mark.parametrize(
    ("name", "key", "changes", "expected"),
    [
        ("../../etc", OWN, {}, "model: got '../../etc'"),
        ("one", "../../etc/passwd", {}, "example: got '../../etc/passwd'"),
        ("one", OWN, {"question": "  "}, "question: got no text"),
        ("one", OWN, {"question": "x" * 4001}, "question: got 4,001 characters"),
        ("one", OWN, {"answer": "x" * 4001}, "reference answer: got 4,001"),
        ("one", OWN, {"count": 17}, "got 17 answers"),
        ("one", OWN, {"temperature": 2.5}, "temperature 2.5"),
        ("one", OWN, {"seed": -1}, "seed -1"),
    ],
)
def test_what_the_page_does_not_offer_is_refused_before_a_model_is_loaded(name, key, changes, expected):
    found, _ = told.opened(told.pair("one", "qwen_vl", []))
    fields = {"question": "what?", "answer": "", "task": "", "coordinates": "absolute"} | {
        "count": 1,
        "temperature": 1.0,
        "seed": 0,
    }
    with pytest.raises(ValueError) as error:
        next(ask(found, Examples(found), name, key, None, *(fields | changes).values()))
    assert expected in str(error.value)


def test_uploads_beyond_the_limits_of_data_are_refused_by_name(tmp_path):
    bomb, text, sound = tmp_path / "bomb.png", tmp_path / "text.png", tmp_path / "sound.wav"
    Pil.new("1", (9000, 9000)).save(bomb)
    text.write_text("not a picture")
    sound.write_bytes(b"RIFF")
    (clip := tmp_path / "clip.mp4").write_bytes(b"#EXTM3U\nfile:///etc/passwd\n")
    for file, expected in ((bomb, "81,000,000 pixels"), (text, "cannot be read"), (sound, "a file of kind audio")):
        with pytest.raises(ValueError, match=expected) as error:
            read_upload(str(file))
        assert str(tmp_path) not in str(error.value)
    with pytest.raises(Unreadable) as error:
        read_upload(str(clip))
    assert str(tmp_path) not in (shown := sampled.refused(error.value, str(clip)))
    assert "clip.mp4" in shown


def test_errors_of_users_are_one_escaped_line_without_the_folder(tmp_path, capsys):
    file = tmp_path / "<b>a.png"
    file.write_text("no picture")
    with pytest.raises(gr.Error) as error, sampled.one_line_errors(str(file)):
        read_upload(str(file))
    assert error.value.message.startswith("&lt;b&gt;a.png: cannot be read as an image")
    assert not capsys.readouterr().err
    with pytest.raises(gr.Error, match="ZeroDivisionError: division by zero"), sampled.one_line_errors():
        _ = 1 / 0
    assert "Traceback" in capsys.readouterr().err


def test_a_picture_is_shown_within_a_narrow_screen():
    wide = Media("image", Image(torch.zeros(3, 100, 1000)))
    small = Media("image", Image(torch.zeros(3, 8, 8)))
    sizes = []
    for media in (wide, small):
        from base64 import b64decode
        from io import BytesIO

        content = sampled.medium(media).split("base64,")[1].split('"')[0]
        sizes.append(Pil.open(BytesIO(b64decode(content))).size)
    assert sizes == [(320, 32), (160, 160)]


def test_without_a_model_the_tab_says_what_to_do(tmp_path):
    page = told.page(tab, Opened({}, {}, tmp_path / "votes.jsonl"))
    assert not page["events"]
    assert any("mmgrpo train" in str(getattr(block, "value", "")) for block in page["all"])


def test_a_run_that_was_not_trained_has_one_side():
    pair = told.pair("one", "qwen_vl", [], weights="")
    assert pair.sides == (BEFORE,)
    found, _ = told.opened(pair, lambda i: Text("x"))
    assert not found.holds("one", AFTER)
    assert "Trained" not in asked(found)[-1][2]
