"""The values by which the coordinator, an agent and a worker process agree on a task and its result.

A task is one process: the trainer of a job, or one of its rollout workers. `AssignedTask` is what the coordinator tells
a region's agent to run. `TaskSpec` is the file that the agent writes for the process: the task, its gateway, its run
directory and its status file. The process writes a `TaskOutcome` into the status file when it ends; if it could not,
its exit code gives the state. `TaskReport` is what the agent reports to the coordinator.
"""

import dataclasses
import json
import shlex
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from periplus.errors import ConfigError
from periplus.values.machine import MachineDevices, Pace
from periplus.values.policy import Policy

EXIT_SUCCEEDED = 0
"""Exit code of a process that finished its task."""

EXIT_FAILED = 1
"""Exit code of a process that failed."""

EXIT_UNKNOWN = 256
"""Stands for the exit code of a process whose own one nobody learns. No process has it."""

EXIT_STOPPED = 75
"""Exit code of a process that was asked to stop and saved its state: it has not failed, and is not restarted.

The number is EX_TEMPFAIL of sysexits.h.
"""

REGION_NAME = r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}"
"""Pattern of a region's name, such as aws:us-east-1. The name becomes a part of file names and of task ids."""

PUBLIC_KEY_BYTES = 32
"""Length of a raw Ed25519 public key, in bytes."""


class Role(StrEnum):
    """What a task does in its job."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"


class TaskState(StrEnum):
    """The state of a task; the last three are final. STOPPED means that it ended because it was asked to."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class FailureCause(StrEnum):
    """Why a task failed, as far as it decides what follows.

    PASSING: another start may help. LASTING: it would fail again in the same way. The others say that it is
    *misplaced*, and may run elsewhere. ENGINE: its engine does not start there. DEVICE: its machine or devices are not
    there or do not work. STORAGE: its agent cannot use its state directory for the job. OWNER: the policy of the
    region's owner forbids it there.
    """

    PASSING = "passing"
    LASTING = "lasting"
    ENGINE = "engine"
    DEVICE = "device"
    STORAGE = "storage"
    OWNER = "owner"

    @property
    def is_misplaced(self) -> bool:
        return self in (FailureCause.ENGINE, FailureCause.DEVICE, FailureCause.STORAGE, FailureCause.OWNER)

    @property
    def is_final(self) -> bool:
        """Whether another start there would fail in the same way. An engine may find the memory that it lacked."""
        return self in (FailureCause.LASTING, FailureCause.DEVICE, FailureCause.STORAGE, FailureCause.OWNER)


ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED})
"""The final states of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedTask:
    """A task that the coordinator wants a region to run.

    With `stopping` the process must save its state and end. `authority_key` is the public key of the coordinator's job
    authority in hexadecimal; readers of the job's weights accept only trainers that this authority certified.
    `allows_other_problems` lets a resumed run go on with other problems than it had. The process runs on `machine`, and
    uses the devices with these indices there. `others` are further machines on which a trainer has ranks.
    `model_config` is the text of the `config.json` that the job was planned for, if the task is a trainer and the model
    not a built-in one. `engine` and `tensor` are a rollout worker's engine and the devices that share each of its
    layers, and `data` the processes of a trainer, in place of what the job says; empty or 0 leaves that. `pace` is that
    of an emulated device, or None if the process works as fast as it can. With `by_turns` the process uses devices by
    turns with the job's trainer, or with workers if it is the trainer. `is_restart` says that the task is a trainer
    that follows on one that ended early: it starts afresh if the run at `resume_from` has nothing to resume. `operator`
    is the name of the one who submitted the job, or empty in a fleet without identities.
    """

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
    allows_other_problems: bool = False
    machine: str = ""
    devices: tuple[int, ...] = ()
    others: tuple[MachineDevices, ...] = ()
    model_config: str = ""
    engine: str = ""
    tensor: int = 0
    data: int = 0
    pace: Pace | None = None
    is_restart: bool = False
    by_turns: bool = False
    operator: str = ""


def is_path_component(name: str) -> bool:
    """Return whether a job's id can be the name of its run's directory, and leads nowhere else."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def resume_command(run_dir: str) -> str:
    """Return the command line with which an operator resumes a run."""
    return f"periplus job submit --resume {shlex.quote(run_dir)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Absolute paths of a run on the host of one of its tasks.

    `log` is the task's own log. For a trainer that has ended, `checkpoint` is the policy of the newest complete
    checkpoint, or None, and `report` is the page about the run, or empty.
    """

    run_dir: str
    log: str
    checkpoint: Policy | None = None
    report: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The state of a task in the fork that it was assigned for.

    `message` explains a failure to a person, and `cause` says of what kind it is. `files` is None if no process of the
    task was ever started.
    """

    task_id: str
    job_id: str
    state: TaskState
    message: str
    restarts: int
    fork: int = 0
    files: RunFiles | None = None
    cause: FailureCause = FailureCause.PASSING

    @property
    def is_unstarted(self) -> bool:
        """Whether no process of the task was ever started, but one may be."""
        return self.state is TaskState.STARTING and self.files is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMachine:
    """A machine on which ranks of a trainer run, and the number of devices that they have there.

    `words` run the command line after them on the machine, with these devices visible; none on that of rank 0.
    `cores` are the ids of the logical CPUs to which the ranks are bound; empty if they may run on any.
    """

    name: str
    num_devices: int
    words: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Everything that the process of a task needs to know.

    Fields that an `AssignedTask` has too mean the same.

    `allows_own_code` and `allows_unsandboxed` are the region's policy: whether reward functions of a user's own may run
    there, and whether programs that a model wrote may run where the kernel refuses a sandbox. `job_secret` is what the
    job's processes show to its gateways, and `identity` the folder of this one's certificate if the fleet has them.
    `cores` are the ids of the logical CPUs to which the process is bound; empty if it may run on any. A process that
    `ends_with_agent` does so when its standard input ends; another one when it has lost its gateway for some time.
    `machines` are those of a trainer with ranks on several, that of rank 0 first; empty for all other tasks.
    """

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
    job_secret: str
    cores: tuple[int, ...] = ()
    allows_other_problems: bool = False
    model_config: str = ""
    engine: str = ""
    tensor: int = 0
    data: int = 0
    allows_own_code: bool = False
    allows_unsandboxed: bool = False
    pace: Pace | None = None
    by_turns: bool = False
    identity: str = ""
    ends_with_agent: bool = True
    machines: tuple[RankMachine, ...] = ()

    def to_json(self) -> str:
        """Return the spec as the JSON text of a task file."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def load(cls, path: Path) -> "TaskSpec":
        """Read the spec from a task file. Raises: ConfigError if the file is missing or is not a spec."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found = {**data, "role": Role(data["role"]), "cores": tuple(data["cores"])}
            pace = found.get("pace")
            machines = tuple(
                RankMachine(**{**each, "words": tuple(each["words"]), "cores": tuple(each["cores"])})
                for each in found.get("machines", ())
            )
            return cls(**{**found, "pace": None if pace is None else Pace(**pace), "machines": machines})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path} is not a task file ({error}); an agent writes task files, start one with `periplus agent`"
            ) from error


def authority_key_of(task: AssignedTask | TaskSpec) -> bytes:
    """Return the task's authority key as raw bytes. Raises: ConfigError if it is not a public key."""
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
    """How the process of a task ended: the content of its status file."""

    state: TaskState
    message: str
    cause: FailureCause = FailureCause.PASSING

    def to_json(self) -> str:
        """Return the outcome as the JSON text of a status file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_exit(cls, exit_code: int, status: str) -> "TaskOutcome":
        """Return the outcome of a process from its exit code and the text of its status file, which may be empty."""
        try:
            data = json.loads(status)
            cause = FailureCause(data["cause"])
            return cls(state=TaskState(data["state"]), message=str(data["message"]), cause=cause)
        except (ValueError, KeyError, TypeError):
            pass
        if exit_code == EXIT_SUCCEEDED:
            return cls(state=TaskState.SUCCEEDED, message="")
        if exit_code in (EXIT_STOPPED, -signal.SIGTERM):  # killed by SIGTERM: stopped before its handler was set
            return cls(state=TaskState.STOPPED, message="")
        how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        if exit_code == EXIT_UNKNOWN:
            how = "its agent was another one by then, which does not learn the exit code"
        return cls(state=TaskState.FAILED, message=f"the process ended without an outcome ({how})")
