"""Packing of units into machines. Units must be packed by size, large ones first.

In this order every placement that fits by count also fits machine by machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.problem.device_classes import DeviceClass

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Machine and devices of one unit."""

    machine: int
    """Index of the machine within its class, from 0."""
    devices: tuple[int, ...]


class PackedMachines:
    """Occupancy of one class's machines. Devices are handed out from the lowest on, so units stay aligned."""

    def __init__(self, at: DeviceClass) -> None:
        self.at = at
        self._used = np.zeros(at.num_machines, dtype=np.int64)

    def room(self, unit_gpus: int) -> Ints:
        """Return how many more units of that size each machine takes. All larger units must have seats already."""
        return (self.at.gpus_per_machine - self._used) // unit_gpus

    def take(self, unit_gpus: int, machines: Sequence[int]) -> list[Seat]:
        """Give one unit on each of these machines a seat, in this order."""
        seats = []
        for machine in machines:
            first = int(self._used[machine])
            assert first + unit_gpus <= self.at.gpus_per_machine
            seats.append(Seat(machine=int(machine), devices=tuple(range(first, first + unit_gpus))))
            self._used[machine] += unit_gpus
        return seats

    def compact(self, unit_gpus: int, num_units: int, rank: Ints) -> list[int]:
        """Return machines for units that do not communicate: the fullest machines first, then in order of `rank`."""
        room = self.room(unit_gpus)
        # Filling up machines that are in use keeps whole machines free for others. `lexsort` takes its last key first.
        order = np.lexsort((rank, -self._used))
        # Each machine as often as it has room, in that order, `[num_slots]`.
        slots = np.repeat(order, room[order])
        assert len(slots) >= num_units
        return [int(machine) for machine in slots[:num_units]]
