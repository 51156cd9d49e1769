"""Weights of data sets from the scores of runs: a quadratic fit and its largest value on the simplex (MoDoMoDo,
arXiv:2505.24871). ``mmgrpo mixture`` calls it between runs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """score = constant + linear w + w square w."""

    constant: float
    linear: Numbers
    square: Numbers
    missed: float = 0.0
    """Mean absolute error of each score by the fit to the others."""

    def at(self, weights: Numbers) -> float:
        """The fitted score."""
        return float(self.constant + self.linear @ weights + weights @ self.square @ weights)


def fit_ridge(points: Numbers, scores: Numbers, ridge: float) -> Fit:
    """The ridge regression of scores on weights and their products; the constant is not penalized."""

    def fit(points: Numbers, scores: Numbers) -> Fit:
        size = points.shape[1]
        upper = np.triu_indices(size)
        columns = np.concatenate([points, points[:, upper[0]] * points[:, upper[1]]], 1)
        centre, mean = columns.mean(0), scores.mean()
        shifted = columns - centre
        gram = shifted.T @ shifted + ridge * np.eye(columns.shape[1])
        coefficients = np.linalg.solve(gram, shifted.T @ (scores - mean))
        square = np.zeros((size, size))
        square[upper] = coefficients[size:]
        return Fit(float(mean - centre @ coefficients), coefficients[:size], (square + square.T) / 2)

    rest = [np.arange(len(scores)) != left for left in range(len(scores))] if len(scores) > 2 else []
    errors = [abs(fit(points[kept], scores[kept]).at(points[~kept][0]) - scores[~kept][0]) for kept in rest]
    whole = fit(points, scores)
    return Fit(whole.constant, whole.linear, whole.square, float(np.mean(errors)) if errors else float("nan"))


def largest(linear: Numbers, square: Numbers) -> Numbers:
    """The weights of at least 0 and sum 1 at which linear w + w square w is largest.

    It lies within one of the faces of the simplex and is stationary there: 2 C w + b is the same for all of its
    sources. b = (.2, .1), C = [[-.3, .2], [.2, -.2]]: half and half, .125.
    """
    size, best, value = len(linear), np.eye(len(linear))[0], -np.inf
    for count in range(1, size + 1):
        for face in combinations(range(size), count):
            corners = np.array(face)
            system = np.zeros((count + 1, count + 1))
            system[:count, :count] = 2 * square[np.ix_(corners, corners)]
            system[:count, count] = system[count, :count] = 1
            solved = np.linalg.lstsq(system, np.append(-linear[corners], 1.0), rcond=None)[0][:count]
            if solved.min() < -1e-12 or abs(solved.sum() - 1) > 1e-9:
                continue
            weights = np.zeros(size)
            weights[corners] = solved.clip(0) / solved.clip(0).sum()
            reached = float(linear @ weights + weights @ square @ weights)
            if reached > value + 1e-12:
                best, value = weights, reached
    return best
