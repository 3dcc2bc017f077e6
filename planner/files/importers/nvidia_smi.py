"""Reader of what `nvidia-smi` prints on one machine: its accelerators, and how they are linked.

Four outputs are understood: `--query-gpu=name,memory.total --format=csv`, `-L`, the table that it prints without
arguments, and `topo -m`. Partitions (MIG) are not planned for: a card that is partitioned is left out and named. The
table truncates long names; a truncated name is rejected, since cards differ in their last letters.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from periplus.errors import ConfigError
from planner.devices.catalogue import gpu_name, gpu_types, is_whole
from planner.problem.fleet import Machines
from planner.problem.hardware import GpuType

PCIE_BYTES_PER_S = 32e9
"""Bytes per second in one direction of a fourth-generation PCIe slot with 16 lanes."""

OUTPUTS = (
    "`nvidia-smi`",
    "`nvidia-smi -L`",
    "`nvidia-smi --query-gpu=name,memory.total --format=csv`",
    "`nvidia-smi topo -m`",
)
"""Commands whose output is understood."""

_CARD = re.compile(r"\|\s+\d+\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|WDDM|TCC)\s*\|")
"""Pattern of a card's first line in the table: its number, name, and persistence mode or kind of driver."""
_MEMORY = re.compile(r"/\s*(?P<mib>\d+)MiB\s*\|")
"""Pattern of the total memory in the table's second line of a card."""
_CUT = "..."
"""End of a truncated name."""
_CELL = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")
"""Pattern of a cell of the topology matrix."""


class LinkClass(StrEnum):
    """Kind of links between the accelerators of a machine."""

    NVLINK = "nvlink"
    """Every pair has NVLink."""
    MIXED = "mixed"
    """Some pairs have NVLink. A ring over all devices is then as slow as PCIe."""
    PCIE = "pcie"
    """No pair has NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaSmiInventory:
    """Machines of one kind or of several."""

    machines: tuple[Machines, ...]
    gpu_types: tuple[GpuType, ...]
    """Types that differ from the packaged ones because of their links."""
    left_out: tuple[str, ...] = ()
    """A sentence for each card that was left out."""


def inventory(text: str, topology_text: str | None = None, num_machines: int = 1) -> NvidiaSmiInventory:
    """Read the output of the query, of `-L` or of the table, and of `topo -m` if given. Raises: ConfigError."""
    reader = _listing if re.search(r"^GPU \d+:", text, re.MULTILINE) else _table if is_table(text) else _query
    names, left_out = reader(text)
    if not names and not left_out:
        raise ConfigError(f"nvidia-smi: no accelerator in its output; give what {', '.join(OUTPUTS[:-1])} print")
    # The topology says something only about several accelerators.
    link = None if topology_text is None or len(names) < 2 else link_class(topology_text)
    machines: list[Machines] = []
    changed: dict[str, GpuType] = {}
    for name, count in Counter(names).items():
        gpu = gpu_types()[name]
        # A type with NVLink in the catalogue, but not between all pairs here, gets the slower link, as a type of its
        # own.
        if link not in (None, LinkClass.NVLINK) and gpu.link_bytes_per_s > PCIE_BYTES_PER_S:
            gpu = replace(gpu, name=f"{name}@pcie", link_bytes_per_s=PCIE_BYTES_PER_S)
            changed[gpu.name] = gpu
        machines.append(Machines(gpu=gpu.name, gpus_per_machine=count, num_machines=num_machines))
    return NvidiaSmiInventory(machines=tuple(machines), gpu_types=tuple(changed.values()), left_out=tuple(left_out))


def link_class(text: str) -> LinkClass:
    """Read the matrix that `nvidia-smi topo -m` prints. Raises: ConfigError."""
    rows = [line.split() for line in _plain(text).splitlines()]
    # Rows of accelerators. The header begins with `GPU0`, too, but has no `X`; rows of network cards have other names.
    lines = [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    if len(lines) < 2:
        raise ConfigError("nvidia-smi topo -m: no matrix of at least two accelerators; give its whole output")
    matrix = [row[1 : 1 + len(lines)] for row in lines]
    cells = [cell for i, row in enumerate(matrix) for j, cell in enumerate(row) if i != j]
    whole = all(len(row) == len(lines) and row[i] == "X" for i, row in enumerate(matrix))
    if not whole or not all(_CELL.fullmatch(cell) for cell in cells):
        raise ConfigError("nvidia-smi topo -m: the matrix is incomplete; give its whole output")
    # `NV12` is a direct link, anything else goes over PCIe or the processors. One slow pair slows every collective.
    direct = sum(bool(re.fullmatch(r"NV\d+", cell)) for cell in cells)
    return LinkClass.NVLINK if direct == len(cells) else LinkClass.MIXED if direct else LinkClass.PCIE


def is_table(text: str) -> bool:
    """Return whether the text is the table that `nvidia-smi` prints without arguments."""
    return bool(re.search(r"^\|\s*NVIDIA-SMI\s", text, re.MULTILINE))


def _table(text: str) -> tuple[list[str], list[str]]:
    """Return (names, what was left out) of the table. A card has three lines: name, memory, partitions."""
    names: list[str] = []
    left_out: list[str] = []
    lines = _plain(text).splitlines()
    for i, line in enumerate(lines):
        # Name and memory are on consecutive lines; whether partitions are enabled is on the third.
        card, memory = _CARD.match(line.strip()), _MEMORY.search(lines[i + 1]) if i + 1 < len(lines) else None
        if card is None or memory is None:
            continue
        name = card["name"]
        if name.endswith(_CUT):
            raise ConfigError(f"nvidia-smi: the name {name!r} is cut off in its table; give what {OUTPUTS[1]} prints")
        if any(re.search(r"\bEnabled\b", below) for below in lines[i + 2 : i + 3]):
            left_out.append(f"{name}: cut into partitions")
        else:
            _sort(name, memory["mib"], names, left_out)
    return names, left_out


def _query(text: str) -> tuple[list[str], list[str]]:
    lines = [line.strip() for line in _plain(text).splitlines() if line.strip()]
    if lines and lines[0].lower().startswith("name"):
        lines = lines[1:]
    names: list[str] = []
    left_out: list[str] = []
    for line in lines:
        # From the right, since a name may contain a comma.
        text_name, _, memory = (part.strip() for part in line.rpartition(","))
        match = re.fullmatch(r"(\d+)(?: MiB)?", memory)
        if not text_name or match is None:
            raise ConfigError(f"nvidia-smi: {line!r} must be a name and a memory size, such as: NVIDIA L4, 23034 MiB")
        _sort(text_name, match[1], names, left_out)
    return names, left_out


def _sort(text_name: str, mib: str, names: list[str], left_out: list[str]) -> None:
    """Add a card to the names, or to what is left out if its memory does not match its type."""
    name = gpu_name(text_name)
    if is_whole(gpu_types()[name], int(mib) << 20):
        names.append(name)
    else:
        left_out.append(f"{text_name} with {mib} MiB: not what {name} has; another card, or cut into partitions")


def _listing(text: str) -> tuple[list[str], list[str]]:
    names: list[str] = []
    left_out: list[str] = []
    # Split before each card, so that the lines of its partitions stay with it.
    cards = re.split(r"^(?=GPU \d+:)", _plain(text), flags=re.MULTILINE)
    for card in cards[1:]:
        head, *parts = card.splitlines()
        match = re.fullmatch(r"GPU \d+: (.+?)(?: \(UUID: .*\))?\s*", head)
        assert match is not None
        if any("MIG" in part for part in parts):
            left_out.append(f"{match[1]}: cut into partitions")
        else:
            names.append(gpu_name(match[1]))
    return names, left_out


def _plain(text: str) -> str:
    """Return the text without the colour codes that `topo -m` prints even into files."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def together(inventories: Iterable[NvidiaSmiInventory]) -> NvidiaSmiInventory:
    """Merge the inventories of several machines in one region, counting equal machines."""
    counts: dict[Machines, int] = {}
    types: dict[str, GpuType] = {}
    left_out: list[str] = []
    for each in inventories:
        for machines in each.machines:
            one = replace(machines, num_machines=1)
            counts[one] = counts.get(one, 0) + machines.num_machines
        types |= {gpu.name: gpu for gpu in each.gpu_types}
        left_out += each.left_out
    machines_of_region = tuple(replace(one, num_machines=num) for one, num in counts.items())
    return NvidiaSmiInventory(machines=machines_of_region, gpu_types=tuple(types.values()), left_out=tuple(left_out))
