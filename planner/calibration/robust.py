"""Robust regression: least absolute deviations with quadratic priors, by damped, iteratively reweighted Gauss-Newton.

Profiles have outliers of a factor of two (a library picks a bad kernel, a host is late), so absolute residuals count
rather than squares. Profiles do not determine every parameter, so each has a prior to fall back to.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
"""Array of float64."""

STEP = 1e-4
"""Step of forward differences."""
_FLOOR = 0.02
"""Residuals below this are weighted as if they had this size: an error below 2 % is as good as none. Chosen by hand."""
_MAX_MOVE = 0.7
"""Largest change of a parameter in one step."""
_DAMPING_TRIES = 6
"""Number of increases of the damping before the search ends."""
Residuals = Callable[[FloatArray], FloatArray]
"""Function from parameters to residuals."""
Slopes = Callable[[FloatArray, FloatArray], FloatArray]
"""Function from (parameters, residuals there) to the Jacobian, `[num_residuals, num_parameters]`."""


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
    """Minimise sum(weights |residuals|) + strength sum(((x - centre) / spread)^2), starting at `start`.

    `slopes` is the Jacobian for callers that know which residuals depend on which parameters. None stands for forward
    differences.
    """

    def cost(r: FloatArray, at: FloatArray) -> float:
        return float(np.sum(weights * np.abs(r)) + strength * np.sum(np.square((at - centre) / spread)))

    x, damping = start.copy(), 1e-3
    r = residuals(x)
    best = cost(r, x)
    pull: FloatArray = 2 * strength / spread**2
    for _ in range(iterations):
        # Weights w / |r| turn absolute deviations into squares: the normal equations are (J' W J + P) move = -(J' W r +
        # P dx).
        columns = slopes(x, r) if slopes else jacobian(residuals, x, r)
        scaled = weights / np.maximum(np.abs(r), _FLOOR)
        normal = columns.T @ (columns * scaled[:, None]) + np.diag(pull)
        gradient = columns.T @ (scaled * r) + pull * (x - centre)
        # Levenberg-Marquardt: raise the damping until the step lowers the cost.
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
    """Return, for each parameter, the share of its curvature that comes from the data rather than from its prior.

    `columns` is the Jacobian of the residuals `r`.
    """
    scaled = weights / np.maximum(np.abs(r), _FLOOR)
    own = np.sum(columns**2 * scaled[:, None], axis=0)
    share: FloatArray = own / (own + 2 * strength / spread**2)
    return share


def jacobian(residuals: Residuals, at: FloatArray, there: FloatArray) -> FloatArray:
    """Return the Jacobian of `residuals` at `at` by forward differences; `there` are the residuals at `at`."""
    slopes = np.empty((len(there), len(at)))
    for j in range(len(at)):
        moved = at.copy()
        moved[j] += STEP
        slopes[:, j] = (residuals(moved) - there) / STEP
    return slopes
