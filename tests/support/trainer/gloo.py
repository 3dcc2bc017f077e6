"""Runs a function on several real processes (ranks) that share a gloo process group."""

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

DEADLINE_S = 400.0
"""Seconds for a whole run, far beyond what one takes. A rank that hangs fails its test instead of the whole run."""

COLLECTIVE_S = 60.0
"""Seconds that a collective waits for the other ranks."""


def run_on_ranks(function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """Return what `function(*args)` returns on each of `size` ranks, in order.

    The function is one of a module, so that a child can import it. Within it `torch.distributed` is initialised with a
    gloo group, and torch has one thread. Arguments and results are pickled.

    Raises: AssertionError with the traceback of the first rank that failed, or if a rank is late.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.processes.dying_imports"])
    with TemporaryDirectory() as folder:
        children, ends = [], []
        try:
            for rank in range(size):
                ours, theirs = context.Pipe(duplex=False)
                child = context.Process(target=_run, args=(theirs, rank, size, f"{folder}/store", function, args))
                child.start()
                theirs.close()
                children.append(child)
                ends.append(ours)
            deadline_s = perf_counter() + DEADLINE_S
            found = [_result(end, rank, deadline_s) for rank, end in enumerate(ends)]
        finally:
            for child in children:
                child.join(1.0)
                child.kill()
                child.join()
    for rank, (succeeded, value) in enumerate(found):
        assert succeeded, f"rank {rank} of {size} failed:\n{value}"
    return [value for _, value in found]


def _result(end: Connection, rank: int, deadline_s: float) -> tuple[bool, Any]:
    if not end.poll(max(0.0, deadline_s - perf_counter())):
        return False, f"rank {rank} gave no result within {DEADLINE_S:.0f} s"
    try:
        succeeded, value = pickle.loads(end.recv_bytes())
    except EOFError:
        return False, f"rank {rank} died without a word"
    return succeeded, value


def _run(
    end: Connection, rank: int, size: int, store: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=Path(store).as_uri(),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=COLLECTIVE_S),
        )
        result = (True, function(*args))
    except BaseException:
        result = (False, traceback.format_exc())
    end.send_bytes(pickle.dumps(result))
    end.close()
    if dist.is_initialized():
        dist.destroy_process_group()
