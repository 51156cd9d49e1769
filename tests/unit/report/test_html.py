from __future__ import annotations

import base64
import io
import json
import math
import re

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.report.html import sample_grid, verdict, write_report
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
    sources = re.findall(r'(?:src|href)="([^"]{0,22})', html)
    assert sources and all(source == "data:image/png;base64," for source in sources)
    assert "://" not in html and "<script" not in html and "@import" not in html and "url(" not in html
    assert "content=\"default-src 'none'; img-src data:; media-src data:;" in html


def test_every_picture_of_the_report_is_a_picture(html):
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    # A curve of the reward, the gradient norm and clip/high (kl never leaves zero), and three sample grids.
    assert len(pictures) == 6
    for picture in pictures:
        Pil.open(io.BytesIO(base64.b64decode(picture))).verify()


def test_the_report_states_the_result_with_its_uncertainty(html):
    assert "<span>0.250</span> <small>0.200 to 0.300</small>" in html
    assert '<span class="good">+0.250</span> <small>+0.100 to +0.400</small>' in html
    assert '<span class="bad">−0.200</span> <small>−0.300 to −0.100</small>' in html
    assert "1 h 2 min" in html and "4 of 4" in html
    assert "has not finished" not in html
    assert "during the run" in html and "prompts of further files" not in html, "no empty grids"
    assert "Error rates of whole files" not in html and "Correlation of rewards" not in html, "no empty tables"


def test_a_difference_that_may_be_zero_has_no_colour(tmp_path):
    folder = run_folder(tmp_path)
    evaluation = {"before": {}, "after": {"r": interval(0.5, 0, 1)}, "difference": {"r": interval(0.1, -0.1, 0.3)}}
    (folder / "summary.json").write_text(json.dumps({"eval": evaluation}))
    assert "<span>+0.100</span> <small>−0.100 to +0.300</small>" in page(folder)


def test_before_comes_first_and_what_lies_between_is_folded_away(html):
    captions = re.findall(r"<figcaption>([^<]+)</figcaption>", html)
    assert captions == ["before", "after", "step-000002"]
    assert html.index("<figcaption>after") < html.index("during the run") < html.index("<figcaption>step-000002")


def test_grids_of_further_files_stand_in_pairs_too(tmp_path):
    (tmp_path / "samples").mkdir()
    for title in ("after", "after-a", "after-b", "before", "before-a", "before-b", "step-000002"):
        sample_grid([Image(torch.rand(3, 8, 8))], [""]).save(tmp_path / "samples" / f"{title}.png")
    captions = re.findall(r"<figcaption>([^<]+)</figcaption>", page(tmp_path))
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
    assert "recorded no step" in html and "was not evaluated" in html and "No optimizer step was recorded" in html
    assert "config.yaml is missing" in html and f"<h1>{tmp_path.name}</h1>" in html


def test_no_run_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such run folder"):
        write_report(tmp_path / "none")


def test_what_users_wrote_is_escaped(tmp_path):
    (tmp_path / "config.yaml").write_text("name: '<b>&'\n# 1 < 2 & 3\n")
    html = page(tmp_path)
    assert "<h1>&lt;b&gt;&amp;</h1>" in html and "# 1 &lt; 2 &amp; 3" in html and "<b>" not in html


def test_all_metrics_are_listed_with_their_first_and_last_values(html):
    assert '<th scope="row">reward/exact/mean</th><td>0.25</td><td>1</td>' in html
    assert '<th scope="row">grad_norm</th><td>–</td><td>–</td>' in html


def test_a_report_that_is_written_again_replaces_the_old_one(tmp_path):
    first = page(run_folder(tmp_path))
    (tmp_path / "summary.json").write_text('{"seconds": 1}')
    assert page(tmp_path) != first
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


ROWS = [{"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 4, "a": 3.0, "b": 1}]


def test_held_out_error_rates_of_every_evaluation_are_a_curve(tmp_path):
    (tmp_path / "evaluations").mkdir()
    for title, step, errors in (("before", 0, [2, 1]), ("step-000002", 2, [1, 1]), ("after", 4, [1, 0])):
        counts = {"wer": {"errors": errors, "units": [4, 6]}}
        evaluation = {"step": step, "seconds": 0.0, "prompts": ["a", "b"], "values": {}, "counts": counts}
        (tmp_path / "evaluations" / f"{title}.json").write_text(json.dumps(evaluation))
    for title in ("before-natural", "blind"):  # of other prompts, or not of what is measured
        (tmp_path / "evaluations" / f"{title}.json").write_text(json.dumps({**evaluation, "step": 9}))
    # 3 / 10, 2 / 10, 1 / 10
    assert read_run(tmp_path).rates == [{"step": 0, "wer": 0.3}, {"step": 2, "wer": 0.2}, {"step": 4, "wer": 0.1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert 'alt="Curve of held-out wer"' in write_report(tmp_path).read_text()
    (tmp_path / "evaluations" / "step-000002.json").unlink()
    assert "held-out wer" not in write_report(tmp_path).read_text()  # two points are in the table


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


def test_the_report_begins_with_what_rose_what_fell_and_what_is_within_noise(tmp_path):
    run_folder(tmp_path)
    difference = {"exact": interval(0.25, 0.1, 0.4), "clean": interval(-0.2, -0.3, -0.1), "size": interval(0.0, -1, 1)}
    rate = {"heldout": {"difference": interval(-0.05, -0.08, -0.02)}}
    summary = {"eval": {"difference": difference}, "rates": ["wer"], "wer": rate}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert verdict(read_run(tmp_path)) == (
        "Rose: exact +0.250; fell: clean −0.200, wer of heldout −0.050; within noise: size 0.000."
    )
    html = page(tmp_path)
    places = [
        html.index(text) for text in ("Rose: exact", "Samples of held-out", "before and after</h2>", "Training</h2>")
    ]
    assert places == sorted(places)


def test_a_run_without_an_evaluation_has_no_verdict(tmp_path):
    assert verdict(read_run(run_folder(tmp_path))) == ""
