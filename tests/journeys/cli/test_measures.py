"""What evaluation reports: means over prompts and tasks, best of k, differences, and their tables."""

from __future__ import annotations

import math

import pytest

from mmgrpo.cli.measures import best, describe, difference, json_value, mean, powers, report, summary, without_nan
from mmgrpo.types import Prompt

NAN = math.nan


def test_the_mean_of_a_prompt_is_over_its_scored_samples_and_the_whole_over_prompts():
    made = summary([[1.0, NAN, 0.0], [1.0, 1.0, 1.0], [NAN, NAN, NAN]])
    assert (made["mean"], made["n"], made["failed"]) == (0.75, 2, 4)
    assert summary([[NAN], [NAN]]) == {"mean": None, "low": None, "high": None, "n": 0, "failed": 2}
    assert mean([NAN, 1.0, 2.0]) == 1.5 and math.isnan(mean([NAN])) and math.isnan(mean([]))
    assert without_nan([NAN, 0.0]) == [0.0] and json_value(NAN) is None and json_value(0.0) == 0.0


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_sets_are_of_1_2_4_and_all_samples(largest, sizes):
    assert powers(largest) == sizes


def test_the_best_of_k_is_over_prompts_with_as_many_samples():
    # two of [0, 1]: 1; of [0.5, NaN]: too few. One of each: (0.5 + 0.5) / 2.
    assert best([[0.0, 1.0], [0.5, NAN]]) == {"1": 0.5, "2": 1.0}


PROMPTS = [Prompt("a", "a", task="count"), Prompt("b", "b", task="colour"), Prompt("c", "c", task="count")]


def test_tasks_are_reported_apart_and_only_rewards_of_0_to_1_have_chances():
    table = {"right": [[1.0, 0.0], [0.5, 1.0], [0.0, 0.0]], "size": [[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]]}
    made = describe(table, [], PROMPTS, success=0.5)
    assert list(made["tasks"]) == ["count", "colour"]
    assert made["tasks"]["count"]["right"]["mean"] == 0.25 and made["tasks"]["colour"]["right"]["mean"] == 0.75
    assert made["best_of"].keys() == made["pass_at"].keys() == {"right"}
    # at least 0.5 passes: 1, 2 and 0 of two
    assert made["pass_at"]["right"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}
    assert made["best_of"]["right"] == {"1": pytest.approx(2.5 / 6), "2": pytest.approx(2 / 3)}
    assert describe(table, [], PROMPTS, success=0.51)["pass_at"]["right"]["1"] == pytest.approx(2 / 6)
    assert "(none)" in describe({"right": [[1.0]]}, [], [Prompt("a")], 1.0)["tasks"]
    ends = describe({"below": [[-0.1]], "above": [[1.1]], "ends": [[0.0]]}, [], [Prompt("a")], 1.0)
    assert ends["best_of"].keys() == {"ends"}


def test_rewards_are_reported_by_the_values_of_a_column():
    prompts = [Prompt("a", meta={"kind": "x"}), Prompt("b", meta={"kind": "y"}), Prompt("c", meta={"kind": "x"})]
    made = describe({"right": [[1.0, 0.0], [0.5, 1.0], [0.0, 0.0]]}, [], prompts, 0.5, ["kind"])
    assert {value: one["right"]["mean"] for value, one in made["groups"]["kind"].items()} == {"x": 0.25, "y": 0.75}
    lines = list(report({"prompts": 3, "samples": 1, **made}, {}))
    assert [line.split() for line in lines if line][-3:] == [
        ["kind", "prompts", "right"], ["x", "2", "0.250"], ["y", "1", "0.750"]
    ]  # fmt: skip


def test_a_difference_is_of_the_prompts_that_both_sides_scored():
    made = difference({"right": [[0.0, 1.0], [NAN], [0.0]]}, {"right": [[1.0, 1.0], [1.0], [0.25]]})
    assert (made["right"]["mean"], made["right"]["n"]) == (pytest.approx(0.375), 2)


def result(samples: int) -> dict:
    table = {"right": [[1.0, 0.0][:samples], [1.0, 1.0][:samples], [NAN, NAN][:samples]]}
    texts = [["x", "y"][:samples]] * 3
    made = {"prompts": 3, "samples": samples, **describe(table, texts, PROMPTS, success=1.0)}
    blind = describe({"right": [[0.0] * samples] * 3}, texts, PROMPTS, success=1.0)
    made["blind"] = {"name": "blind", **blind, "difference": difference({"right": [[0.0]] * 3}, table)}
    made["against"] = {"name": "untrained", **blind}
    made["difference"] = difference({"right": [[0.0]] * 3}, table)
    return made


def test_what_was_not_measured_is_not_reported():
    made = {
        key: value for key, value in result(2).items() if key not in ("blind", "against", "difference", "agreement")
    }
    text = "\n".join(report(made, {}))
    assert "against" not in text and "fraction of samples" not in text and "best of k" in text


def test_prompts_of_a_task_are_those_that_any_reward_scored():
    table = {"right": [[1.0], [NAN], [NAN]], "size": [[2.0], [1.0], [3.0]]}
    made = {"prompts": 3, "samples": 1, **describe(table, [], PROMPTS, success=1.0)}
    lines = [line.split() for line in report(made, {})]
    assert ["count", "2", "1.000", "2.500"] in lines and ["colour", "1", "–", "1.000"] in lines
