import pytest

from periplus.errors import ConfigError
from planner.importers.nvidia_smi import PCIE_BYTES_PER_S, LinkClass, inventory, link_class, together

QUERY = """name, memory.total [MiB]
NVIDIA A100-SXM4-40GB, 40960 MiB
NVIDIA A100-SXM4-40GB, 40960 MiB
NVIDIA L4, 23034 MiB
"""
LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-6e4a7c3e-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6e4a7c3e-0000-0000-0000-000000000001)
GPU 2: NVIDIA L4 (UUID: GPU-6e4a7c3e-0000-0000-0000-000000000002)
"""


def topology(between: str, num: int = 4, other: str | None = None) -> str:
    """Every pair linked by `between`, those of the first and the last device by `other`."""
    head = "\t".join(["", *(f"GPU{i}" for i in range(num)), "NIC0", "CPU Affinity", "NUMA Affinity"])
    lines = [f"\x1b[4m{head}\x1b[0m"]
    for i in range(num):
        cells = [" X " if i == j else (other if other and {i, j} == {0, num - 1} else between) for j in range(num)]
        lines.append("\t".join([f"GPU{i}", *cells, "SYS", "0-23", "0"]))
    lines.append("\t".join(["NIC0", *["SYS"] * num, " X "]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing a set of # NVLinks"])


@pytest.mark.parametrize("text", [QUERY, LISTING, QUERY.partition("\n")[2]])
def test_accelerators_are_counted_by_type(text: str) -> None:
    machines = inventory(text).machines
    assert [(each.gpu, each.gpus_per_machine, each.num_machines) for each in machines] == [
        ("A100-40GB-SXM", 2, 1), ("L4", 1, 1),
    ]  # fmt: skip


def test_cards_cut_into_partitions_are_left_out_and_named() -> None:
    listing = LISTING + "  MIG 1g.5gb      Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)\n"
    found = inventory(listing)
    assert [each.gpu for each in found.machines] == ["A100-40GB-SXM"]
    assert found.left_out == ("NVIDIA L4: cut into partitions",)
    found = inventory("NVIDIA A100-SXM4-40GB, 4864 MiB\nNVIDIA L4, 23034 MiB")
    assert [each.gpu for each in found.machines] == ["L4"]
    assert "4864 MiB: not what A100-40GB-SXM has" in found.left_out[0]


@pytest.mark.parametrize(
    ("text", "link"),
    [
        (topology("NV12"), LinkClass.NVLINK),
        (topology("NV18", 8), LinkClass.NVLINK),
        (topology("NV4", other="SYS"), LinkClass.MIXED),
        (topology("PIX"), LinkClass.PCIE),
        (topology("SYS", 2), LinkClass.PCIE),
    ],
)
def test_links_are_told_apart(text: str, link: LinkClass) -> None:
    assert link_class(text) is link


def test_a_machine_whose_links_are_slower_than_its_cards_has_a_type_of_its_own() -> None:
    found = inventory(QUERY, topology("SYS", 3))
    a100, l4 = found.machines
    assert (a100.gpu, l4.gpu) == ("A100-40GB-SXM@pcie", "L4")
    (gpu,) = found.gpu_types
    assert (gpu.name, gpu.link_bytes_per_s) == ("A100-40GB-SXM@pcie", PCIE_BYTES_PER_S)
    assert inventory(QUERY, topology("NV12", 3)).gpu_types == ()


def test_equal_machines_are_counted() -> None:
    found = together([inventory(QUERY), inventory(LISTING), inventory(QUERY, num_machines=2)])
    assert [(each.gpu, each.num_machines) for each in found.machines] == [("A100-40GB-SXM", 4), ("L4", 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no accelerator in its output"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "must be a name and a memory",
        ),
        ("name, memory.total [MiB]\nNVIDIA A100-SXM4-40GB, [N/A]\n", "must be a name and a memory size"),
        ("NVIDIA B9000, 99 MiB", "'NVIDIA B9000' is no known accelerator"),
    ],
)
def test_what_is_no_inventory_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inventory(text)


@pytest.mark.parametrize("text", ["", topology("NV12", 1), topology("NV12").replace("NV12\t", "")])
def test_a_matrix_that_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give its whole output"):
        link_class(text)
