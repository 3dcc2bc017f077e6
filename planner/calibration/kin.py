"""What is expected of a device type that nobody profiled: the numbers of its kin, the nearest types that somebody did.

Which types are near differs by number. Arithmetic: cards of at most 80 W throttle, all others reach much the same
share of their peak; in TF32 data-centre cards, whose tensor cores are wide, reach less than others. Memory: types of
the same architecture. Links: behind a switch a share of the nominal rate; on PCIe, where copies go through the host's
memory, an absolute rate that hardly depends on the nominal one. Attention: the same architecture. All else: all types.
Of several kin, the median.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.calibration import parameters
from planner.calibration.fit import Fit
from planner.calibration.observations import FloatArray
from planner.question.hardware import GpuType

LOW_POWER_W = 80.0
SWITCHED_BYTES_PER_S = 100e9
"""Nominal rate above which a machine's links are NVLink and not PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What kinship is told by, from the datasheet."""

    gpu: GpuType
    arch: str
    power_w: float
    silicon: str = ""
    """The chip, where several types share one; else empty."""

    @property
    def is_low_power(self) -> bool:
        return self.power_w <= LOW_POWER_W

    @property
    def is_switched(self) -> bool:
        return self.gpu.link_bytes_per_s >= SWITCHED_BYTES_PER_S


Kinship = Callable[[Traits, Traits], bool]
_ANY: Kinship = lambda a, b: True  # noqa: E731
_POWER: Kinship = lambda a, b: a.is_low_power == b.is_low_power  # noqa: E731
_ARCH: Kinship = lambda a, b: a.arch == b.arch  # noqa: E731
_LINK: Kinship = lambda a, b: a.is_switched == b.is_switched  # noqa: E731
_NEAREST: Mapping[str, tuple[Kinship, ...]] = {
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


def expected(of: str, fit: Fit, traits: Mapping[str, Traits]) -> FloatArray:
    """A vector of `parameters.DEVICE` for type `of`, from all other types in `fit`; priors where none says anything."""
    return np.array([_one(each, of, fit, traits) for each in parameters.DEVICE])


def completed(of: str, fit: Fit, traits: Mapping[str, Traits]) -> FloatArray:
    """The type's own numbers where its rows say them, else its kin's."""
    kin = expected(of, fit, traits)
    own = fit.devices.get(of)
    if own is None:
        return kin
    says = np.array([each.name in fit.informed[of] for each in parameters.DEVICE])
    return np.where(says, own, kin)


def kin(name: str, of: str, fit: Fit, traits: Mapping[str, Traits]) -> tuple[str, ...]:
    """The types whose median is expected of `of`'s number `name`."""
    known = [gpu for gpu in sorted(fit.devices) if gpu != of and name in fit.informed[gpu]]
    for near in _NEAREST.get(name, (_ANY,)):
        if found := tuple(gpu for gpu in known if near(traits[of], traits[gpu])):
            return found
    return ()


def _one(parameter: parameters.Parameter, of: str, fit: Fit, traits: Mapping[str, Traits]) -> float:
    at = parameters.DEVICE.index(parameter)
    found = kin(parameter.name, of, fit, traits)
    if not found:
        return parameter.encoded(parameter.centre)
    values = np.array([fit.devices[gpu][at] for gpu in found])
    if parameter.name == "link_fraction" and not traits[of].is_switched:
        rates = values + np.log([traits[gpu].gpu.link_bytes_per_s for gpu in found])
        return min(0.0, float(np.median(rates)) - float(np.log(traits[of].gpu.link_bytes_per_s)))
    return float(np.median(values))
