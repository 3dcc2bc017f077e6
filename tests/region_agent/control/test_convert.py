"""What the session with the coordinator carries is converted without loss."""

import pytest

from periplus.errors import WireError
from periplus.pb.v1 import control_pb2
from region_agent.control.convert import inventory_to_pb, task_from_pb
from region_agent.control.engines import InstalledEngine
from region_agent.control.inventory import OfferedAccelerators, OfferedInventory


def test_an_inventory_travels_with_each_kind_of_its_accelerators() -> None:
    offered = OfferedInventory(
        num_cores=8,
        memory_bytes=1 << 36,
        hostname="node-7",
        accelerators=(
            OfferedAccelerators(name="NVIDIA H100 80GB HBM3", memory_bytes=81559 << 20, num=8),
            OfferedAccelerators(name="NVIDIA L4", memory_bytes=23034 << 20, num=1),
        ),
        engines=(InstalledEngine(name="vllm", version="0.32.0", python="/opt/vllm/bin/python"),),
    )
    sent = control_pb2.Inventory.FromString(inventory_to_pb(offered).SerializeToString())
    assert (sent.num_cores, sent.memory_bytes, sent.hostname) == (8, 1 << 36, "node-7")
    assert [(each.name, each.memory_bytes, each.num) for each in sent.accelerators] == [
        ("NVIDIA H100 80GB HBM3", 81559 << 20, 8),
        ("NVIDIA L4", 23034 << 20, 1),
    ]
    assert [(each.name, each.version) for each in sent.engines] == [("vllm", "0.32.0")]


@pytest.mark.parametrize("job_id", ["", ".", "..", "../j", "/j", "a/b", "a\0b"])
def test_a_job_id_that_is_no_name_of_a_directory_is_refused(job_id: str) -> None:
    with pytest.raises(WireError, match="component of a path"):
        task_from_pb(control_pb2.Task(job_id=job_id))
