"""Errors of predictions against measurements: mean and worst relative error, and rank correlation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.planner_cases.calibration.observations import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors over a set of rows. The error of a row is |predicted / measured - 1|."""

    num_rows: int
    mean_error: float
    worst_error: float
    worst: str
    """Label of the row with the worst error."""
    spearman: float
    """Rank correlation of predictions and measurements."""


def score(predicted: FloatArray, measured: FloatArray, labels: Sequence[str]) -> Score:
    """Return the errors of predictions, `[num_rows]` each; `labels` name the rows."""
    errors = np.abs(predicted / measured - 1)
    worst = int(np.argmax(errors))
    return Score(
        num_rows=len(errors),
        mean_error=float(np.mean(errors)),
        worst_error=float(errors[worst]),
        worst=labels[worst],
        spearman=spearman(predicted, measured),
    )


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Return the rank correlation of two arrays; ties share their mean rank.

    The result is 1 for fewer than two values, and 0 if one of the arrays is constant.
    """
    if len(a) < 2:
        return 1.0
    x, y = ranks(a), ranks(b)
    x, y = x - np.mean(x), y - np.mean(y)
    size = float(np.sqrt(np.sum(x * x) * np.sum(y * y)))
    return float(np.sum(x * y)) / size if size > 0 else 1.0


def ranks(values: FloatArray) -> FloatArray:
    """Return the rank of each value, from 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: FloatArray = ends - (counts - 1) / 2
    return means[place]
