"""Weights of a mixture from the scores of runs (MoDoMoDo)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mmgrpo.cli.mixture import first_mixtures
from mmgrpo.prompts.mixtures import Fit, fit_ridge, largest
from tests.journeys.cli.running import call

LINEAR, SQUARE = np.array([0.2, 0.1]), np.array([[-0.3, 0.2], [0.2, -0.2]])


def test_the_largest_value_of_the_papers_form_is_half_and_half():
    best = largest(LINEAR, SQUARE)
    assert best == pytest.approx([0.5, 0.5]) and Fit(0, LINEAR, SQUARE).at(best) == pytest.approx(0.125)


@pytest.mark.parametrize("seed", range(5))
def test_no_mixture_is_better_than_the_largest(seed):
    """Concave, convex and neither: against 20,000 random mixtures and all single sources."""
    random = np.random.default_rng(seed)
    linear, square = random.normal(size=4), random.normal(size=(4, 4))
    square = square + square.T
    made = Fit(0.0, linear, square)
    best = largest(linear, square)
    assert best.min() >= 0 and best.sum() == pytest.approx(1)
    others = [*random.dirichlet(np.ones(4), 20_000), *np.eye(4)]
    assert made.at(best) >= max(map(made.at, others)) - 1e-9


def test_a_fit_without_penalty_finds_the_scores_again():
    points = np.random.default_rng(0).dirichlet(np.ones(2), 20)
    scores = np.array([Fit(0.3, LINEAR, SQUARE).at(point) for point in points])
    made = fit_ridge(points, scores, 1e-9)
    assert [made.at(point) for point in points] == pytest.approx(scores.tolist(), abs=1e-5) and made.missed < 1e-4
    assert largest(made.linear, made.square) == pytest.approx([0.5, 0.5], abs=1e-2)


def test_what_a_fit_misses_is_each_score_by_the_others():
    """Of equal weights a fit is the mean: 0 by that of 3 and 6, 3 by that of 0 and 6, 6 by that of 0 and 3."""
    made = fit_ridge(np.full((3, 2), 0.5), np.array([0.0, 3.0, 6.0]), 1.0)
    assert made.at(np.full(2, 0.5)) == pytest.approx(3) and made.missed == pytest.approx((4.5 + 0 + 4.5) / 3)


def test_the_runs_to_begin_with_are_alone_all_but_one_and_all(capsys):
    assert [len(one) for one in first_mixtures("abc")] == [1, 1, 1, 2, 2, 2, 3] and len(first_mixtures("ab")) == 3
    call("mixture", "--sources", "a", "b", "--column", "kind")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == """--algorithm.sampler "mixture(weights={'a': 0.5, 'b': 0.5}, column='kind')\""""


def test_runs_and_a_table_give_the_same_weights(tmp_path, capsys):
    folders, table = [], ["a,b,score"]
    for number, first in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
        score = Fit(0.0, LINEAR, SQUARE).at(np.array([first, 1 - first]))
        folder = tmp_path / f"m{number}"
        folder.mkdir()
        text = f"mixture(weights={{'a': {4 * first}, 'b': {4 - 4 * first}}}, column='kind')"
        (folder / "config.yaml").write_text(json.dumps({"algorithm": {"sampler": ["retire", text]}}))
        evaluation = {"after": {"other": {"mean": 9.0}, "accuracy": {"mean": score}}}
        (folder / "summary.json").write_text(json.dumps({"eval": evaluation}))
        folders.append(str(folder))
        table.append(f"{first},{1 - first},{score}")
    (tmp_path / "scores.csv").write_text("\n".join(table))
    call("mixture", *folders, "--reward", "accuracy", "--ridge", "1e-6", "--column", "kind")
    out = capsys.readouterr().out
    call("mixture", "--scores", str(tmp_path / "scores.csv"), "--ridge", "1e-6", "--column", "kind")
    assert capsys.readouterr().out == out and "mixture(weights={'a': 0.5, 'b': 0.5}, column='kind')" in out
    with pytest.raises(ValueError, match="m0.*'speed'.*accuracy"):
        call("mixture", *folders, "--reward", "speed")
    (tmp_path / "scores.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"scores\.csv, line 2.*score"):
        call("mixture", "--scores", str(tmp_path / "scores.csv"))
