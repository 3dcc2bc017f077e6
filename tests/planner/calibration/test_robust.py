"""The minimiser recovers the parameters, resists outliers, and falls back to priors without data."""

import numpy as np
import pytest

from planner.calibration import robust
from planner.calibration.robust import FloatArray

X = np.linspace(1.0, 3.0, 40)


def _fit(y: FloatArray, start: tuple[float, float] = (0.0, 0.0), strength: float = 1e-6) -> FloatArray:
    return robust.minimise(
        lambda at: at[0] + at[1] * X - y,
        np.array(start),
        centre=np.zeros(2),
        spread=np.ones(2),
        weights=np.full(len(X), 1 / len(X)),
        strength=strength,
        iterations=60,
    )


def test_a_line_is_found() -> None:
    np.testing.assert_allclose(_fit(0.5 + 2.0 * X), [0.5, 2.0], atol=0.02)


def test_a_few_wild_points_do_not_move_it() -> None:
    y = 0.5 + 2.0 * X
    y[::10] += 50.0
    np.testing.assert_allclose(_fit(y), [0.5, 2.0], atol=0.1)


def test_a_number_that_nothing_depends_on_stays_at_its_prior() -> None:
    def residuals(at: FloatArray) -> FloatArray:
        return np.full(5, at[0] - 1)

    weights, spread = np.full(5, 0.2), np.ones(2)
    found = robust.minimise(
        residuals,
        np.array([0.0, 0.7]),
        centre=np.array([0.0, 0.3]),
        spread=spread,
        weights=weights,
        strength=1e-4,
        iterations=60,
    )
    assert found == pytest.approx([1.0, 0.3], abs=0.02)
    r = residuals(found)
    columns = robust.jacobian(residuals, found, r)
    shares = robust.informed(r, columns, spread=spread, weights=weights, strength=1e-4)
    assert shares[0] > 0.9
    assert shares[1] == 0
