"""The tab Runs: curves, results, settings and samples of runs that are finished, damaged, hostile, or being written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import runs
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.runs import Look, curve_points, read_look
from tests.journeys.cli.demo.fakes import page as page_of
from tests.journeys.cli.demo.fakes import write_run


def opened(*folders: Path) -> Opened:
    return Opened({folder.name: folder for folder in folders}, {}, Path("votes.jsonl"))


def overview(of: Opened, names: list[str] | None = None, metric: str | None = None, at: float = 0) -> dict[str, Any]:
    """The parts of the tab by name."""
    parts = runs.overview(of, list(of.runs) if names is None else names, metric, runs.STEP, 0, at)
    return dict(zip(("metric", "curves", "details", "differences", "at", "samples", "timer", "seen"), parts))


def test_all_metrics_are_offered_and_rewards_of_most_runs_first(tmp_path):
    first = write_run(tmp_path / "a", metrics={"reward/own/mean": 1.0, "reward/both/mean": 1.0})
    second = write_run(tmp_path / "b", metrics={"reward/both/mean": 1.0, "lr": 1.0})
    names = runs.metrics_of([read_look("a", first), read_look("b", second)])
    assert names == ["reward/both/mean", "reward/own/mean", "seconds", "loss", "lr"]
    parts = overview(opened(first, second), metric="lr")
    assert parts["metric"].value == "lr"
    assert overview(opened(first, second), metric="not there")["metric"].value == "reward/both/mean"


def test_results_alarms_and_the_state_of_every_run_are_shown(tmp_path):
    done, running = write_run(tmp_path / "done"), write_run(tmp_path / "running", finished=False)
    for step, (trained, held_out) in enumerate([(0.1, 0.9), (0.5, 0.5), (0.9, 0.1)]):
        values = {"t": [trained + 0.01 * i for i in range(9)], "h": [held_out + 0.01 * i for i in range(9)]}
        record = {"step": step, "prompts": list(range(9)), "trained": {"t": 1.0}, "values": values}
        (running / "evaluations").mkdir(exist_ok=True)
        (running / "evaluations" / f"step-{step:06d}.json").write_text(json.dumps(record))
    html = overview(opened(done, running))["details"]
    first, second = html.split("<h2>running</h2>")
    assert "0.250 to 0.750" in first and "has not finished" not in first and "alarm" not in first
    assert "Its last recorded step is 4;" in second and "ossible reward hacking" in second


def test_moments_are_ordered_by_step_and_shown_beside_the_first(tmp_path):
    of = opened(write_run(tmp_path / "a"))
    looks = runs.looks_of(of, ["a"])
    assert runs.moments_of(looks) == ["before", "step-000002", "step-000010", "after"]
    parts = overview(of)
    assert parts["at"].value == 4 and parts["at"].label == "samples: after (4 of 4)"
    third = overview(of, at=3)
    assert third["at"].label == "samples: step 10 (3 of 4)"
    assert third["samples"].count("data:image/png") == 2 and "<figcaption>step 10</figcaption>" in third["samples"]
    assert overview(of, at=99)["at"].value == 4 and overview(of, at=1)["samples"].count("data:image") == 1


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json", "samples/before.jsonl"])
def test_a_damaged_run_is_a_sentence_and_the_others_are_shown(tmp_path, name):
    good, bad = write_run(tmp_path / "good"), write_run(tmp_path / "bad")
    (bad / name).write_bytes(b"\xff\xfe{[\n\n")
    parts = overview(opened(bad, good))
    assert f"This run cannot be read: {name}: byte 0 is not UTF-8" in parts["details"]
    assert str(tmp_path) not in parts["details"] and "0.250 to 0.750" in parts["details"]
    assert "data:image" in parts["samples"]


@pytest.mark.parametrize("part", ['"eval": "x"', '"rates": ["wer"]', '"extra": [1]', '"eval": {"before": 1}'])
def test_a_summary_of_another_form_is_a_sentence(tmp_path, part):
    folder = write_run(tmp_path / "a")
    (folder / "summary.json").write_text(f"{{{part}}}")
    assert "cannot be" in overview(opened(folder))["details"]


def test_pictures_that_are_half_written_are_notes(tmp_path):
    folder = write_run(tmp_path / "a")
    whole = (folder / "samples" / "after.png").read_bytes()
    (folder / "samples" / "after.png").write_bytes(whole[: len(whole) // 2])
    assert overview(opened(folder))["samples"].count("data:image") == 1


@pytest.mark.parametrize("name", ["samples", "samples/after.png", "metrics.jsonl", "config.yaml"])
def test_links_out_of_a_run_are_not_followed(tmp_path, name):
    folder, outside = write_run(tmp_path / "a"), tmp_path / "outside"
    write_run(outside, config="secret: 1\n", metrics={"secret": 1.0})
    target = folder / name
    target.rename(tmp_path / "moved")
    target.symlink_to(outside / name)
    parts = overview(opened(folder))
    assert f"links out of the run folder: {name}." in parts["details"]
    assert "secret" not in str([parts["metric"].choices, parts["curves"], parts["differences"]])
    assert parts["samples"].count("data:image") == (0 if name == "samples" else 2)
    assert ("<figcaption>after" in parts["samples"]) == (not name.startswith("samples"))


def test_runs_that_appear_in_the_opened_folders_are_found(tmp_path):
    old = write_run(tmp_path / "runs" / "old")
    new = write_run(tmp_path / "runs" / "new")
    outside = write_run(tmp_path / "elsewhere" / "outside")
    write_run(tmp_path / "runs" / ".hidden")
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "runs" / "again").symlink_to(old)
    assert runs.later_runs({"old": old.resolve()}, [str(tmp_path / "runs")]) == {"new": new.resolve()}
    assert runs.later_runs({}, [str(old)]) == {} and runs.later_runs({}, [str(tmp_path / "gone")]) == {}


def test_a_run_is_looked_at_once_and_at_most_eight_are(tmp_path):
    many = Opened({str(number): tmp_path / str(number) for number in range(9)}, {}, Path("v"))
    assert runs.chosen_of(many, ["1", "0", "1"]) == {"1": tmp_path / "1", "0": tmp_path / "0"}
    assert runs.chosen_of(many, None) == {} and list(runs.chosen_of(many, list(many.runs)[:8])) == list(many.runs)[:8]
    for names, words in ((list(many.runs), "9 runs.*8"), (["x" * 81], f"'{'x' * 80}'")):
        with pytest.raises(gr.Error, match=words) as caught:
            runs.chosen_of(many, names)
        assert not caught.value.print_exception


def test_the_first_three_runs_are_chosen_at_first_and_their_last_samples_shown(tmp_path):
    found = opened(*(write_run(tmp_path / name) for name in "abcd"))
    shown = page_of(runs.tab, found)
    assert shown["runs-choose"].value == ["a", "b", "c"]
    (first,) = [one.fn for one in shown["events"] if any(event == "load" for _, event in one.targets)]
    *_, at, samples, _, _ = first(["a"], "loss", runs.STEP, 0)
    assert at.value == 4 and "Samples of a, after" in samples


# ---- reading


def test_a_curve_is_over_steps_or_seconds_and_is_smoothed(tmp_path):
    look = read_look("a", write_run(tmp_path / "a"))
    assert curve_points(look, "loss", False, 0) == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert curve_points(look, "loss", True, 0) == [(0.5, 10), (1, 20), (1.5, 30), (2, 40)]
    assert curve_points(look, "loss", False, 10) == [(1, 15), (2, 20), (3, 30), (4, 35)]
    assert curve_points(look, "another", False, 0) == []


def test_the_reward_that_is_trained_on_is_shown_first_over_the_held_out_prompts(tmp_path):
    folder = write_run(tmp_path / "a", metrics={"reward/t/mean": 1.0})
    (folder / "evaluations").mkdir()
    for title, step, mean in (("before", 0, 0.25), ("step-000002", 2, 0.5), ("after", 4, 0.75)):
        values = {"h": [1.0, 0.0], "t": [mean, mean, None]}
        record = {"step": step, "prompts": ["x", "y", "z"], "trained": {"t": 1.0}, "values": values}
        (folder / "evaluations" / f"{title}.json").write_text(json.dumps(record))
    parts = overview(opened(folder))
    names = [name for _, name in parts["metric"].choices]
    assert parts["metric"].value == "held-out t" and names[:3] == ["held-out t", "held-out h", "reward/t/mean"]
    assert parts["curves"].count('class="band"') == 1 and "0.25 to 0.75 [0.75, 0.75]" in parts["curves"]
    estimate = {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 3}
    (folder / "summary.json").write_text(json.dumps({"eval": {"difference": {"t": estimate}}}))
    assert "0.25 to 0.75, +0.500 [0.250, 0.750]" in overview(opened(folder))["curves"]
    look = read_look("a", folder)
    assert runs.interval_curve(look, "held-out t", False).thin == [(0, 0.25), (2, 0.5), (4, 0.75)]
    assert runs.interval_curve(look, "held-out t", True).thin == [(0, 0.25), (1, 0.5), (2, 0.75)]
    wide = runs.interval_curve(look, "held-out h", False)
    assert wide.low[0] == (0, 0) and wide.high[0] == (0, 1) and wide.thick[0] == (0, 0.5)


def test_missing_values_are_left_out_and_long_curves_thinned(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": null}\n{"step": 6, "loss": 60}\n')
    assert curve_points(read_look("a", folder), "loss", False, 0)[-2:] == [(4, 40), (6, 60)]
    assert curve_points(read_look("a", folder), "loss", True, 0)[-1] == (2, 40)
    monkeypatch.setattr(runs, "POINTS", 2)
    assert curve_points(read_look("a", folder), "loss", False, 0) == [(1, 10), (4, 40)]


def test_only_settings_that_differ_are_listed_by_flat_names(tmp_path):
    first = read_look("a", write_run(tmp_path / "a", config="seed: 0\noptim: {lr: 0.1, ema: 0}\nrewards: [x, y]\n"))
    second = read_look("b", write_run(tmp_path / "b", config="seed: 0\noptim: {lr: 0.2}\nrewards: [x, z]\n"))
    assert runs.differences([first, second]) == {
        "optim.lr": ["0.1", "0.2"],
        "optim.ema": ["0", "–"],
        "rewards": ["[x, y]", "[x, z]"],
    }
    third = read_look("c", write_run(tmp_path / "c", config="seed: 0\noptim: {}\nrewards: [x, y]\n"))
    assert runs.differences([first, third])["optim"] == ["–", "{}"]
    assert "Choose two" in runs.differences_html([first, Look("gone", tmp_path / "gone", None)])
    assert "Choose two" in runs.differences_html([first])
    assert "are equal" in runs.differences_html([first, first])


def test_a_run_is_read_again_only_after_it_was_written(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a", finished=False)
    first = runs.look("a", folder)
    assert runs.look("a", folder) is first and first.running
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": 50}\n{"step": 6, "lo')
    second = runs.look("a", folder).run
    assert second and second.last_step == 5
    (folder / "summary.json").write_text('{"eval": {}, "seconds": 3}')
    assert not runs.look("a", folder).running


def test_a_file_that_cannot_be_looked_at_hides_no_other(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "samples" / "aaa.png").symlink_to(folder / "samples" / "nothing.png")
    assert [name for name, *_ in runs.signature(folder)] == [
        *("config.yaml", "metrics.jsonl", "summary.json", "samples", "samples/after.png", "samples/before.png"),
        *("samples/step-000002.png", "samples/step-000010.png"),
    ]
    sizes = {name: size for name, _, size in runs.signature(folder)}
    assert sizes["config.yaml"] == len("seed: 0\n")


@pytest.mark.parametrize(
    ("error", "times", "problem"),
    [
        (FileNotFoundError(2, "gone", "/x/metrics.jsonl"), 2, "metrics.jsonl has vanished while it was read"),
        (FileNotFoundError("gone"), 2, " has vanished while it was read"),
        (
            PermissionError(13, "Permission denied", "/x/config.yaml"),
            2,
            "config.yaml cannot be read: Permission denied",
        ),
        (ValueError("{folder}/a is bad\n"), 1, "a is bad"),
    ],
)
def test_a_run_is_read_twice_at_most_and_damaged_ones_once(error: Exception, times: int, problem: str, tmp_path):
    tried: list[Path] = []

    def failing(folder: Path) -> None:
        tried.append(folder)
        raise type(error)(error.args[0].format(folder=folder)) if isinstance(error, ValueError) else error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "read_run", failing)
        look = read_look("a", tmp_path)
    assert tried == [tmp_path] * times and look.run is None
    assert look.problem.startswith(f"This run cannot be read: {problem}") and look.problem[-1] == "."
