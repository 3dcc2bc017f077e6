"""Times an all-reduce between two processes of one machine: on two GPUs with NCCL, on cores with gloo.

The process that calls `all_reduce_times` is rank 0. Rank 1 is this module as a program, which imports torch alone.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from periplus import clock
from periplus.process.host_limits import num_cores

FEW_ELEMENTS = 16
"""Elements of the all-reduce whose time is that of the connection alone."""

FEW_REPETITIONS, REPETITIONS = 20, 3
"""Repetitions of an all-reduce of few and of many elements. Chosen by hand: milliseconds and seconds."""

LIMIT_S = 60.0
"""Seconds that a process waits for the other one. Importing torch takes seconds; chosen by hand."""


def can_all_reduce() -> bool:
    """Return whether this machine has a device for each of two processes. A single GPU has not."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return num_gpus >= 2 or (num_gpus == 0 and num_cores() >= 2)


def all_reduce_times(num_elements: int) -> tuple[float, float]:
    """Return the seconds of an all-reduce of FEW_ELEMENTS and of `num_elements` float32 values.

    Nothing else in this process may use torch.distributed's default group meanwhile. Raises: RuntimeError if the other
    process does not come or ends.
    """
    with tempfile.TemporaryDirectory(prefix="periplus-ranks-") as folder:
        command = [sys.executable, "-m", __spec__.name, folder, str(num_elements), str(torch.get_num_threads())]
        other = subprocess.Popen(command)
        try:
            return _times(0, Path(folder), num_elements)
        finally:
            other.kill()
            other.wait()


def _times(rank: int, folder: Path, num_elements: int) -> tuple[float, float]:
    # Connections stay on this machine, unless the operator has chosen an interface.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    backend = "nccl" if device.type == "cuda" else "gloo"
    store = FileStore(str(folder / "ranks"), 2)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=LIMIT_S))
    try:
        return group_times(device, num_elements)
    finally:
        dist.destroy_process_group()


def group_times(device: torch.device, num_elements: int) -> tuple[float, float]:
    """Return the seconds of an all-reduce of FEW_ELEMENTS and of `num_elements` float32 values in the default group."""
    few, many = (torch.zeros(size, dtype=torch.float32, device=device) for size in (FEW_ELEMENTS, num_elements))
    return _median_s(lambda: _summed(few), FEW_REPETITIONS), _median_s(lambda: _summed(many), REPETITIONS)


def _summed(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)


def _median_s(run: Callable[[], None], repetitions: int) -> float:
    run()  # the first connects
    seconds = []
    for _ in range(repetitions):
        began_s = clock.monotonic_s()
        run()
        seconds.append(clock.monotonic_s() - began_s)
    return statistics.median(seconds)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    _times(1, Path(sys.argv[1]), int(sys.argv[2]))
