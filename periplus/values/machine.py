"""A region's machines and their devices, as agents report them and the coordinator hands devices out.

A *device* is what a process computes with and holds for itself: an accelerator, or a group of CPU cores of a machine
that has no accelerator.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from periplus.values.profile import Profile

BFLOAT16_CAPABILITY = (8, 0)
"""Compute capability from which NVIDIA's GPUs multiply in bfloat16: Ampere. A V100 has 7.0 and a T4 7.5."""


class DeviceFamily(StrEnum):
    """What a device is: a CUDA accelerator, CPU cores, or an accelerator that cores stand in for."""

    CUDA = "cuda"
    EMULATED = "emulated"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a machine.

    `index` is its number in the machine: for an accelerator the driver's, for a group of cores its place in the list.
    `model` is the accelerator's name as its driver says it; empty for cores. `memory_bytes` is the accelerator's own
    memory; 0 for cores, which use the machine's. `cores` are the ids of the logical CPUs to which a process of this
    device is bound; empty if it may run on any. `problem` says why the device cannot be used, and is empty if it can;
    `problem_s` is for how many seconds it has been so. `has_nvlink` says whether any of its links to other accelerators
    is an NVLink. `slowdown` is by how many times an emulated device is slower than its model; 0 for all others.
    `usd_per_hour` is its rent; 0 if it is not known.
    """

    index: int
    kind: DeviceFamily
    model: str = ""
    uuid: str = ""
    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    driver: str = ""
    has_nvlink: bool = False
    problem: str = ""
    problem_s: float = 0.0
    slowdown: float = 0.0
    usd_per_hour: float = 0.0

    @property
    def is_accelerator(self) -> bool:
        """Whether the device is an accelerator, real or emulated, which no two jobs share."""
        return self.kind is not DeviceFamily.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """An inference engine of a machine, by its name in a job's `engine.name`, and its version."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine of a region, with what it offers to jobs.

    `has_launcher` says whether the region's agent can start processes on it, and `shares_cores` whether processes of
    other agents compute on its cores too.
    """

    name: str
    num_cores: int
    memory_bytes: int
    devices: tuple[Device, ...]
    engines: tuple[EngineVersion, ...] = ()
    has_launcher: bool = True
    shares_cores: bool = False


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """Devices of one machine, by their indices there."""

    machine: str
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a region offers: its machines, the agent's own first, and whether jobs may run their users' own code.

    `replica_store` is the URL at which jobs may keep replicas of their checkpoints in this region, or empty.
    `profiles` were measured on the agent's own machine. `relays` says whether its gateway passes bytes on to regions
    whose gateways cannot be dialled. `fabric_bytes_per_s` is what a device can send to another machine of the region,
    and `fabric_latency_s` half of a round trip between two machines; 0 with one machine, and if they are not known.
    """

    machines: tuple[Machine, ...]
    allows_own_code: bool = False
    replica_store: str = ""
    profiles: tuple[Profile, ...] = ()
    relays: bool = False
    fabric_bytes_per_s: float = 0.0
    fabric_latency_s: float = 0.0

    @property
    def own(self) -> Machine:
        """The machine on which the agent runs."""
        return self.machines[0]

    @property
    def usable(self) -> tuple[Machine, ...]:
        """The machines on which the agent can start processes."""
        return tuple(machine for machine in self.machines if machine.has_launcher)

    @property
    def num_cores(self) -> int:
        """Cores of all machines on which processes can be started."""
        return sum(machine.num_cores for machine in self.usable)

    @property
    def memory_bytes(self) -> int:
        """Memory of all machines on which processes can be started; 0 if one of them states none."""
        sizes = [machine.memory_bytes for machine in self.usable]
        return sum(sizes) if all(sizes) else 0

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines that at least one of these machines has."""
        return tuple(sorted({engine.name for machine in self.usable for engine in machine.engines}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The fastest that an emulated device may work, in seconds a token; 0 means as fast as the machine is.

    A rollout worker spends `prefill_s` on each token of a prompt and `decode_s` on each sampled token, summed over all
    its requests. A trainer spends `training_s` on each token of prompts and completions, once for each epoch. Work that
    took longer is not slowed. Raises: ValueError for a pace that is negative or not finite.
    """

    prefill_s: float
    decode_s: float
    training_s: float

    def __post_init__(self) -> None:
        if not all(isfinite(each_s) and each_s >= 0 for each_s in (self.prefill_s, self.decode_s, self.training_s)):
            raise ValueError(f"{self} is no pace: give finite seconds a token, 0 or more")

    def shared(self, num_processes: int) -> "Pace":
        """Return the pace of one of so many processes that have equal parts of the device's time."""
        return Pace(
            prefill_s=self.prefill_s * num_processes,
            decode_s=self.decode_s * num_processes,
            training_s=self.training_s * num_processes,
        )


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """What a region has for one more job: how many devices are free, and how many it has that can be used.

    `memory_bytes` is the host memory that is planned for no other job; 0 if memory is not a limit.
    """

    free: int
    usable: int
    memory_bytes: int = 0

    def has_room(self, wanted: int) -> bool:
        """Return whether processes that want so many devices fit: side by side, or sharing an idle machine."""
        return wanted <= self.free or self.free == self.usable > 0
