"""What the ledger is told (events), what it decides (effects), and the values in both. Nothing here decides anything.

Versions count along the trainer's lineage (periplus/values/policy.py), so that an age is a difference of two of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose

EVAL_GROUPS_START = 1 << 40
"""Group numbers of evaluation start here: training never gets so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """What a job lets its ledger do.

    `bound`: largest staleness of a consumed token, in versions. `depth`: batches in the pipeline beside the one that is
    being trained; None: as many as the measured times ask for, and never more than the bound allows. `max_hold_s`: how
    long a whole batch waits for older work that it would leave behind too old. `lease_timeout_s`: from when a lease may
    start, and again from when its worker started it. `max_attempts`: attempts at one sample. An attempt is a lease that
    ended without a valid result after its worker had started it, or that its worker said it cannot serve.
    `intake_tokens`: room for completion tokens leased or waiting; `max_sample_tokens`: the largest size of one sample.
    `filter_uniform`: groups whose rewards are all equal are replaced (DAPO's dynamic sampling, arXiv 2503.14476,
    section 3.2), at most `max_filtered_per_step` times the groups of a step before one batch.
    """

    groups_per_step: int
    group_size: int
    bound: int
    steps: int
    lease_timeout_s: float
    max_hold_s: float
    max_sample_tokens: int
    intake_tokens: int
    depth: float | None = None
    max_attempts: int = 3
    filter_uniform: bool = False
    max_filtered_per_step: int = 4

    def __post_init__(self) -> None:
        batch_tokens = self.groups_per_step * self.group_size * self.max_sample_tokens
        if self.intake_tokens < batch_tokens:
            raise ValueError(
                f"room for {self.intake_tokens} tokens, but one batch may have {batch_tokens}: nothing could be trained"
            )
        if self.depth is not None and self.depth < 1:
            raise ValueError(f"a pipeline of {self.depth} batches; at least 1 is needed for anything to be trained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to produce one sample, from `start_at` or a newer policy. `alone`: its worker generates no other sample
    at the same time, so that what happens to the worker is this sample's doing.
    """

    lease_id: int
    group: int
    sample: int
    item: int
    start_at: Policy
    consume_by_version: int
    purpose: Purpose
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished sample as the ledger sees it; `payload` is the caller's."""

    lease_id: int
    group: int
    sample: int
    item: int
    purpose: Purpose
    worker_id: str
    policies: tuple[PolicyRun, ...]
    num_tokens: int
    reward: float
    payload: object = None

    @property
    def oldest_version(self) -> int:
        """Version of the oldest token; there must be at least one token."""
        return min([run.policy.version for run in self.policies])


class Arrival(StrEnum):
    """What became of a result."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # the sample is in already, or was trained on
    LATE = "late"  # its group was dropped while it was being produced
    UNKNOWN = "unknown"  # never leased
    UNFIT = "unfit"  # not what was leased: another problem or purpose, no token or too many, or from the future
    TOO_OLD = "too_old"  # it could not be consumed within the bound (of a replay: within what may be open)
    DEAD_BRANCH = "dead_branch"  # sampled by a policy that is not in this trainer's history


class Loss(StrEnum):
    """Why a lease ended without a result. Started leases that expired, failed and refused ones, and those whose worker
    died are attempts at the sample; the others say nothing about it.
    """

    WORKER_GONE = "worker_gone"  # its worker left before it started the sample, or the connection to it was lost
    WORKER_DIED = "worker_died"  # its worker died while it produced the sample
    EXPIRED = "expired"  # its time is over; or another lease of its worker expired, and this one was not started
    WITHDRAWN = "withdrawn"  # given to a worker on probation as a trial; a better one had room for the sample
    FAILED = "failed"  # its worker said that it cannot produce the sample
    REFUSED = "refused"  # what its worker sent is no valid sample


class Drop(StrEnum):
    """Why a group is not trained on."""

    OVERDUE = "overdue"  # it was waited for up to max_hold_s, or missed only lost samples
    FAILED = "failed"  # max_attempts attempts at one of its samples yielded nothing
    FILTERED = "filtered"  # all rewards equal


# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker said hello (again): what it held before is void. `epoch` names the start of its process, 0 if unknown: a
    worker that comes again with the epoch that it had has not died.
    """

    worker_id: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker's stream ended. `is_dead`: its process is taken to have died; else only the way to it was lost."""

    worker_id: str
    is_dead: bool = True


@dataclass(frozen=True, slots=True)
class RoomOffered:
    """It may hold so many leases that may start, those that it has included, and as many of the next version."""

    worker_id: str
    num_samples: int


@dataclass(frozen=True, slots=True)
class PolicyReached:
    """The worker's engine holds these weights."""

    worker_id: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class LeasesStarted:
    """The worker produces these samples now, from this policy on."""

    worker_id: str
    lease_ids: tuple[int, ...]
    policy: Policy


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """The worker cannot produce the sample, or what it sent was refused (`why`: FAILED or REFUSED)."""

    worker_id: str
    lease_id: int
    why: Loss = Loss.FAILED


@dataclass(frozen=True, slots=True)
class ResultArrived:
    result: Result


@dataclass(frozen=True, slots=True)
class Replayed:
    """After a restore, before any worker: results of the surviving history that had not been consumed."""

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class EvalAsked:
    """Produce one greedy sample of each item, from the present policy or a newer one."""

    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchWanted:
    """The trainer is idle at the present version."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """The batch was consumed, trained on or not: the next version exists."""


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time has passed."""


Event = (
    WorkerJoined
    | WorkerLeft
    | RoomOffered
    | PolicyReached
    | LeasesStarted
    | SampleFailed
    | ResultArrived
    | Replayed
    | EvalAsked
    | BatchWanted
    | StepDone
    | ClockTicked
)

# ---- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """Send these leases to this worker."""

    worker_id: str
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Nobody waits for these leases any more: the worker may drop those that it has not started."""

    worker_id: str
    lease_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JudgedResult:
    """What became of a result."""

    result: Result
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease ended without a result; a late one still counts if it is the first."""

    lease: Lease
    worker_id: str
    why: Loss


@dataclass(frozen=True, slots=True)
class GroupDropped:
    """The group is given up with what had come in; its room is free."""

    group: int
    why: Drop
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """A whole batch is there, but the trainer waits for these groups, which it would leave behind too old."""

    groups: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class BatchReady:
    """Train on these, sorted by (group, sample), starting from this policy."""

    policy: Policy
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class EvalReady:
    """The samples of the evaluation, in the order in which they were asked for, but for those that failed."""

    results: tuple[Result, ...]


Effect = Granted | Revoked | JudgedResult | LeaseLost | GroupDropped | Holding | BatchReady | EvalReady


def merged_grants(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """The same effects, with one grant a worker at the end."""
    leases: dict[str, list[Lease]] = {}
    others: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Granted):
            leases.setdefault(effect.worker_id, []).extend(effect.leases)
        else:
            others.append(effect)
    return (*others, *(Granted(worker_id, tuple(granted)) for worker_id, granted in leases.items()))
