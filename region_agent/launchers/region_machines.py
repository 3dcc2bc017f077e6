"""The machines of a region on which its agent starts processes: its own, or the nodes of its cluster."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from periplus.errors import ConfigError, Unreachable, explained_error
from periplus.process import host_limits
from periplus.process.telemetry import event
from periplus.values.machine import Inventory, Machine
from region_agent.config import AgentConfig
from region_agent.control.accelerators import Accelerators
from region_agent.control.declared_devices import declared
from region_agent.control.engines import InstalledEngine, installed
from region_agent.control.inventory import inventory
from region_agent.launchers.cluster import Cluster
from region_agent.launchers.fabric import RegionFabric

log = logging.getLogger(__name__)

ASK_S = 120.0
"""Seconds in which a node must say what it has: a driver that starts takes many. Chosen by hand."""

BACK_S = 20.0
"""Seconds in which a node that was lost must answer to be offered again. Chosen by hand."""

FABRIC_S = 5.0
"""Seconds between two looks for nodes whose network was not measured. Chosen by hand."""

_MACHINE = TypeAdapter(Machine)


class RegionMachines:
    """Tells what the machines of a region offer. Without a `cluster` that is the agent's own machine."""

    def __init__(
        self,
        config: AgentConfig,
        engines: Sequence[InstalledEngine],
        accelerators: Accelerators,
        cluster: Cluster | None,
    ) -> None:
        self._config, self._engines, self._accelerators, self.cluster = config, engines, accelerators, cluster
        self._known: dict[str, Machine] = {}
        self._doubted: set[str] = set()
        self._lost: set[str] = set()
        self._asking, self._is_stopped = threading.Lock(), False
        self._asked: subprocess.Popen[bytes] | None = None
        self._machines: tuple[Machine, ...] = ()
        self._fabric = RegionFabric(cluster, config.listen) if cluster else None

    def doubt(self, node: str) -> None:
        """Ask a node anew at the next look, since a task has failed there."""
        self._doubted.add(node)

    def lose(self, nodes: Collection[str]) -> bool:
        """Offer these nodes no more until they answer, and return whether there are any."""
        self._lost.update(nodes)
        return bool(nodes)

    def read(self, now_s: float, *, anew: bool = False, asks: bool = True) -> Inventory:
        """Return what the region offers now. Nodes are asked when they come, and `anew`. Call it in a thread.

        Without `asks` nodes that have come are left out, and so it does not wait for them.

        Raises: ConfigError for a file of devices that is wrong, Unreachable if no node was ever up.
        """
        here = inventory(self._config, self._engines, self._accelerators, now_s)
        if self.cluster is None:
            return here
        nodes, up = self._nodes(self.cluster, asks), tuple[Machine, ...]()
        if self._config.devices_file is not None:
            machines = declared(self._config.devices_file, replace(here.own, name=self.cluster.own))
            # Nodes have the environment of the agent.
            engines = here.own.engines
            up = tuple(replace(each, has_launcher=True, engines=engines) for each in machines if each.name in nodes)
        else:
            for node in nodes:
                if asks and (anew or node not in self._known or node in self._doubted):
                    self._ask(self.cluster, node)
            up = tuple(self._known[node] for node in nodes if node in self._known)
        up = tuple(each for each in up if each.name not in self._lost)  # meanwhile
        if not up:
            if not self._machines:
                raise Unreachable(f"no node of the cluster offers anything ({', '.join(nodes) or 'none is up'})")
            # Nothing can be started there meanwhile.
            return replace(here, machines=tuple(replace(each, has_launcher=False) for each in self._machines))
        if all(each.name != self.cluster.own for each in up):  # others use it, or it only manages the cluster
            up = (replace(here.own, name=self.cluster.own, has_launcher=False), *up)
        self._machines = up
        if self._fabric is None or len(up) < 2:
            return replace(here, machines=up)
        figures = self._fabric
        return replace(here, machines=up, fabric_bytes_per_s=figures.bytes_per_s, fabric_latency_s=figures.latency_s)

    async def keep_fabric(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Measure the network to each node that comes, and call back when a figure has changed."""
        while self._fabric is not None:
            if await asyncio.to_thread(self._fabric.measure, tuple(each.name for each in self._machines)):
                await on_change()
            await asyncio.sleep(FABRIC_S)

    def stop(self) -> None:
        """End the measurement, or the question to a node, that runs, for an agent that stops."""
        self._is_stopped = True
        if self._asked is not None:
            self._asked.kill()
        if self._fabric is not None:
            self._fabric.stop()

    def _nodes(self, cluster: Cluster, asks: bool) -> tuple[str, ...]:
        try:
            nodes = cluster.nodes()
        except Unreachable as error:
            if not self._machines:
                raise
            event(log, logging.WARNING, "cluster_away", why=error)
            return ()
        for node in self._lost.intersection(nodes) if asks else ():
            if self._ask(cluster, node, BACK_S):
                self._lost.discard(node)
        return tuple(each for each in nodes if each not in self._lost)

    def _ask(self, cluster: Cluster, node: str, limit_s: float = ASK_S) -> bool:
        self._doubted.discard(node)
        words = [*cluster.words(node, {}), sys.executable, "-m", __name__, node, self._config.model_dump_json()]
        pipe, told = subprocess.PIPE, b""
        try:
            with self._asking, subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as asked:
                self._asked = asked
                try:
                    answer, told = asked.communicate(timeout=0.0 if self._is_stopped else limit_s)
                finally:
                    asked.kill()
            self._known[node] = _MACHINE.validate_json(answer.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValidationError, IndexError) as error:
            self._known.pop(node, None)
            why = told.decode(errors="replace")[-500:] or explained_error(error)
            event(log, logging.WARNING, "node_unknown", node=node, why=why)
            return False
        return True


def news_of(before: Inventory, now: Inventory) -> dict[str, str]:
    """Return what has changed in machines and in problems of their devices, by name for a log; empty for nothing."""
    if _devices(before) == _devices(now):
        return {}
    problems = [problem for _, problem, _ in _devices(now) if problem]
    return {"machines": ",".join(each.name for each in now.machines), "problems": "; ".join(problems) or "none"}


def has_problems(now: Inventory) -> bool:
    """Return whether a device does not work."""
    return any(problem for _, problem, _ in _devices(now))


def has_other_figures(before: Inventory, now: Inventory) -> bool:
    """Return whether what the coordinator is told besides machines has changed."""
    return (before.relays, before.fabric_bytes_per_s, before.fabric_latency_s) != (
        now.relays,
        now.fabric_bytes_per_s,
        now.fabric_latency_s,
    )


def _devices(offered: Inventory) -> list[tuple[str, str, bool]]:
    return [(each.name, device.problem, each.has_launcher) for each in offered.machines for device in each.devices]


def main(node: str, config_json: str) -> None:
    """Print what this machine offers, as the node of this name. Directories that it does not share are refused."""
    given = AgentConfig.model_validate_json(config_json)
    for each in (given.work_dir, given.state_dir):
        if not each.is_dir():
            raise ConfigError(f"{each} is not on {node}; the directories of an agent with a cluster must be shared")
    config = given.model_copy(update={"num_cores": host_limits.num_cores(), "memory_bytes": host_limits.memory_bytes()})
    found = inventory(config, installed(config.engines), Accelerators(), 0.0).own
    sys.stdout.write(_MACHINE.dump_json(replace(found, name=node)).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
