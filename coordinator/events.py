"""What happens to the coordinator (events) and what it does about it (effects): values, and nothing else.

Events of agents carry a `Stamp`, by which the machine drops what a fenced session sent and what it has already seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.state import Hello, Job, JobRequest, PlacedRoles
from periplus.values.record import Record
from periplus.values.task import AssignedTask, TaskReport
from planner.plan import NoPlanExists

# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamp:
    """Where a message of an agent came from: its session, and its place in it."""

    region: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class RegionJoined:
    hello: Hello
    sequence: int


@dataclass(frozen=True, slots=True)
class RegionLeft:
    """The session of this epoch is over."""

    region: str
    epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatSeen:
    """`sent_bytes`: payload to each other region since the agent's start; `job_sent_bytes`: the part of each job."""

    stamp: Stamp
    sent_bytes: Mapping[str, int]
    job_sent_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasured:
    stamp: Stamp
    dst_region: str
    rtt_s: float
    throughput_bits_per_s: float


@dataclass(frozen=True, slots=True)
class TaskReported:
    stamp: Stamp
    report: TaskReport


@dataclass(frozen=True, slots=True)
class StepRecorded:
    stamp: Stamp
    job_id: str
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequested:
    """The trainer of this fork has made its key."""

    stamp: Stamp
    job_id: str
    fork: int
    public_key: bytes


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """`job_id` is used unless the request resumes a job under its old id."""

    request_id: str
    job_id: str
    request: JobRequest


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """`job_id` may be a unique prefix."""

    job_id: str


@dataclass(frozen=True, slots=True)
class PlannerFailed:
    """No answer, for a reason other than the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class PlanFinished:
    """What the planner made of the regions that it was given."""

    job_id: str
    regions: frozenset[str]
    outcome: PlacedRoles | NoPlanExists | PlannerFailed


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: about once a second."""


AgentEvent = HeartbeatSeen | LinkMeasured | TaskReported | StepRecorded | CertificateRequested
Event = RegionJoined | RegionLeft | AgentEvent | JobSubmitted | JobCancelled | PlanFinished | Ticked

# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendDesired:
    """Replace what the region should run. Revisions rise within a coordinator's life."""

    region: str
    epoch: int
    revision: int
    tasks: tuple[AssignedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendProbe:
    region: str
    epoch: int
    dst_region: str
    gateway_address: str
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCertificate:
    """Sign that this key is the trainer's of this fork of this job."""

    region: str
    epoch: int
    job_id: str
    fork: int
    public_key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCertificate:
    region: str
    epoch: int
    job_id: str
    fork: int
    reason: str


@dataclass(frozen=True, slots=True)
class FenceSession:
    """End the session of this epoch, if it is still open: a newer one took over."""

    region: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell who watches the job: its state changed, or the trainer recorded something."""

    job_id: str
    news: Job | Record


@dataclass(frozen=True, slots=True)
class RunPlanner:
    """Place the job on these regions and answer with PlanFinished."""

    job_id: str
    regions: frozenset[str]


Order = SendDesired | SendProbe | SendCertificate | RefuseCertificate
"""What goes down a region's session."""

Effect = Order | FenceSession | Publish | RunPlanner
