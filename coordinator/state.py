"""What the coordinator knows: regions, links and jobs as immutable values, and the questions that are asked of them.

Nothing here changes anything; `machine.py` does. Invariants that the machine keeps and the tests hold:

- What a region should run is *derived* from the jobs (`desired_tasks`), never stored in two places.
- A job has at most one trainer, in the region of its placement; an ended job desires nothing.
- At most one live job has tasks in a region, and at most one probe is under way in the whole fleet.
- A job's state changes only along `TRANSITIONS`.

PENDING: waits for regions, links, the planner or another job. PLANNED: placed, and its tasks are desired. STARTING: an
agent has begun. RUNNING: the trainer is up. REPLANNING: a better placement is being applied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from periplus.errors import Conflict, NotFound, StateError
from periplus.values.policy import Policy
from periplus.values.record import Record
from periplus.values.task import ENDED, AssignedTask, Role, RunFiles, TaskReport


class JobState(StrEnum):
    PENDING = "pending"
    PLANNED = "planned"
    STARTING = "starting"
    RUNNING = "running"
    REPLANNING = "replanning"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = JobState
_GIVEN_UP = frozenset({_S.FAILED, _S.CANCELLED})
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _S.PENDING: _GIVEN_UP | {_S.PLANNED},
    _S.PLANNED: _GIVEN_UP | {_S.STARTING},
    _S.STARTING: _GIVEN_UP | {_S.RUNNING},
    _S.RUNNING: _GIVEN_UP | {_S.REPLANNING, _S.SUCCEEDED},
    _S.REPLANNING: _GIVEN_UP | {_S.RUNNING},
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
ENDED_STATES = frozenset(state for state, successors in TRANSITIONS.items() if not successors)

Pair = tuple[str, str]
"""Source and destination region."""

INFEASIBLE_PREFIX = "infeasible: "
"""Begins the reason of a job that failed because no placement satisfies it: clients tell it from a crash by this."""


def check_transition(job_id: str, present: JobState, to: JobState) -> None:
    """Raises: StateError if a job may not go from `present` to `to`."""
    if to not in TRANSITIONS[present]:
        raise StateError(f"job {job_id} is {present} and cannot become {to}; see `periplus job show {job_id}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Time limits and sizes that the machine decides with; their meaning is in `config.py`."""

    silent_after_s: float
    probe_payload_bytes: int
    probe_timeout_s: float
    probe_retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """Equal ones of one host; name and memory as their driver says."""

    name: str
    memory_bytes: int
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What an agent's host offers."""

    num_cores: int
    memory_bytes: int
    hostname: str
    accelerators: tuple[Accelerators, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """How an agent introduces itself; `tasks` is everything that it runs, or ran and still holds."""

    region: str
    boot_id: str
    gateway_address: str
    inventory: Inventory
    agent_version: str
    tasks: tuple[TaskReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """A region and its newest session. `sent`: what was last sent down, None when this session got nothing yet."""

    hello: Hello
    epoch: int
    connected: bool
    last_seen_s: float
    last_sequence: int = -1
    tasks: Mapping[str, TaskReport] = field(default_factory=dict)
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    sent: tuple[AssignedTask, ...] | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """A measurement from one region to another."""

    rtt_s: float
    throughput_bits_per_s: float
    measured_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The measurement under way."""

    src_region: str
    dst_region: str
    ordered_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What the operator asked for. `resume_policy`: of the checkpoint in the run directory `resume_from`."""

    name: str
    min_regions: int
    job_json: str
    resume_from: str = ""
    resume_policy: Policy | None = None
    resume_job_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRoles:
    """What the coordinator takes from a plan; the rest travels to the workers as `plan_json`."""

    trainer_region: str
    num_rollout_workers: Mapping[str, int]
    plan_json: str

    @property
    def regions(self) -> frozenset[str]:
        return frozenset({self.trainer_region, *self.num_rollout_workers})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A task of a placed job and the last that was heard of it."""

    role: Role
    region: str
    report: TaskReport | None = None

    @property
    def ended(self) -> bool:
        return self.report is not None and self.report.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """Payload that a job sent from one region to another. `counter` is the newest of the sending agent `boot_id`, and
    `before_bytes` what its counters said before they began anew, as they do when an agent restarts."""

    boot_id: str
    counter_bytes: int
    before_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.before_bytes + self.counter_bytes

    def counted(self, boot_id: str, counter_bytes: int) -> "SentBytes":
        """The same after one more reading of the counter."""
        begins_anew = boot_id != self.boot_id or counter_bytes < self.counter_bytes
        before_bytes = self.total_bytes if begins_anew else self.before_bytes
        return SentBytes(boot_id=boot_id, counter_bytes=counter_bytes, before_bytes=before_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`phase`: what the trainer said last that it does. `infeasible_on`: the free regions on which it has no placement
    because of `conflict`, while others are in use. `trainer_key`: the one that was certified for the trainer of this
    fork, empty before it asked. `sent`: by (source, destination), over all forks that this coordinator knows."""

    job_id: str
    request: JobRequest
    fork: int
    submitted_at_s: float
    state: JobState = JobState.PENDING
    reason: str = ""
    policy: Policy | None = None
    last_record: Record | None = None
    phase: str = ""
    placement: PlacedRoles | None = None
    tasks: Mapping[str, TaskStatus] = field(default_factory=dict)
    cancelling: bool = False
    trainer_key: bytes = b""
    infeasible_on: frozenset[str] = frozenset()
    conflict: str = ""
    sent: Mapping[Pair, SentBytes] = field(default_factory=dict)

    @property
    def wan_bytes(self) -> int:
        """Payload between regions in all directions, as the gateways count."""
        return sum(sent.total_bytes for sent in self.sent.values())

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def trainer(self) -> TaskStatus | None:
        return self.tasks.get(trainer_task_id(self.job_id))

    @property
    def files(self) -> RunFiles | None:
        """Where the trainer's host keeps the run, as last reported."""
        return self.trainer.report.files if self.trainer and self.trainer.report else None

    @property
    def plan_json(self) -> str:
        return self.placement.plan_json if self.placement else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything. `planning`: the job that the planner works on; `unmeasured`: when a pair's last probe gave up;
    `authority_key`: public, in hexadecimal, of the job authority."""

    settings: Settings
    authority_key: str
    regions: Mapping[str, RegionState] = field(default_factory=dict)
    links: Mapping[Pair, MeasuredLink] = field(default_factory=dict)
    unmeasured: Mapping[Pair, float] = field(default_factory=dict)
    probe: Probe | None = None
    jobs: Mapping[str, Job] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    planning: str | None = None


def trainer_task_id(job_id: str) -> str:
    return f"{job_id}/trainer"


def rollout_task_id(job_id: str, region: str, index: int) -> str:
    return f"{job_id}/rollout-{region}-{index}"


def live_jobs(state: State) -> tuple[Job, ...]:
    """Jobs that have not ended, in the order of their submission."""
    return tuple(job for job in state.jobs.values() if not job.ended)


def find_job(state: State, prefix: str) -> Job:
    """The job with this id, or the only one whose id begins so.

    Raises: NotFound, or Conflict naming the candidates.
    """
    if prefix in state.jobs:
        return state.jobs[prefix]
    matches = [job_id for job_id in state.jobs if prefix and job_id.startswith(prefix)]
    if not matches:
        raise NotFound(f"no job {prefix!r}; `periplus job list` names them")
    if len(matches) > 1:
        raise Conflict(f"job {prefix!r} could be any of {', '.join(sorted(matches))}; give more of the id")
    return state.jobs[matches[0]]


def doing(state: State, job: Job) -> str:
    """What a live job does now, for an operator: the trainer's phase, and which of its regions are disconnected."""
    if job.ended or job.placement is None:
        return ""
    ready, home = ready_regions(state), job.placement.trainer_region
    away = sorted(set(job.placement.regions) - ready - {home})
    others = [f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} disconnected"] if away else []
    if home not in ready:
        seen = f"; it last said: {job.phase}" if job.phase else ""
        return "; ".join([f"not known: {home}, the region of its trainer, is disconnected{seen}", *others])
    return "; ".join([*([job.phase] if job.phase else []), *others])


def ready_regions(state: State) -> frozenset[str]:
    return frozenset(name for name, region in state.regions.items() if region.connected)


def occupants(state: State) -> dict[str, str]:
    """Region -> the job that is placed there, or whose processes are still ending there."""
    ending = {
        name: report.job_id
        for name, region in state.regions.items()
        for report in region.tasks.values()
        if report.state not in ENDED
    }
    placed = {name: job.job_id for job in live_jobs(state) if job.placement for name in job.placement.regions}
    return ending | placed


def runs_unknown_job(state: State, region: RegionState) -> bool:
    """Whether something runs there that was started by a coordinator before this one."""
    return any(report.job_id not in state.jobs and report.state not in ENDED for report in region.tasks.values())


def free_regions(state: State) -> frozenset[str]:
    """Ready regions in which nothing runs and nothing is placed."""
    return ready_regions(state) - occupants(state).keys()


def unsettled_pairs(state: State, regions: frozenset[str]) -> list[Pair]:
    """Directed pairs that were neither measured nor given up, in the order in which to probe them."""
    pairs = [(src, dst) for src in sorted(regions) for dst in sorted(regions) if src != dst]
    return [pair for pair in pairs if pair not in state.links and pair not in state.unmeasured]


def desired_tasks(state: State, region: str) -> tuple[AssignedTask, ...]:
    """What this region should run now: the tasks of live jobs that are placed there and have not ended."""
    return tuple(
        _task(state, job, task_id, status.role)
        for job in live_jobs(state)
        for task_id, status in sorted(job.tasks.items())
        if status.region == region and not status.ended
    )


def _task(state: State, job: Job, task_id: str, role: Role) -> AssignedTask:
    assert job.placement is not None
    home = state.regions[job.placement.trainer_region].hello
    return AssignedTask(
        task_id=task_id,
        job_id=job.job_id,
        role=role,
        job_json=job.request.job_json,
        trainer_region=home.region,
        trainer_gateway=home.gateway_address,
        fork=job.fork,
        resume_from=job.request.resume_from,
        plan_json=job.placement.plan_json,
        stopping=job.cancelling and role is Role.TRAINER,
        authority_key=state.authority_key,
    )
