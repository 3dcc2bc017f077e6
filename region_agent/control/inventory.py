"""What the agent's host offers: cores and memory as configured, accelerators as `nvidia-smi` lists them.

A card that is cut into partitions (MIG) is not offered: nothing plans for partitions. A host without the program has no
accelerators; one whose program fails, or prints what nobody can read, is said to have none, with a warning.
"""

import logging
import shutil
import socket
import subprocess
from collections import Counter

from periplus.pb.v1 import control_pb2
from periplus.process import telemetry
from region_agent.config import AgentConfig

log = logging.getLogger(__name__)

_QUERY = ("--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
_TIMEOUT_S = 20.0
"""The program waits for drivers, which on a cold host load for seconds."""


def inventory(config: AgentConfig) -> control_pb2.Inventory:
    """For a thread: it waits for another program."""
    return control_pb2.Inventory(
        num_cores=config.num_cores,
        memory_bytes=config.memory_bytes,
        hostname=socket.gethostname(),
        accelerators=accelerators(),
    )


def accelerators(program: str = "nvidia-smi") -> tuple[control_pb2.Accelerators, ...]:
    """What this host offers, equal ones counted, in the order of their names."""
    path = shutil.which(program)
    if path is None:
        return ()
    try:
        done = subprocess.run([path, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise ValueError(f"it ended with {done.returncode}: {(done.stderr or done.stdout).strip()[:200]}")
        cards = Counter(filter(None, map(_card, done.stdout.splitlines())))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        telemetry.event(log, logging.WARNING, "accelerators_unknown", program=path, why=error)
        return ()
    return tuple(
        control_pb2.Accelerators(name=name, memory_bytes=memory_bytes, num=num)
        for (name, memory_bytes), num in sorted(cards.items())
    )


def _card(line: str) -> tuple[str, int] | None:
    """(name, bytes) of one line; None for an empty one and for a card in partitions. Raises: ValueError."""
    if not line.strip():
        return None
    name, *numbers = (part.strip() for part in line.rsplit(",", 2))
    if len(numbers) != 2 or not name or not numbers[0].isdigit():
        raise ValueError(f"{line.strip()[:200]!r} is no name, memory in MiB and MIG mode")
    return None if numbers[1] == "Enabled" else (name, int(numbers[0]) << 20)
