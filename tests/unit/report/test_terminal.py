"""The tables that a run prints at its end."""

from __future__ import annotations

from mmgrpo.report.terminal import closing, comparison, interval


def one(mean: float, n: int = 4) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.25, "high": mean + 0.25, "n": n}


SIDES = {
    "before": {"exact": one(0.25), "format": one(0.5)},
    "after": {"exact": one(0.75), "format": one(0.5)},
    "difference": {"exact": one(0.5, 4), "format": one(0.0, 12)},
}


def test_a_comparison_has_a_line_for_every_reward_and_a_column_where_it_is_asked_for():
    assert list(comparison(SIDES, "reward")) == [
        "reward                     before    after      difference (95 %, paired)   prompts",
        "exact                       0.250    0.750        +0.500 [+0.250, +0.750]   4",
        "format                      0.500    0.500        +0.000 [-0.250, +0.250]   12",
    ]
    lines = list(comparison(SIDES, "reward", "blind", {"format": "  0.1"}))
    assert lines[0].endswith("prompts   blind") and lines[1].endswith(" 4") and lines[2].endswith(" 12       0.1")


def test_an_interval_of_nothing_is_a_dash():
    assert interval({"n": 0.0}) == "–" and interval(one(0.5)) == "0.500 [0.250, 0.750]"


def test_the_end_of_a_run_tells_steps_rewards_further_files_and_error_rates():
    rate = {"before": one(0.5), "after": one(0.25), "difference": one(-0.25)}
    summary = {
        "steps": 3,
        "seconds": 12.4,
        "skipped_steps": 2,
        "nonfinite_steps": 0,
        "eval": SIDES,
        "blind": {"exact": one(0.125)},
        "groups": {"kind": {"count": SIDES}},
        "extra": {"further": SIDES},
        "rates": ["wer"],
        "wer": {"heldout": {**rate, "relative": -0.5}, "further": {**rate, "relative": None}},
    }
    lines = closing(summary).splitlines()
    assert lines[:2] == ["3 optimizer steps in 12 s of training", "2 steps had no decision to train and were skipped"]
    assert lines[2:5] == [*comparison(SIDES, "reward", "blind", {"exact": "   0.125"})]
    by_kind = [
        line
        for name in SIDES["difference"]
        for line in ("", *comparison({side: {"count": SIDES[side][name]} for side in SIDES}, f"{name} by kind"))
    ]
    assert lines[5 : 5 + len(by_kind)] == by_kind
    del lines[5 : 5 + len(by_kind)]
    assert lines[5:9] == ["", *comparison(SIDES, "reward on further")]
    sides = {side: {f"wer of {name}": rate[side] for name in ("heldout", "further")} for side in rate}
    assert lines[9:] == ["", *comparison(sides, "error rate (of all)", "relative", {"wer of heldout": "  -50.0%"})]


def test_the_end_of_a_run_without_evaluation_is_one_line():
    assert closing({"steps": 1, "seconds": 0.6, "skipped_steps": 0, "nonfinite_steps": 0, "eval": {}}) == (
        "1 optimizer steps in 1 s of training"
    )


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
