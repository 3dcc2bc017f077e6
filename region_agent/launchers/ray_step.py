"""Runs a command line on a node of a Ray cluster, as `srun` does on one of Slurm's.

    python -m region_agent.launchers.ray_step --address HOST:PORT --group NAME --node NAME -- WORDS

An actor in the placement group that the agent holds on that node starts the process there (node_process.py). Its
output, its exit code, the end of standard input, SIGTERM and SIGINT pass through Ray. The actor ends with this process,
however that ends, and the process on the node with the actor. If the node is lost, this process says so and exits with
`NODE_LOST`.
"""

import argparse
import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.util import get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from region_agent.launchers.node_process import ASK, END, NODE_LOST
from region_agent.launchers.ray_cluster import NAMESPACE

START_S = 60.0
"""Seconds in which the actor must run. On a node that is lost it never does. Chosen by hand."""

PART_BYTES = 1 << 16


class NodeActor:
    """One process on the node of this actor."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._orders = b""

    def run(self, words: Sequence[str], environment: Mapping[str, str], folder: str) -> Iterator[bytes | int]:
        """Run the process, and yield its output in parts and at last its exit code."""
        # Ray gives its workers the niceness 15. What runs beside the process on its cores would always go first.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        self._popen = popen = subprocess.Popen(
            words,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        self.order(b"")
        assert popen.stdout is not None
        while part := popen.stdout.read(PART_BYTES):
            yield part
        yield popen.wait()

    def order(self, which: bytes) -> None:
        """Pass an order on to the process (node_process.py)."""
        self._orders += which
        popen = self._popen
        if popen is not None and popen.stdin is not None:
            orders, self._orders = self._orders, b""
            with contextlib.suppress(OSError):  # it has ended
                popen.stdin.write(orders)


def main() -> int:
    """Run the command line after `--`, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    # A thread waits for signals, since this one waits for Ray.
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    environment = dict(os.environ)
    try:
        ray.init(options.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=get_placement_group(options.group), placement_group_bundle_index=0
        )
        made: Any = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=3)(NodeActor)  # type: ignore[call-overload]
        actor = made.options(scheduling_strategy=strategy).remote()
        ray.get(actor.order.remote(b""), timeout=START_S)
        for work in (_watch_signals, _watch_input):
            threading.Thread(target=work, args=(orders.put,), daemon=True).start()
        threading.Thread(target=_pass_on, args=(actor, orders), daemon=True).start()
        parts = actor.run.options(num_returns="streaming").remote(options.words, environment, os.getcwd())
        for reference in parts:
            part = ray.get(reference)
            if isinstance(part, int):
                return part
            os.write(sys.stdout.fileno(), part)
    except (ray.exceptions.RayError, ValueError, ConnectionError) as error:
        sys.stderr.write(f"node {options.node} of the Ray cluster is lost, or its actor: {error}\n")
        return NODE_LOST
    return NODE_LOST


def _watch_signals(put: Any) -> None:
    while True:
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        put(ASK)


def _watch_input(put: Any) -> None:
    while os.read(0, PART_BYTES):
        pass
    put(END)


def _pass_on(actor: Any, orders: "queue.SimpleQueue[bytes]") -> None:
    while True:
        with contextlib.suppress(ray.exceptions.RayError):  # the main thread sees it too
            ray.get(actor.order.remote(orders.get()))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        # To this thread, since another one waits for signals of the process.
        signal.pthread_kill(threading.get_ident(), -code)
    os._exit(code)  # Ray's own end takes seconds, and its actors end with the connection
