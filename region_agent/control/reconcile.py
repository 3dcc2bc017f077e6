"""What an agent must do so that its region runs exactly what the coordinator wants.

`reconcile(desired, observed, now_s, limits)` compares the two and returns actions; it performs none and knows neither
processes nor sockets. Invariants: a task id has at most one process; nothing is started that is not desired or is
being stopped; a process that must go is first asked (SIGTERM) and killed only after `grace_s`; a rollout worker that
died is started again with doubling pauses, at most `max_restarts` times; a trainer is never started again here,
because a new trainer is a new fork and forks are the coordinator's to grant. A process is superseded when its task is
wanted of another fork (a resumed job keeps its task ids), or when a rollout worker that was asked to stop is wanted
again: it ends first, then its task starts afresh. Applying the actions and reconciling again yields nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from periplus.spool.format import Durability
from periplus.values.task import AssignedTask, Role, TaskOutcome, TaskReport, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask(AssignedTask):
    """A task, with what its job says to the agent: where its run lies, how often to start a dead worker again, and how
    frames and weights are kept for it."""

    output_dir: str
    max_restarts: int
    durability: Durability = Durability.PROCESS
    spool_bytes: int = 256 << 20
    chain_versions: int = 8


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
    """`grace_s`: from SIGTERM to SIGKILL. `backoff_s`: pause before the first restart, doubled each time."""

    grace_s: float
    backoff_s: float


@dataclass(frozen=True, slots=True)
class Start:
    task: LocalTask
    restarts: int


@dataclass(frozen=True, slots=True)
class AskToStop:
    task_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    task_id: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The process has ended and nobody wants its task any more."""

    task_id: str


Action = Start | AskToStop | Kill | Forget


def task_of(action: Action) -> str:
    """The id of the task that an action is about."""
    return action.task.task_id if isinstance(action, Start) else action.task_id


def reconcile(
    desired: Mapping[str, LocalTask], observed: Mapping[str, Process], now_s: float, limits: RestartLimits
) -> tuple[Action, ...]:
    """The actions that bring `observed` to `desired`, in the order in which to perform them."""
    actions: list[Action] = []
    for task_id, process in sorted(observed.items()):
        wanted = desired.get(task_id)
        if process.outcome is None:
            actions += _running(process, wanted, now_s, limits)
        elif wanted is None:
            actions.append(Forget(task_id))
        elif _superseded(process, wanted):
            actions.append(Forget(task_id) if wanted.stopping else Start(wanted, 0))
        elif _may_restart(process, wanted, now_s, limits):
            actions.append(Start(wanted, process.restarts + 1))
    actions += [
        Start(task, 0) for task_id, task in sorted(desired.items()) if task_id not in observed and not task.stopping
    ]
    return tuple(actions)


def report(process: Process, wanted: LocalTask | None) -> TaskReport:
    """What to tell the coordinator. A death that a restart will mend is `starting`, not `failed`."""
    outcome, task = process.outcome, process.task
    message = outcome.message if outcome is not None else ""
    if wanted is not None and _superseded(process, wanted):
        state, message = TaskState.STARTING, ""
    elif outcome is None:
        state = TaskState.RUNNING
    elif outcome.state is TaskState.FAILED and process.asked_to_stop_at_s is not None:
        state = TaskState.STOPPED
    elif wanted is not None and _mends(process, wanted):
        state = TaskState.STARTING
    else:
        state = outcome.state
    return TaskReport(
        task_id=task.task_id,
        job_id=task.job_id,
        state=state,
        message=message,
        restarts=process.restarts,
        fork=wanted.fork if wanted is not None else task.fork,
    )


def report_unstarted(task: AssignedTask) -> TaskReport:
    """For a task that was to stop before it ever ran here."""
    return TaskReport(
        task_id=task.task_id,
        job_id=task.job_id,
        state=TaskState.STOPPED,
        message="never started",
        restarts=0,
        fork=task.fork,
    )


def _running(process: Process, wanted: LocalTask | None, now_s: float, limits: RestartLimits) -> list[Action]:
    if wanted is not None and not wanted.stopping and not _superseded(process, wanted):
        return []
    if process.asked_to_stop_at_s is None:
        return [AskToStop(process.task.task_id)]
    if now_s - process.asked_to_stop_at_s >= limits.grace_s and not process.killed:
        return [Kill(process.task.task_id)]
    return []


def _superseded(process: Process, wanted: LocalTask) -> bool:
    again = process.asked_to_stop_at_s is not None and not wanted.stopping and wanted.role is Role.ROLLOUT
    return again or process.task.fork != wanted.fork


def _mends(process: Process, wanted: LocalTask) -> bool:
    assert process.outcome is not None
    failed = process.outcome.state is TaskState.FAILED
    return failed and not wanted.stopping and wanted.role is Role.ROLLOUT and process.restarts < wanted.max_restarts


def _may_restart(process: Process, wanted: LocalTask, now_s: float, limits: RestartLimits) -> bool:
    assert process.ended_at_s is not None
    pause_s: float = limits.backoff_s * 2.0**process.restarts
    return _mends(process, wanted) and now_s - process.ended_at_s >= pause_s
