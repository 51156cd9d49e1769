"""The example programs: what each of their modules is asked, and when they end."""

from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.policies.programs import Ask
from mmgrpo.types import Prompt
from pipelines.text import programs


def asked_by(program: Any, answers: list[str]) -> tuple[list[Ask], str]:
    """What a program asks when it is answered so, and its text; all answers are used."""
    steps = program(Prompt("2 + 2?", "0"), 0, 0)
    asked = [next(steps)]
    for answer in answers[:-1]:
        asked.append(steps.send(answer))
    with pytest.raises(StopIteration) as end:
        steps.send(answers[-1])
    return asked, end.value.value


def test_a_writer_reads_the_plan():
    asked, text = asked_by(programs.plan_and_write, ["add", "4"])
    assert [one.module for one in asked] == ["planner", "writer"] and text == "4"
    assert "Plan: add" in asked[1].text and "2 + 2?" in asked[1].text


def test_the_four_modules_of_agentflow_share_a_memory_until_the_verifier_is_content():
    asked, text = asked_by(programs.plan_and_act, ["add", "four", "no", "check", "still four", "Yes.", "4"])
    modules = ["planner", "executor", "verifier"]
    assert [one.module for one in asked] == [*modules, *modules, "generator"] and text == "4"
    assert "So far: nothing" in asked[0].text and asked[1].text.endswith("add")
    memory = ["1. add Result: four", "2. check Result: still four"]
    assert memory[0] in asked[2].text and memory[0] in asked[3].text and memory[1] not in asked[4].text
    assert all(line in asked[5].text and line in asked[6].text for line in memory)
    never = [*["a", "b", "no"] * programs.STEPS, "c"]
    assert len(asked_by(programs.plan_and_act, never)[0]) == 3 * programs.STEPS + 1


def test_an_answer_that_the_model_calls_wrong_is_given_anew():
    asked, text = asked_by(programs.answer_and_reflect, ["5", "no", "4", "It is right: yes"])
    assert [one.module for one in asked] == ["answer", "judge", "answer", "judge"] and text == "4"
    assert asked[0].text == "2 + 2?" and "5" in asked[1].text and "yes or no" in asked[1].text
    assert "5" in asked[2].text and "wrong" in asked[2].text and "4" in asked[3].text
    assert asked_by(programs.answer_and_reflect, ["5", "yes"])[1] == "5"
    assert asked_by(programs.answer_and_reflect, ["5", "perhaps"])[1] == "5"  # what is no verdict changes nothing
    wrong = ["3", "no"] * programs.REFLECTIONS + ["6"]
    assert asked_by(programs.answer_and_reflect, wrong)[1] == "6"
