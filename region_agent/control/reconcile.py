"""Decides what an agent must do so that its region runs exactly the tasks that the coordinator wants.

`reconcile(desired, observed, now_s, limits)` compares desired tasks with observed processes and returns actions. It is
pure: it performs none of them, and it knows neither processes nor sockets. Performing the actions and reconciling again
yields nothing new. Invariants:

- A task id has at most one process.
- Nothing is started that is not desired or that is to stop.
- A process that must go is first asked to stop (SIGTERM), and killed only after `grace_s`.
- A rollout worker that died, or that somebody else stopped, is restarted after a pause that doubles each time, at most
  `max_restarts` times. One that says that it would fail again is not.
- A trainer that died is not restarted here, because a new trainer needs a new fork, and only the coordinator grants
  forks.

A process is *superseded* when its task is wanted otherwise (a resumed job keeps its task ids), or when a rollout worker
that was asked to stop is wanted again, or when one that has ended is wanted on other devices. A superseded process ends
first; then its task starts afresh. A new fork supersedes all: the bundle that its trainer makes may differ from the one
before.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from periplus.process.backoff import Backoff
from periplus.spool.format import Durability
from periplus.values.replica_url import NO_REPLICA
from periplus.values.task import AssignedTask, FailureCause, Role, TaskOutcome, TaskReport, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask(AssignedTask):
    """A task, with what its job file says to the agent.

    `output_dir` is the directory below which the run's directory lies, and `max_restarts` how often a dead worker is
    restarted. `durability` and `spool_bytes` say how its gateway keeps frames, and `chain_versions` how many deltas it
    keeps. `replicate` is the URL below which a trainer copies its checkpoints, or `none`. `job_secret` is what the
    job's processes show to its gateways, and gateways to each other. `secrets` has the names of this region's secrets
    that the process gets, each after its environment variable; never their values.
    """

    job_secret: str
    output_dir: str
    max_restarts: int
    durability: Durability = Durability.PROCESS
    spool_bytes: int = 256 << 20
    chain_versions: int = 8
    replicate: str = NO_REPLICA
    has_own_code: bool = False
    secrets: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What is known of a task's process. `outcome` is None while it runs."""

    task: LocalTask
    started_at_s: float
    restarts: int
    asked_to_stop_at_s: float | None
    killed: bool
    outcome: TaskOutcome | None
    ended_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """Seconds from SIGTERM to SIGKILL (`grace_s`), and the pauses between a death and the next start (`backoff`)."""

    grace_s: float
    backoff: Backoff


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for the task. `restarts` counts the restarts so far, this one included."""

    task: LocalTask
    restarts: int


@dataclass(frozen=True, slots=True)
class AskToStop:
    """Send SIGTERM to the task's process."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to the task's process."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the record of a process that has ended, because nobody wants its task any more."""

    task_id: str


Action = Start | AskToStop | Kill | Forget


def task_of(action: Action) -> str:
    """Return the id of the task that an action concerns."""
    return action.task.task_id if isinstance(action, Start) else action.task_id


def reconcile(
    desired: Mapping[str, LocalTask], observed: Mapping[str, Process], now_s: float, limits: RestartLimits
) -> tuple[Action, ...]:
    """Return the actions that bring `observed` to `desired`, in the order in which to perform them."""
    actions: list[Action] = []
    # What exists: let it run, end it, forget it, replace it or restart it.
    for task_id, process in sorted(observed.items()):
        wanted = desired.get(task_id)
        if process.outcome is None:
            actions += _running(process, wanted, now_s, limits)
        # It has ended and nobody wants it.
        elif wanted is None:
            actions.append(Forget(task_id))
        elif _superseded(process, wanted):
            actions.append(Forget(task_id) if wanted.stopping else Start(wanted, 0))
        elif _may_restart(process, wanted, now_s, limits):
            actions.append(Start(wanted, process.restarts + 1))
    # What does not exist yet.
    actions += [
        Start(task, 0) for task_id, task in sorted(desired.items()) if task_id not in observed and not task.stopping
    ]
    return tuple(actions)


def report(process: Process, wanted: LocalTask | None) -> TaskReport:
    """Return what to tell the coordinator about a process. `wanted` is its desired task, or None.

    A death that a restart will mend is reported as `starting`, not as `failed`. A failure after a request to stop is
    reported as `stopped`.
    """
    outcome, task = process.outcome, process.task
    message = outcome.message if outcome is not None else ""
    # A process that must make room for another says nothing about the task that is wanted now.
    if wanted is not None and _superseded(process, wanted):
        state, message = TaskState.STARTING, ""
    elif outcome is None:
        state = TaskState.RUNNING
    # A worker that was cut short by the stop has not failed.
    elif outcome.state is TaskState.FAILED and process.asked_to_stop_at_s is not None:
        state = TaskState.STOPPED
    elif task.role is Role.ROLLOUT and wanted is not None and _died(process):
        state = TaskState.STARTING if _mends(process, wanted) else TaskState.FAILED
        message = message or "it was stopped by somebody else than its agent"
    else:
        state = outcome.state
    return TaskReport(
        task_id=task.task_id,
        job_id=task.job_id,
        state=state,
        message=message,
        restarts=process.restarts,
        fork=wanted.fork if wanted is not None else task.fork,
        # Only once it is not started again.
        cause=outcome.cause if outcome is not None and state is TaskState.FAILED else FailureCause.PASSING,
    )


def report_unstarted(task: AssignedTask) -> TaskReport:
    """Return the report of a task that was told to stop before it ever ran here."""
    return TaskReport(
        task_id=task.task_id,
        job_id=task.job_id,
        state=TaskState.STOPPED,
        message="never started",
        restarts=0,
        fork=task.fork,
    )


def _running(process: Process, wanted: LocalTask | None, now_s: float, limits: RestartLimits) -> list[Action]:
    # Wanted as it is: let it run.
    if wanted is not None and not wanted.stopping and not _superseded(process, wanted):
        return []
    if process.asked_to_stop_at_s is None:
        return [AskToStop(process.task.task_id)]
    if now_s - process.asked_to_stop_at_s >= limits.grace_s and not process.killed:
        return [Kill(process.task.task_id)]
    return []


def _superseded(process: Process, wanted: LocalTask) -> bool:
    # A rollout worker that was asked to stop leaves, whatever is wanted now, so it must be started again.
    again = process.asked_to_stop_at_s is not None and not wanted.stopping and wanted.role is Role.ROLLOUT
    has_moved = process.outcome is not None and _places(process.task) != _places(wanted)
    return again or has_moved or process.task.fork != wanted.fork


def _places(task: LocalTask) -> tuple[object, ...]:
    return task.machine, task.devices, task.others


def _mends(process: Process, wanted: LocalTask) -> bool:
    assert process.outcome is not None
    failed = _died(process) and not process.outcome.cause.is_final
    # An engine that does not start is tried once more, since memory may have been in use; then the job is planned anew.
    most = min(1, wanted.max_restarts) if process.outcome.cause.is_misplaced else wanted.max_restarts
    return failed and not wanted.stopping and wanted.role is Role.ROLLOUT and process.restarts < most


def _died(process: Process) -> bool:
    """Return whether a process failed, or was stopped by somebody else than its agent."""
    ended = process.outcome.state if process.outcome else None
    return ended is TaskState.FAILED or (ended is TaskState.STOPPED and process.asked_to_stop_at_s is None)


def _may_restart(process: Process, wanted: LocalTask, now_s: float, limits: RestartLimits) -> bool:
    assert process.ended_at_s is not None
    return _mends(process, wanted) and now_s - process.ended_at_s >= limits.backoff.pause_s(process.restarts)
