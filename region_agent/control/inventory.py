"""What an agent's region offers: its machine with its devices and engines, or the machines that a file declares.

Devices are the accelerators that the driver reports. A machine without one is divided into groups of cores, a group for
as many compute threads as a worker has.
"""

import socket
from collections.abc import Sequence
from dataclasses import replace

from periplus.process import host_limits
from periplus.values.machine import Device, DeviceFamily, EngineVersion, Inventory, Machine
from region_agent.config import AgentConfig
from region_agent.control.accelerators import Accelerators
from region_agent.control.declared_devices import declared
from region_agent.control.engines import InstalledEngine

MAX_TRAINER_THREADS = 8
"""Threads with which a trainer encodes weights beside a GPU, at most. Not measured: eight spans of 8 MiB are enough to
keep up with a training step if each core does what one core did on a first GPU (bench/results/2026-11-26-first-gpu.md).
"""


def inventory(
    config: AgentConfig, engines: Sequence[InstalledEngine], accelerators: Accelerators, now_s: float
) -> Inventory:
    """Return what the region offers now. It waits for the driver: call it in a thread.

    Raises: ConfigError for a file of devices that is wrong.
    """
    own = Machine(
        name=socket.gethostname(),
        num_cores=config.num_cores,
        memory_bytes=config.memory_bytes,
        devices=(),
        engines=tuple(EngineVersion(name=each.name, version=each.version) for each in engines),
        shares_cores=config.shared_cores,
    )
    if config.devices_file is not None:
        machines = declared(config.devices_file, own)
    else:
        devices = accelerators.read(now_s) or core_groups(config, host_limits.usable_cores())
        machines = (replace(own, devices=devices),)
    return Inventory(
        machines=machines,
        allows_own_code=config.allow_code,
        replica_store=config.replica_store,
        relays=config.relay,
    )


def trainer_threads(config: AgentConfig, own: Machine) -> int:
    """Return the number of threads of a trainer on the agent's own machine.

    Beside GPUs cores are free, and the trainer encodes weights with them: by default with half of its GPU's share.
    """
    if config.trainer_threads is not None:
        return config.trainer_threads
    num = sum(device.kind is DeviceFamily.CUDA for device in own.devices)
    share = min(MAX_TRAINER_THREADS, own.num_cores // (2 * num)) if num else 0
    return max(config.worker_threads, share)


def core_groups(config: AgentConfig, usable: Sequence[int]) -> tuple[Device, ...]:
    """Return the agent's cores in groups of `worker_threads`, of which the last may be smaller.

    `usable` are the ids of the cores on which the agent may run. Processes are bound to cores only if the agent has
    those to itself, and offers no more than there are.
    """
    size, bound = config.worker_threads, not config.shared_cores and config.num_cores <= len(usable)
    ids = tuple(usable[: config.num_cores]) if bound else ()
    starts = range(0, config.num_cores, size)
    return tuple(
        Device(index=place, kind=DeviceFamily.CPU, cores=ids[start : start + size])
        for place, start in enumerate(starts)
    )
