"""Starts, watches and ends the worker and trainer processes of one region as child processes of the agent.

The supervisor performs actions; control/reconcile.py decides them. How a process is run:

- It gets its own Unix session, so that Ctrl-C in a terminal reaches only the agent.
- An agent that has a parent ties its processes to itself: their standard input is a pipe from it, and if it dies they
  read end-of-file and leave. Processes of a service outlive it: they try for a while to reach the region's gateway
  again, and the next agent of the region finds them in the state directory (task_folders.py) and adopts them.
- It is sent SIGTERM only once, because a second one would cut short what it is saving.
- When it ends, the processes that it started itself are killed too. If the agent is dead then, the process's own guard
  kills them (periplus/process/guard.py), which also removes their shared memory.
- It sees the devices of its task alone: accelerators by CUDA_VISIBLE_DEVICES, cores by its affinity.
- Its output goes to one log file per task. If the disk has no room for the log, the task runs without one.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from periplus.errors import ConfigError, Denied, NotFound, PeriplusError, explained_error
from periplus.job.resumption import MANIFEST, newest_checkpoint
from periplus.job.run_directory import RunDirectory, start_line
from periplus.net.certificates import Identity
from periplus.process.disk import NO_ROOM
from periplus.process.fork_server import Request
from periplus.process.telemetry import event
from periplus.values.machine import Device, DeviceFamily, Machine, MachineDevices
from periplus.values.replica_url import check_replica_url, is_replica, local_directory, replicated_policy
from periplus.values.task import FailureCause, RankMachine, Role, TaskOutcome, TaskSpec, TaskState
from region_agent.control.reconcile import Action, AskToStop, Forget, Kill, LocalTask, Process, Start
from region_agent.launchers.allowed_paths import check_run_path
from region_agent.launchers.child import AdoptedChild, Child, created_at
from region_agent.launchers.node_process import NODE_LOST
from region_agent.launchers.task_folders import IDENTITY_FOLDER, STATUS_FILE, TASK_FILE, StartedProcess, TaskFolders
from region_agent.owner.region_owner import RegionOwner

log = logging.getLogger(__name__)

MODULE_OF = {Role.TRAINER: "trainer", Role.ROLLOUT: "rollout_worker"}
"""Python module that is run for a task of each role."""

FORKED_ENGINES = ("", "torch")
"""Engines of rollout workers that may be forked; a task without the name of an engine has torch."""

POLL_S = 0.1
"""Seconds between two looks at the processes while the agent stops. Chosen by hand."""
KILLED_WAIT_S = 5.0
"""Seconds to wait for killed processes. The kernel ends one within milliseconds, unless a driver or a network disk
blocks it; then the agent leaves without it. Chosen by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings that all processes of the region share. `gateway` is the host:port of the region's gateway.

    `words_on` returns the words that run a command line on a machine, with some variables; None if the agent starts
    processes on its own machine alone.

    `num_threads` are the compute threads of a process by its role. `python_of` has the interpreter of rollout workers
    by engine; without one, it is the agent's own. Runs lie below `work_dir` or one of `allow_dirs`, and the files of
    processes below `task_dir`. `allows_*` are the agent's flags on code, as in a `TaskSpec`, which the `owner` of the
    region may narrow; the owner also has the secrets of tasks. `fork_server` is the socket of a process that forks
    tasks. Processes end with the agent if it `ties_tasks`. `identify` returns a new identity of (job, role), in a fleet
    that has them.
    """

    region: str
    gateway: str
    work_dir: Path
    task_dir: Path
    allow_dirs: tuple[Path, ...] = ()
    num_threads: Mapping[Role, int]
    python_of: Mapping[str, str] = field(default_factory=dict)
    allows_own_code: bool = False
    allows_unsandboxed: bool = False
    fork_server: Path | None = None
    ties_tasks: bool = True
    identify: Callable[[str, str], Identity] | None = None
    words_on: Callable[[str, Mapping[str, str]], tuple[str, ...]] | None = None
    owner: RegionOwner = field(default_factory=RegionOwner)


class Supervisor:
    """Performs the actions that `reconcile` returns, and keeps the table that it reads: `processes`, by task id."""

    def __init__(
        self, settings: WorkerSettings, machines: Sequence[Machine], module_of: Mapping[Role, str] = MODULE_OF
    ) -> None:
        self._settings = settings
        self.machines = machines
        """The machines on which tasks can be started, the agent's own first, with devices as they were last seen."""
        self._module_of = module_of
        self._children: dict[str, Child | AdoptedChild] = {}
        self._folders = TaskFolders(settings.task_dir)
        self._noted: dict[str, StartedProcess] = {}
        self.lost: set[str] = set()
        """Nodes on which the last `poll` has lost a process or a rank of a trainer."""
        self.processes: dict[str, Process] = {}

    def adopt(self, now_s: float) -> dict[str, LocalTask]:
        """Take over the processes that another agent of this region left, and return their tasks by id.

        Those that have ended meanwhile are recorded at the next `poll`.
        """
        for left in self._folders.left_behind():
            task_id = left.task.task_id
            self._children[task_id], self._noted[task_id] = AdoptedChild(left.pid, left.created), left
            self.processes[task_id] = Process(
                task=left.task,
                started_at_s=now_s,
                restarts=left.restarts,
                asked_to_stop_at_s=now_s if left.has_been_asked else None,
                killed=False,
                outcome=None,
                ended_at_s=None,
            )
            event(log, logging.INFO, "process_adopted", task=task_id, pid=left.pid, fork=left.task.fork)
        return {task_id: process.task for task_id, process in self.processes.items()}

    def perform(self, action: Action, now_s: float) -> None:
        """Perform one action. A process that cannot be started is recorded as one that failed."""
        match action:
            case Start(task, restarts):
                self._start(task, restarts, now_s)
            case AskToStop(task_id):
                self._signal(task_id, signal.SIGTERM)
                self.processes[task_id] = replace(self.processes[task_id], asked_to_stop_at_s=now_s)
                self._note(task_id)
            case Kill(task_id):
                self._signal(task_id, signal.SIGKILL)
                self.processes[task_id] = replace(self.processes[task_id], killed=True)
            case Forget(task_id):
                del self.processes[task_id]

    def poll(self, now_s: float) -> tuple[LocalTask, ...]:
        """Record the outcome of every process that has ended, and return the tasks of those that have failed."""
        failed = list[LocalTask]()
        self.lost.clear()
        for task_id, child in list(self._children.items()):
            exit_code = child.poll()
            if exit_code is None:
                if task_id not in self._noted:  # a fork has an id a moment after it was asked for
                    self._note(task_id)
                continue
            del self._children[task_id]
            self._noted.pop(task_id, None)
            child.close()
            # Before the outcome is recorded, so that a restart does not meet what the earlier process had started.
            child.kill_group()
            # The outcome is what the process wrote about itself; without that, what its exit status says.
            task, status = self.processes[task_id].task, self._folders.status(task_id)
            outcome = TaskOutcome.of_exit(exit_code, status)
            if exit_code == NODE_LOST and self._settings.words_on is not None and not status:
                self.lost.add(task.machine)
                outcome = TaskOutcome(state=TaskState.FAILED, message=f"its node {task.machine} was lost")
            # As trainer/distributed/followers.py names the machine of a lost rank.
            self.lost |= {each.machine for each in task.others if f" on {each.machine} (process" in outcome.message}
            self._folders.remove(task_id)
            self.processes[task_id] = replace(self.processes[task_id], outcome=outcome, ended_at_s=now_s)
            if outcome.state is TaskState.FAILED:
                failed.append(self.processes[task_id].task)
        return tuple(failed)

    def run_directory(self, task: LocalTask) -> RunDirectory:
        """Return the directory of a task's run. A trainer that resumes a run goes on in that run's own directory."""
        if task.role is Role.TRAINER and task.resume_from and not is_replica(task.resume_from):
            return RunDirectory(Path(task.resume_from))
        return RunDirectory(self._settings.work_dir / task.output_dir / task.job_id)

    def refusal(self, task: LocalTask) -> str:
        """Return why a task's run may not lie where the task says, or an empty text."""
        roots = (self._settings.work_dir, *self._settings.allow_dirs)
        try:
            check_run_path(self.run_directory(task).root, roots)
            for url in filter(is_replica, (task.replicate, task.resume_from)):
                check_replica_url(url)
                if (folder := local_directory(url)) is not None:
                    check_run_path(folder, roots)
        except (Denied, ConfigError, OSError, RuntimeError) as error:  # a loop of symbolic links
            return str(error)
        return ""

    def log_file(self, task: LocalTask) -> Path:
        """Return the path of a task's log. Its successive processes append to the same file."""
        name = task.task_id.removeprefix(f"{task.job_id}/").replace(":", "-").replace("/", "-")
        return self.run_directory(task).logs / f"{name}.log"

    async def stop_all(self, grace_s: float, now: Callable[[], float]) -> None:
        """Ask all processes to stop, wait up to `grace_s` seconds, then kill the rest.

        `processes` tells how they ended.
        """
        for task_id in self._children:
            # A second signal would cut short what a process is saving.
            if self.processes[task_id].asked_to_stop_at_s is None:
                self.perform(AskToStop(task_id), now())
        await self._wait_for_all(grace_s, now)
        for task_id in self._children:
            self.perform(Kill(task_id), now())
        await self._wait_for_all(KILLED_WAIT_S, now)

    async def _wait_for_all(self, limit_s: float, now: Callable[[], float]) -> None:
        until_s = now() + limit_s
        self.poll(now())
        while self._children and now() < until_s:
            await asyncio.sleep(POLL_S)
            self.poll(now())

    def _start(self, task: LocalTask, restarts: int, now_s: float) -> None:
        running = Process(
            task=task,
            started_at_s=now_s,
            restarts=restarts,
            asked_to_stop_at_s=None,
            killed=False,
            outcome=None,
            ended_at_s=None,
        )
        # Recorded before the attempt, so that a failure to start is reported and retried as any other end.
        self.processes[task.task_id] = running
        if why := self.refusal(task):
            outcome = TaskOutcome(state=TaskState.FAILED, message=why, cause=FailureCause.LASTING)
            self.processes[task.task_id] = replace(running, outcome=outcome, ended_at_s=now_s)
            return
        try:
            secrets = self._settings.owner.variables(task)
        except Denied as error:
            outcome = TaskOutcome(state=TaskState.FAILED, message=str(error), cause=FailureCause.OWNER)
            self.processes[task.task_id] = replace(running, outcome=outcome, ended_at_s=now_s)
            return
        try:
            self._spawn(task, restarts, secrets)
        except Denied as error:
            outcome = TaskOutcome(state=TaskState.FAILED, message=str(error), cause=FailureCause.DEVICE)
            self.processes[task.task_id] = replace(running, outcome=outcome, ended_at_s=now_s)
        except OSError as error:
            self._folders.remove(task.task_id)
            outcome = TaskOutcome(
                state=TaskState.FAILED, message=f"cannot start {task.task_id}: {explained_error(error)}"
            )
            self.processes[task.task_id] = replace(running, outcome=outcome, ended_at_s=now_s)

    def _spawn(self, task: LocalTask, restarts: int, secrets: Mapping[str, str]) -> None:
        settings, run = self._settings, self.run_directory(task)
        own = MachineDevices(task.machine or self.machines[0].name, task.devices)
        devices, *others = [devices_of(task, place, self.machines) for place in (own, *task.others)]
        folder = self._folders.make(task.task_id)
        spec = TaskSpec(
            task_id=task.task_id,
            job_id=task.job_id,
            role=task.role,
            region=settings.region,
            job_json=task.job_json,
            plan_json=task.plan_json,
            fork=task.fork,
            resume_from=resumed_from(task, run),
            gateway=settings.gateway,
            run_dir=str(run.root),
            status_file=str(folder / STATUS_FILE),
            num_threads=settings.num_threads[task.role],
            authority_key=task.authority_key,
            job_secret=task.job_secret,
            cores=tuple(core for device in devices for core in device.cores),
            allows_other_problems=task.allows_other_problems,
            model_config=task.model_config,
            engine=task.engine if task.role is Role.ROLLOUT else "",
            tensor=task.tensor,
            data=task.data,
            allows_own_code=settings.allows_own_code and settings.owner.policy.own_code,
            allows_unsandboxed=settings.allows_unsandboxed and settings.owner.policy.unsandboxed,
            pace=task.pace,
            by_turns=task.by_turns,
            ends_with_agent=settings.ties_tasks,
            machines=self._rank_machines(task, (devices, *others)) if others else (),
            identity=self._identify(task, folder),
        )
        visible = variables_of(settings.num_threads[task.role], devices)
        words_on = settings.words_on
        spec_file = folder / TASK_FILE
        spec_file.write_text(spec.to_json(), encoding="utf-8")
        request = Request(
            python=self._python(task),
            module=self._module_of[task.role],
            arguments=("--task-file", str(spec_file)),
            environment={
                **settings.owner.visible(os.environ),
                **secrets,
                **visible,
            },
            folder=os.getcwd(),
            prefix=words_on(own.machine, visible) if words_on else (),
        )
        with _log_of(self.log_file(task), start_line(task.fork, restarts)) as output:
            self._children[task.task_id] = Child(
                request, output, self._fork_server(task, devices), is_tied=settings.ties_tasks
            )
        self._note(task.task_id)

    def _rank_machines(self, task: LocalTask, devices: Sequence[Sequence[Device]]) -> tuple[RankMachine, ...]:
        """Return the machines of a trainer with these devices on each. Raises: Denied without a launcher for them."""
        words_on = self._settings.words_on
        if words_on is None:
            raise Denied(
                f"{task.task_id} is planned on several machines, and this agent starts processes on its own alone"
            )
        num_threads, first = self._settings.num_threads[task.role], task.machine or self.machines[0].name
        return tuple(
            RankMachine(
                name=name,
                num_devices=len(there),
                words=words_on(name, variables_of(num_threads, there)) if place else (),
                cores=tuple(core for device in there for core in device.cores),
            )
            for place, (name, there) in enumerate(
                zip((first, *(other.machine for other in task.others)), devices, strict=True)
            )
        )

    def _identify(self, task: LocalTask, folder: Path) -> str:
        """Write a new identity of a task's process, and return its folder; empty in a fleet without identities."""
        if self._settings.identify is None:
            return ""
        identity = folder / IDENTITY_FOLDER
        self._settings.identify(task.job_id, task.role.value).save(identity)
        return str(identity)

    def renew_identities(self, now_unix_s: float) -> None:
        """Renew the identities of processes whose time has come. An error is logged."""
        for task_id, process in self.processes.items():
            folder = self._folders.folder(task_id)
            try:
                if process.outcome is None and Identity.load(folder / IDENTITY_FOLDER).renew_at_s <= now_unix_s:
                    self._identify(process.task, folder)
            except NotFound:  # a fleet without identities
                continue
            except (OSError, PeriplusError) as error:
                event(log, logging.WARNING, "identity_not_renewed", task=task_id, why=error)

    def _note(self, task_id: str) -> None:
        """Note the process of a task for the next agent, once it is there."""
        child, process = self._children.get(task_id), self.processes[task_id]
        if child is None or child.pid is None:
            return
        known = self._noted.get(task_id)
        created = known.created if known else created_at(child.pid)
        if created is not None:
            self._noted[task_id] = StartedProcess(
                pid=child.pid,
                created=created,
                task=process.task,
                restarts=process.restarts,
                has_been_asked=process.asked_to_stop_at_s is not None,
            )
            self._folders.note(self._noted[task_id])

    def _fork_server(self, task: LocalTask, devices: Sequence[Device]) -> Path | None:
        """Return the fork server's socket, or None for a task that must not be forked.

        CUDA, and engines with an interpreter or processes of their own, want a process that starts afresh. So does a
        task with secrets: the server's environment is the same for all tasks.
        """
        if self._settings.words_on is not None:
            return None
        is_plain = (task.role is Role.TRAINER or task.engine in FORKED_ENGINES) and not task.secrets
        on_gpu = any(device.kind is DeviceFamily.CUDA for device in devices)
        return self._settings.fork_server if is_plain and not on_gpu else None

    def _python(self, task: LocalTask) -> str:
        if task.role is Role.TRAINER:
            return sys.executable
        return self._settings.python_of.get(task.engine, sys.executable)

    def _signal(self, task_id: str, number: signal.Signals) -> None:
        if task_id in self._children:
            self._children[task_id].send_signal(number)


def resumed_from(task: LocalTask, run: RunDirectory) -> str:
    """Return the run that a trainer resumes; empty if its predecessor ended before there was anything to resume.

    A replica is not fetched if the run's directory has its checkpoint already, or a newer one.
    """
    if is_replica(task.resume_from):
        with contextlib.suppress(NotFound):
            if newest_checkpoint(run.root).policy >= replicated_policy(task.resume_from):
                return str(run.root)
        return task.resume_from
    has_begun = run.audit.exists() or any(run.checkpoints.glob(f"*/{MANIFEST}"))
    return "" if task.is_restart and not has_begun else task.resume_from


def devices_of(task: LocalTask, place: MachineDevices, machines: Sequence[Machine]) -> tuple[Device, ...]:
    """Return a task's devices on a machine. Raises: Denied if one or the machine is not there, or does not work."""
    machine = next((each for each in machines if each.name == place.machine), None)
    if machine is None:
        known = ", ".join(each.name for each in machines) or "no machine now"
        raise Denied(
            f"{task.task_id} is planned on the machine {place.machine}, and this agent starts processes on {known}"
        )
    present = {device.index: device for device in machine.devices}
    for index in place.devices:
        if index not in present:
            there = ", ".join(map(str, present)) or "none"
            raise Denied(f"{task.task_id} is planned on device {index} of {machine.name}, which has {there}")
        if present[index].problem:
            raise Denied(
                f"{task.task_id} is planned on device {index} of {machine.name}, which does not work: "
                f"{present[index].problem}"
            )
    return tuple(present[index] for index in place.devices)


def variables_of(num_threads: int, devices: Sequence[Device]) -> dict[str, str]:
    """Return the environment variables of a process that computes with these devices."""
    # By UUID, since CUDA's own order of devices need not be the driver's.
    visible = ",".join(each.uuid or str(each.index) for each in devices if each.kind is DeviceFamily.CUDA)
    # OpenMP threads that wait for work spin by default, and take the core from whatever else runs there: beside one
    # busy core, work of two threads took 1.36 CPU-seconds so, and 0.78 where waiting threads sleep.
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": visible,
    }


def _log_of(path: Path, first_line: str) -> BinaryIO:
    """Open a process's log and write its first line. On a full disk the process runs on, and its log loses lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        output: BinaryIO = path.open("ab", buffering=0)
    except OSError as error:
        # A full disk must not keep a task from running. Any other error must be seen.
        if error.errno not in NO_ROOM:
            raise
        event(log, logging.WARNING, "task_without_log", path=path, why=error)
        return open(os.devnull, "ab", buffering=0)
    try:
        output.write(f"{first_line}\n".encode())
    except OSError as error:
        if error.errno not in NO_ROOM:
            output.close()
            raise
    return output
