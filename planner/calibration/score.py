"""How far predictions are from measurements: mean and worst relative error, and whether they rank alike."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.observations import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of some rows. Errors are |predicted / measured - 1|."""

    num_rows: int
    mean_error: float
    worst_error: float
    worst: str
    """Which row that is."""
    spearman: float


def score(predicted: FloatArray, measured: FloatArray, labels: Sequence[str]) -> Score:
    errors = np.abs(predicted / measured - 1)
    worst = int(np.argmax(errors))
    return Score(
        num_rows=len(errors), mean_error=float(np.mean(errors)), worst_error=float(errors[worst]),
        worst=labels[worst], spearman=spearman(predicted, measured),
    )  # fmt: skip


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Rank correlation, ties sharing their mean rank; 1 for fewer than two values."""
    if len(a) < 2:
        return 1.0
    x, y = ranks(a), ranks(b)
    x, y = x - np.mean(x), y - np.mean(y)
    size = float(np.sqrt(np.sum(x * x) * np.sum(y * y)))
    return float(np.sum(x * y)) / size if size > 0 else 1.0


def ranks(values: FloatArray) -> FloatArray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: FloatArray = ends - (counts - 1) / 2
    return means[place]
