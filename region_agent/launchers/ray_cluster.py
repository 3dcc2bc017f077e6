"""The nodes of a Ray cluster that the agent joins: each process is an actor in a placement group on its node."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec

from periplus.errors import ConfigError, Unreachable
from region_agent.launchers.node_process import node_words

START_S = 60.0
"""Seconds in which a Ray cluster must answer an agent that starts. Chosen by hand."""

RELEASE_S = 10.0
"""Seconds in which nodes are given back. Chosen by hand."""

DIAL_S = 5.0
"""Seconds in which the port of a cluster's head must take a connection. Chosen by hand."""

ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Ray's own variable of the address of a cluster."""

NAMESPACE = "periplus"
"""Ray's namespace of the names of placement groups."""


def group_name(region: str, node: str) -> str:
    """Return the name of the placement group of a region on a node."""
    return f"periplus:{region}:{node}"


def _check(address: str) -> None:
    """Raises: ConfigError for what is no address of a cluster, Unreachable if nothing listens there."""
    if address in ("auto", "new"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{ADDRESS_VARIABLE} is {address!r}; give HOST:PORT of the cluster's head, auto, or new")
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_S).close()
    except (OSError, OverflowError) as error:
        raise Unreachable(
            f"nothing answers at {address}, which {ADDRESS_VARIABLE} names as the head of a Ray cluster: {error}"
        ) from error


class RayCluster:
    """The cluster at `address`: host:port of its head's GCS, `auto` for the one that runs here, `new` to start one.

    Raises: ConfigError without Ray, Unreachable.
    """

    def __init__(self, address: str, region: str) -> None:
        if find_spec("ray") is None:
            raise ConfigError("--launcher ray needs Ray: pip install 'periplus[ray]' in the environment of all nodes")
        _check(address)
        self._given, self._address, self._region = address, address, region
        self.own = ""
        self._watch()
        self._came.wait(START_S)
        if not self._names:
            self.close(leaves_tasks=False)
            raise Unreachable(f"no node of the Ray cluster at {address} could be had; does it run (ray status)?")

    def _watch(self) -> None:
        self._names: tuple[str, ...] = ()
        self._came = threading.Event()
        words = [sys.executable, "-m", "region_agent.launchers.ray_nodes", "--region", self._region]
        # In a session of its own, so that Ctrl-C in a terminal lets it give the nodes back.
        self._watching = subprocess.Popen(
            [*words, "--address", self._given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that are up, the agent's own first if it is held.

        Raises: Unreachable, also while it connects again.
        """
        if self._watching.poll() is not None:
            self.close(leaves_tasks=True)
            self._watch()
        if not self._names:
            raise Unreachable(f"the Ray cluster at {self._address} does not answer; its nodes are offered when it does")
        return self._names

    def words(self, node: str, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words that run a command line in an actor on a node, with these variables."""
        step = (sys.executable, "-m", "region_agent.launchers.ray_step", "--address", self._address)
        return (*step, "--group", group_name(self._region, node), "--node", node, "--", *node_words(settings))

    def close(self, *, leaves_tasks: bool) -> None:
        """Give the nodes back, unless processes go on there."""
        assert self._watching.stdin is not None
        assert self._watching.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            self._watching.stdin.write(b"leave\n" if leaves_tasks else b"release\n")
            self._watching.stdin.flush()
        with contextlib.suppress(OSError):
            self._watching.stdin.close()
        try:
            self._watching.wait(RELEASE_S)
        except subprocess.TimeoutExpired:
            self._watching.kill()
        self._reading.join(RELEASE_S)
        self._watching.stdout.close()

    def _read(self) -> None:
        assert self._watching.stdout is not None
        for line in self._watching.stdout:
            if not line.startswith(b"{"):  # Ray writes there too
                continue
            told = json.loads(line)
            self.own, self._address, self._names = told["own"], told["address"], tuple(told["nodes"])
            self._came.set()
        self._came.set()
