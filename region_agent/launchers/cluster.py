"""Clusters: how an agent starts processes on other machines of its region, with the programs of Slurm or Ray.

A cluster says which nodes are up, and gives the words that run a command line on one of them. These words are a process
of the agent's own machine (`srun`, `ray_step.py`), which passes on input, output, signals and the exit code. So the
agent sees, stops and adopts a process of another machine as one of its own. Work and state directories are shared.
"""

import os
from collections.abc import Mapping
from typing import Protocol

from region_agent.config import AgentConfig, LauncherName
from region_agent.launchers.ray_cluster import ADDRESS_VARIABLE, RayCluster
from region_agent.launchers.slurm_cluster import SlurmCluster


class Cluster(Protocol):
    """The cluster of a region. `own` is the name of the node on which the agent runs."""

    own: str

    def nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that are up, the agent's own first. It waits: call it in a thread.

        Raises: Unreachable if the cluster does not answer.
        """

    def words(self, node: str, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words that run the command line after them on a node, with these variables besides this process's
        own."""

    def close(self, *, leaves_tasks: bool) -> None:
        """Give back what the agent holds of the cluster, as far as tasks that it leaves behind do not need it."""


def cluster_of(config: AgentConfig) -> Cluster | None:
    """Return the cluster of an agent's configuration; None if it starts processes on its own machine alone.

    Raises: ConfigError if there is no such cluster here, Unreachable.
    """
    match config.launcher:
        case LauncherName.LOCAL:
            return None
        case LauncherName.SLURM:
            return SlurmCluster()
        case LauncherName.RAY:
            return RayCluster(os.environ.get(ADDRESS_VARIABLE, "auto"), config.region)
