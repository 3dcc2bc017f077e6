"""What two machines of a region reach each other at, of one device in one direction."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planner.classes import DeviceClass
from planner.cost.pools import Prices

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLinks:
    """Measured rates between machines, where a region has measured them."""

    measured: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    """By two class keys in order (or one twice): machines of the first x machines of the second; bytes a second, the
    slower direction. What is not here is as the fleet says."""

    def within(self, at: DeviceClass) -> Floats | None:
        """Between machines of one class; None where all are equal."""
        return self.measured.get((at.key, at.key))

    def between(self, prices: Prices, a: DeviceClass, b: DeviceClass) -> Floats | float:
        """Machines of `a` x machines of `b`; one number where all are equal."""
        if (a.key, b.key) in self.measured:
            return self.measured[a.key, b.key]
        if (b.key, a.key) in self.measured:
            return self.measured[b.key, a.key].T
        return fleet_rate(prices, a, b)


UNMEASURED = MachineLinks()


def inside_rate(at: DeviceClass) -> float:
    """Between devices of one machine."""
    return at.gpu.link_bytes_per_s * at.gpu.efficiency.link_fraction


def fleet_rate(prices: Prices, a: DeviceClass, b: DeviceClass) -> float:
    """Between machines of two classes, or of one, by what the fleet says of its regions."""
    if a.region.name != b.region.name:
        there = prices.network.route(a.region.name, b.region.name)
        back = prices.network.route(b.region.name, a.region.name)
        return min(there.bytes_per_s, back.bytes_per_s) if there and back else 0.0
    if a.fabric != b.fabric and a.region.cross_fabric_bytes_per_s:
        return a.region.cross_fabric_bytes_per_s
    return min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
