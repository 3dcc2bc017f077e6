"""Converts the regions that have joined, and the links measured between them, into a fleet file of the planner."""

from collections import Counter
from collections.abc import Iterable

from coordinator.client.listing import Tree
from periplus.errors import ConfigError
from periplus.net.convert import inventory_from_pb
from periplus.pb.v1 import control_pb2
from planner.devices.catalogue import gpu_name, gpu_types, is_whole
from planner.files.fleet_file import to_tree
from planner.problem.fleet import ONE_HOST_BYTES_PER_S, Fleet, Link, Machines, Region


def fleet_tree(fleet: control_pb2.Fleet, now_s: float) -> tuple[Tree, list[str]]:
    """Return the tree of a `periplus.fleet/1` file, and a sentence for each accelerator that it leaves out.

    Links that were never measured are absent from the tree.
    """
    left_out: list[str] = []
    regions = tuple(
        Region(
            name=each.name,
            machines=tuple(_machines(each.name, each.inventory, left_out)),
            fabric_bytes_per_s=ONE_HOST_BYTES_PER_S,
            num_cores=each.inventory.machines[0].num_cores,
            memory_bytes=each.inventory.machines[0].memory_bytes,
        )
        for each in fleet.regions
    )
    links = tuple(
        Link(
            src_region=each.src_region,
            dst_region=each.dst_region,
            rtt_s=each.rtt_s,
            bytes_per_s=each.throughput_bits_per_s / 8,
            age_s=round(max(0.0, now_s - each.measured_at_s), 3),
        )
        for each in fleet.links
        # A link without a measurement is listed with a throughput of 0.
        if each.throughput_bits_per_s > 0
    )
    return to_tree(Fleet(regions=regions, links=links, gpu_types=gpu_types())), left_out


def _machines(region: str, inventory: control_pb2.Inventory, left_out: list[str]) -> Iterable[Machines]:
    """Yield a region's machines by accelerators; append to `left_out` those that are unknown, broken or partitioned."""
    for machine in inventory_from_pb(inventory).machines:
        usable: Counter[str] = Counter()
        for device in machine.devices:
            if not device.is_accelerator:
                continue
            try:
                name = gpu_name(device.model)
            except ConfigError as error:
                left_out.append(f"{region}: {error}")
                continue
            if device.problem:
                left_out.append(f"{region}: device {device.index} of {machine.name}: {device.problem}")
            elif not is_whole(gpu_types()[name], device.memory_bytes):
                left_out.append(f"{region}: {device.model} with {device.memory_bytes} bytes is not what {name} has")
            else:
                usable[name] += 1
        for name, number in usable.items():
            yield Machines(gpu=name, gpus_per_machine=number, num_machines=1)
