"""The plots of an evaluation draw the numbers that they are given."""

from __future__ import annotations

from typing import Any

import pytest

from reward_models.evaluation import plots


def reward(headline: float | None, low: float = 0.5, high: float = 0.75, **best_of: float) -> dict[str, Any]:
    interval = None if headline is None else {"mean": headline, "low": low, "high": high}
    curve = {n.removeprefix("n"): rate for n, rate in best_of.items()}
    return {
        "headline": headline,
        "interval": interval,
        "categories": {"colour": headline, "count": None},
        "selection": {"best_of": curve},
    }


def test_each_accuracy_stands_on_a_line_of_its_own_with_its_interval():
    figure = plots.accuracy_plot({"a": reward(0.625), "b": reward(None), "c": reward(0.25, 0.125, 0.5)})
    axes = figure.axes[0]
    lines = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    drawn = [([float(v) for v in x], [float(v) for v in y]) for x, y in lines]
    assert drawn[:-1] == [
        ([0.5, 0.75], [0, 0]),
        ([0.625], [0]),
        ([0.125, 0.5], [2, 2]),
        ([0.25], [2]),
    ]
    assert drawn[-1][0] == [0.5, 0.5]  # a coin
    assert axes.get_xlim() == (0, 1) and axes.get_ylim() == (2.5, -0.5)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b", "c"]
    assert list(axes.get_yticks()) == [0, 1, 2]


def test_win_rates_are_curves_over_powers_of_two():
    figure = plots.selection_plot({"a": reward(0.5, n2=0.5, n4=0.75), "$b": reward(0.5, n2=0.25, n4=0.5)})
    axes = figure.axes[0]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([2, 4], [0.5, 0.75]),
        ([2, 4], [0.25, 0.5]),
    ]
    assert axes.get_xscale() == "log" and axes.xaxis.get_transform().base == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "＄b"]


@pytest.mark.parametrize(
    ("rewards", "titles"),
    [
        ({"a": reward(0.5, n1=0.5, n2=0.5)}, ["Accuracy with", "Accuracy by"]),
        ({"a": reward(0.5, n1=0.5, n2=0.5, n4=0.5)}, ["Accuracy with", "Accuracy by", "Win rate"]),
        ({"a": reward(None), "b": reward(None)}, ["Accuracy with", "Agreement"]),
    ],
)
def test_only_plots_with_something_to_show_are_made(rewards, titles):
    agreement = {one: {other: 1.0 for other in rewards} for one in rewards}
    made = plots.figures({"rewards": rewards, "agreement": agreement})
    assert [medium.text[: len(title)] for medium, title in zip(made, titles, strict=True)] == titles
    assert all(medium.uri.startswith("data:image/png") for medium in made)
