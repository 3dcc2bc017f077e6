"""Converts the regions that have joined, and the links measured between them, into a fleet file of the planner."""

from collections import Counter
from collections.abc import Iterable

from coordinator.client.listing import Tree
from periplus.errors import ConfigError
from periplus.net.convert import inventory_from_pb
from periplus.pb.v1 import control_pb2
from periplus.values.machine import DeviceFamily
from planner.devices.catalogue import gpu_name, gpu_types, is_whole, type_of
from planner.files.fleet_file import to_tree
from planner.problem.fleet import FABRIC_LATENCY_S, ONE_HOST_BYTES_PER_S, Fleet, Link, Machines, Region
from planner.problem.hardware import GpuType


def fleet_tree(fleet: control_pb2.Fleet, now_s: float) -> tuple[Tree, list[str]]:
    """Return the tree of a `periplus.fleet/1` file, and a sentence for each accelerator that it leaves out.

    Links that were never measured are absent from the tree. Emulated accelerators are types of the file's own.
    """
    left_out: list[str] = []
    types = dict(gpu_types())
    regions = tuple(
        Region(
            name=each.name,
            machines=tuple(_machines(each.name, each.inventory, types, left_out)),
            fabric_bytes_per_s=each.inventory.fabric_bytes_per_s or ONE_HOST_BYTES_PER_S,
            fabric_latency_s=each.inventory.fabric_latency_s or FABRIC_LATENCY_S,
            num_cores=inventory_from_pb(each.inventory).num_cores,
            memory_bytes=inventory_from_pb(each.inventory).memory_bytes,
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
    return to_tree(Fleet(regions=regions, links=links, gpu_types=types)), left_out


def _machines(
    region: str, inventory: control_pb2.Inventory, types: dict[str, GpuType], left_out: list[str]
) -> Iterable[Machines]:
    """Yield a region's machines by accelerators and rent; add emulated types to `types`.

    Append to `left_out` those that are unknown, broken or partitioned.
    """
    for machine in inventory_from_pb(inventory).machines:
        usable: Counter[tuple[str, float]] = Counter()
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
            elif device.kind is DeviceFamily.EMULATED:
                gpu = type_of(device)
                # The least memory of all that are of the type.
                types[gpu.name] = min(types.get(gpu.name, gpu), gpu, key=lambda each: each.memory_bytes)
                usable[gpu.name, device.usd_per_hour] += 1
            elif not is_whole(gpu_types()[name], device.memory_bytes):
                left_out.append(f"{region}: {device.model} with {device.memory_bytes} bytes is not what {name} has")
            else:
                usable[name, device.usd_per_hour] += 1
        for (name, usd), number in usable.items():
            yield Machines(gpu=name, gpus_per_machine=number, num_machines=1, usd_per_gpu_hour=usd or None)
