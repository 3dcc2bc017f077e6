"""The inputs and outputs of the coordinator's state machine, as plain values.

An *event* is something that happened: a message of an agent, a call of an operator, an answer of the planner, or time
that passed. An *effect* is something that the writer must do: send an order to an agent, fence a session, publish news
of a job, run the planner, or store a `FleetEvent`, which operators read. Each event of an agent carries a `Stamp`, by
which the machine ignores repeated messages and messages of a fenced session.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coordinator.state import Hello, Job, JobRequest, PlacedProcesses
from periplus.values.machine import DeviceCount, Inventory
from periplus.values.record import Record
from periplus.values.task import AssignedTask, TaskReport
from planner.answer.outcome import Infeasible

# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """The origin of an agent's message: the region, the epoch of its session, and the message's number in it."""

    region: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RegionJoined:
    """An agent opened a session with this hello, whose sequence number is `sequence`."""

    hello: Hello
    sequence: int


@dataclass(frozen=True, slots=True)
class RegionLeft:
    """The region's session of this epoch has ended."""

    region: str
    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatSeen:
    """An agent sent its heartbeat, with counts of payload bytes since the agent's start.

    `sent_bytes` maps each destination region to its count; `job_sent_bytes` maps each job to such counts of its own.
    """

    stamp: Stamp
    sent_bytes: Mapping[str, int]
    job_sent_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasured:
    """An agent measured the link from its region to `dst_region`."""

    stamp: Stamp
    dst_region: str
    rtt_s: float
    throughput_bits_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFailed:
    """An agent could not measure the link from its region to `dst_region`, and why."""

    stamp: Stamp
    dst_region: str
    why: str


@dataclass(frozen=True, slots=True)
class InventoryChanged:
    """An agent's region offers something else than it said in its hello: a device has failed, or works again."""

    stamp: Stamp
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class TaskReported:
    """An agent reported the state of one of its tasks."""

    stamp: Stamp
    report: TaskReport


@dataclass(frozen=True, slots=True)
class StepRecorded:
    """A trainer recorded a step, an evaluation or another event of its job."""

    stamp: Stamp
    job_id: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequested:
    """The trainer of this fork made its key and asks for a certificate."""

    stamp: Stamp
    job_id: str
    fork: int
    public_key: bytes


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """An operator submitted a job. `job_id` is a new id, unused if the request resumes a job under its old id.

    `actor` says who, for the events of the fleet, here and in `JobCancelled`.
    """

    request_id: str
    job_id: str
    request: JobRequest
    actor: str = ""


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """An operator cancelled a job. `job_id` may be a unique prefix of the id."""

    job_id: str
    actor: str = ""


class RegionOrder(StrEnum):
    """What an operator wants of a region: see `RegionMode`, to forget it, or to measure what a job's model takes."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    REMOVE = "remove"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class RegionOrdered:
    """An operator wants something of a region. The last two are those of a profile."""

    region: str
    order: RegionOrder
    actor: str = ""
    job_json: str = ""
    model_config: str = ""


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Somebody may join the fleet, has joined it, or belongs to it no longer. `actor` is who caused it."""

    text: str
    actor: str
    region: str = ""


@dataclass(frozen=True, slots=True)
class PlannerFailed:
    """The planner gave no answer: it failed, or its time was up before it found a plan."""

    reason: str


@dataclass(frozen=True, slots=True)
class PlanFinished:
    """The planner's answer for a job on the free devices that it was given, by region.

    With `new_regions` the job runs, and the answer has only the processes that it gets in these regions, if any.
    """

    job_id: str
    free: Mapping[str, DeviceCount]
    outcome: PlacedProcesses | Infeasible | PlannerFailed
    new_regions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; this event comes about once a second."""


AgentEvent = (
    HeartbeatSeen | LinkMeasured | ProbeFailed | InventoryChanged | TaskReported | StepRecorded | CertificateRequested
)
Event = (
    RegionJoined
    | RegionLeft
    | AgentEvent
    | JobSubmitted
    | JobCancelled
    | RegionOrdered
    | MembersChanged
    | PlanFinished
    | Ticked
)

# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendDesired:
    """Tell a region the whole set of tasks that it should run. Revisions rise while the coordinator process lives."""

    region: str
    epoch: int
    revision: int
    tasks: tuple[AssignedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendProbe:
    """Tell a region to measure the link to `dst_region` with `payload_bytes`."""

    region: str
    epoch: int
    dst_region: str
    gateway_address: str
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendListen:
    """Tell a region at whose gateway to wait for connections to its own; at none if `relay_region` is empty."""

    region: str
    epoch: int
    relay_region: str
    relay_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendProfile:
    """Tell a region to measure what the work of a job's model takes on its machine."""

    region: str
    epoch: int
    job_json: str
    model_config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRenewed:
    """Give the agent of a region its new certificate, in PEM."""

    region: str
    epoch: int
    certificate: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRevocations:
    """Tell a region all revocations: the Unix time until which certificates are refused, by the party's URI."""

    region: str
    epoch: int
    before_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCertificate:
    """Sign, and send to the region, that this key belongs to the trainer of this fork of this job."""

    region: str
    epoch: int
    job_id: str
    fork: int
    public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCertificate:
    """Tell the region that its request for a certificate was refused."""

    region: str
    epoch: int
    job_id: str
    fork: int
    reason: str


@dataclass(frozen=True, slots=True)
class FenceSession:
    """End the region's session of this epoch if it is still open, because a newer session replaced it."""

    region: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the watchers of the job that its state changed, or that its trainer recorded something."""

    job_id: str
    news: Job | Record


@dataclass(frozen=True, slots=True)
class RunPlanner:
    """Ask the planner to place the job on the free devices of these regions.

    With `new_regions` the job runs already, and is to get rollout workers in these regions. The answer comes back as a
    PlanFinished event.
    """

    job_id: str
    free: Mapping[str, DeviceCount]
    new_regions: frozenset[str] = frozenset()


class FleetEventKind(StrEnum):
    """What an event of the fleet is about."""

    COORDINATOR_STARTED = "coordinator_started"
    REGION_JOINED = "region_joined"
    REGION_LEFT = "region_left"
    REGION_ORDERED = "region_ordered"
    DEVICES_CHANGED = "devices_changed"
    LINK_FAILED = "link_failed"
    LINK_WORKS_AGAIN = "link_works_again"
    RELAY_CHANGED = "relay_changed"
    JOB_SUBMITTED = "job_submitted"
    JOB_CHANGED = "job_changed"
    JOB_GROWTH = "job_growth"
    CANCELLATION_ASKED = "cancellation_asked"
    TASK_FAILED = "task_failed"
    TASK_MOVED = "task_moved"
    TRAINER_CERTIFIED = "trainer_certified"
    MEMBERS_CHANGED = "members_changed"


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something that an operator may want to know later. It is stored with the change of which it tells.

    `text` says what and why. `actor` is who caused it: an operator, or the coordinator and its agents if it is empty.
    """

    kind: FleetEventKind
    text: str
    job_id: str = field(default="", kw_only=True)
    region: str = field(default="", kw_only=True)
    actor: str = field(default="", kw_only=True)


Order = (
    SendDesired
    | SendProbe
    | SendListen
    | SendProfile
    | SendRenewed
    | SendRevocations
    | SendCertificate
    | RefuseCertificate
)
"""An effect that is sent to an agent over its region's session."""

Effect = Order | FenceSession | Publish | RunPlanner | FleetEvent
