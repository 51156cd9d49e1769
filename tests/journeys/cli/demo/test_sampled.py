"""What the tabs of language and speech models make of samples: numbers, words and mark-up, each by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import sampled, vision_language
from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.cli.demo.sampled import MAX_TEXT, Drawn, Examples
from mmgrpo.cli.demo.vision_language import ask, split
from mmgrpo.types import Prompt, Request, Text, Turn
from tests.journeys.cli.demo.ballots import Model
from tests.journeys.cli.demo.told import opened, pair

NAN = math.nan


def asking(count: int = 0, sides: int = 2):
    """A pair with as many held-out prompts, whose sides answer with their numbers."""
    one = pair("p", "qwen_vl", [], weights="model" if sides == 2 else "")
    one.__dict__["_heldout"] = [Prompt(f"q{n}", str(n)) for n in range(count)]
    return opened(one, *[lambda n: Text(f"a{n}", tokens=n)] * sides)


@pytest.mark.parametrize(
    ("there", "offered"),
    [
        (0, []),
        (1, [0]),
        (3, [0, 1, 2]),
        (24, list(range(24))),
        (47, list(range(0, 47, 2))),  # 24 over 47, evenly: every second
    ],
)
def test_examples_are_spaced_evenly_over_the_held_out_prompts(there: int, offered: list[int]):
    found, _ = asking(there)
    examples = Examples(found)
    assert {key: one.text for key, one in examples.of("p").items()} == {
        str(i): f"q{place}" for i, place in enumerate(offered)
    }
    assert examples.get("p", "") is None and examples.of("p") is examples.of("p")
    if there:
        assert examples.get("p", "0") == Prompt("q0", "0")
    with pytest.raises(ValueError, match=f"example.*'x'.*{len(offered)}"):
        examples.get("p", "x")
    with pytest.raises(ValueError, match="model.*'q'"):
        examples.of("q")


def test_prompts_whose_media_cannot_be_decoded_here_are_no_examples(monkeypatch):
    found, _ = asking(3)

    def missing(self, count: int):
        raise ImportError("av")

    monkeypatch.setattr(type(found.pairs["p"]), "examples", missing)
    assert Examples(found).of("p") == {}


def test_a_model_has_its_own_temperature_again_after_a_question():
    found, (base, _) = asking()
    base.feature_cache.entries["a prompt"] = None  # type: ignore[index]
    request = Request([Prompt("q")], [0], 1, 0)
    with found.lock:
        assert sampled.sample(base, request, 0.7) == sampled.sample(Model(Text("a0")), request, 0.7)
    assert (base.asked[-1][4], base.evaluation_temperature, len(base.feature_cache.entries)) == (0.7, 0.0, 0)
    with pytest.raises(AssertionError):  # the lock is not held
        sampled.sample(base, request, 0.7)
    assert base.evaluation_temperature == 0.0


def test_the_longest_text():
    assert sampled.check_text("x" * MAX_TEXT, "a") == "x" * MAX_TEXT
    with pytest.raises(ValueError, match="a.*4,001 characters.*4,000"):
        sampled.check_text("x" * (MAX_TEXT + 1), "a")


@pytest.mark.parametrize(
    ("count", "fractions", "sizes"),
    [
        (1, [0, 1 / 4, 2 / 4, 3 / 4, 1], [1]),
        (4, [0, 1 / 4, 2 / 4, 3 / 4, 1], [4]),
        (5, [0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1], [4, 1]),
    ],
)
def test_samples_of_both_sides_are_drawn_in_batches(count: int, fractions: list[float], sizes: list[int]):
    found, sides = asking()
    steps = list(sampled.draw_sides(found, "p", Prompt("q"), count=count, temperature=0.5, seed=7))
    assert [done for done, _, _ in steps] == pytest.approx(fractions)
    for side in sides:
        assert [(slot, size, seed, t) for _, slot, size, seed, t in side.asked] == [
            (slot, size, 7, 0.5) for slot, size in enumerate(sizes)
        ]
        assert side.evaluation_temperature == 0.0
    assert steps[0][1] == f"Base is sampling: 0 of {count}" and steps[-1][1] == ""
    assert steps[len(sizes)][1] == "the rewards of Base are being computed"
    drawn = steps[-1][2]
    assert [*drawn] == [BEFORE, AFTER] and [getattr(one, "text", "") for one in drawn[AFTER].outputs] == [
        f"a{n}" for n in range(count)
    ]
    assert [*steps[1][2]] == [BEFORE] and steps[0][2] == {}
    list(sampled.draw_sides(found, "p", Prompt("q")))
    assert sides[0].asked[-1][1:] == (0, 1, 0, 0.0)


# ---- rewards


def test_the_mean_of_a_reward_is_over_what_it_scored():
    rows = [{"a": 1.0, "b": NAN, "c": NAN}, {"a": 2.0, "b": 4.0, "c": NAN}]
    made = sampled.means(rows)
    assert sampled.means([{"a": 3.0}]) == {"a": 3.0}
    assert (made["a"], made["b"]) == (1.5, 4.0) and math.isnan(made["c"]) and sampled.means([]) == {}


def test_rewards_are_listed_and_failures_named():
    text = sampled.rewards_list({"<a>": 0.5, "b": NAN, "c": NAN}, {"b": "broke"}, "3 tokens")
    assert text == (
        '<ul class="rewards"><li>&lt;a&gt; <b>0.500</b></li><li title="broke">b <b class="failed">failed</b></li>'
        '<li title="no value for this output">c <b class="failed">failed</b></li><li>3 tokens</li></ul>'
    )
    assert sampled.rewards_list({}, {}) == "" != sampled.rewards_list({}, {}, "x")
    assert sampled.reasons_list({}) == ""
    assert f"<p>&lt;a&gt;: {'x' * 400}</p>" in sampled.reasons_list({"<a>": "x" * 401})


OWN = "tests.journeys.cli.demo.test_sampled:{}(process=False)"


def infinite(prompts, outputs):
    return [1.0, math.inf, NAN][: len(outputs)]


def breaks(prompts, outputs):
    raise RuntimeError("no\nluck")


def few(prompts, outputs):
    return [1.0]


def reads(prompts, outputs, rollout):
    return [1.0 for _ in outputs]


def test_a_reward_without_a_finite_value_has_none_and_one_that_fails_a_reason():
    one = replace(pair("p", "qwen_vl", [OWN.format(name) for name in ("infinite", "breaks", "few", "reads", "gone")]))
    drawn = sampled.scored(one, Prompt("q"), [Text("a"), Text("b"), Text("c")], "cpu")
    assert drawn.rewards[0]["infinite"] == 1 and len(drawn.outputs) == 3
    assert all(math.isnan(row["infinite"]) for row in drawn.rewards[1:])
    assert all(
        math.isnan(row[name]) for row in drawn.rewards for name in ("breaks", "few", "reads", OWN.format("gone"))
    )
    assert drawn.reasons["reads"] == "it reads the decisions of training" and drawn.reasons["breaks"] == "no luck"
    assert "got 1 values" in drawn.reasons["few"]
    assert {*drawn.reasons} == {"breaks", "few", "reads", OWN.format("gone")}


# ---- words


def test_an_error_is_one_line_with_the_name_of_the_upload():
    assert sampled.in_words(ValueError("a\n b")) == "a b" and sampled.in_words(KeyError()) == "KeyError"
    assert sampled.in_words(ValueError("/x/a.png is bad"), "/x/a.png") == "a.png is bad"
    assert sampled.refused(ValueError("<b>"), "") == '<p role="alert" class="failed">&lt;b&gt;</p>'


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("gone <b>"), "gone &lt;b&gt;"),
        (ValueError("a defect"), "ValueError: a defect"),
        (OSError("x" * 2000), "x" * 1000),
    ],
)
def test_errors_of_an_event_are_messages_and_defects_have_their_kind(error: Exception, message: str, capsys):
    with pytest.raises(gr.Error) as shown, sampled.one_line_errors():
        raise_(error)
    assert shown.value.message == message and not shown.value.print_exception
    assert ("Traceback" in capsys.readouterr().err) is message.startswith("ValueError")
    passed = gr.Error("as it is")
    with pytest.raises(gr.Error) as shown, sampled.one_line_errors():
        raise passed
    assert shown.value is passed


def raise_(error: Exception) -> None:
    raise error


# ---- answers about pictures


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (" <think> a </think> b ", ("a", "b")),
        ("why <answer>b</answer>", ("why", "<answer>b</answer>")),
        ("<think>x<answer>1</answer></think>\n2", ("x<answer>1</answer>", "2")),
        ("only", ("", "only")),
        ("<think>never closed", ("", "<think>never closed")),
    ],
)
def test_a_thought_is_told_from_the_rest(text: str, parts: tuple[str, str]):
    assert split(text) == parts


def drawn(*texts: str, rewards: bool = True) -> Drawn:
    rows = [{"r": float(len(text))} for text in texts] if rewards else []
    return Drawn([Text(text, tokens=3, truncated=text == "cut") for text in texts], rows)


@pytest.mark.parametrize(
    "changes", [{"count": 0}, {"count": 17}, {"temperature": -0.1}, {"temperature": 2.1}, {"seed": -1}, {"seed": 2**32}]
)
def test_numbers_outside_of_the_sliders_are_refused(changes: dict[str, Any]):
    found, sides = asking()
    values = {"count": 1, "temperature": 1.0, "seed": 0}

    def asked(**numbers: Any):
        return list(ask(found, Examples(found), "p", "", None, "q", "", "", "resized", **numbers))

    with pytest.raises(ValueError, match="1.*16 answers.*0.*2.*0.*4,294,967,295"):
        asked(**values | changes)
    for numbers in ({"count": 16, "temperature": 2.0, "seed": 2**32 - 1}, {"count": 1, "temperature": 0.0, "seed": 0}):
        asked(**numbers)
    asked(count=5, temperature=0.0, seed=0)
    assert sides[0].asked[-1][2] == 1 and sum(size for _, _, size, _, _ in sides[1].asked) == 18


def test_an_upload_is_asked_with_the_system_turn_of_the_first_example():
    found, _ = asking()
    assert vision_language.system_of(Examples(found), "p") == ()
    system = Turn("system", ("be brief",))
    found.pairs["p"].__dict__["_heldout"] = [Prompt("q", turns=(system, Turn("user", ("q",)))), Prompt("r")]
    assert vision_language.system_of(Examples(found), "p") == (system,)


def test_boxes_that_cannot_be_placed_are_none():
    assert vision_language.boxes_of(Prompt("where?"), Text("at [1, 2, 3, 4]")) == {}
