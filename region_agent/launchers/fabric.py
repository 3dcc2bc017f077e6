"""Measures the network between the nodes of a cluster, with short processes on the nodes.

    python -m region_agent.launchers.fabric serve HOST SECRET        on the agent's node: one end of a connection
    python -m region_agent.launchers.fabric dial HOST PORT SECRET    on another node: the other end

A node is measured once, when it comes: a TCP connection between the agent's node and it. Then all nodes together do an
all-reduce (trainer/distributed/node_all_reduce.py). Nodes are measured one after the other. What jobs send meanwhile
makes the figures smaller.

A process of the agent's node listens, and says at which port. The others dial the address at which the agent listens,
and a rank sends from the address from which it dialled. A measurement that fails is logged, and leaves its figure out.
A node is tried again after `RETRY_S`, and the all-reduce when a node was measured.
"""

import json
import logging
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from periplus import clock
from periplus.errors import PeriplusError, Unreachable
from periplus.process.measuring import result_lines
from periplus.process.telemetry import event
from region_agent.config import WILDCARDS
from region_agent.launchers.cluster import Cluster

log = logging.getLogger(__name__)

PAIR_S, ALL_REDUCE_S = 30.0, 60.0
"""Seconds in which a node, and the all-reduce, must be measured, with the start of their processes. Chosen by hand: on
two cores a step of Ray starts in two seconds, and a rank in four; on busy ones in five times as many."""

RETRY_S = 600.0
"""Seconds after which a node that was not measured is tried again. Chosen by hand."""

STREAM_S = 1.0
"""Seconds in which one end of a connection sends. Chosen by hand: TCP reaches its rate in some tens of round trips."""

NUM_PINGS, BLOCK_BYTES = 20, 1 << 20
"""Round trips of one byte, of which the median counts, and bytes of one call that sends. Chosen by hand."""

ALL_REDUCE = "trainer.distributed.node_all_reduce"
"""Module of one rank of the all-reduce. An agent imports no torch, so it starts the module by name."""

_MODULE = "region_agent.launchers.fabric"

NodeWords = Callable[[str], list[tuple[str, ...]]]
"""Returns the command lines of the nodes that dial a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConnection:
    """One TCP connection from the agent's node, at `address`, to another: its rate, and the seconds of a round trip."""

    bytes_per_s: float
    round_trip_s: float
    address: str


class RegionFabric:
    """What was measured between the nodes of a cluster. `listen` is the HOST:PORT at which the agent listens.

    `bytes_per_s` is the rate of one device to another node, and `latency_s` half of the longest round trip; 0 if they
    are not known. Any thread may read them.
    """

    def __init__(self, cluster: Cluster, listen: str) -> None:
        self._cluster = cluster
        host = listen.rpartition(":")[0]
        self._bound = "" if host in WILDCARDS else host.strip("[]")
        self._streams: dict[str, NodeConnection] = {}  # by node
        self._failed_s: dict[str, float] = {}  # when the last try of a node that was not measured began
        self._all_reduce_bytes_per_s = 0.0
        self._running: list[subprocess.Popen[bytes]] = []
        self._is_stopped = False
        self.bytes_per_s = self.latency_s = 0.0

    def measure(self, nodes: Sequence[str]) -> bool:
        """Forget nodes that are gone, measure new ones, and return whether a figure has changed.

        It takes up to PAIR_S a new node, and ALL_REDUCE_S: call it in a thread.
        """
        before = self.bytes_per_s, self.latency_s
        others, now_s = [node for node in nodes if node != self._cluster.own], clock.monotonic_s()
        for gone in (self._streams.keys() | self._failed_s.keys()) - set(others):
            self._streams.pop(gone, None)
            self._failed_s.pop(gone, None)
        if not others:
            self._all_reduce_bytes_per_s = 0.0
        new = [node for node in others if node not in self._streams and self._is_due(node, now_s)]
        for node in new:
            self._failed_s[node] = now_s
            if (found := self._stream(node)) is not None:
                self._streams[node] = found
                del self._failed_s[node]
        slowest = min((each.bytes_per_s for each in self._streams.values()), default=0.0)
        is_longer = any(node in self._streams for node in new)
        if is_longer:
            address = next(reversed(self._streams.values())).address
            self._all_reduce_bytes_per_s = self._all_reduce(tuple(self._streams), address)
        # The all-reduce comes first, since it is what trainers do: one TCP connection says little of NCCL.
        self.bytes_per_s = self._all_reduce_bytes_per_s or slowest
        self.latency_s = max((each.round_trip_s for each in self._streams.values()), default=0.0) / 2
        if is_longer:
            rates = {"bytes_per_s": round(self.bytes_per_s), "stream_bytes_per_s": round(slowest)}
            event(log, logging.INFO, "fabric_measured", nodes=len(self._streams) + 1, latency_s=self.latency_s, **rates)
        return before != (self.bytes_per_s, self.latency_s)

    def stop(self) -> None:
        """End what is measured now, for an agent that stops."""
        self._is_stopped = True
        self._kill()

    def _is_due(self, node: str, now_s: float) -> bool:
        return node not in self._failed_s or now_s - self._failed_s[node] > RETRY_S

    def _stream(self, node: str) -> NodeConnection | None:
        secret = secrets.token_hex(16)
        host = self._bound or socket.gethostname()

        def dial(port: str) -> list[tuple[str, ...]]:
            words = (sys.executable, "-m", _MODULE, "dial", host, port, secret)
            return [(*self._cluster.words(node, {}), *words)]

        try:
            return NodeConnection(
                **self._result((sys.executable, "-m", _MODULE, "serve", self._bound, secret), dial, PAIR_S)
            )
        except (OSError, ValueError, KeyError, TypeError, PeriplusError) as error:
            self._tell("node_fabric_unknown", error, node=node)
            return None

    def _all_reduce(self, others: Sequence[str], address: str) -> float:
        def rank(place: int, port: str) -> tuple[str, ...]:
            return (sys.executable, "-m", ALL_REDUCE, str(place), str(len(others) + 1), address, port)

        def join(port: str) -> list[tuple[str, ...]]:
            places = enumerate(others, start=1)
            return [(*self._cluster.words(node, {}), *rank(place, port)) for place, node in places]

        try:
            return float(self._result(rank(0, "0"), join, ALL_REDUCE_S)["bytes_per_s"])
        except (OSError, ValueError, KeyError, TypeError, PeriplusError) as error:
            self._tell("all_reduce_unknown", error, nodes=len(others) + 1)
            return 0.0

    def _tell(self, name: str, error: Exception, **about: object) -> None:
        if not self._is_stopped:  # it was cut short
            event(log, logging.WARNING, name, **about, why=error)

    def _result(self, first: Sequence[str], others: NodeWords, limit_s: float) -> dict[str, Any]:
        """Run `first` here and `others` on nodes, and return the result of `first`. Raises: Unreachable, OSError."""
        limit = threading.Timer(limit_s, self._kill)
        with tempfile.TemporaryFile() as told:

            def start(words: Sequence[str], output: Any) -> "subprocess.Popen[bytes]":
                popen = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=told)
                self._running.append(popen)
                if self._is_stopped:  # by another thread, which may not have seen this process
                    raise Unreachable("the agent stops")
                return popen

            limit.start()
            try:
                lines = start(first, subprocess.PIPE).stdout
                assert lines is not None
                port = json.loads(lines.readline() or b"{}").get("port")
                for words in others(str(port)) if port else ():
                    start(words, told)
                found: dict[str, Any] | None = json.loads(lines.readline() or b"{}").get("result")
            finally:
                limit.cancel()
                self._kill()
                for each in self._running:
                    each.wait()
                    if each.stdout is not None:
                        each.stdout.close()
                self._running.clear()
            if found is None:
                told.seek(0)
                why = told.read().decode(errors="replace").strip()[-500:]
                raise Unreachable(why or f"no answer in {limit_s:.0f} s")
            return found

    def _kill(self) -> None:
        for each in tuple(self._running):
            with suppress(ProcessLookupError):
                each.kill()


def serve(host: str, secret: str) -> None:
    """Listen at `host`, and print the port, and then the rate and the round trip of the connection that comes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with result_lines() as say, socket.create_server((host, 0), family=family) as listening:
        listening.settimeout(PAIR_S)
        say("port", listening.getsockname()[1])
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(PAIR_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connection.recv(len(secret), socket.MSG_WAITALL).decode() != secret:
                raise Unreachable("a process that does not belong to the measurement has connected")
            say("result", _measured(connection) | {"address": connection.getsockname()[0]})


def _measured(connection: socket.socket) -> dict[str, Any]:
    trips_s = []
    for _ in range(NUM_PINGS):
        began_s = clock.monotonic_s()
        connection.sendall(b".")
        _received_byte(connection)
        trips_s.append(clock.monotonic_s() - began_s)
    num_bytes, block, began_s = 0, bytes(BLOCK_BYTES), clock.monotonic_s()
    while clock.monotonic_s() - began_s < STREAM_S:
        num_bytes += connection.send(block)
    connection.shutdown(socket.SHUT_WR)
    _received_byte(connection)  # once all has arrived
    took_s = clock.monotonic_s() - began_s
    return {"bytes_per_s": num_bytes / took_s, "round_trip_s": statistics.median(trips_s)}


def dial(host: str, port: str, secret: str) -> None:
    """Return the pings of the other end, take all that it sends, and say when it has arrived."""
    with socket.create_connection((host, int(port)), PAIR_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(secret.encode())
        for _ in range(NUM_PINGS):
            connection.sendall(_received_byte(connection))
        block = bytearray(BLOCK_BYTES)
        while connection.recv_into(block):
            pass
        connection.sendall(b".")


def _received_byte(connection: socket.socket) -> bytes:
    if not (got := connection.recv(1)):
        raise Unreachable("the other end has gone")
    return got


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        dial(*sys.argv[2:])
