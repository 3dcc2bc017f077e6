"""Devices that an operator declares in a file (`periplus agent run --devices FILE`), in place of those that are found.

schema: periplus.devices/1
machines:
  - devices:                      # the first machine is the agent's own
      - {kind: cuda, index: 0, model: NVIDIA L4, memory_gib: 22.5}
      - {kind: cuda, index: 1, model: NVIDIA L4, memory_gib: 22.5}
  - name: node-2                  # another machine of the region, on which this agent can start nothing yet
    num_cores: 16
    memory_gib: 64
    devices:
      - {kind: cpu, cores: [0, 1, 2, 3]}

An emulated device (`{kind: emulated, model: L4, slowdown: 2000}`) is an accelerator that this machine's cores stand in
for. Processes on it work for real, and then wait until the accelerator would be done, times the slowdown.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from periplus.config.loading import Config, check_schema, read_yaml, validate
from periplus.errors import ConfigError
from periplus.values.machine import Device, DeviceFamily, Machine

SCHEMA = "periplus.devices/1"
"""Name and version of the format of device files."""

_GIB = 1 << 30


class DeviceEntry(Config):
    """One device of a machine."""

    kind: Literal["cuda", "cpu", "emulated"]
    """cuda: an NVIDIA accelerator. cpu: a group of cores. emulated: an accelerator that cores stand in for."""
    index: int | None = Field(default=None, ge=0, le=1023)
    """Number that the driver gives an accelerator. null: its place in the list."""
    uuid: str = Field(default="", max_length=80)
    """What the driver calls an accelerator, such as GPU-8a56...; a process is shown its device by it, or by the index
    if it is empty."""
    model: str = Field(default="", max_length=80)
    """Name of an accelerator, as its driver or the planner's catalogue has it."""
    memory_gib: float = Field(default=0.0, ge=0.0, le=4096.0)
    """Memory of an accelerator in GiB."""
    slowdown: float = Field(default=0.0, ge=0.0, le=1e9)
    """How many times slower an emulated device is than its model. A model of the planner's catalogue is needed."""
    usd_per_hour: float = Field(default=0.0, ge=0.0, le=1e6)
    """Rent of the device in dollars an hour, for plans in dollars. 0: not known."""
    cores: tuple[int, ...] = Field(default=(), max_length=4096)
    """Ids of the logical CPUs of a group of cores. Empty: the process may run on any core."""


class MachineEntry(Config):
    """One machine of the region."""

    name: str = Field(default="", max_length=80)
    """Name of the machine. Empty for the first, which is the agent's own."""
    num_cores: int | None = Field(default=None, ge=1, le=65536)
    """Cores that the machine offers. Only for other machines: the agent's own has --cores."""
    memory_gib: float | None = Field(default=None, gt=0.0, le=1 << 20)
    """Memory that the machine offers, in GiB. Only for other machines: the agent's own has --memory-gib."""
    devices: tuple[DeviceEntry, ...] = Field(min_length=1, max_length=1024)
    """Devices of the machine."""


class DevicesFile(Config):
    """Devices of the machines of one region."""

    machines: tuple[MachineEntry, ...] = Field(min_length=1, max_length=1024)
    """Machines of the region, the agent's own first."""


def declared(path: Path, own: Machine) -> tuple[Machine, ...]:
    """Return the machines that a file declares. `own` is the agent's machine, whose devices are replaced.

    Raises: ConfigError if the file cannot be read, is no such file, or says something that cannot be.
    """
    tree = check_schema(read_yaml(path), SCHEMA, str(path))
    file = validate(DevicesFile, tree, str(path), {})
    machines = [
        _machine(entry, own if place == 0 else None, f"{path}: machines[{place}]")
        for place, entry in enumerate(file.machines)
    ]
    names = [machine.name for machine in machines]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{path}: two machines are called {min(twice)}; give each a name of its own")
    return tuple(machines)


def _machine(entry: MachineEntry, own: Machine | None, where: str) -> Machine:
    devices = tuple(_device(each, place, f"{where}.devices[{place}]") for place, each in enumerate(entry.devices))
    keys = [(each.kind, each.index) for each in devices]
    if twice := {key for key in keys if keys.count(key) > 1}:
        kind, index = min(twice)
        raise ConfigError(f"{where}: two {kind} devices have the index {index}; give each one of its own")
    if own is not None:
        if entry.name not in ("", own.name) or entry.num_cores is not None or entry.memory_gib is not None:
            raise ConfigError(
                f"{where}: the first machine is the agent's own, {own.name}: leave its name out, and give its cores "
                "and memory with --cores and --memory-gib"
            )
        return replace(own, devices=devices)
    if not entry.name or entry.num_cores is None or entry.memory_gib is None:
        raise ConfigError(f"{where}: a machine beside the agent's own needs name, num_cores and memory_gib")
    return Machine(
        name=entry.name,
        num_cores=entry.num_cores,
        memory_bytes=int(entry.memory_gib * _GIB),
        devices=devices,
        has_launcher=False,
    )


def _device(entry: DeviceEntry, place: int, where: str) -> Device:
    if entry.kind == "cuda" and entry.cores:
        raise ConfigError(f"{where}: an accelerator has no cores; leave them out, or make it kind: cpu")
    if entry.kind == "cuda" and not (entry.model and entry.memory_gib):
        raise ConfigError(f"{where}: an accelerator needs model and memory_gib, as `nvidia-smi` shows them")
    if entry.kind == "emulated" and (not entry.model or entry.slowdown <= 0 or entry.uuid or entry.cores):
        raise ConfigError(
            f"{where}: an emulated device needs model, such as L4, and slowdown above 0, and has neither uuid nor cores"
        )
    if entry.kind != "emulated" and entry.slowdown:
        raise ConfigError(f"{where}: only an emulated device has a slowdown; leave it out, or make it kind: emulated")
    if entry.kind == "cpu" and (entry.model or entry.uuid or entry.memory_gib):
        raise ConfigError(
            f"{where}: a group of cores has neither model, uuid nor memory_gib of its own; leave them out"
        )
    return Device(
        index=place if entry.index is None else entry.index,
        kind=DeviceFamily(entry.kind),
        model=entry.model,
        uuid=entry.uuid,
        memory_bytes=int(entry.memory_gib * _GIB),
        cores=entry.cores,
        slowdown=entry.slowdown,
        usd_per_hour=entry.usd_per_hour,
    )
