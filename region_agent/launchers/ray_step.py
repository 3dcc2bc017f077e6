"""Runs a command line on a node of a Ray cluster, as `srun` does on one of Slurm's.

    python -m region_agent.launchers.ray_step --address HOST:PORT --group NAME --node NAME -- WORDS

An actor in the placement group that the agent holds on that node starts the process there (node_process.py). Its
output and its exit code come through Ray. The end of standard input, SIGTERM and SIGINT go over a connection that the
actor makes to this process. The actor ends with this process, however that ends, and the process on the node with the
actor. If the node is lost, this process says so and exits with `NODE_LOST`.
"""

import argparse
import contextlib
import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import IO, Any

import ray
from ray.util import get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from region_agent.launchers.node_process import ASK, END, NODE_LOST
from region_agent.launchers.ray_cluster import NAMESPACE

START_S = 60.0
"""Seconds in which the actor must run. On a node that is lost it never does. Chosen by hand."""

PART_BYTES = 1 << 16


class NodeActor:
    """One process on the node of this actor.

    It has one thread for calls, which `run` keeps. An idle one would wake a hundred times a second, and take a percent
    of a core. So orders come over a connection to the caller.
    """

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], folder: str, dial: tuple[str, int], key: bytes
    ) -> Iterator[bytes | int]:
        """Run the process, and yield its output in parts and at last its exit code.

        It gets the orders of the caller, who listens at `dial`, and proves that it knows `key` as the caller does.
        """
        # Ray gives its workers the niceness 15. What runs beside the process on its cores would always go first.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        orders = Client(dial, authkey=key)
        popen = subprocess.Popen(
            words,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        threading.Thread(target=_follow, args=(orders, popen.stdin), daemon=True).start()
        assert popen.stdout is not None
        while part := popen.stdout.read(PART_BYTES):
            yield part
        yield popen.wait()


def _follow(orders: Connection, standard_input: IO[bytes]) -> None:
    """Pass orders on to the process (node_process.py), and their end."""
    with standard_input, contextlib.suppress(EOFError, OSError):  # the caller or the process has ended
        while True:
            standard_input.write(orders.recv_bytes())


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
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    environment = dict(os.environ)
    try:
        ray.init(options.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=get_placement_group(options.group), placement_group_bundle_index=0
        )
        made: Any = ray.remote(num_cpus=0, max_restarts=0)(NodeActor)
        actor = made.options(scheduling_strategy=strategy).remote()
        ray.get(actor.__ray_ready__.remote(), timeout=START_S)
        key = secrets.token_bytes(32)
        here = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        listening = Listener((here, 0), authkey=key)
        for work in (_watch_signals, _watch_input):
            threading.Thread(target=work, args=(orders.put,), daemon=True).start()
        threading.Thread(target=_pass_on, args=(listening, orders), daemon=True).start()
        run = actor.run.options(num_returns="streaming")
        for reference in run.remote(options.words, environment, os.getcwd(), listening.address, key):
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


def _pass_on(listening: Listener, orders: "queue.SimpleQueue[bytes]") -> None:
    while True:
        with contextlib.suppress(AuthenticationError, EOFError, OSError):  # it was somebody else
            actor = listening.accept()
            break
    listening.close()
    with contextlib.suppress(OSError):  # the main thread sees it too
        while True:
            actor.send_bytes(orders.get())


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
