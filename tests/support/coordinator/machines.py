"""Inventories of regions: a machine with groups of cores, or with accelerators."""

from periplus.values.machine import Device, DeviceFamily, EngineVersion, Inventory, Machine

TORCH = EngineVersion(name="torch", version="2.13.0")
L4 = "NVIDIA L4"


def machine(
    name: str = "h",
    *,
    groups: int = 1,
    accelerators: int = 0,
    model: str = L4,
    memory_bytes: int = 8 << 30,
    engines: tuple[EngineVersion, ...] = (TORCH,),
) -> Machine:
    """A machine of four cores, with that many groups of cores, or accelerators of that model in their place."""
    cards = (
        Device(index=i, kind=DeviceFamily.CUDA, model=model, uuid=f"GPU-{i}", memory_bytes=23034 << 20)
        for i in range(accelerators)
    )
    cores = (Device(index=i, kind=DeviceFamily.CPU) for i in range(groups))
    return Machine(
        name=name, num_cores=4, memory_bytes=memory_bytes, devices=tuple(cards) or tuple(cores), engines=engines
    )


def inventory(own: Machine, *others: Machine, allows_own_code: bool = False, replica_store: str = "") -> Inventory:
    return Inventory(machines=(own, *others), allows_own_code=allows_own_code, replica_store=replica_store)
