"""What the agent's host offers: cores and memory as configured, engines, and accelerators as `nvidia-smi` lists them.

A GPU that is divided into MIG partitions is not offered, because nothing plans for partitions. A host without
`nvidia-smi` has no accelerators. If the program fails or its output cannot be read, the host is reported without
accelerators, and a warning is logged.
"""

import logging
import shutil
import socket
import subprocess
from collections import Counter
from dataclasses import dataclass

from periplus.process import telemetry
from region_agent.config import AgentConfig
from region_agent.control.engines import InstalledEngine, installed

log = logging.getLogger(__name__)

_QUERY = ("--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
_TIMEOUT_S = 20.0
"""Seconds until `nvidia-smi` counts as failed. It waits for the drivers, which take seconds to load on a cold host.
Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedAccelerators:
    """Equal GPUs of this host: their name and the memory of one as the driver says, and how many there are."""

    name: str
    memory_bytes: int
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedInventory:
    """What this host offers to jobs. Cores, memory and the policy on users' code are configured, the rest was found."""

    num_cores: int
    memory_bytes: int
    hostname: str
    accelerators: tuple[OfferedAccelerators, ...]
    engines: tuple[InstalledEngine, ...]
    allows_own_code: bool = False


def inventory(config: AgentConfig) -> OfferedInventory:
    """Return what this host offers. It waits for other programs: call it in a thread.

    Raises: ConfigError if a configured interpreter cannot run its engine.
    """
    return OfferedInventory(
        num_cores=config.num_cores,
        memory_bytes=config.memory_bytes,
        hostname=socket.gethostname(),
        accelerators=accelerators(),
        engines=installed(config.engines),
        allows_own_code=config.allow_code,
    )


def accelerators(program: str = "nvidia-smi") -> tuple[OfferedAccelerators, ...]:
    """Return the GPUs of this host, equal ones counted together, ordered by name and memory."""
    # No such program: the host has no GPU of this kind.
    path = shutil.which(program)
    if path is None:
        return ()
    try:
        done = subprocess.run([path, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise ValueError(f"it exited with status {done.returncode}: {(done.stderr or done.stdout).strip()[:200]}")
        cards = Counter(filter(None, map(_card, done.stdout.splitlines())))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        telemetry.event(log, logging.WARNING, "accelerators_unknown", program=path, why=error)
        return ()
    return tuple(
        OfferedAccelerators(name=name, memory_bytes=memory_bytes, num=num)
        for (name, memory_bytes), num in sorted(cards.items())
    )


def _card(line: str) -> tuple[str, int] | None:
    """Return (name, memory in bytes) of one line of output; None for an empty line and for a GPU in MIG mode.

    Raises: ValueError if the line is not a name, a memory size in MiB and a MIG mode.
    """
    if not line.strip():
        return None
    # From the right, because a name may contain commas.
    name, *numbers = (part.strip() for part in line.rsplit(",", 2))
    if len(numbers) != 2 or not name or not numbers[0].isdigit():
        raise ValueError(f"{line.strip()[:200]!r} is not a name, a memory size in MiB and a MIG mode")
    return None if numbers[1] == "Enabled" else (name, int(numbers[0]) << 20)
