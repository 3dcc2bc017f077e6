"""Findings of an audit: each contradiction in a run's evidence has a code, a place and a message.

The codes are stable, because programs and people search for them. `Findings` counts every finding, and keeps only a
limited number of each code with their places.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

KEPT_PER_CODE = 100
"""Most findings of one code that are kept with their place, since one cause often breaks thousands of lines. All are
counted. Chosen by hand."""


class Code(StrEnum):
    """Code of a finding, grouped by the evidence that is contradicted."""

    # the journal itself
    LINE_UNREADABLE = "line_unreadable"  # a complete line cannot be parsed as an entry
    CHAIN_BROKEN = "chain_broken"  # a line's `prev` is not the hash of the line before it
    NUMBER_BROKEN = "number_broken"  # a line's `n` is not its place in the file
    NOT_OPENED = "not_opened"  # an entry lies outside of any fork: before the first `open`, or after an `end`
    SEAL_WRONG = "seal_wrong"  # the trainer's key did not sign the journal up to there, or is not certified
    SEAL_MISSING = "seal_missing"  # a line of a kind that a trainer seals has no seal
    # forks
    TOO_MANY_FORKS = "too_many_forks"  # there are more forks than an audit checks (walk.MAX_FORKS)
    FORK_NOT_NEW = "fork_not_new"  # a fork's number is not above that of the fork before it
    PARENT_UNKNOWN = "parent_unknown"  # a fork starts from a checkpoint that the journal does not have
    SETTINGS_CHANGED = "settings_changed"  # a fixed setting differs between forks, or from config.yaml
    VERSION_GAP = "version_gap"  # a batch does not start from the version that the batch before it made
    # leases and results
    LEASE_REPEATED = "lease_repeated"  # one fork granted two leases with the same number
    LEASE_MISSING = "lease_missing"  # the numbers of a fork's leases have a gap
    LEASE_CONTRADICTS = "lease_contradicts"  # a lease's versions, sample, worker or region cannot be right
    LEASE_AFTER_END = "lease_after_end"  # a group was leased after it was trained on or dropped
    GROUP_MIXED = "group_mixed"  # leases of one group name different problems or purposes
    RESULT_WITHOUT_LEASE = "result_without_lease"  # an accepted or abandoned sample was never leased
    ACCEPTED_TWICE = "accepted_twice"  # a sample was accepted twice, or after its group had ended
    ACCEPTED_UNFIT = "accepted_unfit"  # an accepted sample is abandoned, has no frame, or is from the wrong policy
    DUPLICATE_OF_NOTHING = "duplicate_of_nothing"  # a sample was refused as a duplicate, and no other was accepted
    LOST_CONTRADICTS = "lost_contradicts"  # a lease was lost that was never granted, had ended, or was another worker's
    UNACCOUNTED = "unaccounted"  # the journal does not say how a lease, sample or group ended
    # drops, doubts and evaluations
    DROP_CONTRADICTS = "drop_contradicts"  # a drop does not list the group's accepted samples, or it had ended
    DOUBT_CONTRADICTS = "doubt_contradicts"  # a worker is in doubt by samples of policies that there were not yet
    EVAL_CONTRADICTS = "eval_contradicts"  # an evaluation misses groups, or has samples of another policy
    # batches
    TRAINED_TWICE = "trained_twice"  # a sample was trained on twice in one lineage
    TRAINED_AFTER_DROP = "trained_after_drop"  # a sample was trained on after its group was dropped
    TRAINED_NOT_LEASED = "trained_not_leased"  # a sample was trained on that was never leased
    TRAINED_NOT_ACCEPTED = "trained_not_accepted"  # a sample was trained on that was never accepted
    TRAINED_EVAL = "trained_eval"  # a sample was trained on that was leased for an evaluation
    DIGEST_DIFFERS = "digest_differs"  # the optimizer's input is not the accepted sample
    GROUP_INCOMPLETE = "group_incomplete"  # a batch does not hold each sample of a group exactly once
    BATCH_SIZE = "batch_size"  # a batch does not hold as many groups as a step takes
    ROOT_WRONG = "root_wrong"  # the batch's root is not that of its digests
    STALENESS_CLAIMED = "staleness_claimed"  # the histogram in the journal is not the recomputed one
    STALE = "stale"  # a token older than the staleness bound was trained on
    FROM_FUTURE = "from_future"  # a token was trained on whose policy is newer than the step's
    DEAD_BRANCH = "dead_branch"  # a token or sample is of a branch outside of the fork's history
    # frames
    FRAME_MISSING = "frame_missing"  # a result's frame is neither in the store nor pruned
    FRAME_UNREADABLE = "frame_unreadable"  # a frame or the store is damaged
    FRAME_CONTRADICTS = "frame_contradicts"  # the frame's content is not what the result line says
    FRAME_JUDGED_TWICE = "frame_judged_twice"  # two results of one fork point at one place in a frame
    FRAME_UNJUDGED = "frame_unjudged"  # no result points at a trajectory, though one points at a later one
    PRUNED_TOO_EARLY = "pruned_too_early"  # pruned frames are needed for a restore from the checkpoint
    # checkpoints and weights
    CHECKPOINT_CONTRADICTS = "checkpoint_contradicts"  # a checkpoint is of a policy at which the fork was not then
    PUBLISH_CONTRADICTS = "publish_contradicts"  # a publication has a policy or digest that cannot be right
    PUBLISH_MISSING = "publish_missing"  # a version was never published, and the run continued past it
    FINAL_WRONG = "final_wrong"  # the model in final/ is not the last published version, or has other or more files
    MANIFEST_MISSING = "manifest_missing"  # a checkpoint is gone, and is not among the oldest
    MANIFEST_UNREADABLE = "manifest_unreadable"  # a manifest cannot be parsed
    MANIFEST_UNRECORDED = "manifest_unrecorded"  # a checkpoint exists that no line of the journal names
    MANIFEST_WRONG = "manifest_wrong"  # a manifest's hash is not the one in the journal
    MANIFEST_CONTRADICTS = "manifest_contradicts"  # a field of a manifest differs from what the journal gives
    JOURNAL_TRUNCATED = "journal_truncated"  # a checkpoint covers lines that the journal no longer has
    PART_WRONG = "part_wrong"  # a part of a checkpoint is missing or has another hash
    # evidence besides the journal and the frames
    METRICS_AHEAD = "metrics_ahead"  # metrics.jsonl has a step or evaluation that the journal lacks
    METRICS_MISSING = "metrics_missing"  # metrics.jsonl lacks a step or evaluation that the journal has
    METRICS_TWICE = "metrics_twice"  # metrics.jsonl has two lines for one step or evaluation
    METRICS_WRONG = "metrics_wrong"  # a figure in metrics.jsonl is not the one of the kept samples
    SPOOL_CONTRADICTS = "spool_contradicts"  # a gateway kept a different sample for the same lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One contradiction. `place` is a file and line, a frame or a checkpoint; `values` are JSON values for programs."""

    code: Code
    place: str
    message: str
    values: Mapping[str, object]


class Findings:
    """Collector of findings: `counts` of all by code, and the first ones of each code in `kept`."""

    def __init__(self) -> None:
        self.counts: Counter[Code] = Counter()
        self.kept: list[Finding] = []

    def add(self, code: Code, place: str, message: str, **values: object) -> None:
        """Record a finding. `values` are JSON values, such as what was found and what was expected."""
        self.counts[code] += 1
        if self.counts[code] <= KEPT_PER_CODE:
            self.kept.append(Finding(code=code, place=place, message=message, values=values))
