"""Fitted parameters as vectors: those of one device type, and those that the measured programs share.

Positive parameters are fitted as logarithms ("encoded"). Each has a prior with a centre and a spread: without
measurements the fit leaves it at the centre. Centres and spreads are chosen by hand.
"""

from dataclasses import dataclass, replace

import numpy as np

from bench.planner_cases.calibration.observations import FloatArray
from bench.planner_cases.calibration.predict import DeviceFit, Program
from planner.problem.hardware import Efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One fitted parameter with its prior.

    `spread` is that of the logarithm if `is_log` holds.
    """

    name: str
    centre: float
    spread: float
    is_log: bool = True

    def encoded(self, value: float) -> float:
        """Return the entry of a fitted vector that stands for `value`."""
        return float(np.log(value)) if self.is_log else value

    def decoded(self, x: float) -> float:
        """Return the value that an entry of a fitted vector stands for."""
        return float(np.exp(x)) if self.is_log else float(x)


EFFICIENCY = (
    Parameter(name="matmul_fraction", centre=0.75, spread=0.3),
    Parameter(name="saturation_tokens", centre=32.0, spread=0.7),
    Parameter(name="memory_fraction", centre=0.8, spread=0.2),
    Parameter(name="link_fraction", centre=0.6, spread=0.6),
    Parameter(name="layer_overhead_s", centre=30e-6, spread=0.6),
    Parameter(name="collective_latency_s", centre=10e-6, spread=0.6),
    Parameter(name="attention_fraction", centre=0.5, spread=0.3),
    Parameter(name="attention_saturation_tokens", centre=500.0, spread=0.5),
    Parameter(name="attention_overhead_s", centre=8e-6, spread=0.6),
    Parameter(name="link_sharing", centre=0.1, spread=1.0, is_log=False),
)
"""Parameters that become fields of `Efficiency`."""
DEVICE = (
    *EFFICIENCY,
    Parameter(name="tensor32_fraction", centre=0.65, spread=0.3),
    Parameter(name="tensor32_fraction_backward", centre=0.65, spread=0.3),
    Parameter(name="float32_fraction", centre=0.9, spread=0.3),
)
"""Parameters of one device type. Those beyond `EFFICIENCY` are only needed to explain float32 profiles."""
PROGRAM = tuple(
    Parameter(name=name, centre=centre, spread=1.0)
    for name, centre in (
        ("eager_hidden_passes", 14.0),
        ("score_passes", 6.0),
        ("score_passes_backward", 14.0),
        ("logit_passes", 6.0),
        ("logit_passes_backward", 4.0),
        ("host_s", 1e-3),
        ("grouped_cache_reads", 0.2),
        ("pair_fraction", 0.5),
        ("ring_fraction", 0.9),
    )
)
"""Parameters that all types share: fields of `predict.Program`."""


def centres(parameters: tuple[Parameter, ...]) -> FloatArray:
    """Return the encoded centres of the priors, `[num_parameters]`."""
    return np.array([each.encoded(each.centre) for each in parameters])


def spreads(parameters: tuple[Parameter, ...]) -> FloatArray:
    """Return the spreads of the priors, `[num_parameters]`."""
    return np.array([each.spread for each in parameters])


def decoded(parameters: tuple[Parameter, ...], x: FloatArray) -> dict[str, float]:
    """Return the values of a fitted vector by name."""
    return {each.name: each.decoded(value) for each, value in zip(parameters, x, strict=True)}


def device_fit(x: FloatArray) -> DeviceFit:
    """Return the efficiency of a device type from its fitted vector."""
    values = decoded(DEVICE, x)
    own = {each.name: values.pop(each.name) for each in EFFICIENCY}
    return DeviceFit(efficiency=Efficiency(**own), **values)


def program(x: FloatArray) -> Program:
    """Return the properties of the measured programs from their fitted vector."""
    return replace(Program(), **decoded(PROGRAM, x))
