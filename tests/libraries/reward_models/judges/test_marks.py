"""Judges that mark parts of a text: all wrong steps by a vote of critiques, and the phrases of a critique."""

from __future__ import annotations

import math

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.judges import question, thoughts
from reward_models.judges.thoughts import (
    judge_own_errors,
    judge_phrases,
    judge_wrong_steps,
    locate_phrases,
    numbers_after,
    own_error_remarks,
    phrase_remarks,
    phrases_in,
    step_places,
    step_remarks,
)

SOLUTION = "one\n\ntwo\n \n three\n\nfour"
CRITIQUES = ["Wrong steps: 2, 3", "Two of them.\nWrong steps: 3", "**Wrong steps:** 3 and 4", "Wrong steps: steps 3, 4"]
PROMPT = Prompt("1+1?", "p", "2")


@pytest.fixture
def judged(monkeypatch):
    """A judge whose answers are a function of the question's text and of which draw it is."""

    def use(answer):
        class Fake:
            def answers(self, questions, tokens):
                return [answer("\n".join(one.parts), one.draw) for one in questions]

        monkeypatch.setattr(question, "_warned", set())
        monkeypatch.setattr(thoughts, "judge_named", lambda text, device: Fake())

    return use


@pytest.mark.parametrize(
    ("vote", "count", "wrong"),
    [
        ("intersection", 3, [3]),
        ("majority", 3, [3]),
        ("union", 3, [2, 3, 4]),
        ("majority", 4, [3, 4]),  # half of four
        ("intersection", 1, [2, 3]),
    ],
)
def test_a_step_is_wrong_by_the_vote_of_the_critiques(judged, vote, count, wrong):
    """CAPO, arXiv:2508.02298: critiques 2 3, 3, 3 4 and 3 4 of four steps."""
    judged(lambda text, draw: CRITIQUES[draw])
    given = {"judge": "", "count": count, "vote": vote}
    assert judge_wrong_steps([PROMPT], [Text(SOLUTION)], **given) == [1 - len(wrong) / 4]
    [said] = step_remarks(device="cpu", **given)([PROMPT], [Text(SOLUTION)])
    places = [(0, 5), (5, 12), (12, 19), (19, 24)]  # up to where the next begins; the end token belongs to the last
    assert said == {"marks": [(*places[number - 1], -1.0) for number in wrong]}


def test_a_solution_is_read_by_what_it_says_of_itself(judged):
    """TP-GRPO, arXiv:2507.23317: of a right one the steps that it corrects, of a wrong one those its answer takes up;
    the judge sees the reference answer of neither."""
    seen: list[str] = []

    def answer(text: str, draw: int) -> str:
        seen.append(text)
        return "Wrong steps: 2" if "whose answer is right" in text else "Wrong steps: 1, 4"

    judged(answer)
    right, wrong = Text("one\n\ntwo\n\nwait\n\n</think><answer>2</answer>"), Text("one\n\ntwo\n\n</think>\n\nsix")
    prompts = [Prompt("1+1?", "p", "2"), Prompt("1+1?", "p", "1 and 1 is 2")]
    assert judge_own_errors(prompts, [right, wrong], judge="") == [0.75, 0.5]
    assert "looks back at itself" in seen[0] and "Its answer:\nsix" in seen[1]
    assert not any("1 and 1 is 2" in text for text in seen)
    said = own_error_remarks(judge="", device="cpu")(prompts, [right, wrong])
    assert said[0] == {"marks": [(5, 10, -1.0)]}
    assert [one[2] for one in said[1]["marks"]] == [-1.0, -1.0] and said[1]["marks"][0][:2] == (0, 5)
    with pytest.raises(ValueError, match="judge_own_errors.*'maths'"):
        scorer("judge_own_errors(judge=\"vlm(model='m')\", rule='maths')")


def test_marks_are_those_of_the_text_without_what_the_template_wrote(judged):
    judged(lambda text, draw: "Wrong steps: 1")
    [said] = step_remarks(judge="", count=1, device="cpu")([PROMPT], [Text("a\n\nb", prefilled="<think>\n")])
    assert said == {"marks": [(-8, 3, -1.0)]}


def test_critiques_that_cannot_be_read_have_no_vote(judged):
    judged(lambda text, draw: ["Wrong steps: 2", "Wrong steps: many", "Wrong steps: 9", None][draw])
    with pytest.warns(UserWarning, match="2 of 4"):
        assert judge_wrong_steps([PROMPT], [Text(SOLUTION)], judge="") == [0.75]  # step 9 is none
    judged(lambda text, draw: "all is lost")
    with pytest.warns(UserWarning):
        assert math.isnan(judge_wrong_steps([PROMPT], [Text(SOLUTION)], judge="")[0])
        assert step_remarks(judge="", device="cpu")([PROMPT], [Text(SOLUTION)]) == [{}]
    with pytest.raises(ValueError, match="vote='most'"):
        scorer("judge_wrong_steps(judge=\"vlm(model='m')\", vote='most')")


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("Wrong steps: none", []),
        ("wrong steps: 0.", []),
        ("Wrong steps: [1, 12]", [1, 12]),
        ("Wrong steps: 1\nWrong steps: 2", [2]),
        ("Wrong steps: 1 to 3", None),
        ("Wrong steps: -1", None),
        ("Wrong steps:", None),
        ("2, 3", None),
        ("<think>Wrong steps: 1", None),
    ],
)
def test_numbers_are_read_or_nothing_is(line, numbers):
    made = numbers_after(line, "Wrong steps")
    assert made is None if numbers is None else made == frozenset(numbers)


def test_the_places_of_steps_are_those_of_their_texts():
    assert [SOLUTION[a:b] for a, b in step_places(SOLUTION)] == ["one", "two", "three", "four"]
    assert step_places("\n\n \n") == [] and step_places(" a ") == [(1, 2)]


def test_phrases_of_a_critique_are_found_in_the_text(judged):
    """Text2Grad, arXiv:2505.22338: 1 in good and -1 in poor phrases, each at its first free place."""
    text = "The sky is blue. The  sky\nis blue, since it reflects the sea."
    phrases = [("the sky is blue", 1.0), ("The sky is blue", 1.0), ("reflects the sea", -1.0), ("of glass", -1.0)]
    assert locate_phrases(text, phrases) == [(0, 15, 1.0), (17, 33, 1.0), (44, 60, -1.0)]
    assert locate_phrases(text, [("of glass", -1.0)]) is None and locate_phrases(text, []) == []
    assert locate_phrases(text, [("sky is", -1.0), ("The sky is blue", 1.0)]) == [(4, 10, -1.0), (17, 33, 1.0)]
    answer = '{"good": ["The sky is blue"], "poor": ["it reflects the sea", "of glass"]}'
    judged(lambda text, draw: f"Well.\n{answer}")
    assert judge_phrases([PROMPT], [Text(text)], judge="") == [pytest.approx((15 - 19) / len(text))]
    assert phrase_remarks(judge="", device="cpu")([PROMPT], [Text(text)]) == [{"marks": [(0, 15, 1.0), (41, 60, -1.0)]}]


@pytest.mark.parametrize("answer", ["good", '{"good": []}', '{"good": "a", "poor": []}', '{"good": [1], "poor": []}'])
def test_a_critique_that_is_no_object_of_phrases_is_a_failure(judged, answer):
    assert phrases_in(answer) is None
    judged(lambda text, draw: answer)
    with pytest.warns(UserWarning):
        assert math.isnan(judge_phrases([PROMPT], [Text("a")], judge="")[0])
        assert phrase_remarks(judge="", device="cpu")([PROMPT], [Text("a")]) == [{}]
