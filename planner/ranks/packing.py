"""Machines for units: larger units first, so that every placement that fits by count also fits machine by machine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.classes import DeviceClass

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one unit is."""

    machine: int
    """Of the class's machines, from 0."""
    devices: tuple[int, ...]


class Machines:
    """What is taken of one class's machines. Devices are handed out from the lowest on, so units stay aligned."""

    def __init__(self, at: DeviceClass) -> None:
        self.at = at
        self._used = np.zeros(at.num_machines, dtype=np.int64)

    def room(self, unit_gpus: int) -> Ints:
        """Units of that size that each machine still takes. Larger units are all seated before."""
        return (self.at.gpus_per_machine - self._used) // unit_gpus

    def take(self, unit_gpus: int, machines: Sequence[int]) -> list[Seat]:
        """One unit on each of these machines, in this order."""
        seats = []
        for machine in machines:
            first = int(self._used[machine])
            assert first + unit_gpus <= self.at.gpus_per_machine
            seats.append(Seat(machine=int(machine), devices=tuple(range(first, first + unit_gpus))))
            self._used[machine] += unit_gpus
        return seats

    def compact(self, unit_gpus: int, num_units: int, rank: Ints) -> list[int]:
        """Machines for units that do not talk to each other: the fullest machines first, then in order of `rank`."""
        room = self.room(unit_gpus)
        order = np.lexsort((rank, -self._used))
        slots = np.repeat(order, room[order])
        assert len(slots) >= num_units
        return [int(machine) for machine in slots[:num_units]]
