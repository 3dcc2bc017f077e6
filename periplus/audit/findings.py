"""What an audit can find wrong. The codes are stable: programs and people search for them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

KEPT_PER_CODE = 100
"""Findings of one code that are kept with their place; all are counted. One cause often breaks thousands of lines."""


class Code(StrEnum):
    """Grouped by what contradicts what."""

    # the journal itself
    LINE_UNREADABLE = "line_unreadable"  # a whole line is no record
    CHAIN_BROKEN = "chain_broken"  # a line's `prev` is not the hash of the line before it
    NUMBER_BROKEN = "number_broken"  # a line's `n` is not its place
    NOT_OPENED = "not_opened"  # a record outside of any fork: before the first `open`, or after an `end`
    SEAL_WRONG = "seal_wrong"  # the trainer's key did not sign the journal up to there, or nobody certified that key
    SEAL_MISSING = "seal_missing"  # a line that a trainer seals has no seal
    # forks
    TOO_MANY_FORKS = "too_many_forks"  # more starts of a trainer than an audit judges (walk.MAX_FORKS)
    FORK_NOT_NEW = "fork_not_new"  # fork numbers rise
    PARENT_UNKNOWN = "parent_unknown"  # the parent is no checkpoint that this history has
    SETTINGS_CHANGED = "settings_changed"  # what is fixed for a run differs between forks, or from config.yaml
    VERSION_GAP = "version_gap"  # a batch does not start from the version that the one before it made
    # leases and results
    LEASE_REPEATED = "lease_repeated"  # a number of a lease was given out twice in one fork
    LEASE_MISSING = "lease_missing"  # numbers of leases have a gap
    LEASE_CONTRADICTS = "lease_contradicts"  # its first policy and last version, or its worker's region, cannot be so
    LEASE_AFTER_END = "lease_after_end"  # a group was leased again after it was trained on or dropped
    GROUP_MIXED = "group_mixed"  # samples of one group answer different problems, or serve different purposes
    RESULT_WITHOUT_LEASE = "result_without_lease"  # what was accepted had not been leased
    ACCEPTED_TWICE = "accepted_twice"  # a sample was accepted again, or after its group had ended
    ACCEPTED_UNFIT = "accepted_unfit"  # abandoned, without frame, from the future
    DUPLICATE_OF_NOTHING = "duplicate_of_nothing"  # refused as a duplicate, but no other was ever accepted
    LOST_CONTRADICTS = "lost_contradicts"  # a lease is lost that was never granted, or had ended
    UNACCOUNTED = "unaccounted"  # a lease, sample or group of which nothing says what became of it
    # drops and evaluations
    DROP_CONTRADICTS = "drop_contradicts"  # not the accepted samples of the group, or the group had ended
    EVAL_CONTRADICTS = "eval_contradicts"  # not all accepted samples of evaluations, or not of its policy
    # batches
    TRAINED_TWICE = "trained_twice"  # a sample was trained on twice in one lineage
    TRAINED_AFTER_DROP = "trained_after_drop"  # its group had been given up
    TRAINED_NOT_LEASED = "trained_not_leased"  # no lease was ever given for it
    TRAINED_NOT_ACCEPTED = "trained_not_accepted"  # no accepted result is known for it
    TRAINED_EVAL = "trained_eval"  # it was sampled to measure
    DIGEST_DIFFERS = "digest_differs"  # what the optimizer was given is not what was accepted
    GROUP_INCOMPLETE = "group_incomplete"  # not each sample of a group, once
    BATCH_SIZE = "batch_size"  # not as many groups as a step takes
    ROOT_WRONG = "root_wrong"  # the batch's root is not that of its digests
    STALENESS_CLAIMED = "staleness_claimed"  # the histogram in the journal is not the recomputed one
    STALE = "stale"  # a token older than the bound was trained on
    FROM_FUTURE = "from_future"  # a token's policy did not exist yet
    DEAD_BRANCH = "dead_branch"  # a token, or a sample, of a branch that the consumer's history does not have
    # frames
    FRAME_MISSING = "frame_missing"  # a result's frame is neither there nor pruned
    FRAME_UNREADABLE = "frame_unreadable"  # damaged, or not a frame
    FRAME_CONTRADICTS = "frame_contradicts"  # the frame's content is not what the result line says
    FRAME_JUDGED_TWICE = "frame_judged_twice"  # two results of one fork point at one place in a frame
    FRAME_UNJUDGED = "frame_unjudged"  # no result points at it, though one points at a later one
    PRUNED_TOO_EARLY = "pruned_too_early"  # frames were let go that a restore from the checkpoint would need
    # checkpoints and weights
    CHECKPOINT_CONTRADICTS = "checkpoint_contradicts"  # of a policy that the fork did not have there
    PUBLISH_CONTRADICTS = "publish_contradicts"  # of a policy that the fork did not have, or with another digest
    PUBLISH_MISSING = "publish_missing"  # a version has no publication, and the run went on past it
    FINAL_WRONG = "final_wrong"  # the model in final/ is not the version that the run published last
    MANIFEST_MISSING = "manifest_missing"  # older checkpoints are kept, or none, and this one is not there
    MANIFEST_UNREADABLE = "manifest_unreadable"
    MANIFEST_UNRECORDED = "manifest_unrecorded"  # a checkpoint is there that the journal does not know
    MANIFEST_WRONG = "manifest_wrong"  # the file's hash is not the one in the journal
    MANIFEST_CONTRADICTS = "manifest_contradicts"  # a field is not what the journal's lines give
    JOURNAL_TRUNCATED = "journal_truncated"  # a checkpoint covers lines that are not there
    PART_WRONG = "part_wrong"  # a part of a checkpoint is missing, or not the one in its manifest
    # witnesses outside of the trainer's books
    METRICS_AHEAD = "metrics_ahead"  # metrics.jsonl has a step or an evaluation that the journal does not have
    SPOOL_CONTRADICTS = "spool_contradicts"  # a gateway kept another content for the same lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`place`: file and line, frame, or checkpoint; `values`: JSON values, what was found and what was expected."""

    code: Code
    place: str
    message: str
    values: Mapping[str, object]


class Findings:
    """Collects them, some of each code with their places, and counts all."""

    def __init__(self) -> None:
        self.counts: Counter[Code] = Counter()
        self.kept: list[Finding] = []

    def add(self, code: Code, place: str, message: str, **values: object) -> None:
        """`values` are JSON values."""
        self.counts[code] += 1
        if self.counts[code] <= KEPT_PER_CODE:
            self.kept.append(Finding(code=code, place=place, message=message, values=values))
