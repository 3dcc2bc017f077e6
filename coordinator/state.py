"""The coordinator's state: regions, links and jobs as immutable values, and functions that read them.

Nothing here changes the state; `machine/` computes each next state. The machine keeps these invariants, and the tests
check them:

- The tasks that a region should run are *derived* from the jobs (`machine/desired.py`) and never stored.
- A job has at most one trainer, in the region of its placement. A job that has ended has no desired tasks.
- An accelerator is held by at most one job, and a group of cores by at most `Settings.jobs_per_region`.
- Of the probes in progress, at most one starts in each region and at most one ends there.
- A job's state changes only along `TRANSITIONS`.

A *fork* is one life of a job's trainer: each resumption of a job starts the next fork. The *epoch* of a region counts
its sessions, and messages of an older epoch are ignored. A *live* job is one that has not ended. All times are in
seconds on the writer's clock, which starts at the Unix time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from periplus.errors import Conflict, NotFound, StateError
from periplus.values.machine import DeviceCount, Inventory, MachineDevices, Pace
from periplus.values.policy import Policy
from periplus.values.record import Record
from periplus.values.relayed_address import RelayedAddress
from periplus.values.replica_url import NO_REPLICA, replica_url
from periplus.values.task import ENDED, AssignedTask, Role, RunFiles, TaskReport, resume_command


class JobState(StrEnum):
    """The state of a job.

    PENDING: it waits for regions, links, the planner or another job. PLANNED: it is placed, and its tasks are desired.
    STARTING: an agent has reported one of its tasks. RUNNING: the trainer runs. SUCCEEDED, FAILED and CANCELLED are
    final. A job whose processes cannot start where they were placed becomes PENDING again, and one whose trainer is to
    start again PLANNED.
    """

    PENDING = "pending"
    PLANNED = "planned"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = JobState
_GIVEN_UP = frozenset({_S.FAILED, _S.CANCELLED})
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _S.PENDING: _GIVEN_UP | {_S.PLANNED},
    _S.PLANNED: _GIVEN_UP | {_S.STARTING, _S.PENDING},
    _S.STARTING: _GIVEN_UP | {_S.RUNNING, _S.PENDING, _S.PLANNED},
    _S.RUNNING: _GIVEN_UP | {_S.SUCCEEDED, _S.PENDING, _S.PLANNED},
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
"""The states that may follow each state of a job. One that has started is pending again if a process of it cannot start
before anything is trained, or if it goes on from a replica in another region. It is planned again if its trainer is to
start again where it is placed."""

ENDED_STATES = frozenset(state for state, successors in TRANSITIONS.items() if not successors)
"""The final states of a job."""

Pair = tuple[str, str]
"""A directed pair of region names: source, destination."""

INFEASIBLE_PREFIX = "infeasible: "
"""Prefix of the reason of a job that failed because no placement satisfies it; clients recognise this failure by it."""


KEPT_ENDED_S = 30 * 86_400.0
"""Seconds for which jobs that have ended are still listed."""

MAX_ENDED_JOBS = 500
"""Jobs that have ended and are still listed. Each keeps up to 3 MiB of texts and 10,000 events. Chosen by hand."""


def check_transition(job_id: str, present: JobState, to: JobState) -> None:
    """Check that a job may go from the state `present` to the state `to`. Raises: StateError if it may not."""
    if to not in TRANSITIONS[present]:
        raise StateError(f"job {job_id} is {present} and cannot become {to}; see `periplus job show {job_id}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Time limits and sizes that the machine uses; `coordinator/config.py` describes each."""

    silent_after_s: float
    probe_payload_bytes: int
    probe_timeout_s: float
    probe_retry_s: float
    probe_again_s: float = 600.0
    jobs_per_region: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of an agent's session.

    `boot_id` is new at each start of the agent process. `tasks` has a report of every task that the agent runs, and of
    every ended one that it still keeps. `gateway_address` is empty if other regions cannot dial the gateway.
    """

    region: str
    boot_id: str
    gateway_address: str
    inventory: Inventory
    agent_version: str
    tasks: tuple[TaskReport, ...] = ()


class RegionMode(StrEnum):
    """What an operator lets happen in a region.

    OPEN: anything. CORDONED: nothing new is placed there. DRAINED: as that, and rollout workers leave, whose leases go
    to others. A trainer stays until its job has ended.
    """

    OPEN = "open"
    CORDONED = "cordoned"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """A region and its newest session.

    `last_sequence` is the sequence number of the last accepted message, -1 before any. `tasks` maps a task's id to its
    last report. `sent_bytes` maps another region to the payload bytes sent to it since the agent's start. `sent` holds
    the desired tasks that were last sent to the agent, or None if this session was sent none yet; `revision` is their
    number. `relay` is the region by way of which others reach the gateway, if they cannot dial it and there is one;
    `listens_at` is the relayed address that this session was told last, or empty.
    """

    hello: Hello
    epoch: int
    connected: bool
    last_seen_s: float
    last_sequence: int = -1
    tasks: Mapping[str, TaskReport] = field(default_factory=dict)
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    sent: tuple[AssignedTask, ...] | None = None
    revision: int = 0
    mode: RegionMode = RegionMode.OPEN
    relay: str = ""
    listens_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """The newest measurement of the link from one region to another."""

    rtt_s: float
    throughput_bits_per_s: float
    measured_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLink:
    """A link whose last probe failed: why, and since when no probe of it has succeeded.

    `tried_at_s` is when the last probe failed, or None if a region of the link has joined again since.
    """

    why: str
    since_s: float
    tried_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The job that an operator submitted.

    To resume a run, `resume_from` is its directory, `resume_job_id` its id, and `resume_policy` gives the version of
    its newest checkpoint and the highest fork that wrote there. For a new job they are empty or None.
    `allows_other_problems` lets the run go on with other problems than it had. `plan_json` is a plan to run in place of
    one that is searched, or empty. `model_config` is the text of its
    model's `config.json`, empty for a built-in model, and `model_bytes` the size of one published version, or 0.
    `replicate` is the URL below which its checkpoints are copied, or `none`. `operator` is the name of the operator's
    certificate; empty without identities.
    `max_trainer_restarts` and `max_region_absence_s` are those of the job's section `failure`. `trainer_region`,
    `rollout_regions` and `forbidden_regions` are those of its section `regions`; empty for no rule.
    """

    name: str
    min_regions: int
    job_json: str
    plan_json: str = ""
    model_config: str = ""
    model_bytes: int = 0
    resume_from: str = ""
    resume_policy: Policy | None = None
    resume_job_id: str = ""
    allows_other_problems: bool = False
    max_trainer_restarts: int = 0
    max_region_absence_s: float = 900.0
    trainer_region: str = ""
    rollout_regions: tuple[str, ...] = ()
    forbidden_regions: tuple[str, ...] = ()
    replicate: str = NO_REPLICA
    operator: str = ""

    def may_use_link(self, src: str, dst: str) -> bool:
        """Return whether the job's rules let it send anything from `src` to `dst`.

        Weights and trajectories go between the trainer's region and the others only.
        """
        return any(
            trainer not in self.forbidden_regions
            and rollout not in self.forbidden_regions
            and trainer == (self.trainer_region or trainer)
            and rollout in (self.rollout_regions or (rollout,))
            for trainer, rollout in ((src, dst), (dst, src))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedProcess:
    """One process of a placement: its role and region, and what it computes with.

    It needs `num_devices` devices of the type `device`, or of any if that is empty, on `machine`, or on the agent's own
    if that is empty. `devices` are their indices if the plan says which. The other fields are those of an
    `AssignedTask`. A rollout worker `by_turns` needs no devices of its own, but uses the trainer's. `usd_per_hour` is
    the rent of the devices, or 0. `memory_bytes` is the host memory that it was planned to take.
    """

    role: Role
    region: str
    num_devices: int = 1
    device: str = ""
    machine: str = ""
    devices: tuple[int, ...] = ()
    engine: str = ""
    tensor: int = 0
    data: int = 0
    pace: Pace | None = None
    by_turns: bool = False
    usd_per_hour: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedProcesses:
    """The part of a plan that the coordinator uses: the job's processes, of which the first is the trainer.

    The whole plan goes to the workers as `plan_json`.
    """

    processes: tuple[PlacedProcess, ...]
    plan_json: str

    @property
    def trainer_region(self) -> str:
        """The region of the trainer."""
        return self.processes[0].region

    @property
    def regions(self) -> frozenset[str]:
        """The regions in which the job has tasks."""
        return frozenset(process.region for process in self.processes)

    def tasks(self, job_id: str) -> dict[str, PlacedProcess]:
        """Return the processes by the ids of their tasks."""
        found, counts = {}, Counter[str]()
        for process in self.processes:
            if process.role is Role.TRAINER:
                found[trainer_task_id(job_id)] = process
            else:
                found[rollout_task_id(job_id, process.region, counts[process.region])] = process
                counts[process.region] += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """A task of a placed job, and the last report about it, or None before the first.

    It was placed as `process` on `machine`, and holds the devices with these indices there. `others` are further
    machines on which a trainer has ranks.
    """

    process: PlacedProcess
    machine: str = ""
    devices: tuple[int, ...] = ()
    others: tuple[MachineDevices, ...] = ()
    report: TaskReport | None = None

    @property
    def role(self) -> Role:
        return self.process.role

    @property
    def region(self) -> str:
        return self.process.region

    @property
    def places(self) -> tuple[MachineDevices, ...]:
        """Its machines, with the devices that it holds there."""
        return (MachineDevices(self.machine, self.devices), *self.others)

    @property
    def ended(self) -> bool:
        return self.report is not None and self.report.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """Payload bytes that a job sent from one region to another.

    `counter_bytes` is the newest reading of the counter in the sending agent, whose process is `boot_id`. The counter
    starts at zero when the agent restarts; `before_bytes` is the sum of the last readings before each restart.
    """

    boot_id: str
    counter_bytes: int
    before_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.before_bytes + self.counter_bytes

    def counted(self, boot_id: str, counter_bytes: int) -> "SentBytes":
        """Return the counts after one more reading of the counter."""
        # The counter restarts with the agent process. A reading below the last one means the same, whatever the boot
        # id.
        begins_anew = boot_id != self.boot_id or counter_bytes < self.counter_bytes
        before_bytes = self.total_bytes if begins_anew else self.before_bytes
        return SentBytes(boot_id=boot_id, counter_bytes=counter_bytes, before_bytes=before_bytes)


Avoided = frozenset[tuple[str, str, int | None]]
"""Places that a job's plans leave out: (region, machine, index of a device there, or None for the whole machine)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the coordinator knows it, from its submission until after its end.

    `reason` says why the job is in its state. `phase` is what the trainer last reported to be doing, and `notice` what
    it last said that a person should look at. `tasks` maps a task's id to its status. `infeasible_on` has the devices
    that were free in each region when the job had no placement on them, because of `conflict`, while others were in
    use. `avoided` has the places where its processes could not start, and `refused_engines` the engines, as (region,
    engine), that did not. `planned_on` has the devices that were free in each region when it was placed. `trainer_key`
    is the public key that was certified for the trainer of this fork in hexadecimal, empty before the trainer asked.
    `sent` counts bytes by source and destination region, over all forks that this coordinator knows. `ended_at_s` is
    when it ended, or None. `trainer_restarts` counts how often its trainer was started again without a new checkpoint
    in between. `restart_at_s` is when it is to start again, or None, and `last_files` are those of the trainer before.
    `replica` is the newest checkpoint with a replica, or None. `measured` has means over the last steps of what a plan
    predicts, by metric, and `num_measured` counts the steps.
    """

    job_id: str
    request: JobRequest
    fork: int
    submitted_at_s: float
    state: JobState = JobState.PENDING
    reason: str = ""
    policy: Policy | None = None
    last_record: Record | None = None
    phase: str = ""
    notice: str = ""
    placement: PlacedProcesses | None = None
    tasks: Mapping[str, TaskStatus] = field(default_factory=dict)
    cancelling: bool = False
    trainer_key: str = ""
    infeasible_on: Mapping[str, DeviceCount] = field(default_factory=dict)
    conflict: str = ""
    avoided: Avoided = frozenset()
    refused_engines: frozenset[tuple[str, str]] = frozenset()
    planned_on: Mapping[str, DeviceCount] = field(default_factory=dict)
    sent: Mapping[str, Mapping[str, SentBytes]] = field(default_factory=dict)
    ended_at_s: float | None = None
    trainer_restarts: int = 0
    restart_at_s: float | None = None
    last_files: RunFiles | None = None
    replica: Policy | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    num_measured: int = 0

    @property
    def replica_url(self) -> str:
        """The URL of the newest replica; empty if there is none."""
        return replica_url(self.request.replicate, self.job_id, self.replica) if self.replica else ""

    @property
    def wan_bytes(self) -> int:
        """Payload bytes that the job sent between regions, over all pairs, as counted by the gateways."""
        return sum(self.sent_bytes.values())

    @property
    def sent_bytes(self) -> dict[Pair, int]:
        """Payload bytes by directed pair of regions."""
        return {(src, dst): sent.total_bytes for src, counts in self.sent.items() for dst, sent in counts.items()}

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def refusals(self) -> str:
        """What later plans leave out and why, as the end of a sentence; empty if they leave out nothing."""
        return f"; {self.notice}" if self.avoided or self.refused_engines else ""

    @property
    def has_trained(self) -> bool:
        """Whether the trainer has reported a version after the first one of this submission, or was started again."""
        first = self.request.resume_policy.version if self.request.resume_policy else 0
        return self.last_files is not None or (self.policy is not None and self.policy.version > first)

    @property
    def trainer(self) -> TaskStatus | None:
        """The trainer's task, or None before the job is placed."""
        return self.tasks.get(trainer_task_id(self.job_id))

    @property
    def files(self) -> RunFiles | None:
        """The run's files on the trainer's host, as last reported; None before the first report of them."""
        return self.trainer.report.files if self.trainer and self.trainer.report else self.last_files

    @property
    def plan_json(self) -> str:
        return self.placement.plan_json if self.placement else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The whole state of the coordinator.

    `authority_key` is the public key of the job authority in hexadecimal. `probes` has the probes in progress, with the
    times at which they were ordered. `link_waits` has the pending jobs that could be planned but for links that are not
    measured yet, with the times since when. `requests` maps a submission's request id to its job. `planning` is the job
    that the planner works on, or None. `ending_since_s` is since when, without a pause, jobs that have ended still have
    processes; None if they have none. `heard_at_s` is when a record of a job's trainer came last.
    """

    settings: Settings
    authority_key: str
    regions: Mapping[str, RegionState] = field(default_factory=dict)
    links: Mapping[Pair, MeasuredLink] = field(default_factory=dict)
    failed_links: Mapping[Pair, FailedLink] = field(default_factory=dict)
    probes: Mapping[Pair, float] = field(default_factory=dict)
    link_waits: Mapping[str, float] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    planning: str | None = None
    ending_since_s: float | None = None
    heard_at_s: Mapping[str, float] = field(default_factory=dict)


def trainer_task_id(job_id: str) -> str:
    return f"{job_id}/trainer"


def rollout_task_id(job_id: str, region: str, index: int) -> str:
    return f"{job_id}/rollout-{region}-{index}"


def live_jobs(state: State) -> tuple[Job, ...]:
    """Return the jobs that have not ended, in the order of their submission."""
    return tuple(job for job in state.jobs.values() if not job.ended)


def taken_back(job: Job) -> Job:
    """Return a placed job as it is before it is placed again, in its next fork.

    So nothing that was or is started for the placement is taken for a part of the next one.
    """
    return replace(job, fork=job.fork + 1, placement=None, tasks={}, trainer_key="")


def find_job(state: State, prefix: str) -> Job:
    """Return the job with this id, or the only job whose id begins with `prefix`.

    Raises: NotFound if there is none, Conflict with the candidates if there are several.
    """
    # A whole id counts even if it is the beginning of another.
    if prefix in state.jobs:
        return state.jobs[prefix]
    matches = [job_id for job_id in state.jobs if prefix and job_id.startswith(prefix)]
    if not matches:
        raise NotFound(f"no job {prefix!r}; `periplus job list` names them")
    if len(matches) > 1:
        raise Conflict(f"job {prefix!r} could be any of {', '.join(sorted(matches))}; give more of the id")
    return state.jobs[matches[0]]


def resume_advice(job: Job) -> str:
    """Tell the operator how to continue a job whose trainer has ended, from what the agent reported about its files."""
    files, report = job.files, job.trainer.report if job.trainer else None
    if files is None and job.replica is not None:
        return f"its newest checkpoint is {job.replica_url}: copy that to RUNS/{job.job_id} and `--resume` it there"
    if files is None:
        return "no process of it has run: submit it again"
    if files.checkpoint is not None:
        return f"resume from its checkpoint {files.checkpoint} with `{resume_command(files.run_dir)}`"
    if report is not None and report.state in ENDED and report.files is not None:
        return f"there is no checkpoint in {files.run_dir} to resume from: submit it again"
    return f"resume with `{resume_command(files.run_dir)}`, if it left a checkpoint there"


def without_oldest_ended(state: State, now_s: float) -> State:
    """Return the state without jobs that ended KEPT_ENDED_S ago, and the oldest beyond MAX_ENDED_JOBS.

    A job with a process that still runs is kept, since its region would get no orders for what it takes for unknown.
    """
    ended = [job_id for job_id, job in state.jobs.items() if job.ended]
    beyond = {*ended[: max(0, len(ended) - MAX_ENDED_JOBS)]}
    beyond |= {job_id for job_id in ended if now_s - (state.jobs[job_id].ended_at_s or now_s) > KEPT_ENDED_S}
    if not beyond:
        return state
    running = {report.job_id for region in state.regions.values() for report in region.tasks.values()}
    forgotten = beyond - running
    return replace(
        state,
        jobs={job_id: job for job_id, job in state.jobs.items() if job_id not in forgotten},
        requests={request: job_id for request, job_id in state.requests.items() if job_id not in forgotten},
    )


def waits_until_s(state: State, job: Job) -> float | None:
    """Return when a placed job is given up, because the region of its trainer is away; None if it is there."""
    if job.placement is None or (region := state.regions[job.placement.trainer_region]).connected:
        return None
    return region.last_seen_s + job.request.max_region_absence_s


def utc_time(time_s: float) -> str:
    """Return a Unix time as a time of day in UTC."""
    return f"{datetime.fromtimestamp(time_s, UTC):%H:%M:%S} UTC"


def ready_regions(state: State) -> frozenset[str]:
    """Return the regions whose agent is connected."""
    return frozenset(name for name, region in state.regions.items() if region.connected)


def dialled_address(state: State, name: str) -> str:
    """Return the address with which others reach a region's gateway, if need be by way of a relay; empty if none."""
    region = state.regions[name]
    relay = state.regions.get(region.relay)
    if region.hello.gateway_address or relay is None or not relay.hello.gateway_address:
        return region.hello.gateway_address
    at = relay.hello.gateway_address
    return str(RelayedAddress(relay_address=at, relay_region=region.relay, region=name))


def runs_unknown_job(state: State, region: RegionState) -> bool:
    """Return whether the region still runs a task that an earlier coordinator process had started."""
    return any(report.job_id not in state.jobs and report.state not in ENDED for report in region.tasks.values())
