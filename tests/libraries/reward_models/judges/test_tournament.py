"""Rewards that compare an output with some of its group, by a judge whose answers are known."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

from mmgrpo.config.presets import PRESETS
from mmgrpo.types import Image, Media, Prompt, Text, Turn
from reward_models.judges import pairwise, question, thoughts, tournament
from tests.libraries.reward_models.judges.test_judges import FakeJudge

NAN = pytest.approx(math.nan, nan_ok=True)


@pytest.fixture
def judged(monkeypatch):
    def use(answer):
        fake = FakeJudge(answer)
        for module in (pairwise, thoughts):
            monkeypatch.setattr(module, "judge_named", lambda text, device: fake)
        monkeypatch.setattr(question, "_warned", set())  # warnings come once in a process
        return fake

    return use


def larger(text):
    """The verdict of a judge who sees the strength of both outputs; a tie of equal ones."""
    first, second = (int(number) for number in re.findall(r"Output \d:\n(-?\d+)", text)[:2])
    return f"Verdict: {1 if first > second else 2}" if first != second else "Verdict: tie"


def group(*strengths, key="a", answer=None):
    return [Prompt("Which?", id=key, answer=answer) for _ in strengths], [Text(str(one)) for one in strengths]


def test_neighbours_of_a_bracket_are_the_best_against_the_worst():
    assert tournament.bracket(4) == [0, 3, 1, 2] and tournament.bracket(8) == [0, 7, 3, 4, 1, 6, 2, 5]
    assert tournament.bracket(5) == tournament.bracket(8) and tournament.bracket(1) == [0]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("schedule", tournament.SCHEDULES)
def test_a_tournament_finds_the_best_with_few_comparisons(judged, size, schedule):
    for strengths in itertools.islice(itertools.permutations(range(size)), 0, None, max(1, math.factorial(size) // 24)):
        fake = judged(larger)
        rewards = tournament.judge_tournament(*group(*strengths), judge="", schedule=schedule)
        games = {"elimination": 2 * size - 2, "round_robin": size * (size - 1) // 2, "anchor": size - 1}[schedule]
        assert len(fake.asked) == 2 * games  # in both orders
        if schedule == "round_robin":
            assert rewards == pytest.approx([strength / (size - 1) for strength in strengths])
        elif schedule == "elimination":
            assert rewards[strengths.index(size - 1)] == 1.0 and min(rewards) >= 0 and rewards.count(1.0) == 1


def test_equal_ones_share_the_better_rank_and_groups_do_not_meet(judged):
    judged(larger)
    prompts, outputs = group(5, 5, 1)
    more = group(9, 3, key="b")
    alone = group(7, key="c")
    made = tournament.judge_tournament(
        [*prompts, *more[0], *alone[0]], [*outputs, *more[1], *alone[1]], judge="", schedule="round_robin"
    )
    assert made == [1, 1, 0, 1, 0, NAN]


def test_what_cannot_be_read_counts_for_neither(judged):
    judged(lambda text: "who knows" if "\n3" in text else larger(text))
    with pytest.warns(UserWarning):
        assert tournament.judge_tournament(*group(1, 2, 3), judge="", schedule="round_robin") == [0.5, 1, NAN]
    with pytest.raises(ValueError, match="schedule.*'swiss'"):
        tournament.check_tournament(schedule="swiss")


def test_against_one_of_the_group_a_tie_is_lost(judged):
    judged(larger)
    prompts, outputs = group(4, 2, 2, 1)
    rewards = tournament.judge_one(prompts, outputs, judge="")
    one = rewards.index(0.0)
    strengths = [4, 2, 2, 1]
    assert rewards == [0 if row == one else 1 if s > strengths[one] else -1 for row, s in enumerate(strengths)]
    assert tournament.judge_one(prompts, outputs, judge="") == rewards  # the same one for the same outputs
    drawn = {tournament.judge_one(*group(*(n + shift for n in strengths)), judge="").index(0.0) for shift in range(20)}
    assert drawn == {0, 1, 2, 3}
    judged(lambda text: "Verdict: 1")  # whoever is first: nobody wins in both orders
    assert sorted(tournament.judge_one(prompts, outputs, judge="")) == [-1, -1, -1, 0]
    assert tournament.judge_one(*group(1), judge="") == [NAN]
    assert PRESETS["brpo"]["baseline"] == PRESETS["brpo"]["scale"] == "none"


def test_against_the_answer_both_orders_are_averaged(judged):
    judged(larger)
    assert tournament.judge_answer(*group(3, 2, 1, answer=2), judge="") == [1, 0.5, 0]
    judged(lambda text: "Verdict: 1")
    assert tournament.judge_answer(*group(3, 1, answer=2), judge="") == [0.5, 0.5]


@pytest.mark.parametrize(
    ("said", "reward"), [("0", 1.0), ("1", 0.0), ("3", 0.5), ("4", 0.75), ("5", NAN), ("2.5", NAN)]
)
def test_the_share_of_steps_before_the_first_wrong_one(judged, said, reward):
    fake = judged(lambda text: f"First wrong step: {said}")
    made = thoughts.judge_steps([Prompt("2 + 2", answer=4)], [Text("a\n\nb\n\n\nc\n \nd")], judge="")
    assert made == [reward]
    assert "[4] d" in fake.asked[0].parts[0] and "Reference answer:\n4" in fake.asked[0].parts[0]


def test_steps_of_nothing_are_not_scored(judged):
    judged(lambda text: "First wrong step: 0")
    prompts = [Prompt("2 + 2", answer=4)] * 2
    assert thoughts.judge_steps(prompts, [Text(" "), Text("a")], judge="") == [NAN, 1]


def test_the_last_step_of_a_text_is_judged_after_those_before_it(judged):
    fake = judged(
        lambda text: (
            "Verdict: " + ("poor" if "step:\nBad." in text else "good" if "step:\nGood." in text else "neither")
        )
    )
    outputs = [Text(one) for one in ("Good.", "Good. Bad.", "Bad.\nGood.", "Bad. Well.", " ")]
    assert thoughts.judge_last_step([Prompt("2 + 2")] * 5, outputs, judge="") == [1, -1, 1, 0, 0]
    assert "so far:\nGood.\n" in fake.asked[1].parts[0] and len(fake.asked) == 4
    assert thoughts.judge_last_step([Prompt("")], outputs[1:2], judge="", poor=0) == [0]


def test_the_end_of_a_thought_is_compared_with_the_answer(judged):
    fake = judged(lambda text: "Verdict: " + ("unclear" if "maybe" in text else "yes" if "so 4" in text else "no"))
    texts = ["<think>a\nb\nc\nso 4</think><answer>4</answer>", "<think>so 5</think>4", "<think>maybe</think>4", "4"]
    made = thoughts.judge_consistency([Prompt("2 + 2")] * 4, [Text(text) for text in texts], judge="")
    assert made == [1, -1, 0, 0]
    assert len(fake.asked) == 3 and "\na\n" not in fake.asked[0].parts[0]  # the last three lines


@pytest.mark.parametrize(("of", "values"), [("gold", [0.8, 0.2, NAN]), ("chosen", [0.8, 0.8, NAN])])
def test_a_thought_persuades_a_listener(judged, of, values):
    """Of A, which is right, the listener says .8 after the first thought, and B is what the second completion says."""
    image = Image(torch.zeros(3, 1, 1))
    said = [math.log(0.8), math.log(0.2)]
    fake = judged(lambda text: said if "It is red" in text else said[::-1])
    prompts = [Prompt("Which?", "0", turns=(Turn("user", (Media("image", image), "Which?")),), answer="A")] * 3
    texts = ["<think>It is red.</think><answer>A</answer>", "Blue.<answer>B</answer>", "<answer>A</answer>"]
    made = thoughts.listener(prompts, [Text(one) for one in texts], judge="", of=of)
    assert made == pytest.approx(values, nan_ok=True)
    assert fake.asked[0].parts[0] is image and "<answer>" not in fake.asked[0].parts[1]
    with pytest.raises(ValueError, match="prompt '7'.*'C'.*choices"):
        thoughts.listener([Prompt("", "7", answer="C")], [Text("x")], judge="")
    with pytest.raises(ValueError, match="listener.*of='both'"):
        thoughts.check_listener("chat(url='http://localhost:1', model='m')", of="both")


def test_a_continuation_is_a_beginning_of_what_follows(judged):
    judged(lambda text: "Verdict: " + ("yes" if "continuation:\nIt rained" in text else "no"))
    prompts = [Prompt("The sky was grey.", answer="It rained all day.")] * 2
    outputs = [Text("<think>x</think>It rained"), Text("It snowed")]
    assert thoughts.judge_continuation(prompts, outputs, judge="") == [1, 0]
