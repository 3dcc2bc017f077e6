"""Fit of the efficiencies of device types, and of parameters that measured programs share, to measured seconds.

The residual of a row is log(predicted / measured). All parameters are fitted at once, since a residual depends on the
parameters of its own device type and on those of the programs. The Jacobian is cheap: the derivatives by one parameter
of every type come from one evaluation. All rows of one kind of time (`MeasuredTerm`) of one type together have weight
1, however many they are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.planner_cases.calibration import parameters
from bench.planner_cases.calibration.observations import FloatArray, MeasuredTerm, Series
from bench.planner_cases.calibration.predict import predicted_s
from planner.calibration import robust
from planner.problem.hardware import GpuType

STRENGTH = 0.004
"""Weight of the priors relative to the mean error of one kind of time: a parameter that is one spread from its centre
counts as much as 0.4 % of error. Chosen by hand."""
_ITERATIONS = 40
"""Largest number of Gauss-Newton steps. Chosen by hand."""
_INFORMED = 0.5
"""A parameter counts as informed by its rows if they have more than this share of its curvature. Chosen by hand."""
_SHARED, _OWN = len(parameters.PROGRAM), len(parameters.DEVICE)
"""Number of parameters that all device types share, and number of parameters that each type has for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted parameters of all device types.

    Vectors are encoded and ordered as `parameters.PROGRAM` and `parameters.DEVICE`.
    """

    program: FloatArray
    """Parameters that the measured programs share."""
    devices: Mapping[str, FloatArray]
    """Parameters of each device type."""
    informed: Mapping[str, frozenset[str]]
    """Names of the parameters that the rows of each type determine. The others stayed near their priors."""


def fit_all(series: Sequence[Series], gpus: Mapping[str, GpuType]) -> Fit:
    """Fit all types of these series at once. Every parameter starts at the centre of its prior."""
    names = sorted({one.gpu for one in series})
    rows = _Rows(series, gpus, names)
    # The vector of unknowns: what the programs share, then the parameters of each type, in the order of `names`.
    every = parameters.PROGRAM + parameters.DEVICE * len(names)
    centre, spread = parameters.centres(every), parameters.spreads(every)
    x = robust.minimise(
        rows.residuals,
        centre,
        centre=centre,
        spread=spread,
        weights=rows.weights,
        strength=STRENGTH,
        iterations=_ITERATIONS,
        slopes=rows.slopes,
    )
    # Where the measurements say little about a parameter, its value is mostly the prior's. `shares` tells how much they
    # say.
    r = rows.residuals(x)
    shares = robust.informed(r, rows.slopes(x, r), spread=spread, weights=rows.weights, strength=STRENGTH)
    # Each type's part of the vector.
    own = {gpu: slice(_SHARED + at * _OWN, _SHARED + (at + 1) * _OWN) for at, gpu in enumerate(names)}
    return Fit(
        program=x[:_SHARED],
        devices={gpu: x[part] for gpu, part in own.items()},
        informed={gpu: _informed_names(shares[part]) for gpu, part in own.items()},
    )


def _informed_names(shares: FloatArray) -> frozenset[str]:
    return frozenset(each.name for each, share in zip(parameters.DEVICE, shares, strict=True) if share > _INFORMED)


class _Rows:
    """Residuals of all rows and their Jacobian.

    A parameter vector holds the parameters of the programs first, then those of each type in the order of `names`.
    """

    def __init__(self, series: Sequence[Series], gpus: Mapping[str, GpuType], names: Sequence[str]) -> None:
        self._series = series
        self._gpus = gpus
        self._at = {gpu: at for at, gpu in enumerate(names)}
        self._type = np.concatenate([np.full(len(one), self._at[one.gpu]) for one in series])
        num: Counter[tuple[str, MeasuredTerm]] = Counter()
        for one in series:
            num[one.gpu, one.term] += len(one)
        # All rows of one kind of time of one type together weigh 1.
        self.weights = np.concatenate([np.full(len(one), 1 / num[one.gpu, one.term]) for one in series])

    def residuals(self, x: FloatArray) -> FloatArray:
        """Return log(predicted / measured) of every row, `[num_rows]`."""
        return self._residuals(x[:_SHARED], x[_SHARED:].reshape(-1, _OWN))

    def slopes(self, x: FloatArray, residuals_at_x: FloatArray) -> FloatArray:
        """Return the Jacobian by forward differences, `[num_rows, num_parameters]`.

        `residuals_at_x` is what `residuals(x)` returned.
        """
        shared, own = x[:_SHARED], x[_SHARED:].reshape(-1, _OWN)
        found = np.zeros((len(residuals_at_x), len(x)))
        # Parameters of the programs: each moves every row.
        for j in range(_SHARED):
            moved = shared.copy()
            moved[j] += robust.STEP
            found[:, j] = (self._residuals(moved, own) - residuals_at_x) / robust.STEP
        # Parameters of the types: one evaluation moves the same parameter of every type, and each row has one type.
        every = np.arange(len(residuals_at_x))
        for j in range(_OWN):
            moved = own.copy()
            moved[:, j] += robust.STEP
            found[every, _SHARED + self._type * _OWN + j] = (
                self._residuals(shared, moved) - residuals_at_x
            ) / robust.STEP
        return found

    def _residuals(self, shared: FloatArray, own: FloatArray) -> FloatArray:
        program = parameters.program(shared)
        fits = [parameters.device_fit(each) for each in own]
        return np.concatenate(
            [
                np.log(predicted_s(one, self._gpus[one.gpu], fits[self._at[one.gpu]], program) / one.seconds)
                for one in self._series
            ]
        )
