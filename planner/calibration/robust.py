"""Least absolute deviations of logarithms, with priors: a Gauss-Newton step on reweighted squares, damped.

Profiles have outliers of a factor of two (a library that picks a bad kernel, a host that was late), so absolute errors
count and not squares; and they do not inform every number, so each has a prior that it falls back to.
"""

from collections.abc import Callable

import numpy as np

from planner.calibration.observations import FloatArray

STEP = 1e-4
_FLOOR = 0.02
"""Residuals below this weigh as this: within 2 % nothing is gained."""
_MAX_MOVE = 0.7
_DAMPING_TRIES = 6
Residuals = Callable[[FloatArray], FloatArray]
Slopes = Callable[[FloatArray, FloatArray], FloatArray]
"""(x, residuals at x) -> derivatives of residuals, a column a number."""


def minimise(
    residuals: Residuals,
    start: FloatArray,
    *,
    centre: FloatArray,
    spread: FloatArray,
    weights: FloatArray,
    strength: float,
    iterations: int,
    slopes: Slopes | None = None,
) -> FloatArray:
    """Where sum(weights |residuals|) + strength sum(((x - centre) / spread)^2) is least, near `start`.

    `slopes`: for who knows which residuals depend on which numbers; None: forward differences.
    """

    def cost(r: FloatArray, at: FloatArray) -> float:
        return float(np.sum(weights * np.abs(r)) + strength * np.sum(np.square((at - centre) / spread)))

    x, damping = start.copy(), 1e-3
    r = residuals(x)
    best = cost(r, x)
    pull: FloatArray = 2 * strength / spread**2
    for _ in range(iterations):
        columns = slopes(x, r) if slopes else jacobian(residuals, x, r)
        scaled = weights / np.maximum(np.abs(r), _FLOOR)
        normal = columns.T @ (columns * scaled[:, None]) + np.diag(pull)
        gradient = columns.T @ (scaled * r) + pull * (x - centre)
        for _ in range(_DAMPING_TRIES):
            damped = normal + damping * np.diag(np.diag(normal))
            move = np.clip(-np.linalg.solve(damped, gradient), -_MAX_MOVE, _MAX_MOVE)
            moved = residuals(x + move)
            now = cost(moved, x + move)
            if now < best:
                break
            damping = max(damping * 6, 1e-4)
        else:
            break
        gain, best = best - now, now
        x, r, damping = np.asarray(x + move), moved, damping / 4
        if gain < 1e-4 * best:
            break
    return x


def informed(
    r: FloatArray, columns: FloatArray, *, spread: FloatArray, weights: FloatArray, strength: float
) -> FloatArray:
    """Which share of each number's curvature is the data's and not its prior's; `columns`: derivatives of `r`."""
    scaled = weights / np.maximum(np.abs(r), _FLOOR)
    own = np.sum(columns**2 * scaled[:, None], axis=0)
    share: FloatArray = own / (own + 2 * strength / spread**2)
    return share


def jacobian(residuals: Residuals, at: FloatArray, there: FloatArray) -> FloatArray:
    """By forward differences."""
    slopes = np.empty((len(there), len(at)))
    for j in range(len(at)):
        moved = at.copy()
        moved[j] += STEP
        slopes[:, j] = (residuals(moved) - there) / STEP
    return slopes
