"""Small real clusters of this machine: Slurm with two nodes and an allocation of them, and Ray with some nodes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import psutil
import pytest

DEADLINE_S = 200.0

SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
KillWait=1
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs={cores} State=UNKNOWN
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def until(true: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end_s, f"waited in vain for {what}"
        time.sleep(0.1)


class SlurmNodes:
    """An allocation of the nodes n0 and n1 of a Slurm cluster of this machine, for a process on n0."""

    def __init__(self, variables: Mapping[str, str], daemons: dict[str, "subprocess.Popen[bytes]"]) -> None:
        self.variables, self._daemons = variables, daemons

    def processes(self, name: str) -> set[psutil.Process]:
        """Return the daemon of a node, and those of its steps."""
        found = {psutil.Process(self._daemons[name].pid)}
        for each in psutil.process_iter():
            with suppress(psutil.Error):
                if "slurmstepd" in " ".join(each.cmdline()) and any(
                    child.environ().get("SLURMD_NODENAME") == name and child.environ().get("SLURM_CONF") == self._conf
                    for child in each.children()
                ):
                    found.add(each)
        return found

    def start_node(self, name: str) -> None:
        """Start the daemon of a node that was killed."""
        self._daemons[name].wait()
        environment = {**os.environ, "SLURM_CONF": self._conf}
        self._daemons[name] = subprocess.Popen(["slurmd", "-D", "-N", name], env=environment, stderr=subprocess.DEVNULL)

    def kill_node(self, name: str) -> None:
        """Kill the daemons of a node and all that they have started, as a machine dies."""
        for each in self.processes(name):
            _kill_all(each)

    @property
    def _conf(self) -> str:
        return self.variables["SLURM_CONF"]


@contextmanager
def slurm_allocation(folder: Path) -> Iterator[SlurmNodes]:
    """Run a cluster of Slurm with an allocation of its two nodes."""
    missing = [name for name in ("srun", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)})" if missing else "Slurm's daemons want root here")
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool-n0", "spool-n1", "munge"):
        (folder / name).mkdir(parents=True)
    conf = folder / "slurm.conf"
    ports = {"controller": free_port(), "first": free_port(), "second": free_port()}
    conf.write_text(SLURM_CONF.format(folder=folder, host=host, cores=os.cpu_count(), **ports))
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munge = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as running:
        daemons = {
            "munged": ["munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *munge],
            "slurmctld": ["slurmctld", "-D", "-i"],
            "n0": ["slurmd", "-D", "-N", "n0"],
            "n1": ["slurmd", "-D", "-N", "n1"],
        }
        started = {}
        for name, words in daemons.items():
            with (folder / f"{name}.out").open("wb") as output:
                started[name] = subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)
            running.callback(lambda name=name: _ended(started[name]))  # type: ignore[misc]
            if name == "munged":
                until(lambda: (folder / "munge" / "socket").exists(), "munged")
        states = ["sinfo", "--noheader", "--Node", "--format=%T"]

        def are_idle() -> bool:
            told = subprocess.run(states, env=environment, capture_output=True, text=True).stdout
            return told.split() == ["idle"] * 2

        until(are_idle, "slurmd")
        told = subprocess.run(
            ["salloc", "--no-shell", "--no-kill", "--nodes=2", f"--cpus-per-task={os.cpu_count()}"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        job = next(word for word in told.split() if word.isdecimal())
        variables = {
            "SLURM_CONF": str(conf),
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NODELIST": "n[0-1]",
            "SLURMD_NODENAME": "n0",
        }
        yield SlurmNodes(variables, started)
        subprocess.run(["scancel", job], env=environment, check=False)


class RayNodes:
    """A Ray cluster of this machine at `address`, whose nodes are called n0, n1, ..."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        (folder / "home").mkdir(exist_ok=True)
        # A token in the user's home would be asked for. Ports of workers are the system's to choose.
        self.variables = {"RAY_AUTH_MODE": "disabled", "HOME": str(folder / "home"), "RAY_DISABLE_IMPORT_WARNING": "1"}
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        # In the command lines of its processes.
        self._mark = re.compile(rf"{re.escape(str(folder))}|ray\.util\.client\.server --address=\S+:{port}\b")
        self._nodes: dict[str, list[psutil.Process]] = {}
        self._numbers = count()
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}/ray"]
        self._start(*head, "--min-worker-port=0", "--max-worker-port=0")

    def add_node(self) -> str:
        """Start another node, and return its name."""
        return self._start(f"--address={self.address}")

    def processes(self, name: str) -> set[psutil.Process]:
        """Return the daemons of a node."""
        return set(self._nodes[name])

    def kill_node(self, name: str) -> None:
        """Kill the raylet of a node and all that it has started, as a machine dies."""
        for each in self._nodes.pop(name):
            _kill_all(each)

    def stop(self) -> None:
        """Kill all nodes, the head last."""
        for name in reversed(tuple(self._nodes)):
            self.kill_node(name)

    def _start(self, *arguments: str) -> str:
        name = f"n{next(self._numbers)}"
        before = set(_daemons(self._mark))
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-name={name}", "--num-cpus=2"]
        done = subprocess.run(
            [*words, "--node-ip-address=127.0.0.1", "--disable-usage-stats", *self._options, *arguments],
            env={**os.environ, **self.variables},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        # Other nodes may have started workers meanwhile.
        new = [each for each in _daemons(self._mark) if each not in before]
        self._nodes[name] = [each for each in new if before.isdisjoint(_ancestors(each))]
        if done.returncode:
            self.stop()
            raise AssertionError(f"Ray does not start: {done.stdout}{done.stderr}")
        return name


@contextmanager
def ray_nodes(folder: Path, num_nodes: int = 2, *options: str) -> Iterator[RayNodes]:
    """Run a Ray cluster. `options` are given to the start of each node."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install 'periplus[ray]')")
    # A path of a Unix socket has at most 107 characters.
    short = Path(subprocess.check_output(["mktemp", "-d", "-t", "ray-XXXX"], text=True).strip())
    made = RayNodes(short, *options)
    try:
        for _ in range(1, num_nodes):
            made.add_node()
        yield made
    finally:
        made.stop()
        shutil.rmtree(short, ignore_errors=True)


def _kill_all(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        for started in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                started.kill()


def _ancestors(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.parents()
    return []


def _daemons(mark: re.Pattern[str]) -> list[psutil.Process]:
    """Return the processes of a Ray cluster."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if "pytest" not in (line := " ".join(each.cmdline())) and mark.search(line):
                found.append(each)
    return found


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
