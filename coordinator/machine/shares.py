"""Which of a region's free devices each process of a placement gets.

A rollout worker has all of its devices on one machine. A trainer too, unless no machine has as many free: then it takes
several machines, as few as possible, and its rank 0 is on the one that gives most, or on the one that the plan names.
Processes that few machines have the engine for are placed first, then larger ones, each on the machine that it fills
best. Cores that few jobs hold come before others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import inf

from coordinator.state import PlacedProcess
from periplus.values.machine import MachineDevices

Places = tuple[MachineDevices, ...]
"""The machines of a process, that of its rank 0 first, with its devices there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a machine has free for one job.

    `devices` are the indices of its free devices, and `num_holders` how often other jobs hold these. `memory_bytes` is
    the memory that is free, infinite if that is no limit. A job may take more of a machine on which it `is_alone`,
    since the figures of what processes take are coarse. `engines` are the names of its inference engines.
    """

    machine: str
    devices: tuple[int, ...]
    num_holders: int = 0
    memory_bytes: float = inf
    is_alone: bool = True
    engines: frozenset[str] = frozenset()

    def without(self, devices: Sequence[int], num_bytes: float) -> "Offer":
        """Return what is left once a process of the job has these devices and this memory."""
        left = tuple(index for index in self.devices if index not in devices)
        return replace(self, devices=left, memory_bytes=self.memory_bytes - num_bytes)

    def has_room(self, process: PlacedProcess, num_devices: int) -> bool:
        """Return whether so many of a process's devices, with their part of its memory, can be here."""
        part_bytes = process.memory_bytes * num_devices / (process.num_devices or 1)
        return num_devices <= len(self.devices) and (self.is_alone or part_bytes <= self.memory_bytes)

    def rank(self, process: PlacedProcess) -> tuple[bool, int, int]:
        """Return the sort key of this machine for the whole process; the least is best."""
        is_short = process.memory_bytes > self.memory_bytes
        return is_short, self.num_holders, len(self.devices) - process.num_devices


def shared_out(
    offers: Sequence[Offer], wants: Mapping[str, PlacedProcess], trainer: str
) -> tuple[dict[str, Places], tuple[Offer, ...]] | None:
    """Return the places of each process, by task id, and what is left of the offers. `trainer` is the trainer's id.

    If the processes want more devices than there are, workers take turns on what the trainer leaves. None if a plan
    names devices that are not free, or a process fits no machine.
    """
    left = {offer.machine: offer for offer in offers}
    found: dict[str, Places] = {}

    def give(task_id: str, process: PlacedProcess, places: Places) -> None:
        found[task_id] = places
        num_devices = sum(len(place.devices) for place in places)
        for place in places:
            share = len(place.devices) / num_devices if num_devices else 1.0
            left[place.machine] = left[place.machine].without(place.devices, process.memory_bytes * share)

    for task_id, process in wants.items():
        if process.devices:
            machine = process.machine or offers[0].machine
            if machine not in left or not set(process.devices) <= set(left[machine].devices):
                return None
            give(task_id, process, (MachineDevices(machine, process.devices),))
    rest = {task_id: process for task_id, process in wants.items() if task_id not in found}
    if sum(process.num_devices for process in rest.values()) > sum(len(offer.devices) for offer in left.values()):
        for task_id, places in _by_turns(tuple(left.values()), offers, rest, trainer).items():
            give(task_id, rest[task_id], places)
        return found, tuple(left.values())
    able = {task_id: _able(tuple(left.values()), process) for task_id, process in rest.items()}
    largest = max((len(offer.devices) for offer in left.values()), default=0)

    def turn(task_id: str) -> tuple[bool, int, int, bool]:
        # Those that few machines have the engine for come first, then large ones. Who takes several machines is last.
        size = rest[task_id].num_devices
        return size > largest, len(able[task_id]), -size if len(offers) > 1 else 0, task_id != trainer

    for task_id in sorted(rest, key=turn):
        process, now = rest[task_id], [left[name] for name in able[task_id]]
        fitting = [offer for offer in now if offer.has_room(process, process.num_devices)]
        if fitting:
            best = min(fitting, key=lambda offer: offer.rank(process))
            give(task_id, process, (MachineDevices(best.machine, best.devices[: process.num_devices]),))
        elif task_id == trainer and process.num_devices > largest and (spread := _spread(now, process)):
            give(task_id, process, spread)
        else:
            return None
    return found, tuple(left.values())


def _able(offers: Sequence[Offer], process: PlacedProcess) -> list[str]:
    """Return the names of the machines on which a process may run as far as its plan and its engine say."""
    # An engine that no machine has said to have is tried anywhere.
    is_known = any(process.engine in offer.engines for offer in offers)
    spans = process.num_devices > max((len(offer.devices) for offer in offers), default=0)
    return [
        offer.machine
        for offer in offers
        if (process.machine in ("", offer.machine) or spans) and (not is_known or process.engine in offer.engines)
    ]


def _spread(offers: Sequence[Offer], process: PlacedProcess) -> Places:
    """Return the places of a process that no machine can take whole; none if the machines have no room for it."""
    ordered = sorted(offers, key=lambda offer: (offer.machine != process.machine, -len(offer.devices)))
    flat: list[tuple[str, int]] = []
    for offer in ordered:
        number = min(len(offer.devices), process.num_devices - len(flat))
        if offer.has_room(process, number):
            flat += [(offer.machine, index) for index in offer.devices[:number]]
    return _grouped(flat) if len(flat) == process.num_devices else ()


def _by_turns(
    left: Sequence[Offer], offers: Sequence[Offer], rest: Mapping[str, PlacedProcess], trainer: str
) -> dict[str, Places]:
    """Return the places of processes that share the devices of an idle region."""
    flat = [(offer.machine, index) for offer in left for index in offer.devices]
    own = rest[trainer].num_devices if trainer in rest else 0
    everything = [(offer.machine, index) for offer in offers for index in offer.devices]
    turns = cycle(flat[own:] or flat or everything)
    found = {}
    for task_id, process in rest.items():
        if task_id == trainer:
            found[task_id] = _grouped(flat[:own])
        else:
            # A worker that wants more than there are gets each once, and only those of one machine.
            taken = list(dict.fromkeys(islice(turns, process.num_devices)))
            found[task_id] = _grouped(taken)[:1] or (MachineDevices(offers[0].machine),)
    return found


def turns_with(tasks: Mapping[str, PlacedProcess], of_trainer: Places) -> dict[str, Places]:
    """Return the devices of the trainer that each worker uses by turns with it, by task id."""
    found: dict[str, Places] = {}
    left = list(of_trainer)
    for task_id, process in tasks.items():
        if not process.by_turns:
            continue
        if not any(len(place.devices) >= process.num_devices for place in left):
            left = list(of_trainer)
        place = next((each for each in left if len(each.devices) >= process.num_devices), left[0])
        found[task_id] = (MachineDevices(place.machine, place.devices[: process.num_devices]),)
        left[left.index(place)] = MachineDevices(place.machine, place.devices[process.num_devices :])
    return found


def _grouped(devices: Sequence[tuple[str, int]]) -> Places:
    by_machine: dict[str, list[int]] = {}
    for machine, index in devices:
        by_machine.setdefault(machine, []).append(index)
    return tuple(MachineDevices(machine, tuple(indices)) for machine, indices in by_machine.items())
