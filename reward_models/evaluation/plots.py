"""Plots of an evaluation of rewards, for a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mmgrpo.report.media import Medium, image_uri
from mmgrpo.report.plots import ACCENT, INK, figure_file, title_of


def figures(result: Mapping[str, Any]) -> list[Medium]:
    """The plots of one benchmark that have something to show."""
    rewards = result["rewards"]
    names = list(rewards)
    categories = [
        name for name in next(iter(rewards.values()))["categories"]
        if any(result["categories"].get(name) is not None for result in rewards.values())
    ]  # fmt: skip
    plots = {"Accuracy with its 95 % interval": accuracy_plot(rewards)}
    if categories:
        values = [[result["categories"].get(name) for name in categories] for result in rewards.values()]
        plots["Accuracy by category"] = matrix_plot(values, names, categories)
    if len(names) > 1:
        values = [[result["agreement"][a][b] for b in names] for a in names]
        plots["Agreement: share of pairs with the same sign"] = matrix_plot(values, names, names)
    if any(len(result["selection"]["best_of"]) > 2 for result in rewards.values()):
        plots["Win rate of the best of n"] = selection_plot(rewards)
    return [Medium("image", title, image_uri(figure_file(_set_title(plot, title)))) for title, plot in plots.items()]


def _set_title(figure: Figure, title: str) -> Figure:
    figure.axes[0].set_title(title, fontsize=10, color=INK, loc="left")
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    axes.tick_params(colors=INK, labelsize=8, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure, axes


def accuracy_plot(rewards: Mapping[str, Any]) -> Figure:
    """The benchmark's number of each reward with its interval, on a line each."""
    figure, axes = _axes(5.2, 0.8 + 0.3 * len(rewards))
    for row, result in enumerate(rewards.values()):
        if result["interval"] is not None:
            axes.plot([result["interval"]["low"], result["interval"]["high"]], [row, row], color=ACCENT, linewidth=2.5)
        if result["headline"] is not None:
            axes.plot([result["headline"]], [row], "o", color=ACCENT, markersize=6)
    axes.axvline(0.5, color=INK, alpha=0.5, linewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(len(rewards) - 0.5, -0.5))
    axes.set_yticks(range(len(rewards)), [_label(name) for name in rewards])
    axes.grid(axis="x", color=INK, alpha=0.18, linewidth=0.6)
    return figure


def matrix_plot(values: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Fractions as colours, with their numbers; a gap for None."""
    array = np.array([[math.nan if value is None else value for value in row] for row in values])
    figure, axes = _axes(1.6 + 0.55 * len(columns), 1.2 + 0.32 * len(rows))
    axes.imshow(array, vmin=0, vmax=1, cmap="RdYlBu", alpha=0.75, aspect="auto")
    for (row, column), value in np.ndenumerate(array):
        if not math.isnan(value):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color="#1c1c20")
    axes.set_yticks(range(len(rows)), [_label(name) for name in rows])
    axes.set_xticks(range(len(columns)), [_label(name) for name in columns], rotation=40, ha="right")
    return figure


def selection_plot(rewards: Mapping[str, Any]) -> Figure:
    """The mean win rate of the output that each reward selects among n."""
    figure, axes = _axes(5.2, 2.6)
    for name, result in rewards.items():
        curve = result["selection"]["best_of"]
        axes.plot([int(n) for n in curve], list(curve.values()), marker="o", markersize=4, label=_label(name))
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    axes.grid(color=INK, alpha=0.18, linewidth=0.6)
    return figure


def _label(name: str) -> str:
    """A name that can be drawn; matplotlib would read what stands between dollar signs as a formula."""
    return title_of(name).replace("$", "＄")[:40]
