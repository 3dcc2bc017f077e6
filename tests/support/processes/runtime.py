"""The whole runtime as an operator starts it: an emulated network, a coordinator, an agent a region, in processes of
their own. Any of them may be killed, and agents started again. Everything is found in logs and files, as a person
would."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.client.connection import connect, job_state
from coordinator.local_fleet.services import fork_server_command
from periplus.job.run_directory import RunDirectory
from periplus.pb.v1 import control_pb2
from periplus.process.fork_server import ADDRESS_VARIABLE
from periplus.wan.client import LinkProperty, WanControl
from tests.support.processes.demo import environment, pids_of

READY_DEADLINE_S = 200.0
DEADLINE_S = 400.0
LOOK_S = 0.1
"""Seconds between two looks at files and processes: a fifth of what a version takes."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log: level, event, and its `key=value` fields."""

    level: str
    event: str
    fields: dict[str, str]


def log_lines(path: Path) -> list[LogLine]:
    """Return the events of a log, up to its last whole line."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().decode(errors="replace").rpartition("\n")
    words = (line.split(" ") for line in whole.split("\n"))
    return [
        LogLine(line[1], line[3], dict(word.partition("=")[::2] for word in line[4:] if "=" in word))
        for line in words
        if len(line) > 3
    ]


def until(true: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until something is true that other processes bring about."""
    end_s = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end_s, f"waited {deadline_s:.0f} s in vain for {what}"
        time.sleep(LOOK_S)


class Runtime(AbstractContextManager["Runtime"]):
    """A running coordinator, in the first region, and an agent in each region. Logs and state lie in `folder`.

    Each region has two emulated devices, `slowdown` times slower than an L4. Between kills the runtime then sleeps, and
    what starts again has the cores to itself.
    """

    def __init__(self, folder: Path, regions: Sequence[str], slowdown: float) -> None:
        self.folder = folder
        self._devices = folder / "devices.yaml"
        device = {"kind": "emulated", "model": "L4", "slowdown": slowdown}
        tree = {"schema": "periplus.devices/1", "machines": [{"devices": [device, device]}]}
        self._devices.write_text(json.dumps(tree))
        self.regions = tuple(regions)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = ExitStack()

    def __enter__(self) -> Self:
        with self._started:
            self._start_fork_server()
            grid = ["--grid", "intercontinental", "--regions", ",".join(self.regions), "--control", "127.0.0.1:0"]
            self.wan = self._start("wan", ["wan", "run", *grid])["control"]
            place = ["--region", self.regions[0], "--wan", self.wan]
            self.coordinator = self._start(
                "coordinator", ["coordinator", "run", "--plaintext", "--listen", "127.0.0.1:0", *place]
            )["coordinator"]
            for region in self.regions:
                self.start_agent(region)
            self._started = self._started.pop_all()
        until(self._is_measured, "every link to be measured")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._started.close()

    # ---- processes ------------------------------------------------------------------------------------------------

    def start_agent(self, region: str) -> None:
        """Start an agent in a region that has none, once the coordinator has noticed that."""
        until(lambda: self._state_of(region) != "ready", f"the coordinator to miss {region}")
        self._start(
            _agent(region),
            [
                "agent",
                "run",
                "--plaintext",
                "--coordinator",
                self.coordinator,
                "--wan",
                self.wan,
                "--region",
                region,
                "--work-dir",
                str(self.folder),
                "--devices",
                str(self._devices),
            ],
        )

    def kill_agent(self, region: str) -> None:
        """Kill an agent with signal 9; its workers end by themselves."""
        agent = self._processes.pop(_agent(region))
        agent.kill()
        agent.wait()

    def kill_worker(self, region: str) -> None:
        """Kill the region's rollout worker with signal 9."""
        os.kill(self.worker_pid(region), signal.SIGKILL)

    def worker_pid(self, region: str) -> int:
        """Return the process id of the region's rollout worker, once it runs."""
        until(lambda: self._tasks("rollout_worker", region), f"a worker in {region}")
        return self._tasks("rollout_worker", region)[0]

    def until_trainer_is_gone(self, region: str) -> None:
        """Wait until the trainer has ended, which saves its state first once its agent has died."""
        until(lambda: not self._tasks("trainer", region), f"the trainer in {region} to leave")

    def _tasks(self, module: str, region: str) -> list[int]:
        return [pid for pid, words in pids_of(self.folder) if _is_task(words, module, region)]

    def _start_fork_server(self) -> None:
        # Its tasks share what it has imported, and are there at once when they are started again.
        self._sockets = Path(self._started.enter_context(tempfile.TemporaryDirectory(prefix="forks-")))
        process = subprocess.Popen(
            fork_server_command(str(self._sockets / "socket")),
            env=environment(self.folder) | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._started.callback(_end, process)

    def _start(self, name: str, arguments: Sequence[str]) -> dict[str, str]:
        ready = self.folder / f"{_file(name)}.ready.json"
        ready.unlink(missing_ok=True)
        with self.agent_log(name).open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "periplus", *arguments, "--ready-file", str(ready), "--stop-on-stdin-eof"],
                env=environment(self.folder) | {ADDRESS_VARIABLE: str(self._sockets / "socket")},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes[name] = process
        self._started.callback(_end, process)
        until(lambda: ready.exists() or process.poll() is not None, f"{name} to be ready", READY_DEADLINE_S)
        assert process.poll() is None, f"{name} ended: {self.agent_log(name).read_text()[-2000:]}"
        found: dict[str, str] = json.loads(ready.read_text())
        return found

    # ---- what is seen ---------------------------------------------------------------------------------------------

    def agent_log(self, name: str) -> Path:
        """Return the log of an agent, given its region, or of another service, given its name."""
        return self.folder / f"{_file(_agent(name) if name in self.regions else name)}.log"

    def state(self, job_id: str) -> str:
        """Return the state of a job, with the reason."""

        async def ask() -> str:
            async with connect(self.coordinator) as remote:
                job = await remote.job(job_id)
                return f"{job_state(job)} {job.reason}".strip()

        return asyncio.run(ask())

    def set_rate(self, src: str, dst: str, bits_per_s: float) -> None:
        """Set the rate of one link of the emulated network."""

        async def call() -> None:
            async with WanControl(self.wan) as emulator:
                await emulator.set_link(src, dst, LinkProperty.RATE, bits_per_s)

        asyncio.run(call())

    def periplus(self, *arguments: str) -> str:
        """Run a command that succeeds, and return what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "periplus", *arguments],
            env=environment(self.folder),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _fleet(self) -> control_pb2.Fleet:
        async def ask() -> control_pb2.Fleet:
            async with connect(self.coordinator) as remote:
                return await remote.fleet()

        return asyncio.run(ask())

    def _state_of(self, region: str) -> str:
        return {each.name: each.state for each in self._fleet().regions}.get(region, "")

    def _is_measured(self) -> bool:
        num_pairs = len(self.regions) * (len(self.regions) - 1)
        return len([link for link in self._fleet().links if link.throughput_bits_per_s > 0]) == num_pairs


class Job:
    """One job of a runtime, from its submission on."""

    def __init__(self, runtime: Runtime, file: Path, *overrides: str) -> None:
        self.runtime = runtime
        self.job_id = self._submit(str(file), *overrides)
        self.run = RunDirectory(runtime.folder / "runs" / self.job_id)

    def resume(self, *overrides: str) -> None:
        """Go on from the newest checkpoint in a new fork."""
        change = ("--change",) if overrides else ()
        self._submit(*overrides, "--resume", str(self.run.root), *change)

    def _submit(self, *words: str) -> str:
        at = ("-o", "name", "--coordinator", self.runtime.coordinator)
        return self.runtime.periplus("job", "submit", *words, *at).strip()

    def until_state(self, word: str) -> None:
        """Wait until the job is in this state."""
        end_s = time.monotonic() + DEADLINE_S
        while not (state := self.runtime.state(self.job_id)).startswith(word):
            assert time.monotonic() < end_s, f"the job is {state}, not {word}"
            assert not state.startswith(("failed", "cancelled", "succeeded")), state
            time.sleep(0.2)

    def version(self) -> int:
        """Return the newest version that was trained, 0 before the first."""
        steps = [record.policy.version for record in self._records() if record.kind == "step"]
        return max(steps, default=0)

    def _records(self) -> Sequence[Any]:
        return self.run.records() if self.run.metrics.exists() else ()

    def until_next_version(self, count: int = 1) -> None:
        """Wait until so many more versions were trained."""
        wanted = self.version() + count
        until(lambda: self.version() >= wanted, f"version {wanted}")

    def worker_log(self, region: str) -> Path:
        return self.run.logs / f"rollout-{_file(region)}-0.log"

    def until_logged(self, path: Path, event: str, *, after: int) -> None:
        """Wait until a log has more than `after` lines of this event."""
        until(lambda: count(path, event) > after, f"{event} in {path.name}")

    def published(self) -> dict[str, str]:
        """Return the digests of published weights by policy, as the journal has them."""
        return {"{}.{}".format(*line["policy"]): line["digest"] for line in self._audit("publish")}

    def _audit(self, kind: str) -> Iterator[dict[str, Any]]:
        for text in self.run.audit.read_text().splitlines():
            line = json.loads(text)
            if line["kind"] == kind:
                yield line

    def proven(self, region: str) -> list[tuple[str, str]]:
        """Return (policy, digest) of the weights that the region's workers proved to hold, in order."""
        lines = log_lines(self.worker_log(region))
        return [(line.fields["policy"], line.fields["digest"]) for line in lines if line.event == "weights_proven"]


def count(path: Path, event: str) -> int:
    """Return the number of lines of this event in a log."""
    return sum(line.event == event for line in log_lines(path))


def _agent(region: str) -> str:
    return f"agent-{region}"


def _file(name: str) -> str:
    return name.replace(":", "-")


def _is_task(words: str, module: str, region: str) -> bool:
    if f" {module} --task-file " not in words:
        return False
    try:
        return str(json.loads(Path(words.split()[4]).read_text())["region"]) == region
    except OSError:  # it has ended meanwhile
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdin.close()
