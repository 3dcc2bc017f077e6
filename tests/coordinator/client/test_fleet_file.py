"""The fleet file that is exported from joined regions is one that the planner reads."""

from dataclasses import replace

from coordinator.client.fleet_file import fleet_tree
from periplus.net.convert import inventory_to_pb
from periplus.pb.v1 import control_pb2
from periplus.values.machine import Device, DeviceFamily
from planner.devices.catalogue import gpu_types
from planner.files.fleet_file import fleet_of
from planner.problem.fleet import FABRIC_LATENCY_S, ONE_HOST_BYTES_PER_S
from tests.support.coordinator.machines import inventory, machine

H100, MIB = "NVIDIA H100 80GB HBM3", 1 << 20


def cards(model: str, memory_bytes: int, number: int, first: int = 0, problem: str = "") -> tuple[Device, ...]:
    return tuple(
        Device(index=first + i, kind=DeviceFamily.CUDA, model=model, memory_bytes=memory_bytes, problem=problem)
        for i in range(number)
    )


def region(name: str, *devices: Device) -> control_pb2.Region:
    return control_pb2.Region(name=name, inventory=inventory_to_pb(inventory(replace(machine(), devices=devices))))


EU = (
    *cards(H100, 81559 * MIB, 8),
    *cards(H100, 9984 * MIB, 1, first=8),
    *cards("Abacus 9", 1 << 30, 1, first=9),
    *cards(H100, 81559 * MIB, 1, first=10, problem="it is lost"),
)
FLEET = control_pb2.Fleet(
    regions=[region("eu", *EU), region("us")],
    links=[
        control_pb2.Link(src_region="eu", dst_region="us", rtt_s=0.1, throughput_bits_per_s=8e8, measured_at_s=100.0),
        control_pb2.Link(src_region="us", dst_region="eu"),
    ],
)


def test_emulated_accelerators_are_types_of_their_own_and_rents_are_kept() -> None:
    emulated = Device(index=0, kind=DeviceFamily.EMULATED, model="L4", slowdown=2000.0, usd_per_hour=0.5)
    dear = replace(cards(H100, 81559 * MIB, 1)[0], usd_per_hour=2.5)
    offered = (emulated, replace(emulated, index=1, memory_bytes=1 << 30), dear)
    tree, left_out = fleet_tree(control_pb2.Fleet(regions=[region("eu", *offered)]), now_s=0.0)
    fleet = fleet_of(tree, "export")
    assert left_out == []
    assert [(each.gpu, each.num_gpus, each.usd_per_gpu_hour) for each in fleet.regions[0].machines] == [
        ("emulated-L4-2000", 2, 0.5),
        ("H100-SXM", 1, 2.5),
    ]
    slow, fast = fleet.gpu_types["emulated-L4-2000"], gpu_types()["L4"]
    assert slow.matmul_flop_per_s == fast.matmul_flop_per_s / 2000
    assert slow.memory_bytes == 1 << 30


def test_the_planner_reads_what_is_exported() -> None:
    tree, left_out = fleet_tree(FLEET, now_s=160.0)
    fleet = fleet_of(tree, "export")
    eu, us = fleet.regions
    assert [(each.gpu, each.gpus_per_machine, each.num_machines) for each in eu.machines] == [("H100-SXM", 8, 1)]
    assert fleet.gpu_types[us.machines[0].gpu].is_cpu
    (link,) = fleet.links
    assert (link.src_region, link.dst_region, link.rtt_s, link.bytes_per_s, link.age_s) == ("eu", "us", 0.1, 1e8, 60.0)
    assert len(left_out) == 3
    assert "not what H100-SXM has" in left_out[0]
    assert "'Abacus 9' is no known accelerator" in left_out[1]
    assert left_out[2] == "eu: device 10 of h: it is lost"


def test_the_network_between_the_machines_of_a_region_is_exported() -> None:
    found = region("eu", *cards(H100, 81559 * MIB, 8))
    found.inventory.machines.append(found.inventory.machines[0])
    found.inventory.fabric_bytes_per_s, found.inventory.fabric_latency_s = 3e9, 1e-4
    tree, _ = fleet_tree(control_pb2.Fleet(regions=[found, region("us")]), now_s=0.0)
    eu, us = fleet_of(tree, "export").regions
    assert (eu.fabric_bytes_per_s, eu.fabric_latency_s) == (3e9, 1e-4)
    assert (us.fabric_bytes_per_s, us.fabric_latency_s) == (ONE_HOST_BYTES_PER_S, FABRIC_LATENCY_S)
