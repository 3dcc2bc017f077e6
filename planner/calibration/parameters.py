"""The numbers that are fitted, as vectors: of one device type, and of the measured programs that all types share.

Positive numbers are fitted as logarithms. Each has a prior: a centre that nothing measured moves it from, and a spread.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.calibration.observations import FloatArray
from planner.calibration.predict import DeviceFit, Program
from planner.question.hardware import Efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number: its prior's centre and spread, of the logarithm where `is_log`."""

    name: str
    centre: float
    spread: float
    is_log: bool = True

    def encoded(self, value: float) -> float:
        return float(np.log(value)) if self.is_log else value

    def decoded(self, x: float) -> float:
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
DEVICE = (
    *EFFICIENCY,
    Parameter(name="tensor32_fraction", centre=0.65, spread=0.3),
    Parameter(name="tensor32_fraction_backward", centre=0.65, spread=0.3),
    Parameter(name="float32_fraction", centre=0.9, spread=0.3),
)
PROGRAM = tuple(
    Parameter(name=name, centre=centre, spread=1.0)
    for name, centre in (
        ("eager_hidden_passes", 14.0), ("score_passes", 6.0), ("score_passes_backward", 14.0), ("logit_passes", 6.0),
        ("logit_passes_backward", 4.0), ("host_s", 1e-3), ("grouped_cache_reads", 0.2), ("pair_fraction", 0.5),
        ("ring_fraction", 0.9),
    )
)  # fmt: skip


def centres(parameters: tuple[Parameter, ...]) -> FloatArray:
    return np.array([each.encoded(each.centre) for each in parameters])


def spreads(parameters: tuple[Parameter, ...]) -> FloatArray:
    return np.array([each.spread for each in parameters])


def decoded(parameters: tuple[Parameter, ...], x: FloatArray) -> dict[str, float]:
    return {each.name: each.decoded(value) for each, value in zip(parameters, x, strict=True)}


def device_fit(x: FloatArray) -> DeviceFit:
    values = decoded(DEVICE, x)
    own = {each.name: values.pop(each.name) for each in EFFICIENCY}
    return DeviceFit(efficiency=Efficiency(**own), **values)


def program(x: FloatArray) -> Program:
    return replace(Program(), **decoded(PROGRAM, x))
