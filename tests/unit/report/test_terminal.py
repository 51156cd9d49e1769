"""The tables that a run prints at its end."""

from __future__ import annotations

import pytest

from mmgrpo.report.terminal import closing, comparison, style, verdict


def one(mean: float, n: int = 4) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.25, "high": mean + 0.25, "n": n}


SIDES = {
    "before": {"exact": one(0.25), "format": one(0.5)},
    "after": {"exact": one(0.75), "format": one(0.5)},
    "difference": {"exact": one(0.5, 4), "format": one(0.0, 12)},
}


def test_a_comparison_has_a_line_for_every_reward_and_a_column_where_it_is_asked_for():
    assert [line.split() for line in comparison(SIDES, "reward", {})][1:] == [
        ["exact", "0.250", "0.750", "+0.500", "[+0.250,", "+0.750]", "4"],
        ["format", "0.500", "0.500", "+0.000", "[-0.250,", "+0.250]", "12"],
    ]
    lines = list(comparison(SIDES, "reward", {}, "blind", {"format": "0.1"}))
    assert [line.split()[-2:] for line in lines] == [["prompts", "blind"], ["+0.750]", "4"], ["12", "0.1"]]


def test_a_significant_difference_is_bold_and_coloured_by_the_direction_of_its_reward():
    up, down, noise = one(0.5), one(-0.5), one(0.1)
    assert [style(change, direction) for change in (up, down, noise) for direction in (1, -1, 0)] == [
        *(("bold", "green"), ("bold", "red"), ("bold",)),
        *(("bold", "red"), ("bold", "green"), ("bold",)),
        *((), (), ()),
    ]
    assert style({"n": 0, "low": None}, 1) == ()


SUMMARY = {"family": "sd3", "preset": "dapo", "steps": 7, "eval": SIDES, "trained": {"exact": 1.0, "format": -1.0}}


def test_the_verdict_says_what_was_trained_from_where_to_where_and_whether_it_is_better():
    text = " ".join(verdict(SUMMARY, "runs/a", "heldout.jsonl").split())
    assert text.startswith("sd3 trained with dapo for 7 steps: exact from 0.250 to 0.750, +0.500 [+0.250, +0.750] on 4")
    assert text.index("better") < text.index("format from 0.500") < text.index("within noise")
    assert "worse" in verdict({**SUMMARY, "trained": {"exact": -1.0}}, "runs/a", "heldout.jsonl")


@pytest.mark.parametrize(("heldout", "file"), [("heldout.jsonl", ""), ("", " --file PROMPTS")])
def test_the_verdict_of_a_run_without_evaluation_is_the_command_that_makes_one(heldout, file):
    *_, command = verdict({**SUMMARY, "eval": {}}, "runs/my run", heldout).splitlines()
    assert command.split(" ", 2)[-1] == f"mmgrpo evaluate --run 'runs/my run'{file} --against untrained"


def test_the_end_of_a_run_tells_steps_that_were_not_finite():
    summary = {"steps": 1, "seconds": 0.6, "skipped_steps": 0, "nonfinite_steps": 4, "eval": {}}
    assert closing(summary).splitlines()[1:] == ["4 steps had a loss or gradient that is not finite and were skipped"]


def test_the_end_of_a_run_names_alarms_that_it_told_before_and_does_not_tell_them_again():
    alarms = [
        {"kind": "trains nothing", "cause": "constant_reward", "subject": "style", "message": "many words"},
        {"kind": "trains nothing", "cause": "no_spread", "subject": "", "message": "many words"},
        {"kind": "reward hacking", "held_out": "exact", "message": "many words"},
    ]
    summary = {"steps": 1, "seconds": 0.6, "skipped_steps": 0, "nonfinite_steps": 0, "eval": {}, "alarms": alarms}
    (line,) = closing(summary).splitlines()[1:]
    assert line.startswith("ALARM: constant_reward 'style', no_spread, reward hacking 'exact'") and "many" not in line
