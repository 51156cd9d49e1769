from __future__ import annotations

import json
import math
import re

import pytest
import torch

from mmgrpo.report.html import write_report
from mmgrpo.report.plots import sample_grid
from mmgrpo.report.results import verdict
from mmgrpo.report.run_folder import read_run
from mmgrpo.runtime.metrics import MetricsLog
from mmgrpo.types import Image

CONFIG = "name: trial\nsteps: 4\nseed: 3\nmodel: {family: sd3}\nalgorithm: {preset: flow_grpo}\n# 1 < 2 & 3\n"


def interval(mean, low, high, n=9):
    return {"mean": mean, "low": low, "high": high, "n": n}


def run_folder(folder):
    (folder / "config.yaml").write_text(CONFIG)
    log = MetricsLog(folder)
    for step in range(1, 5):
        log.write(
            step,
            {"reward/exact/mean": step / 4, "kl": 0.0, "clip/high": 0.1, "grad_norm": math.nan, "seconds": 75.0},
        )
    (folder / "samples").mkdir()
    for title in ("before", "after", "step-000002"):
        sample_grid([Image(torch.rand(3, 8, 8))], [title]).save(folder / "samples" / f"{title}.png")
    return folder


def finished_run(folder):
    run_folder(folder)
    evaluation = {
        "before": {"exact": interval(0.25, 0.2, 0.3), "clean": interval(0.9, 0.8, 0.95)},
        "after": {"exact": interval(0.5, 0.4, 0.6), "clean": interval(0.7, 0.6, 0.8)},
        "difference": {"exact": interval(0.25, 0.1, 0.4), "clean": interval(-0.2, -0.3, -0.1)},
    }
    (folder / "summary.json").write_text(json.dumps({"modality": "visual", "seconds": 3725, "eval": evaluation}))
    return folder


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The report of a finished run."""
    return page(finished_run(tmp_path_factory.mktemp("run")))


def page(folder):
    return write_report(folder).read_text()


def test_the_report_needs_nothing_but_itself(html):
    sources = re.findall(r'(?:src|href)="([^"]{0,11})', html)
    assert sources and all(source == "data:image/" for source in sources)
    assert "://" not in html and "<script" not in html and "@import" not in html and "url(" not in html
    assert "content=\"default-src 'none'; img-src data:; media-src data:;" in html


def test_curves_are_those_of_the_card_and_of_training(html):
    # Two results, then the reward, the gradient norm and clip/high (kl never leaves zero).
    assert html.count('<div class="plot"') == 5


def test_the_report_states_the_result_with_its_uncertainty(html):
    assert "<span>0.250</span> <small>0.200 to 0.300</small>" in html
    assert '<span class="good">+0.250</span> <small>+0.100 to +0.400</small>' in html
    assert '<span class="bad">−0.200</span> <small>−0.300 to −0.100</small>' in html
    assert "1 h 2 min" in html and "4 of 4" in html
    assert "has not finished" not in html
    assert "during the run" in html and "prompts of further files" not in html, "no empty grids"
    assert "error rates" not in html and "Correlation of rewards" not in html, "no empty tables"


def test_a_difference_that_may_be_zero_has_no_colour(tmp_path):
    folder = run_folder(tmp_path)
    evaluation = {"before": {}, "after": {"r": interval(0.5, 0, 1)}, "difference": {"r": interval(0.1, -0.1, 0.3)}}
    (folder / "summary.json").write_text(json.dumps({"eval": evaluation}))
    assert "<span>+0.100</span> <small>−0.100 to +0.300</small>" in page(folder)


def test_before_comes_first_and_what_lies_between_is_folded_away(html):
    captions = re.findall(r"<figure><figcaption>([^<]+)</figcaption>", html)
    assert captions == ["before", "after", "step-000002"]
    assert html.index(">after</figcaption>") < html.index("during the run") < html.index(">step-000002</figcaption>")


def test_grids_of_further_files_stand_in_pairs_too(tmp_path):
    (tmp_path / "samples").mkdir()
    for title in ("after", "after-a", "after-b", "before", "before-a", "before-b", "step-000002"):
        sample_grid([Image(torch.rand(3, 8, 8))], [""]).save(tmp_path / "samples" / f"{title}.png")
    captions = re.findall(r"<figure><figcaption>([^<]+)</figcaption>", page(tmp_path))
    assert captions == ["before", "after", "before-a", "after-a", "before-b", "after-b", "step-000002"]


def test_a_killed_run_says_so_and_shows_what_there_is(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward/exact/mean": 0.5}\n{"step": 2, "rew')
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / "before.json").write_text('{"step": 0, "values": {"exact": [0.5, 0.5, NaN]}}')
    html = page(folder)
    assert "has not finished" in html and "last recorded step is 1 of 4" in html
    cells = re.findall(r'<td data-label="([^"]+)"><span>([^<]+)</span>(?: <small>([^<]+)</small>)?</td>', html)
    nothing = [("after", "–", ""), ("difference", "–", "")]
    assert cells == [("before", "0.500", "0.500 to 0.500"), *nothing, ("prompts", "2", "")]


def test_an_empty_run_folder_has_a_report_too(tmp_path):
    html = page(tmp_path)
    assert "recorded no step" in html and "Not evaluated" in html
    assert "config.yaml is missing" in html and f"<h1>{tmp_path.name}</h1>" in html


def test_no_run_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such run folder"):
        write_report(tmp_path / "none")


def test_all_metrics_are_listed_with_their_first_and_last_values(html):
    assert '<th scope="row">reward/exact/mean</th><td>0.25</td><td>1</td>' in html
    assert '<th scope="row">grad_norm</th><td>–</td><td>–</td>' in html


def test_a_report_that_is_written_again_replaces_the_old_one(tmp_path):
    first = page(run_folder(tmp_path))
    (tmp_path / "summary.json").write_text('{"seconds": 1}')
    assert page(tmp_path) != first
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_error_rates_and_further_files_have_tables_and_less_is_better(tmp_path):
    def interval(mean, low, high):
        return {"mean": mean, "low": low, "high": high, "n": 9}

    rate = {"before": interval(0.4, 0.3, 0.5), "after": interval(0.3, 0.2, 0.4), "relative": -0.25, "units": 70.0}
    extra = {side: {"reward": interval(0.5, 0.4, 0.6)} for side in ("before", "after")}
    summary = {
        "rates": ["wer"],
        "wer": {"<b>": {**rate, "difference": interval(-0.1, -0.2, -0.05)}},
        "extra": {"<i>": {**extra, "difference": {"reward": interval(0.0, -0.1, 0.1)}}},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    html = write_report(tmp_path).read_text()
    assert (
        '<span class="good">\N{MINUS SIGN}0.100</span>' in html
        and "<span>\N{MINUS SIGN}25.0%</span>" in html
        and "<span>70</span>" in html
    )
    assert "wer, &lt;b&gt;" in html and "Prompts of &lt;i&gt;, before and after" in html
    assert "<b>" not in html and "<i>" not in html


def test_the_report_begins_with_the_card_then_samples_then_the_table_and_folds_the_rest(html):
    parts = [
        '<section class="glance',
        ">before</figcaption>",
        "All held-out rewards</h2>",
        "curves of training</summary>",
    ]
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    card = html[places[0] : places[1]]
    assert card.index("0.250 to 0.500") < card.index('<b class="good" title="better">+0.250</b>') < card.index("clean")
    assert "[0.100, 0.400]" in card and ">better</span>" in card
    assert html.count("<details") == html.count('<details class="part">') >= 4  # none is open


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ("model: {family: sd3}", "--against untrained --file PROMPTS"),
        ("{model: {family: sd3}, data: {heldout: a.txt}}", "--against untrained<"),
    ],
)
def test_a_run_without_an_evaluation_names_the_command_and_shows_the_training_reward(tmp_path, config, command):
    run_folder(tmp_path)
    (tmp_path / "config.yaml").write_text(config)
    html = page(tmp_path)
    assert "Not evaluated" in html and command in html and f"--run {tmp_path.parent.name}/{tmp_path.name}" in html
    assert "exact in training: 0.25 to 1" in html
    assert verdict(read_run(tmp_path)) == ""


def test_a_report_stays_small_and_names_what_it_leaves_out(tmp_path, monkeypatch):
    folder = finished_run(tmp_path)
    whole = len(page(folder))
    monkeypatch.setattr("mmgrpo.report.html.PAGE_BYTES", whole - 1)
    html = page(folder)
    assert len(html.encode()) < whole and "Not on this page" in html and "0.250 to 0.500" in html
    monkeypatch.setattr("mmgrpo.report.html.PAGE_BYTES", 1)
    assert "<details class" not in page(folder) and "0.250 to 0.500" in page(folder)  # the results always stand
