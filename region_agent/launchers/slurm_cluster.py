"""The nodes of the Slurm allocation in which an agent runs: each process is a step of it, which `srun` starts."""

import os
import shutil
import subprocess
from collections.abc import Mapping

from periplus.errors import ConfigError, Unreachable
from region_agent.launchers.node_process import node_words, step_words

_ASK_S = 30.0
"""Seconds in which Slurm's controller must answer. Chosen by hand."""

_DOWN = ("down", "drain", "fail", "not_responding", "power")
"""What names of states of nodes that start no step contain."""


class SlurmCluster:
    """The allocation of this process. Raises: ConfigError if it is in none."""

    def __init__(self) -> None:
        self._job, self._names = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_NODELIST", "")
        if not self._job or not self._names or shutil.which("srun") is None:
            raise ConfigError(
                "--launcher slurm starts steps of the allocation in which the agent runs, and this process is in none; "
                "start the agent by sbatch or salloc (deploy/slurm), or use --launcher local"
            )
        self._all = tuple(_output("scontrol", "show", "hostnames", self._names).split())
        self.own = os.environ.get("SLURMD_NODENAME", self._all[0])

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of the allocation that are up, the agent's own first. Raises: Unreachable."""
        lines = _output("sinfo", "--noheader", "--Node", "--nodes", self._names, "--format", "%N %T").splitlines()
        states = dict(line.split()[:2] for line in lines)
        up = [each for each in self._all if not any(bad in states.get(each, "down").lower() for bad in _DOWN)]
        return tuple(sorted(up, key=lambda name: name != self.own))

    def words(self, node: str, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words that run a command line as a step on a node, with these variables.

        Steps share the allocation, since the plan says which devices each of them uses. Slurm sets the variables of
        devices itself, so those of the plan are set after it.
        """
        step = (
            *step_words(node),
            "srun",
            f"--jobid={self._job}",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={node}",
            "--overlap",
        )
        free = ("--cpu-bind=none", "--mem=0", "--export=ALL", "--unbuffered", "--quiet", "--kill-on-bad-exit=1")
        return (*step, *free, *node_words(settings))

    def close(self, *, leaves_tasks: bool) -> None:
        """There is nothing to give back: the allocation is not the agent's."""


def _output(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", "") or str(error)
        raise Unreachable(f"Slurm does not answer: {words[0]}: {told.strip()}") from error
    return done.stdout
