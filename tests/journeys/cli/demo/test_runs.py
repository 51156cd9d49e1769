"""The tab Runs: what it shows of runs that are finished, damaged, hostile, or being written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gradio as gr
import pytest

from mmgrpo.cli.demo import runs, runs_read
from mmgrpo.cli.demo.app import build
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.runs_read import read_look
from tests.journeys.cli.demo.told import page as page_of
from tests.journeys.cli.demo.written import write_run

SCRIPT = "<script>alert(1)</script>"


def opened(*folders: Path) -> Opened:
    return Opened({folder.name: folder for folder in folders}, {}, Path("votes.jsonl"))


def overview(of: Opened, names: list[str] | None = None, metric: str | None = None, at: float = 0) -> dict[str, object]:
    """The parts of the tab by name."""
    parts = runs.overview(runs.Shelf(of), list(of.runs) if names is None else names, metric, runs.STEP, 0, at)
    return dict(zip(("metric", "curves", "details", "differences", "at", "samples", "timer", "seen"), parts))


def test_all_metrics_are_offered_and_rewards_of_most_runs_first(tmp_path):
    first = write_run(tmp_path / "a", **{"reward/own/mean": 1.0, "reward/both/mean": 1.0})
    second = write_run(tmp_path / "b", **{"reward/both/mean": 1.0, "lr": 1.0})
    names = runs_read.metrics_of([read_look("a", first), read_look("b", second)])
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
    assert "has not finished; its last recorded step is 4" in second and "ossible reward hacking" in second


def test_moments_are_ordered_by_step_and_shown_beside_the_first(tmp_path):
    of = opened(write_run(tmp_path / "a"))
    looks = runs.Shelf(of).looks(["a"])
    assert runs_read.moments_of(looks) == ["before", "step-000002", "step-000010", "after"]
    parts = overview(of)
    assert parts["at"].value == 4 and parts["at"].label == "samples: after (4 of 4)"
    third = overview(of, at=3)
    assert third["at"].label == "samples: step 10 (3 of 4)"
    assert third["samples"].count("data:image/png") == 2 and "<figcaption>step 10</figcaption>" in third["samples"]
    assert overview(of, at=99)["at"].value == 4 and overview(of, at=1)["samples"].count("data:image") == 1


def test_completions_of_a_moment_are_shown_where_there_are_no_pictures(tmp_path):
    folder = tmp_path / "a"
    (folder / "samples").mkdir(parents=True)
    row = {"id": "1", "task": "", "prompt": "how many?", "meta": {}, "media": [], "aligned": [], "rewards": {"r": 1}}
    for moment in ("before", "step-000004"):
        text = json.dumps({**row, "completion": f"said {moment}"})
        (folder / "samples" / f"{moment}.jsonl").write_text(f"{text}\n" * 30)
    html = overview(opened(folder))["samples"]
    assert "said before" in html and "said step-000004" in html
    assert "said step" not in overview(opened(folder), at=1)["samples"]


def test_the_timer_runs_while_a_chosen_run_is_unfinished(tmp_path):
    of = opened(write_run(tmp_path / "done"), write_run(tmp_path / "running", finished=False))
    assert overview(of)["timer"].active and not overview(of, ["done"])["timer"].active


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
    write_run(outside, config="secret: 1\n", secret=1.0)
    target = folder / name
    target.rename(tmp_path / "moved")
    target.symlink_to(outside / name)
    parts = overview(opened(folder))
    assert f"links out of the run folder: {name}." in parts["details"]
    assert "secret" not in str([parts["metric"].choices, parts["curves"], parts["differences"]])
    assert parts["samples"].count("data:image") == (0 if name == "samples" else 2)
    assert ("<figcaption>after" in parts["samples"]) == (not name.startswith("samples"))


def test_names_are_text_wherever_they_stand(tmp_path):
    name = "<b onclick=x>"
    folder = write_run(tmp_path / name, config=f"name: '{SCRIPT}'\n{SCRIPT.replace('/', '')}: 1\n", **{SCRIPT: 1.0})
    os.rename(folder / "samples" / "after.png", folder / "samples" / "<script>alert(1)<script>.png")
    parts = overview(opened(folder, write_run(tmp_path / "b")), metric=SCRIPT)
    assert parts["metric"].value == SCRIPT
    html = "".join(str(parts[part]) for part in ("curves", "details", "differences", "samples"))
    assert "<script" not in html and "<b " not in html and "&lt;script" in html and "&lt;b onclick" in html


@pytest.mark.parametrize("names", [["../a"], ["/etc"], ["a", "nothing"]])
def test_names_that_are_not_open_are_refused(tmp_path, names):
    of = opened(write_run(tmp_path / "a"))
    with pytest.raises(gr.Error, match="open"):
        overview(of, names)


def test_without_runs_the_tab_says_what_to_do(tmp_path):
    assert overview(opened())["metric"].choices == []
    page = build(opened())
    note = next(block for block in page.blocks.values() if block.elem_id == "runs-none")
    assert note.visible and "mmgrpo train" in note.value


def test_runs_that_appear_in_the_opened_folders_are_found(tmp_path):
    old = write_run(tmp_path / "runs" / "old")
    new = write_run(tmp_path / "runs" / "new")
    outside = write_run(tmp_path / "elsewhere" / "outside")
    write_run(tmp_path / "runs" / ".hidden")
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "runs" / "again").symlink_to(old)
    assert runs.later_runs({"old": old.resolve()}, [str(tmp_path / "runs")]) == {"new": new.resolve()}
    assert runs.later_runs({}, [str(old)]) == {} and runs.later_runs({}, [str(tmp_path / "gone")]) == {}


def test_a_new_run_with_the_name_of_another_has_its_path_as_name(tmp_path):
    new = write_run(tmp_path / "more" / "a").resolve()
    assert runs.later_runs({"a": tmp_path / "a"}, [str(tmp_path / "more")]) == {str(new): new}


def test_a_run_is_looked_at_once_and_at_most_eight_are(tmp_path):
    many = Opened({str(number): tmp_path / str(number) for number in range(9)}, {}, Path("v"))
    shelf = runs.Shelf(many)
    assert shelf.chosen(["1", "0", "1"]) == {"1": tmp_path / "1", "0": tmp_path / "0"} and shelf.chosen(None) == {}
    assert list(shelf.chosen(list(many.runs)[:8])) == list(many.runs)[:8]
    for names, words in ((list(many.runs), "9 runs.*8"), (["x" * 81], f"'{'x' * 80}'")):
        with pytest.raises(gr.Error, match=words) as caught:
            shelf.chosen(names)
        assert not caught.value.print_exception


def test_a_run_without_samples_and_metrics_is_shown_with_what_it_has(tmp_path):
    (tmp_path / "a").mkdir()
    parts = overview(opened(tmp_path / "a"))
    assert parts["metric"].value is None and parts["metric"].choices == [] and not parts["at"].visible
    assert "<section>" not in parts["samples"] and "no metrics yet" in parts["curves"]
    assert "<h2>a</h2>" in parts["details"] and parts["timer"].active and parts["timer"].value == 5
    assert overview(opened(write_run(tmp_path / "b")), at=-3)["at"].value == 1


def test_the_first_three_runs_are_chosen_at_first_and_their_last_samples_shown(tmp_path):
    found = opened(*(write_run(tmp_path / name) for name in "abcd"))
    shown = page_of(runs.tab, found)
    assert shown["runs-choose"].value == ["a", "b", "c"]
    (first,) = [one.fn for one in shown["events"] if any(event == "load" for _, event in one.targets)]
    *_, at, samples, _, _ = first(["a"], "loss", runs.STEP, 0)
    assert at.value == 4 and "Samples of a, after" in samples
