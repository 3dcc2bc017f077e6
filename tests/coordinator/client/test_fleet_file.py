"""The fleet file that is exported from joined regions is one that the planner reads."""

from coordinator.client.fleet_file import fleet_tree
from periplus.pb.v1 import control_pb2
from planner.files.fleet_file import fleet_of

H100 = control_pb2.Accelerators(name="NVIDIA H100 80GB HBM3", memory_bytes=81559 << 20, num=8)
CUT = control_pb2.Accelerators(name="NVIDIA H100 80GB HBM3", memory_bytes=9984 << 20, num=7)
ODD = control_pb2.Accelerators(name="Abacus 9", memory_bytes=1 << 30, num=1)


def region(name: str, *accelerators: control_pb2.Accelerators) -> control_pb2.Region:
    inventory = control_pb2.Inventory(num_cores=4, memory_bytes=8 << 30, hostname="h", accelerators=accelerators)
    return control_pb2.Region(name=name, inventory=inventory)


FLEET = control_pb2.Fleet(
    regions=[region("eu", H100, CUT, ODD), region("us")],
    links=[
        control_pb2.Link(src_region="eu", dst_region="us", rtt_s=0.1, throughput_bits_per_s=8e8, measured_at_s=100.0),
        control_pb2.Link(src_region="us", dst_region="eu"),
    ],
)


def test_the_planner_reads_what_is_exported() -> None:
    tree, left_out = fleet_tree(FLEET, now_s=160.0)
    fleet = fleet_of(tree, "export")
    eu, us = fleet.regions
    assert [(each.gpu, each.gpus_per_machine, each.num_machines) for each in eu.machines] == [("H100-SXM", 8, 1)]
    assert fleet.gpu_types[us.machines[0].gpu].is_cpu
    (link,) = fleet.links
    assert (link.src_region, link.dst_region, link.rtt_s, link.bytes_per_s, link.age_s) == ("eu", "us", 0.1, 1e8, 60.0)
    assert len(left_out) == 2
    assert "not what H100-SXM has" in left_out[0]
    assert "'Abacus 9' is no known accelerator" in left_out[1]
