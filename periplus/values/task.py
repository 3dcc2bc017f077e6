"""What an agent is asked to run, and what it hands to the process that runs it.

`AssignedTask` is the coordinator's wish. `TaskSpec` is the file that the agent writes for one process: the task, and
where its gateway, run directory and status file are. The process ends by writing a `TaskOutcome` into the status file;
the exit code alone says which of the three it was, for a process that could not write.
"""

import dataclasses
import json
import shlex
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from periplus.errors import ConfigError
from periplus.values.policy import Policy

EXIT_SUCCEEDED = 0
EXIT_FAILED = 1
EXIT_STOPPED = 75
"""Stopped on request with its state saved: not a failure, and not to be restarted (EX_TEMPFAIL of sysexits.h)."""

REGION_NAME = r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}"
"""Pattern of a region's name, as in aws:us-east-1. It becomes a part of file names and of task ids."""

PUBLIC_KEY_BYTES = 32
"""Length of a raw Ed25519 public key, in bytes."""


class Role(StrEnum):
    TRAINER = "trainer"
    ROLLOUT = "rollout"


class TaskState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTask:
    """One process that the coordinator wants in a region. `stopping`: save your state and end. `authority_key`: the
    coordinator's job authority, in hexadecimal; readers of the job's weights accept the trainers that it certified."""

    task_id: str
    job_id: str
    role: Role
    job_json: str
    trainer_region: str
    trainer_gateway: str
    fork: int
    resume_from: str
    plan_json: str
    stopping: bool
    authority_key: str


def resume_command(run_dir: str) -> str:
    """Return the command that an operator types to go on with a run."""
    return f"periplus job submit --resume {shlex.quote(run_dir)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Where the host of a task keeps its run: absolute paths there. `log` is the task's own. Of a trainer that has
    ended, `checkpoint` is the newest complete one and `report` the page about the run, if there are such."""

    run_dir: str
    log: str
    checkpoint: Policy | None = None
    report: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What became of a task so far, in the fork that it was asked for; `message` is for a person and set on failure.
    `files` is None if no process of it was ever started."""

    task_id: str
    job_id: str
    state: TaskState
    message: str
    restarts: int
    fork: int = 0
    files: RunFiles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Everything that one worker process needs to know; `authority_key` as in its task."""

    task_id: str
    job_id: str
    role: Role
    region: str
    job_json: str
    plan_json: str
    fork: int
    resume_from: str
    gateway: str
    run_dir: str
    status_file: str
    num_threads: int
    authority_key: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> "TaskSpec":
        """Read a spec. Raises: ConfigError if the file is missing or is no spec."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**data, "role": Role(data["role"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path} is no task file ({error}); agents write these, start one with `periplus agent`"
            ) from error


def authority_key_of(task: AssignedTask | TaskSpec) -> bytes:
    """The task's authority key as raw bytes. Raises: ConfigError if it is none."""
    try:
        key = bytes.fromhex(task.authority_key)
    except ValueError:
        key = b""
    if len(key) != PUBLIC_KEY_BYTES:
        raise ConfigError(
            f"task {task.task_id} names {task.authority_key[:80]!r} as its job authority's key, which is not "
            f"{PUBLIC_KEY_BYTES} bytes in hexadecimal; are coordinator, agent and worker of one version?"
        )
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The last word of a process."""

    state: TaskState
    message: str

    def to_json(self) -> str:
        return json.dumps({"state": self.state.value, "message": self.message})

    @classmethod
    def of_exit(cls, exit_code: int, status: str) -> "TaskOutcome":
        """From the exit code and the text of the status file, which may be empty."""
        try:
            data = json.loads(status)
            return cls(state=TaskState(data["state"]), message=str(data["message"]))
        except (ValueError, KeyError, TypeError):
            pass
        if exit_code == EXIT_SUCCEEDED:
            return cls(state=TaskState.SUCCEEDED, message="")
        if exit_code in (EXIT_STOPPED, -signal.SIGTERM):  # asked to stop, maybe before it could listen
            return cls(state=TaskState.STOPPED, message="")
        how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        return cls(state=TaskState.FAILED, message=f"the process ended without a word ({how})")
