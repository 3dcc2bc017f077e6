"""What the ledger is told (events), what it decides (effects), and the values in both. Nothing here decides anything.

A *group* is the samples of one prompt, which are trained on together. A *lease* is a worker's right to produce one of
these samples, and a *result* is the finished sample. An *item* is the index of a problem in the environment.
Versions count along the trainer's lineage (periplus/values/policy.py), so the age of a token is the difference of two
versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose

EVAL_GROUPS_START = 1 << 40
"""First group number of evaluation. Chosen by hand, so large that the numbers of training groups never reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """The limits that a job sets for its ledger.

    - `groups_per_step`, `group_size`: groups that one training step consumes, and samples in each group.
    - `bound`: largest staleness of a consumed token, in versions.
    - `steps`: the number of training steps of the job.
    - `lease_timeout_s`: the time of a lease, from when it may start, and again from when its worker starts it.
    - `max_hold_s`: how long a complete batch waits for unfinished groups that would be too old after its step.
    - `max_sample_tokens`: the largest number of completion tokens of one sample.
    - `intake_tokens`: room for completion tokens of all samples that are leased, or that wait to be trained on.
    - `depth`: batches in the pipeline beside the one that is being trained. None: as many as the measured times ask
      for, and never more than the bound allows.
    - `max_attempts`: attempts at one sample before its group is dropped. An attempt is a lease that ended without a
      valid result after its worker had started it, or that its worker said it cannot serve.
    - `filter_uniform`: whether groups whose outcomes are all equal are replaced by new ones (DAPO's dynamic sampling,
      arXiv 2503.14476, section 3.2).
    - `max_filtered_per_step`: replaced groups before one batch, at most, as a multiple of `groups_per_step`.
    - `hedge`: whether samples of a silent worker are leased a second time while the trainer waits (hedging.py).

    Raises: ValueError if `intake_tokens` is less than one batch may have, or if `depth` is less than 1.
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
    hedge: bool = True

    def __post_init__(self) -> None:
        batch_tokens = self.groups_per_step * self.group_size * self.max_sample_tokens
        if self.intake_tokens < batch_tokens:
            raise ValueError(
                f"room for {self.intake_tokens} tokens, but one batch may have {batch_tokens}: nothing could be "
                f"trained; set intake_tokens to {batch_tokens} or more"
            )
        if self.depth is not None and self.depth < 1:
            raise ValueError(
                f"depth is a pipeline of {self.depth} batches, but nothing is trained below 1; set 1 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one worker to produce one sample, with `start_at` or a newer policy.

    `consume_by_version` is the version from which the last step that may train on its group starts.
    `alone`: the worker generates no other sample at the same time. If the worker then dies, this sample is the cause.
    `hedges` is the number of the live lease of the same sample that this one is a hedge of, or 0 (hedging.py).
    """

    lease_id: int
    group: int
    sample: int
    item: int
    start_at: Policy
    consume_by_version: int
    purpose: Purpose
    alone: bool = False
    hedges: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished sample as the ledger sees it, without its tokens.

    The owner of the tokens finds them again by `handle`, a number that it gives to each result that it tells the ledger
    of. The ledger never reads the handle. Groups of equal `outcome` may be filtered; None is a sample that no reward
    function judged. Each result comes back once in a `JudgedResult`, and if it was accepted once
    more: in a batch, an evaluation or a dropped group.
    """

    lease_id: int
    group: int
    sample: int
    item: int
    purpose: Purpose
    worker_id: str
    policies: tuple[PolicyRun, ...]
    num_tokens: int
    outcome: float | None
    handle: int = 0

    @property
    def oldest_version(self) -> int:
        """Version of the oldest token; there must be at least one token."""
        return min([run.policy.version for run in self.policies])


class Arrival(StrEnum):
    """Whether a result was accepted, or why not."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # another result of the same sample came first, or the group was trained on
    LATE = "late"  # the group was dropped while the sample was being produced
    UNKNOWN = "unknown"  # no such sample was ever leased
    UNFIT = "unfit"  # not what was leased: another problem or purpose, no token or too many, or from a future version
    TOO_OLD = "too_old"  # it could not be consumed within the bound; of a replayed result: its group may not be opened
    DEAD_BRANCH = "dead_branch"  # sampled by a policy that is not in this trainer's history


class Loss(StrEnum):
    """Why a lease ended without a result.

    These count as attempts at the sample: EXPIRED of a started lease, FAILED, REFUSED and WORKER_DIED. The others say
    nothing about the sample.
    """

    WORKER_GONE = "worker_gone"  # the worker left before it started the sample, or the connection to it was lost
    WORKER_DIED = "worker_died"  # the worker died while it produced the sample
    EXPIRED = "expired"  # the time is over; or another lease of the worker expired, and this one was not started
    WITHDRAWN = "withdrawn"  # it was a trial of a worker on probation, and a more reliable worker had room
    FAILED = "failed"  # the worker said that it cannot produce the sample
    REFUSED = "refused"  # what the worker sent is no valid sample


class Drop(StrEnum):
    """Why a group is not trained on."""

    OVERDUE = "overdue"  # a hold for it ended: after max_hold_s, or sooner if only lost samples were missing
    FAILED = "failed"  # max_attempts attempts at one of its samples gave no valid result
    FILTERED = "filtered"  # the outcomes of all its judged samples are equal


# ---- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker connected, for the first time or again. The leases that it held before are lost.

    `epoch` identifies one start of its process, and is 0 if unknown. A worker that comes back with the same epoch has
    not died in between. `region` is where it is, and empty if unknown.
    """

    worker_id: str
    epoch: int = 0
    region: str = ""


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker's stream ended. `is_dead`: its process is taken to have died; else only the connection was lost."""

    worker_id: str
    is_dead: bool = True


@dataclass(frozen=True, slots=True)
class AllWorkersLeft:
    """The connection to all workers was lost. Those whose processes go on join again."""


@dataclass(frozen=True, slots=True)
class RoomOffered:
    """The worker can hold this many leases that may start now, and as many more of the next version.

    The leases that it holds already count.
    """

    worker_id: str
    num_samples: int


@dataclass(frozen=True, slots=True)
class PolicyReached:
    """The worker's engine holds these weights."""

    worker_id: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class LeasesStarted:
    """The worker has begun to produce these samples, with this policy."""

    worker_id: str
    lease_ids: tuple[int, ...]
    policy: Policy


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """The worker cannot produce the sample (`why` is FAILED), or what it sent was refused (REFUSED)."""

    worker_id: str
    lease_id: int
    why: Loss = Loss.FAILED


@dataclass(frozen=True, slots=True)
class ResultArrived:
    """A worker sent a finished sample."""

    result: Result


@dataclass(frozen=True, slots=True)
class Replayed:
    """Kept results of earlier forks, of which those that fit this lineage and were not consumed are used again.

    It is sent once after a restore, before any worker joins.
    """

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class EvalAsked:
    """An evaluation is wanted: one sample of each item, with the present policy or a newer one.

    With `is_background` training goes on meanwhile, and has first claim on the workers. Else the trainer waits, and the
    evaluation precedes all other work. An item may come several times.
    """

    items: tuple[int, ...]
    is_background: bool = False


@dataclass(frozen=True, slots=True)
class BatchWanted:
    """The trainer has nothing to train on and wants the next batch."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """The training step of the last batch is over, whether it was trained on or not. The version rises by one."""


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time has passed: leases may have expired, or a hold may have ended."""


Event = (
    WorkerJoined
    | WorkerLeft
    | AllWorkersLeft
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
    """Tell the worker that these leases are over: it drops those that it has not started.

    `still_wanted`: it may finish those that it has started, because the first valid result of a sample is accepted
    whoever sends it. To cut a slow sample would favour short ones.
    """

    worker_id: str
    lease_ids: tuple[int, ...]
    still_wanted: bool = False


@dataclass(frozen=True, slots=True)
class JudgedResult:
    """The result was accepted or refused, as `arrival` says."""

    result: Result
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease ended without a result. A result that comes later is still accepted if it is the sample's first."""

    lease: Lease
    worker_id: str
    why: Loss


@dataclass(frozen=True, slots=True)
class GroupDropped:
    """The group is given up, with the results that had come in; its room for tokens is free again."""

    group: int
    why: Drop
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """A complete batch is there, but the trainer waits for these unfinished groups until `until_s` at the latest.

    They would be too old after the step. `until_s` is on the clock of the events' times.
    """

    groups: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class BatchReady:
    """Train on these results, which are sorted by (group, sample), starting from this policy."""

    policy: Policy
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class EvalReady:
    """The evaluation is over: its results in the order of the items asked for, without those that failed."""

    results: tuple[Result, ...]


Effect = Granted | Revoked | JudgedResult | LeaseLost | GroupDropped | Holding | BatchReady | EvalReady


def merged_grants(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Return the same effects, with all grants of each worker merged into one and moved to the end."""
    # One message for each worker. Revocations and losses precede the grants that reuse what they freed.
    leases: dict[str, list[Lease]] = {}
    others: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Granted):
            leases.setdefault(effect.worker_id, []).extend(effect.leases)
        else:
            others.append(effect)
    return (*others, *(Granted(worker_id, tuple(granted)) for worker_id, granted in leases.items()))
