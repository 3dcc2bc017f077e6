"""The processes of one region: starts, watches and ends them. It decides nothing; `reconcile.py` does.

Every worker runs in its own session, so that a terminal's Ctrl-C reaches the agent alone, and with the agent's end of
a pipe as standard input, so that a worker whose agent died reads end-of-file and leaves. Output goes to one log file a
task.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from periplus.run_directory import RunDirectory
from periplus.task import Role, TaskOutcome, TaskSpec, TaskState
from region_agent.reconcile import Action, AskToStop, Forget, Kill, LocalTask, Process, Start

STATUS_FILE = "status.json"
MODULE_OF = {Role.TRAINER: "trainer", Role.ROLLOUT: "rollout_worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The same for every process of the region."""

    region: str
    gateway: str
    work_dir: Path
    num_threads: int


class Supervisor:
    """Performs actions and keeps the table of processes that reconcile reads."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._popen: dict[str, subprocess.Popen[bytes]] = {}
        self._scratch: dict[str, Path] = {}
        self.processes: dict[str, Process] = {}

    def perform(self, action: Action, now_s: float) -> None:
        """Carry out one action. A process that cannot be started counts as one that failed."""
        match action:
            case Start(task, restarts):
                self._start(task, restarts, now_s)
            case AskToStop(task_id):
                self._signal(task_id, signal.SIGTERM)
                self.processes[task_id] = replace(self.processes[task_id], asked_to_stop_at_s=now_s)
            case Kill(task_id):
                self._signal(task_id, signal.SIGKILL)
                self.processes[task_id] = replace(self.processes[task_id], killed=True)
            case Forget(task_id):
                del self.processes[task_id]

    def poll(self, now_s: float) -> None:
        """Take note of processes that have ended."""
        for task_id, popen in list(self._popen.items()):
            exit_code = popen.poll()
            if exit_code is None:
                continue
            del self._popen[task_id]
            scratch = self._scratch.pop(task_id)
            status_file = scratch / STATUS_FILE
            status = status_file.read_text(encoding="utf-8") if status_file.exists() else ""
            shutil.rmtree(scratch, ignore_errors=True)
            outcome = TaskOutcome.of_exit(exit_code, status)
            self.processes[task_id] = replace(self.processes[task_id], outcome=outcome, ended_at_s=now_s)

    async def stop_all(self, grace_s: float) -> None:
        """Ask everything to stop, wait up to `grace_s`, kill the rest."""
        for popen in self._popen.values():
            popen.terminate()
        for _ in range(int(grace_s / 0.1)):
            if all(popen.poll() is not None for popen in self._popen.values()):
                break
            await asyncio.sleep(0.1)
        for task_id, popen in self._popen.items():
            if popen.poll() is None:
                popen.kill()
            await asyncio.to_thread(popen.wait)
            shutil.rmtree(self._scratch.pop(task_id), ignore_errors=True)
        self._popen.clear()

    def _start(self, task: LocalTask, restarts: int, now_s: float) -> None:
        running = Process(
            task=task, started_at_s=now_s, restarts=restarts, asked_to_stop_at_s=None, killed=False, outcome=None,
            ended_at_s=None,
        )  # fmt: skip
        self.processes[task.task_id] = running
        try:
            self._spawn(task)
        except OSError as error:
            outcome = TaskOutcome(state=TaskState.FAILED, message=f"cannot start {task.task_id}: {error}")
            self.processes[task.task_id] = replace(running, outcome=outcome, ended_at_s=now_s)

    def _spawn(self, task: LocalTask) -> None:
        settings = self._settings
        run = RunDirectory(settings.work_dir / task.output_dir / task.job_id)
        logs = run.root / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="periplus-task-"))
        spec = TaskSpec(
            task_id=task.task_id, job_id=task.job_id, role=task.role, region=settings.region, job_json=task.job_json,
            plan_json=task.plan_json, fork=task.fork, resume_from=task.resume_from, gateway=settings.gateway,
            run_dir=str(run.root), status_file=str(scratch / STATUS_FILE), num_threads=settings.num_threads,
        )  # fmt: skip
        spec_file = scratch / "task.json"
        spec_file.write_text(spec.to_json(), encoding="utf-8")
        log_name = task.task_id.removeprefix(f"{task.job_id}/").replace(":", "-").replace("/", "-")
        with open(logs / f"{log_name}.log", "ab") as log:
            self._popen[task.task_id] = subprocess.Popen(
                [sys.executable, "-m", MODULE_OF[task.role], "--task-file", str(spec_file)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": str(settings.num_threads), "TOKENIZERS_PARALLELISM": "false"},
            )  # fmt: skip
        self._scratch[task.task_id] = scratch

    def _signal(self, task_id: str, number: signal.Signals) -> None:
        popen = self._popen.get(task_id)
        if popen is not None:
            popen.send_signal(number)
