"""Runs a command line on a node of a Ray cluster, as `srun` does on one of Slurm's.

    python -m region_agent.launchers.ray_step --address HOST:PORT --group NAME --node NAME -- WORDS

An actor in the placement group that the agent holds on that node starts the process there (node_process.py), and dials
this process. Then this process becomes `ray_relay.py`, since a driver of Ray takes 70 MB and 30 threads. The actor
outlives the driver: it ends with its process, and kills that when the connection ends. If the node is lost, this
process says so and exits with `NODE_LOST`; if the actor cannot dial it, it says so and exits with 1.
"""

import argparse
import contextlib
import logging
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import IO, Any

import ray
from ray.util import get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from region_agent.launchers.node_process import NODE_LOST, ask_when_silent
from region_agent.launchers.ray_cluster import NAMESPACE
from region_agent.launchers.ray_relay import EXIT, OUTPUT, PART_BYTES, STOPPING

START_S = 60.0
"""Seconds in which the actor must run, and in which it must dial. On a node that is lost it never does. Chosen by
hand."""

ACCEPTED_S = 1.0
"""Seconds in which the connection of an actor that has ended must have come. Chosen by hand."""

NOT_STARTED = 127
"""Exit code of a command that a shell cannot start."""


class NodeActor:
    """One process on the node of this actor, which ends with it.

    It has one thread for calls, which `run` keeps: an idle one would wake a hundred times a second, and take a percent
    of a core. So output, orders and the exit code go over a connection to the caller.
    """

    def __init__(self) -> None:
        # No caller, no process. Detached actors end by themselves alone.
        self._unused = threading.Timer(2 * START_S, os._exit, (1,))
        self._unused.daemon = True
        self._unused.start()

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], folder: str, dial: tuple[str, int], key: bytes
    ) -> None:
        """Run the process for the caller who listens at `dial`, and proves that it knows `key` as this actor does.

        Raises: OSError, AuthenticationError if the caller is not reached.
        """
        # Ray gives its workers the niceness 15. What runs beside the process on its cores would always go first.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        caller = Client(dial, authkey=key)
        self._unused.cancel()
        with contextlib.suppress(OSError):  # the caller has ended, and so has the process
            _ask_when_silent(caller)
            caller.send_bytes(EXIT + b"%d" % _passed_on(caller, words, environment, folder))
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


def _passed_on(caller: Connection, words: Sequence[str], environment: Mapping[str, str], folder: str) -> int:
    """Run the process with its output and orders passed on, and return its exit code."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            words, env=dict(environment), cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, bufsize=0
        )
    except OSError as error:
        caller.send_bytes(OUTPUT + f"{error}\n".encode())
        return NOT_STARTED
    assert process.stdout is not None
    threading.Thread(target=_follow, args=(caller, process.stdin), daemon=True).start()
    while part := process.stdout.read(PART_BYTES):
        with contextlib.suppress(OSError):  # the caller has ended, which ends the process
            caller.send_bytes(OUTPUT + part)
    return process.wait()


def _follow(caller: Connection, standard_input: IO[bytes]) -> None:
    """Pass orders on to the process (node_process.py), and their end, which kills it."""
    with standard_input, contextlib.suppress(EOFError, OSError):  # the caller or the process has ended
        while True:
            standard_input.write(caller.recv_bytes())


def _ask_when_silent(caller: Connection) -> None:
    with socket.socket(fileno=os.dup(caller.fileno())) as same:
        ask_when_silent(same)


def main() -> int:
    """Start the command line after `--` on the node, and become its relay, or return an exit code if that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("words", nargs="+")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        connection = _reached(options.address, options.group, options.words)
    except _CannotDial as error:
        sys.stderr.write(f"node {options.node} of the Ray cluster cannot dial this one: {error}\n")
        return 1
    except (ray.exceptions.RayError, ValueError, ConnectionError) as error:
        sys.stderr.write(f"node {options.node} of the Ray cluster is lost, or its actor: {error}\n")
        return NODE_LOST
    _ask_when_silent(connection)
    os.set_inheritable(connection.fileno(), True)
    relay = ("-m", "region_agent.launchers.ray_relay", "--connection", str(connection.fileno()), "--node", options.node)
    return os.execv(sys.executable, [sys.executable, *relay])


class _CannotDial(Exception):
    pass


def _reached(address: str, group: str, words: Sequence[str]) -> Connection:
    """Return the connection from an actor in this group that runs these words.

    Raises: _CannotDial, and RayError, ValueError or ConnectionError if the node or the cluster is lost.
    """
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=get_placement_group(group), placement_group_bundle_index=0
    )
    made: Any = ray.remote(num_cpus=0, max_restarts=0)(NodeActor)
    actor = made.options(scheduling_strategy=strategy, lifetime="detached").remote()
    try:
        ray.get(actor.__ray_ready__.remote(), timeout=START_S)
        key = secrets.token_bytes(32)
        here = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        listening = Listener((here, 0), authkey=key)
        ran = actor.run.remote(words, dict(os.environ), os.getcwd(), listening.address, key)
        answers: queue.SimpleQueue[Connection | Exception] = queue.SimpleQueue()
        accepting = threading.Thread(target=_accept, args=(listening, answers.put), daemon=True)
        accepting.start()
        threading.Thread(target=_note_failure, args=(ran, accepting, answers.put), daemon=True).start()
        try:
            answer = answers.get(timeout=START_S)
        except queue.Empty:
            raise _CannotDial(f"nothing came to {here} in {START_S:g} s") from None
        if isinstance(answer, Exception):
            raise answer
    except BaseException:
        ray.kill(actor)
        raise
    return answer


def _accept(listening: Listener, put: Callable[[Connection | Exception], None]) -> None:
    while True:
        with contextlib.suppress(AuthenticationError, EOFError, OSError):  # it was somebody else
            put(listening.accept())
            break
    listening.close()


def _note_failure(ran: Any, accepting: threading.Thread, put: Callable[[Connection | Exception], None]) -> None:
    try:
        ray.get(ran)
    except ray.exceptions.RayTaskError as error:
        put(_CannotDial(str(error.cause)))
    except ray.exceptions.RayError as error:
        accepting.join(ACCEPTED_S)  # an actor whose process ends at once has dialled, and is gone
        put(error)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Ray's own end takes seconds
