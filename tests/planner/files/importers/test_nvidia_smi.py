import pytest

from periplus.errors import ConfigError
from planner.files.importers.nvidia_smi import PCIE_BYTES_PER_S, LinkClass, inventory, link_class, together

QUERY = """name, memory.total [MiB]
NVIDIA A100-SXM4-40GB, 40960 MiB
NVIDIA A100-SXM4-40GB, 40960 MiB
NVIDIA L4, 23034 MiB
"""
LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-6e4a7c3e-0000-0000-0000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6e4a7c3e-0000-0000-0000-000000000001)
GPU 2: NVIDIA L4 (UUID: GPU-6e4a7c3e-0000-0000-0000-000000000002)
"""
TABLE = """Sun Mar  1 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   31C    P0              71W / 700W |       1MiB / 81559MiB  |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          Off |   00000000:3B:00.0 Off |                    0 |
| N/A   33C    P0              70W / 700W |       1MiB / 81559MiB  |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   2  NVIDIA L4                      On  |   00000000:5B:00.0 Off |                  N/A |
| N/A   33C    P8              16W /  72W |       1MiB / 23034MiB  |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|    0   N/A  N/A      2212      G   /usr/lib/xorg/Xorg                              4MiB |
+-----------------------------------------------------------------------------------------+
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
        ("A100-40GB-SXM", 2, 1),
        ("L4", 1, 1),
    ]


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


def test_the_plain_table_is_read_where_its_names_are_whole() -> None:
    found = inventory(TABLE)
    assert [(each.gpu, each.gpus_per_machine) for each in found.machines] == [("H100-SXM", 2), ("L4", 1)]
    assert found.left_out == ()
    cut = inventory(TABLE.replace("|             Disabled |", "|              Enabled |", 1))
    assert [(each.gpu, each.gpus_per_machine) for each in cut.machines] == [("H100-SXM", 1), ("L4", 1)]
    assert cut.left_out == ("NVIDIA H100 80GB HBM3: cut into partitions",)
    small = inventory(TABLE.replace("81559MiB", "9728MiB"))
    assert [each.gpu for each in small.machines] == ["L4"]
    with pytest.raises(ConfigError, match=r"the name 'NVIDIA A100-SXM\.\.\.' is cut off .* give what `nvidia-smi -L`"):
        inventory(TABLE.replace("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM...   "))


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
