"""Estimates for device types without profiles, from the parameters of similar types that were profiled.

The estimate of a parameter is the median over the similar types. Which types are similar depends on the parameter:

- Arithmetic: cards of at most 80 W throttle; all others reach about the same share of their peak.
- TF32 arithmetic: cards of data centres, which have wide tensor cores, reach a smaller share than other cards.
- Memory and attention: types of the same architecture.
- Links: behind a switch the share of the nominal rate is alike. On PCIe, where copies pass through the host's memory,
  the absolute rate is alike and hardly depends on the nominal one.
- Everything else: all types.

If no profiled type is similar, all profiled types count; if none informs the parameter, its prior holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bench.planner_cases.calibration import parameters
from bench.planner_cases.calibration.fit import Fit
from bench.planner_cases.calibration.observations import FloatArray
from planner.problem.hardware import GpuType

LOW_POWER_W = 80.0
"""Power limit in watts up to which a card counts as throttling."""
SWITCHED_BYTES_PER_S = 100e9
"""Nominal rate from which the links of a machine count as NVLink rather than PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Datasheet properties of one device type that decide which types are similar."""

    gpu: GpuType
    arch: str
    power_w: float
    silicon: str = ""
    """Name of the chip if several types share one, otherwise empty."""

    @property
    def is_low_power(self) -> bool:
        """Whether the card throttles because of its low power limit."""
        return self.power_w <= LOW_POWER_W

    @property
    def is_switched(self) -> bool:
        """Whether the links of its machines are NVLink."""
        return self.gpu.link_bytes_per_s >= SWITCHED_BYTES_PER_S


SimilarityTest = Callable[[Traits, Traits], bool]
"""Test of whether two types are similar with respect to some parameter."""
# Tests of similarity: any two types; equally throttled types; types of one architecture; types with equal kinds of
# links.
_ANY: SimilarityTest = lambda a, b: True  # noqa: E731
_POWER: SimilarityTest = lambda a, b: a.is_low_power == b.is_low_power  # noqa: E731
_ARCH: SimilarityTest = lambda a, b: a.arch == b.arch  # noqa: E731
_LINK: SimilarityTest = lambda a, b: a.is_switched == b.is_switched  # noqa: E731
_TESTS: Mapping[str, tuple[SimilarityTest, ...]] = {
    "matmul_fraction": (_POWER, _ANY),
    "saturation_tokens": (_POWER, _ANY),
    "memory_fraction": (_ARCH, _ANY),
    "link_fraction": (_LINK, _ANY),
    "link_sharing": (_LINK, _ANY),
    "collective_latency_s": (_LINK, _ANY),
    "tensor32_fraction": (_LINK, _ANY),
    "tensor32_fraction_backward": (_LINK, _ANY),
    "attention_fraction": (_ARCH, _ANY),
    "attention_saturation_tokens": (_ARCH, _ANY),
    "attention_overhead_s": (_ARCH, _ANY),
}
"""Tests for each parameter, the strictest first. The first test that any informed type passes decides."""


def expected(gpu_name: str, fit: Fit, traits: Mapping[str, Traits]) -> FloatArray:
    """Return a vector of `parameters.DEVICE` for the type `gpu_name`, estimated from all other types in `fit`.

    A parameter that no other type informs has its prior's centre.
    """
    return np.array([_estimate(each, gpu_name, fit, traits) for each in parameters.DEVICE])


def completed(gpu_name: str, fit: Fit, traits: Mapping[str, Traits]) -> FloatArray:
    """Return the type's own parameters where its rows inform them, and estimates elsewhere."""
    estimates = expected(gpu_name, fit, traits)
    own = fit.devices.get(gpu_name)
    if own is None:
        return estimates
    is_informed = np.array([each.name in fit.informed[gpu_name] for each in parameters.DEVICE])
    return np.where(is_informed, own, estimates)


def similar_types(name: str, gpu_name: str, fit: Fit, traits: Mapping[str, Traits]) -> tuple[str, ...]:
    """Return the similar types whose median is the estimate of the parameter `name` of the type `gpu_name`."""
    known = [gpu for gpu in sorted(fit.devices) if gpu != gpu_name and name in fit.informed[gpu]]
    for is_similar in _TESTS.get(name, (_ANY,)):
        if found := tuple(gpu for gpu in known if is_similar(traits[gpu_name], traits[gpu])):
            return found
    return ()


def _estimate(parameter: parameters.Parameter, gpu_name: str, fit: Fit, traits: Mapping[str, Traits]) -> float:
    place = parameters.DEVICE.index(parameter)
    found = similar_types(parameter.name, gpu_name, fit, traits)
    if not found:
        return parameter.encoded(parameter.centre)
    values = np.array([fit.devices[gpu][place] for gpu in found])
    if parameter.name == "link_fraction" and not traits[gpu_name].is_switched:
        # On PCIe the absolute rate is alike, so the median is over log(fraction x nominal rate). A fraction is at most
        # 1.
        rates = values + np.log([traits[gpu].gpu.link_bytes_per_s for gpu in found])
        return min(0.0, float(np.median(rates)) - float(np.log(traits[gpu_name].gpu.link_bytes_per_s)))
    return float(np.median(values))
