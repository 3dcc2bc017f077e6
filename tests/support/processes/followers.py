"""The processes that share a trainer's steps with this one."""

import os
from pathlib import Path


def followers() -> list[int]:
    """Return the ids of this process's children that are ranks of a trainer."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and b"trainer.distributed.follower" in words:
            found.append(int(entry.name))
    return found
