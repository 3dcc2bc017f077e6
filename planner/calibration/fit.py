"""Fits efficiencies of device types, and what measured programs have in common, to series of measured times.

All numbers at once: a residual depends on those of its own type and on the programs', so derivatives by the same number
of every type come from one evaluation. Each kind of time of a type weighs the same, however many rows it has.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration import parameters, robust
from planner.calibration.observations import FloatArray, Series, Term
from planner.calibration.predict import predicted_s
from planner.question.hardware import GpuType

STRENGTH = 0.004
"""Of priors against the mean error of a kind of time: one spread off weighs as 0.4 % of error."""
_ITERATIONS = 40
_INFORMED = 0.5
_SHARED, _OWN = len(parameters.PROGRAM), len(parameters.DEVICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Of all types at once. Vectors are `parameters.PROGRAM` and `parameters.DEVICE`."""

    program: FloatArray
    devices: Mapping[str, FloatArray]
    informed: Mapping[str, frozenset[str]]
    """Which numbers of a type its own rows say; the others are priors."""


def fit_all(series: Sequence[Series], gpus: Mapping[str, GpuType]) -> Fit:
    """Everything begins at its prior."""
    names = sorted({one.gpu for one in series})
    rows = _Rows(series, gpus, names)
    every = parameters.PROGRAM + parameters.DEVICE * len(names)
    centre, spread = parameters.centres(every), parameters.spreads(every)
    x = robust.minimise(
        rows.residuals, centre, centre=centre, spread=spread, weights=rows.weights, strength=STRENGTH,
        iterations=_ITERATIONS, slopes=rows.slopes,
    )  # fmt: skip
    r = rows.residuals(x)
    shares = robust.informed(r, rows.slopes(x, r), spread=spread, weights=rows.weights, strength=STRENGTH)
    own = {gpu: slice(_SHARED + at * _OWN, _SHARED + (at + 1) * _OWN) for at, gpu in enumerate(names)}
    return Fit(
        program=x[:_SHARED],
        devices={gpu: x[part] for gpu, part in own.items()},
        informed={gpu: _said(shares[part]) for gpu, part in own.items()},
    )


def _said(shares: FloatArray) -> frozenset[str]:
    return frozenset(each.name for each, share in zip(parameters.DEVICE, shares, strict=True) if share > _INFORMED)


class _Rows:
    """Residuals and their derivatives by a vector of the programs' numbers and then each type's."""

    def __init__(self, series: Sequence[Series], gpus: Mapping[str, GpuType], names: Sequence[str]) -> None:
        self._series = series
        self._gpus = gpus
        self._at = {gpu: at for at, gpu in enumerate(names)}
        self._type = np.concatenate([np.full(len(one), self._at[one.gpu]) for one in series])
        num: Counter[tuple[str, Term]] = Counter()
        for one in series:
            num[one.gpu, one.term] += len(one)
        self.weights = np.concatenate([np.full(len(one), 1 / num[one.gpu, one.term]) for one in series])

    def residuals(self, x: FloatArray) -> FloatArray:
        return self._residuals(x[:_SHARED], x[_SHARED:].reshape(-1, _OWN))

    def slopes(self, x: FloatArray, there: FloatArray) -> FloatArray:
        shared, own = x[:_SHARED], x[_SHARED:].reshape(-1, _OWN)
        found = np.zeros((len(there), len(x)))
        for j in range(_SHARED):
            moved = shared.copy()
            moved[j] += robust.STEP
            found[:, j] = (self._residuals(moved, own) - there) / robust.STEP
        every = np.arange(len(there))
        for j in range(_OWN):
            moved = own.copy()
            moved[:, j] += robust.STEP
            found[every, _SHARED + self._type * _OWN + j] = (self._residuals(shared, moved) - there) / robust.STEP
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
