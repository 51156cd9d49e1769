"""The plots of an evaluation draw the numbers that they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex

from mmgrpo.report.plots import ACCENT, INK
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


def test_a_matrix_shows_its_numbers_and_gaps():
    figure = plots.matrix_plot([[0.25, None], [1.0, 0.5]], ["r", "s"], ["colour", "count"])
    axes = figure.axes[0]
    assert {(text.get_position(), text.get_text()) for text in axes.texts} == {
        ((0, 0), "0.25"),
        ((0, 1), "1.00"),
        ((1, 1), "0.50"),
    }
    picture = axes.images[0]
    np.testing.assert_array_equal(picture.get_array().filled(np.nan), [[0.25, np.nan], [1.0, 0.5]])
    assert picture.get_clim() == (0, 1)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["colour", "count"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["r", "s"]


def test_win_rates_are_curves_over_powers_of_two():
    figure = plots.selection_plot({"a": reward(0.5, n2=0.5, n4=0.75), "$b": reward(0.5, n2=0.25, n4=0.5)})
    axes = figure.axes[0]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([2, 4], [0.5, 0.75]),
        ([2, 4], [0.25, 0.5]),
    ]
    assert axes.get_xscale() == "log" and axes.xaxis.get_transform().base == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "＄b"]


def look(axes: Any) -> tuple:
    """Size in inches, sizes of the ticks' labels, and whether the frame is there."""
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    assert {tick.get_color() for tick in ticks} == {INK} and axes.get_facecolor()[3] == 0
    assert {line.tick1line.get_markersize() for line in axes.xaxis.get_major_ticks()} == {0}
    assert {line.tick1line.get_markersize() for line in axes.yaxis.get_major_ticks()} == {0}
    spines = any(spine.get_visible() for spine in axes.spines.values())
    size = tuple(round(float(side), 6) for side in axes.figure.get_size_inches())
    return size, {tick.get_fontsize() for tick in ticks}, spines


def grid(axis: Any) -> tuple:
    line = axis.get_gridlines()[0]
    return line.get_visible(), line.get_color(), line.get_alpha(), line.get_linewidth()


@rc_context({"lines.markersize": 1, "lines.linewidth": 0.1, "text.color": "red", "grid.alpha": 0.9})
def test_plots_have_the_style_of_reports():
    """Ink on nothing: no frame, no ticks, labels of 8 points; a height for each row and a width for each column.
    Whatever settings of matplotlib there are.
    """
    figure = plots.accuracy_plot({"a": reward(0.625), "b": reward(0.25)})
    axes, faint = figure.axes[0], (True, INK, 0.18, 0.6)
    assert look(axes) == ((5.2, 1.4), {8.0}, False) and figure.get_layout_engine() is not None
    bar, dot, *_, coin = axes.lines
    assert (bar.get_color(), bar.get_linewidth()) == (ACCENT, 2.5)
    assert (dot.get_color(), dot.get_marker(), dot.get_markersize()) == (ACCENT, "o", 6)
    assert (coin.get_color(), coin.get_alpha(), coin.get_linewidth()) == (INK, 0.5, 0.8)
    assert grid(axes.xaxis) == faint and not axes.yaxis.get_gridlines()[0].get_visible()

    figure = plots.matrix_plot([[0.25, 0.5, 1.0]], ["r"], ["a", "b", "c"])
    axes, picture = figure.axes[0], figure.axes[0].images[0]
    assert look(axes) == ((1.6 + 3 * 0.55, 1.52), {8.0}, False)
    assert (picture.get_cmap().name, picture.get_alpha(), axes.get_aspect()) == ("RdYlBu", 0.75, "auto")
    for text in axes.texts:
        assert (text.get_ha(), text.get_va(), text.get_fontsize(), text.get_color()) == (
            "center",
            "center",
            7,
            "#1c1c20",
        )
    assert {(tick.get_rotation(), tick.get_ha()) for tick in axes.get_xticklabels()} == {(40, "right")}
    assert list(axes.get_xticks()) == [0, 1, 2] and list(axes.get_yticks()) == [0]

    axes = plots.selection_plot({"a": reward(0.5, n1=0.5, n2=0.75)}).axes[0]
    assert look(axes)[0] == (5.2, 2.6) and grid(axes.xaxis) == grid(axes.yaxis) == faint
    (line,), legend = axes.lines, axes.get_legend()
    assert (line.get_marker(), line.get_markersize()) == ("o", 4) and not legend.get_frame_on()
    assert {(text.get_fontsize(), to_hex(text.get_color())) for text in legend.get_texts()} == {(8, to_hex(INK))}
    title = plots._titled(axes.figure, "title").axes[0]
    assert title.get_title(loc="left") == "title" and title.title.get_text() == ""
    assert (title._left_title.get_fontsize(), title._left_title.get_color()) == (10, INK)
    assert plots._label("x" * 50) == "x" * 40 and plots._label("$a$") == "\uff04a\uff04"


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
