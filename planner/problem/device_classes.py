"""Device classes: devices of equal region, type, machine size, price, spot and fabric. Members are interchangeable."""

from dataclasses import dataclass

from planner.problem.fleet import Fleet, Region
from planner.problem.hardware import GpuType

MANY_CLASSES = 12
"""Number of device classes above which a fleet counts as one of many classes. Searches then look at fewer or simpler
variants first. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """Equal machines of one region. `region` has the rates of its networks."""

    key: str
    """Name of the class: `REGION/GPU/SIZE`, then `/spot` and `/FABRIC` if they apply."""
    region: Region
    gpu: GpuType
    gpus_per_machine: int
    num_machines: int
    usd_per_gpu_hour: float | None
    is_spot: bool
    fabric: str
    fabric_bytes_per_s: float
    """Rate of one device to other machines of the region, in one direction."""

    @property
    def training_gpu(self) -> GpuType:
        """The device type with the efficiency that training and scoring have on it."""
        return self.gpu.for_training

    @property
    def num_gpus(self) -> int:
        """Number of devices of the class."""
        return self.gpus_per_machine * self.num_machines

    def num_units(self, unit_gpus: int) -> int:
        """Return how many units of that size the class holds when it is empty."""
        return self.num_machines * (self.gpus_per_machine // unit_gpus)


def classes_of(fleet: Fleet) -> tuple[DeviceClass, ...]:
    """Return the device classes of a fleet, sorted by key.

    Machines that differ only in price or network rate are classes of their own, numbered in order (`#2`, ...).
    """
    merged: dict[tuple[str, str, int, bool, str, float | None, float], int] = {}
    for region in fleet.regions:
        for machines in region.machines:
            price = machines.usd_per_gpu_hour
            rate = min(region.fabric_bytes_per_s, machines.network_bytes_per_s or region.fabric_bytes_per_s)
            at = (region.name, machines.gpu, machines.gpus_per_machine, machines.is_spot, machines.fabric, price, rate)
            # Equal machines of several entries are one class.
            merged[at] = merged.get(at, 0) + machines.num_machines
    regions = {region.name: region for region in fleet.regions}
    classes: list[DeviceClass] = []
    taken: dict[str, int] = {}
    # Sorted, so that the numbers of equal names do not depend on the order of the file. None has no order and counts as
    # 0.
    for at, num in sorted(merged.items(), key=lambda item: (*item[0][:5], item[0][5] or 0.0, item[0][6])):
        name, gpu, size, is_spot, fabric, price, rate = at
        plain = "/".join([name, gpu, str(size), *(["spot"] if is_spot else []), *([fabric] if fabric else [])])
        taken[plain] = taken.get(plain, 0) + 1
        classes.append(
            DeviceClass(
                key=plain if taken[plain] == 1 else f"{plain}#{taken[plain]}",
                region=regions[name],
                gpu=fleet.gpu_types[gpu],
                gpus_per_machine=size,
                num_machines=num,
                usd_per_gpu_hour=price,
                is_spot=is_spot,
                fabric=fabric,
                fabric_bytes_per_s=rate,
            )
        )
    return tuple(sorted(classes, key=lambda each: each.key))


def fits(device_class: DeviceClass, units: dict[int, int]) -> bool:
    """Return whether the given number of units of each size fit into the class's machines. Sizes are powers of two.

    `units` maps size to number. See `planner.answer.placement` for the rule.
    """
    held = 0
    for size in sorted(units, reverse=True):
        # Units of at least this size cover each machine in multiples of it, since sizes are powers of two.
        held += units[size] * size
        if held > device_class.num_machines * (device_class.gpus_per_machine // size) * size:
            return False
    return True
