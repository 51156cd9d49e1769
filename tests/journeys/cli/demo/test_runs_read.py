"""Runs as the demo reads them: curves, settings, moments, and what is damaged; and their charts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.cli.demo import runs_html, runs_read
from mmgrpo.cli.demo.runs_chart import COLOURS, Scale, chart
from mmgrpo.cli.demo.runs_read import Look, Reader, read_look
from tests.journeys.cli.demo.written import write_run


def test_a_curve_is_over_steps_or_seconds_and_is_smoothed(tmp_path):
    look = read_look("a", write_run(tmp_path / "a"))
    assert runs_read.curve_points(look, "loss", False, 0) == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert runs_read.curve_points(look, "loss", True, 0) == [(0.5, 10), (1, 20), (1.5, 30), (2, 40)]
    assert runs_read.curve_points(look, "loss", False, 10) == [(1, 15), (2, 20), (3, 30), (4, 35)]
    assert runs_read.curve_points(look, "another", False, 0) == []


def test_the_window_of_smoothing_is_in_percent(tmp_path):
    look = read_look("a", write_run(tmp_path / "a", steps=40))
    for percent, half in ((5, 1), (10, 2), (20, 4)):
        assert runs_read.curve_points(look, "loss", False, percent)[0] == (1, 10 * (1 + half / 2))


def test_missing_values_are_left_out_and_long_curves_thinned(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": null}\n{"step": 6, "loss": 60}\n')
    assert runs_read.curve_points(read_look("a", folder), "loss", False, 0)[-2:] == [(4, 40), (6, 60)]
    assert runs_read.curve_points(read_look("a", folder), "loss", True, 0)[-1] == (2, 40)
    monkeypatch.setattr(runs_read, "POINTS", 2)
    assert runs_read.curve_points(read_look("a", folder), "loss", False, 0) == [(1, 10), (4, 40)]


def test_a_chart_has_a_line_per_run_in_the_colour_of_its_place(tmp_path):
    looks = [read_look(name, write_run(tmp_path / name, **{f"only/{name}": 1.0})) for name in ("a", "b", "c")]
    drawn = chart(looks, "loss", "step", False, 0)
    assert [(line.name, line.colour, line.last) for line in drawn.lines] == [
        (name, colour, "40") for name, colour in zip("abc", COLOURS)
    ]
    assert drawn.lines[0].thin == "0,1000 333.3,666.7 666.7,333.3 1000,0"
    one = chart(looks, "only/b", "step", False, 0)
    assert [(line.name, line.colour) for line in one.lines] == [("b", COLOURS[1])] and one.without == ["a", "c"]


def test_ticks_are_round_values_inside_the_axes():
    assert Scale([0.0, 10.0]).ticks() == [(0, "0"), (200, "2"), (400, "4"), (600, "6"), (800, "8"), (1000, "10")]
    assert all(0 <= at <= 1000 for at, _ in Scale([3.7, 91.2]).ticks())
    assert [text for _, text in Scale([0.0, 6.0]).ticks()] == ["0", "1.5", "3", "4.5", "6"]  # at most five steps
    assert Scale([5.0, 5.0])(5.0) == 500 and Scale([-1e300, 1e300])(0.0) == 500


def test_only_settings_that_differ_are_listed_by_flat_names(tmp_path):
    first = read_look("a", write_run(tmp_path / "a", config="seed: 0\noptim: {lr: 0.1, ema: 0}\nrewards: [x, y]\n"))
    second = read_look("b", write_run(tmp_path / "b", config="seed: 0\noptim: {lr: 0.2}\nrewards: [x, z]\n"))
    assert runs_read.differences([first, second]) == {
        "optim.lr": ["0.1", "0.2"],
        "optim.ema": ["0", "–"],
        "rewards": ["[x, y]", "[x, z]"],
    }
    third = read_look("c", write_run(tmp_path / "c", config="seed: 0\noptim: {}\nrewards: [x, y]\n"))
    assert runs_read.differences([first, third])["optim"] == ["–", "{}"]
    assert "Choose two" in runs_html.differences_html([first, Look("gone", tmp_path / "gone", None)])
    assert "Choose two" in runs_html.differences_html([first])
    assert "are equal" in runs_html.differences_html([first, first])


@pytest.mark.parametrize(
    "config",
    [
        "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))]),
        "\n".join(["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{p: *a{i - 1}, q: *a{i - 1}}}" for i in range(1, 60))]),
        "a: &a {b: *a}\nc: &c [*c]\n",
        f"n: {'9' * 4000}\nlong: {'x' * 100_000}\n{'k' * 1000}: 1\n",
    ],
)
def test_settings_of_any_form_are_of_bounded_length(tmp_path, config):
    first = read_look("a", write_run(tmp_path / "a", config=config))
    assert first.run is not None
    rows = runs_read.differences([first, read_look("b", write_run(tmp_path / "b"))])
    assert rows and len(json.dumps(rows)) < runs_read.SETTINGS * 2 * runs_read.LETTERS


def test_a_run_is_read_again_only_after_it_was_written(tmp_path, monkeypatch):
    folder, reader = write_run(tmp_path / "a", finished=False), Reader()
    first = reader.look("a", folder)
    assert reader.look("a", folder) is first and first.running
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss": 50}\n{"step": 6, "lo')
    second = reader.look("a", folder)
    assert second.run.last_step == 5
    (folder / "summary.json").write_text('{"eval": {}, "seconds": 3}')
    assert not reader.look("a", folder).running


def test_of_many_runs_the_ones_looked_at_last_are_kept(tmp_path):
    folders, reader = [write_run(tmp_path / str(number)) for number in range(runs_read.KEPT + 1)], Reader()
    first, second, *_ = [reader.look(folder.name, folder) for folder in folders[:-1]]
    assert reader.look("0", folders[0]) is first
    reader.look(folders[-1].name, folders[-1])
    assert reader.look("0", folders[0]) is first and reader.look("1", folders[1]) is not second


def test_a_file_that_vanishes_while_it_is_read_is_a_sentence(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "a")
    whole, times = runs_read.read_run, []

    def vanishing(folder: Path):
        times.append(1)
        if len(times) == 1:
            raise FileNotFoundError(2, "No such file", str(folder / "metrics.jsonl"))
        return whole(folder)

    monkeypatch.setattr(runs_read, "read_run", vanishing)
    assert read_look("a", folder).run is not None
    monkeypatch.setattr(runs_read, "read_run", lambda folder: (folder / "gone").read_bytes())
    look = read_look("a", folder)
    assert look.run is None and look.problem == "This run cannot be read: gone has vanished while it was read."


def test_what_lies_outside_of_a_run_is_not_looked_at(tmp_path):
    folder, outside = write_run(tmp_path / "a"), tmp_path / "outside"
    outside.mkdir()
    (outside / "metrics.jsonl").write_text("{}\n")
    row = {"id": "1", "task": "", "prompt": "p", "meta": {}, "media": [], "aligned": [], "rewards": {}}
    (outside / "before.jsonl").write_text(json.dumps({**row, "completion": "a secret"}) + "\n")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    assert "metrics.jsonl" not in [name for name, *_ in runs_read.signature(folder)]
    (folder / "samples").rename(tmp_path / "moved")
    (folder / "samples").symlink_to(outside)
    assert read_look("a", folder).completions == {}


def test_a_metric_that_is_not_a_number_has_no_curve(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "seconds": "soon", "loss": 1.0}\n{"step": 2, "seconds": 2.0, "loss": 2.0}\n'
    )
    look = read_look("a", folder)
    assert look.run is not None and look.run.metric_names() == ["loss"]
    for metric in ("seconds", "step"):
        assert runs_read.curve_points(look, metric, False, 0) == []
    assert runs_read.curve_points(look, "loss", True, 0) == []
    assert runs_read.curve_points(look, "loss", False, 0) == [(1, 1), (2, 2)]


def test_a_run_under_another_name_is_read_again(tmp_path):
    reader, folder = Reader(), write_run(tmp_path / "a")
    assert [reader.look(name, folder).name for name in ("a", "b")] == ["a", "b"]


def test_a_file_that_cannot_be_looked_at_hides_no_other(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "samples" / "aaa.png").symlink_to(folder / "samples" / "nothing.png")
    assert [name for name, *_ in runs_read.signature(folder)] == [
        *("config.yaml", "metrics.jsonl", "summary.json", "samples", "samples/after.png", "samples/before.png"),
        *("samples/step-000002.png", "samples/step-000010.png"),
    ]
    sizes = {name: size for name, _, size in runs_read.signature(folder)}
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
        patch.setattr(runs_read, "read_run", failing)
        look = read_look("a", tmp_path)
    assert tried == [tmp_path] * times and look.run is None
    assert look.problem.startswith(f"This run cannot be read: {problem}") and look.problem[-1] == "."


def test_only_means_of_rewards_come_first(tmp_path):
    metrics = {"reward/a/std": 1.0, "grad/mean": 1.0, "reward/a/mean": 1.0}
    names = runs_read.metrics_of([read_look("a", write_run(tmp_path / "a", **metrics))])
    assert names == ["reward/a/mean", "seconds", "loss", "reward/a/std", "grad/mean"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_read, "METRICS", 2)
        assert runs_read.metrics_of([read_look("a", tmp_path / "a")]) == names[:2]


def test_a_curve_over_seconds_needs_seconds(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 2.0}\n')
    look = read_look("a", folder)
    assert runs_read.curve_points(look, "loss", True, 0) == []
    assert runs_read.curve_points(look, "loss", False, 0) == [(1, 1), (2, 2)]


def test_settings_are_flat_and_of_bounded_length():
    flat = {"a": {"b": 1, "c": {}}, 3: [1, (2, {"x": None})], "l": []}
    assert dict(runs_read.flat(flat)) == {"a.b": "1", "a.c": "{}", "3": "[1, [2, {x: None}]]", "l": "[]"}
    assert dict(runs_read.flat({})) == dict(runs_read.flat(3)) == {}
    deep: Any = 1
    for level in range(9, 0, -1):
        deep = {level: deep}
    assert dict(runs_read.flat(deep)) == {"1.2.3.4.5.6.7.8": "{9: 1}"}
    long = {"k" * 401: "x" * 401, "l": [1] * 1000}
    assert dict(runs_read.flat(long)) == {"k" * 400: "x" * 400, "l": ("[" + "1, " * 200)[:400]}
    assert max(map(len, runs_read.pieces({"k" * 500: "x" * 500}))) == runs_read.LETTERS == 400
    large = "a very large number"
    assert ["".join(runs_read.pieces(number)) == large for number in (int(1e300), 15 * 10**299)] == [False, True]
    assert "".join(runs_read.pieces(-(10**301))) == large and "".join(runs_read.pieces(1e301)) == "1e+301"


def test_moments_are_before_then_steps_then_others_then_after():
    moments = ["after", "zz", "step-1000000", "step-000010", "b", "step-000002", "before", "a"]
    look = Look("a", Path("a"), None, completions={"heldout": {moment: [] for moment in moments}})
    ordered = ["before", "step-000002", "step-000010", "step-1000000", "a", "b", "zz", "after"]
    assert runs_read.moments_of([look]) == ordered


def test_the_axes_of_equal_values_have_a_margin_of_a_tenth():
    assert [(one.low, one.high) for one in (Scale([5.0]), Scale([-5.0, -5.0]), Scale([0.0]))] == [
        (4.5, 5.5),
        (-5.5, -4.5),
        (-1.0, 1.0),
    ]
    assert [Scale([0.0, 3.0])(value) for value in (0.0, 1.0, 3.0)] == [0, 333.3, 1000]


def test_the_highest_value_is_at_the_top_and_the_last_of_the_running_mean_is_named(tmp_path):
    look = read_look("a", write_run(tmp_path / "a", steps=6))
    drawn = chart([look], "loss", "step", False, 10)
    assert (drawn.metric, drawn.axis) == ("loss", "step") and drawn.lines[0].last == "55"
    assert drawn.lines[0].thin == "0,1000 200,800 400,600 600,400 800,200 1000,0"
    assert drawn.lines[0].thick == "0,900 200,800 400,600 600,400 800,200 1000,100"
    assert drawn.wide == [(0, "1"), (200, "2"), (400, "3"), (600, "4"), (800, "5"), (1000, "6")]
    assert drawn.high == [(1000, "10"), (800, "20"), (600, "30"), (400, "40"), (200, "50"), (0, "60")]
    nothing = chart([look], "", "step", False, 0)
    assert (nothing.lines, nothing.without) == ((), ()) and chart([look], "x", "step", False, 0).without == ["a"]


def test_six_completions_of_each_moment_are_shown(tmp_path):
    folder = tmp_path / "a"
    (folder / "samples").mkdir(parents=True)
    row = {"task": "", "prompt": "how many?", "meta": {}, "media": [], "aligned": [], "rewards": {"r": 1}}
    for moment in ("before", "after"):
        rows = [json.dumps({**row, "id": str(n), "completion": f"said {moment} {n}."}) for n in range(8)]
        (folder / "samples" / f"{moment}.jsonl").write_text("\n".join(rows) + "\n")
    look = read_look("a", folder)
    html = runs_html.samples_html([look], "after")
    for moment in ("before", "after"):
        assert [f"said {moment} {n}." in html for n in range(8)] == [True] * 6 + [False] * 2
    assert "said after" not in runs_html.samples_html([look], "before")
    assert runs_html.samples(look, "after").notes == []
    elsewhere = runs_html.samples(look, "step-000007")
    assert elsewhere.notes == ["No samples: step 7. There are: after, before."] and elsewhere.prompt_files == []
    (tmp_path / "b").mkdir()
    assert runs_html.samples(read_look("b", tmp_path / "b"), "after").notes == ["No samples: after. "]
