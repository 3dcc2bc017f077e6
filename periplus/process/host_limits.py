"""Cores and memory that this process may use: what the machine has, or less if affinity or control groups say so.

Linux alone has control groups; elsewhere the machine's own numbers count. Source: the kernel's documents of cgroup v2
(`cpu.max`, `memory.max`) and v1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`).
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores() -> tuple[int, ...]:
    """Return the ids of the logical CPUs on which this process may run, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def num_cores(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> int:
    """Return the number of cores whose time this process may use: a part of a core counts as one."""
    limits = [len(usable_cores())]
    for text in _of_groups("cpu.max", "cpu", "cpu.cfs_quota_us", root, own_groups):
        quota, _, period = text.partition(" ")  # v2 has both numbers in one file, in microseconds
        if quota not in ("max", "-1"):
            limits.append(math.ceil(int(quota) / int(period or _V1_PERIOD_US)))
    return max(1, min(limits))


def memory_bytes(root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> int:
    """Return the bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for text in _of_groups("memory.max", "memory", "memory.limit_in_bytes", root, own_groups):
        limits += [int(text)] if text != "max" else []
    return min(limits)


_V1_PERIOD_US = 100_000
"""Period of v1's quotas, unless an administrator changed it."""


def _of_groups(name: str, controller: str, v1_name: str, root: Path, own_groups: Path) -> Iterator[str]:
    """Yield what these files say in each control group of this process, and in those above it."""
    try:
        lines = own_groups.read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            top, file = root, name
        elif controller in controllers.split(","):
            top, file = root / controllers, v1_name
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if (folder / file).is_file():
                yield (folder / file).read_text(encoding="ascii").strip()
            if folder == top:
                break
