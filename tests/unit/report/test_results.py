"""What a report says first: how held-out rewards changed, at every evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.report.results import results, verdict
from mmgrpo.report.run_folder import read_run

MINUS = "\N{MINUS SIGN}"


def interval(mean, low, high, n=9):
    return {"mean": mean, "low": low, "high": high, "n": n}


def write(folder: Path, title: str, step: int, trained=("r",), **values) -> None:
    (folder / "evaluations").mkdir(exist_ok=True)
    counts = {name: values.pop(name) for name in [*values] if isinstance(values[name], dict)}
    record = {"step": step, "prompts": ["a", "b", "c", "d"], "values": values, "counts": counts}
    record["trained"] = {name.lstrip("-"): -1.0 if name.startswith("-") else 1.0 for name in trained}
    (folder / "evaluations" / f"{title}.json").write_text(json.dumps(record))


def test_the_first_sentence_is_what_was_trained_by_how_much_with_its_interval(tmp_path):
    write(tmp_path, "after", 9, r=[1], Watched=[1], other=[1])
    sides = {
        "before": {"Watched": interval(0.9, 0.8, 1), "r": interval(0.535, 0.5, 0.6)},
        "after": {"Watched": interval(0.7, 0.6, 0.8), "r": interval(0.57, 0.5, 0.6)},
        "difference": {"Watched": interval(-0.2, -0.3, -0.1), "r": interval(0.035, 0.004, 0.07)},
    }
    (tmp_path / "summary.json").write_text(json.dumps({"eval": sides}))
    run = read_run(tmp_path)
    first, watched = results(run)
    assert str(first) == "r 0.535 to 0.570, +0.035 [0.004, 0.070], trained" and first.verdict == "better"
    assert (watched.name, watched.role, watched.verdict) == ("Watched", "watched", "worse")  # its letters as written
    assert verdict(run).startswith(f"{first}.") and "1 worse" in verdict(run)


@pytest.mark.parametrize(("trained", "sign", "word"), [(["r"], 1, "worse"), (["-r"], -1, "better")])
def test_a_reward_of_negative_weight_is_to_fall(tmp_path, trained, sign, word):
    write(tmp_path, "before", 0, trained, r=[1.0, 1.0, 2.0, 2.0])
    write(tmp_path, "after", 4, trained, r=[0.0, 0.0, 1.0, 1.0])
    [one] = results(read_run(tmp_path))
    assert (one.sign, one.gain.text, one.verdict) == (sign, f"{MINUS}1.000", word)


def test_error_rates_stand_behind_the_trained_rewards_and_are_to_fall(tmp_path):
    rate = {side: interval(mean, mean, mean) for side, mean in (("before", 0.4), ("after", 0.3))}
    rate["difference"] = interval(-0.1, -0.2, -0.05)
    side = {"w": interval(0.1, 0, 1), "r": interval(0.1, 0, 1)}
    summary = {"rates": ["wer"], "wer": {"heldout": rate, "natural": rate}}
    summary["eval"] = {"before": side, "after": side, "difference": side}
    write(tmp_path, "after", 4, r=[1], w=[1])
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert [(one.name, one.role, one.sign) for one in results(read_run(tmp_path))] == [
        ("r", "trained", 1),
        ("wer", "error rate", -1),
        ("w", "watched", 1),
    ]


def test_intervals_of_the_curve_are_of_the_paired_change_around_each_mean(tmp_path):
    # Every prompt gains .25, then .25 and .75 by turns: the first change is certain although prompts differ.
    write(tmp_path, "before", 0, r=[0, 1, 2, 3], wer={"errors": [2, 2, 2, 2], "units": [4, 4, 4, 4]})
    write(tmp_path, "step-000002", 2, r=[0.25, 1.25, 2.25, 3.25], wer={"errors": [1, 1, 1, 1], "units": [4, 4, 4, 4]})
    write(tmp_path, "after", 4, r=[0.25, 1.75, 2.25, 3.75], wer={"errors": [0, 2, 0, 2], "units": [4, 4, 4, 4]})
    write(tmp_path, "before-natural", 9, r=[7, 7, 7, 7])
    run = read_run(tmp_path)
    assert [(one.step, one.title) for one in run.history] == [(0, "before"), (2, "step-000002"), (4, "after")]
    before, middle, after = (one.rewards["r"] for one in run.history)
    assert before["mean"] == 1.5 and before["high"] - before["low"] > 1
    assert (middle["mean"], middle["low"], middle["high"]) == (1.75, 1.75, 1.75)
    # The change is between .25 and .75, its mean .5, around 2.0.
    assert after["mean"] == 2.0 and 1.75 <= after["low"] < 2.0 < after["high"] <= 2.25
    assert [one.rates["wer"]["mean"] for one in run.history] == [0.5, 0.25, 0.25]


def test_a_run_that_goes_on_is_compared_with_its_latest_evaluation(tmp_path):
    write(tmp_path, "before", 0, r=[0, 0, 0, 0])
    write(tmp_path, "step-000002", 2, r=[1, 1, 1, 1])
    write(tmp_path, "step-000010", 10, r=[0, 1, 0, float("nan")])
    run = read_run(tmp_path)
    assert run.latest == "step 10" and run.evaluation["difference"]["r"]["n"] == 3
    [one] = results(run)
    assert one.gain.text == "+0.333" and one.verdict == "within noise"


def test_of_many_evaluations_the_curve_has_evenly_chosen_ones_with_both_ends(tmp_path, monkeypatch):
    for step in range(0, 101, 10):
        write(tmp_path, f"step-{step:06d}" if step else "before", step, r=[0, 0, 0, step])
    monkeypatch.setattr("mmgrpo.report.run_folder.EVALUATIONS", 3)
    assert [one.step for one in read_run(tmp_path).history] == [0, 50, 100]
    monkeypatch.setattr("mmgrpo.report.run_folder.MAX_VALUES", 3)
    with pytest.raises(ValueError, match=r"before\.json.*4 numbers.*3"):
        read_run(tmp_path)


def test_a_reward_keeps_its_entry_of_the_recipe(tmp_path):
    (tmp_path / "config.yaml").write_text("rewards: ['my.rewards:warm(weight=0.5)', r, 3]")
    write(tmp_path, "after", 4, ["warm"], warm=[1], r=[1])
    assert [one.written for one in results(read_run(tmp_path))] == ["my.rewards:warm(weight=0.5)", "r"]
