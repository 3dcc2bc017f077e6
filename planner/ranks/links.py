"""Rates between machines of a region, per device and in one direction: measured, or as the fleet states them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planner.cost.tables.cost_tables import CostTables
from planner.problem.device_classes import DeviceClass

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLinks:
    """Measured rates between machines, for regions that have measured them."""

    measured: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    """Rates in bytes per second by pair of class keys (or one key twice), `[num_machines_first, num_machines_second]`.
    Each is that of the slower direction. Pairs that are missing have the rates that the fleet states."""

    def rates_within(self, at: DeviceClass) -> Floats | None:
        """Return the rates between machines of one class. None if all are equal."""
        return self.measured.get((at.key, at.key))

    def rates_between(self, cost_tables: CostTables, a: DeviceClass, b: DeviceClass) -> Floats | float:
        """Return the rates between machines of `a` and machines of `b`, or one number if all are equal."""
        if (a.key, b.key) in self.measured:
            return self.measured[a.key, b.key]
        if (b.key, a.key) in self.measured:
            return self.measured[b.key, a.key].T
        return fleet_rate(cost_tables, a, b)


UNMEASURED = MachineLinks()
"""No measured rates: all links of a class are equal."""


def inside_rate(at: DeviceClass) -> float:
    """Return the bytes per second between devices of one machine."""
    return at.gpu.link_bytes_per_s * at.gpu.efficiency.link_fraction


def fleet_rate(cost_tables: CostTables, a: DeviceClass, b: DeviceClass) -> float:
    """Return the bytes per second between machines of two classes, or of one class, as the fleet states them.

    Between regions it is that of the slower direction; 0 without routes.
    """
    if a.region.name != b.region.name:
        there = cost_tables.network.route(a.region.name, b.region.name)
        back = cost_tables.network.route(b.region.name, a.region.name)
        return min(there.bytes_per_s, back.bytes_per_s) if there and back else 0.0
    if a.fabric != b.fabric and a.region.cross_fabric_bytes_per_s:
        return a.region.cross_fabric_bytes_per_s
    return min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
