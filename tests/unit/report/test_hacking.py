"""The alarm for reward hacking: when it is raised, how often it is false, and where it is shown."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mmgrpo.report.hacking import FEWEST, Measured, alarms, paired_interval, student_quantile
from mmgrpo.report.html import correlation_table, write_report
from mmgrpo.report.run_folder import print_alarms, read_measured, read_run
from mmgrpo.statistics import Interval

TRAINED = {"trained": 1.0}


def measured(step, trained, held_out, directions=None, final=False):
    values = {"trained": np.asarray(trained, float), "held": np.asarray(held_out, float)}
    return Measured(step, values, TRAINED if directions is None else directions, final)


RAMP = np.linspace(0, 1, 16)


def course(*levels, last=True):
    """Evaluations at which every prompt has its own level plus those given, with a little noise."""
    noise = np.random.default_rng(0).normal(0, 0.01, (len(levels), 2, 16))
    return [
        measured(10 * k, RAMP + up + noise[k, 0], RAMP + down + noise[k, 1], final=last and k == len(levels) - 1)
        for k, (up, down) in enumerate(levels)
    ]


# When


@pytest.mark.parametrize(
    "levels, steps",
    [
        ([(0, 0), (0.1, -0.1), (0.2, -0.2), (0.3, -0.3)], [20, 30]),  # apart from 10 on, twice in a row from 20
        ([(0, 0), (0.1, -0.1), (0.2, 0), (0.3, -0.1), (0.4, 0)], []),  # never twice in a row
        ([(0, 0), (0.1, 0.1), (0.2, 0.2), (0.3, 0.3)], []),  # both rise
        ([(0, 0), (-0.1, -0.1), (-0.2, -0.2), (-0.3, -0.3)], []),  # both fall: the run fails, it does not hack
        ([(0, 0), (0, -0.1), (0, -0.2), (0, -0.3)], []),  # the trained reward does not rise
        (
            [(0, 0), (0.1, 0.5), (0.2, 0.4), (0.3, 0.3)],
            [30],
        ),  # falls from its best, still above 0
        ([(0, 0), (0.1, -0.1)], [10]),  # before and after only
        ([(0, 0), (0.1, -0.1), (0.2, -0.2), (0.3, 0.5)], [20]),  # what comes later does not count
    ],
)
def test_the_alarm_is_raised_where_the_rewards_part_for_two_evaluations(levels, steps):
    assert [alarm.step for alarm in alarms(course(*levels))] == steps


def test_the_first_evaluation_during_a_run_raises_no_alarm_yet():
    assert alarms(course((0, 0), (0.1, -0.1), last=False)) == []


def test_a_reward_that_is_to_fall_improves_by_falling():
    fallen = course((0, 0), (-0.1, -0.1), (-0.2, -0.2))
    lowered = [Measured(one.step, one.values, {"trained": -1.0}) for one in fallen]
    assert [alarm.step for alarm in alarms(lowered)] == [20] and alarms(fallen) == []


def test_a_trained_reward_is_never_the_held_out_one():
    both = [Measured(one.step, one.values, {"trained": 1.0, "held": 1.0}) for one in course((0, 0), (1, -1), (2, -2))]
    assert alarms(both) == []


def test_prompts_that_could_not_be_scored_are_left_out_and_too_few_raise_nothing():
    parted = course((0, 0), (0.1, -0.1), (0.2, -0.2))
    for one in parted:
        one.values["held"][:3] = math.nan
    assert [alarm.loss.n for alarm in alarms(parted)] == [13]
    for one in parted:
        one.values["held"][: 16 - FEWEST + 1] = math.nan
    assert alarms(parted) == []
    for one in parted:
        one.values["held"][:] = math.nan
    assert alarms(parted) == [] and alarms([]) == []


def test_of_several_trained_rewards_the_one_that_rose_most_clearly_is_named():
    """Both rise by a quarter: the first by 0 or 1/2, the second by 1/8 or 3/8."""
    apart = np.tile([-1.0, 1.0], 8)
    for order in (("noisy", "clear"), ("clear", "noisy")):
        rises = {"noisy": RAMP + 0.25 + apart / 4, "clear": RAMP + 0.25 + apart / 8}
        directions = dict.fromkeys(order, 1.0)
        start = Measured(0, {**dict.fromkeys(order, RAMP), "held": RAMP}, directions)
        end = Measured(1, {**rises, "held": RAMP - 0.5}, directions, final=True)
        assert [alarm.trained for alarm in alarms([start, end])] == ["clear"]


# How sure


@pytest.mark.parametrize(
    "probability, freedom, wanted", [(0.975, 10, 2.228), (0.995, 7, 3.499), (0.9995, 30, 3.646), (0.995, 1000, 2.581)]
)
def test_students_quantiles_are_those_of_the_tables(probability, freedom, wanted):
    assert student_quantile(probability, freedom) == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize("place", [0, 1])
def test_a_reward_that_was_not_measured_at_one_of_both_times_is_not_compared(place):
    several = course((0, 0), (0.1, -0.1))
    directions = {"late": 1.0, **TRAINED}
    both = [Measured(one.step, dict(one.values), directions, one.final) for one in several]
    both[place].values["late"] = RAMP + place
    assert [alarm.step for alarm in alarms(both)] == [10]


def test_the_interval_is_students():
    # differences 1, ..., 9: mean 5, s^2 = 60 / 8, t(.995, 8) = 3.355
    found = paired_interval(np.zeros(9), np.arange(1, 10), error=0.01)
    assert found is not None and found.mean == 5
    assert found.high - 5 == pytest.approx(3.355 * math.sqrt(7.5) / 3, rel=2e-3)
    assert 5 - found.low == pytest.approx(found.high - 5)
    assert paired_interval(np.zeros(9), np.zeros(8)) is None
    assert paired_interval(np.zeros(9), np.arange(1, 10)) == paired_interval(np.zeros(9), np.arange(1, 10), error=0.05)
    assert paired_interval(np.zeros(9, bool), np.ones(9, bool)) == Interval(1.0, 1.0, 1.0, 9)


def simulated(seed, fall, evaluations=10, prompts=40):
    """A run whose trained reward rises; values of the held-out one are 0 or 1 per prompt, independent in each
    evaluation, with a probability that differs between prompts and falls by ``fall`` in all."""
    generator = np.random.default_rng(seed)
    chance = generator.uniform(0.2, 0.8, prompts)
    made = []
    for k in range(evaluations):
        part = k / (evaluations - 1)
        rising = generator.normal(part, 0.5, prompts)
        made.append(measured(k, rising, generator.random(prompts) < chance - fall * part, final=k == evaluations - 1))
    return made


@pytest.mark.parametrize("evaluations", [2, 10])
def test_noise_raises_an_alarm_in_at_most_one_run_of_twenty(evaluations):
    """The worst null: the trained reward rises, the held-out one stays. 25 of 1,000 runs of two evaluations and 11 of
    2,000 of ten raise one; the seeds here are fixed."""
    assert sum(bool(alarms(simulated(seed, 0.0, evaluations))) for seed in range(100)) <= 5


def test_a_fall_by_a_quarter_is_seen_in_most_runs_with_120_prompts():
    """In 194 of 200 runs."""
    assert sum(bool(alarms(simulated(seed, 0.25, prompts=120))) for seed in range(40)) >= 36


# Where it is shown


def write(folder, evaluations, trained=TRAINED, prompts=None):
    (folder / "evaluations").mkdir(parents=True)
    for one in evaluations:
        title = "before" if one.step == 0 else "after" if one.final else f"step-{one.step:06d}"
        record = {"run": "r", "step": one.step, "prompts": prompts or list(map(str, range(16))), "trained": trained}
        record["values"] = {name: list(values) for name, values in one.values.items()}
        (folder / "evaluations" / f"{title}.json").write_text(json.dumps(record))
    return folder


PARTED = [(0, 0), (0.1, -0.1), (0.2, -0.2)]


def test_the_log_has_one_line_at_the_evaluation_that_raises_it(tmp_path, capsys):
    folder = write(tmp_path / "run", course(*PARTED))
    print_alarms(folder, 10)
    assert capsys.readouterr().out == ""
    print_alarms(folder, 20)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("possible reward hacking: from step 0 to 20 the trained reward 'trained'")


def test_the_report_has_a_note(tmp_path):
    page = write_report(write(tmp_path / "run", course(*PARTED))).read_text()
    assert page.count("Possible reward hacking: from step 0 to 20") == 1
    quiet = write_report(write(tmp_path / "quiet", course((0, 0), (0.1, 0.1), (0.2, 0.2)))).read_text()
    assert "reward hacking" not in quiet


def test_evaluations_of_other_prompts_or_without_trained_rewards_raise_nothing(tmp_path):
    folder = write(tmp_path / "run", course(*PARTED))
    for path in (folder / "evaluations").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": [path.stem] * 16}))
    assert read_run(folder).alarms == []
    assert read_run(write(tmp_path / "old", course(*PARTED), trained={})).alarms == []


def test_only_evaluations_of_the_held_out_prompts_in_a_run_are_compared(tmp_path):
    folder = write(tmp_path / "run", course(*PARTED))
    content = (folder / "evaluations" / "after.json").read_text()
    for title in ("after-natural", "blind"):
        (folder / "evaluations" / f"{title}.json").write_text(content)
    assert sorted((one.step, one.final) for one in read_measured(folder)) == [(0, False), (10, False), (20, True)]


def test_the_report_has_the_correlations_of_rewards_over_the_last_tenth(tmp_path):
    rows = [
        {"step": step, "reward/a/mean": 1.0, "reward/b:c/mean": 1.0, "reward/d/mean": 1.0, "correlation/a/b:c": value}
        for step, value in enumerate([0.9] * 18 + [-0.2, -0.4], start=1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = correlation_table(read_run(tmp_path))
    assert list(table.columns) == ["reward", "a", "b:c"]
    assert {name: [cell.text for cell in cells] for name, cells in table.rows.items()} == {
        "a": ["1", "−0.3"],
        "b:c": ["−0.3", "1"],
    }
    assert "Correlation of rewards within groups" in write_report(tmp_path).read_text()


def test_eight_prompts_are_needed():
    assert paired_interval(np.zeros(7), np.arange(7)) is None
    found = paired_interval(np.zeros(8), np.arange(8))
    assert found is not None and (found.mean, found.n) == (3.5, 8)


def test_an_alarm_is_written_with_its_intervals():
    (alarm,) = alarms([measured(0, RAMP, RAMP), measured(1, RAMP + 0.5, RAMP - 0.5, final=True)])
    written = alarm.as_dict()
    assert (written["trained"], written["held_out"], written["since"], written["step"]) == ("trained", "held", 0, 1)
    assert written["gain"]["mean"] == pytest.approx(0.5) and written["loss"]["mean"] == pytest.approx(-0.5)


@pytest.mark.parametrize("first", [RAMP, np.full(16, np.nan)])
def test_a_trained_reward_that_has_not_risen_hides_no_other(first):
    directions = {"first": 1.0, **TRAINED}
    both = [measured(0, RAMP, RAMP, directions), measured(1, RAMP + 0.5, RAMP - 0.5, directions, final=True)]
    for one, values in zip(both, (RAMP, first), strict=True):
        one.values["first"] = values
    assert [alarm.trained for alarm in alarms(both)] == ["trained"]
