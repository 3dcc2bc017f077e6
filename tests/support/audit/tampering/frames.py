"""Changes of frames, and of the journal's lines about what they hold."""

import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.audit.records import AdmissionVerdict
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Trajectory, content_digest, read_only, token_ids
from tests.support.audit.forger import Forger
from tests.support.audit.tampering.edits import (
    STEP,
    Tampering,
    at,
    first_trained,
    first_trained_result,
    found,
    trained_on,
)


def a_version_is_edited_in_the_journal(forger: Forger) -> None:
    num_tokens = sum(run.num_tokens for run in first_trained_result(forger).policies)
    forger.edit(first_trained(forger), policies=(PolicyRun(STEP, num_tokens),))


def _whose_cache_was_kept(forger: Forger) -> int:
    """Return the place of the result line of the first sample whose engine kept its cache at a swap."""
    return forger.indices(
        lambda r: (
            isinstance(r, records.ResultEntry)
            and r.verdict is AdmissionVerdict.ACCEPTED
            and any(run.kept_kv for run in r.policies)
        )
    )[0]


def _nothing_kept(runs: tuple[PolicyRun, ...]) -> tuple[PolicyRun, ...]:
    return tuple(replace(run, kept_kv=False) for run in runs)


def a_kept_cache_is_denied_in_the_journal(forger: Forger) -> None:
    at_line = _whose_cache_was_kept(forger)
    record = forger.entries[at_line].record
    assert isinstance(record, records.ResultEntry)
    forger.edit(at_line, policies=_nothing_kept(record.policies))


def a_kept_cache_is_denied_in_the_frame(forger: Forger) -> None:
    record = forger.entries[_whose_cache_was_kept(forger)].record
    assert isinstance(record, records.ResultEntry)
    forger.rewrite_frames(
        lambda t: replace(t, policies=_nothing_kept(t.policies)) if content_digest(t) == record.digest else t
    )


def a_digest_is_edited_in_the_journal(forger: Forger) -> None:
    forger.edit(first_trained(forger), digest=bytes(16))


def change_first_trained(forger: Forger, change: Callable[[Trajectory], Trajectory]) -> None:
    """Change the first sample of STEP within its frame."""
    used = trained_on(forger)[0]
    forger.rewrite_frames(lambda t: change(t) if (t.group, t.sample) == (used.group, used.sample) else t)


def a_version_is_edited_in_the_frame(forger: Forger) -> None:
    change_first_trained(forger, lambda t: replace(t, policies=(PolicyRun(STEP, len(t.completion_ids)),)))


def a_token_is_edited(forger: Forger) -> None:
    change_first_trained(forger, lambda t: replace(t, completion_ids=token_ids([91, *t.completion_ids[1:].tolist()])))


def a_logprob_is_edited(forger: Forger) -> None:
    change_first_trained(forger, lambda t: replace(t, logprobs=read_only(np.nextafter(t.logprobs, 0), np.float32)))


def a_reward_is_edited(forger: Forger) -> None:
    change_first_trained(forger, lambda t: replace(t, reward=0.5))


def a_mask_is_edited(forger: Forger) -> None:
    def masked(t: Trajectory) -> Trajectory:
        return replace(t, mask=read_only(~t.mask, np.bool_), logprobs=read_only(np.zeros_like(t.logprobs), np.float32))

    change_first_trained(forger, masked)


def a_worker_is_edited(forger: Forger) -> None:
    forger.edit(first_trained(forger), worker_id="somebody else")


def a_worker_is_edited_in_frame_and_journal(forger: Forger) -> None:
    """A result carries the lease of another worker, and frame, digest and batch fit together."""
    index, digest = first_trained(forger), first_trained_result(forger).digest
    forger.rewrite_everything(lambda t: replace(t, worker_id="rollout-eu-9") if content_digest(t) == digest else t)
    forger.edit(index, worker_id="rollout-eu-9")


def a_frame_is_missing(forger: Forger) -> None:
    frame = first_trained_result(forger).frame
    assert frame
    forger.remove_frame(frame)


def all_frames_are_missing(forger: Forger) -> None:
    shutil.rmtree(forger.root / "trajectories")


def frames_are_missing_and_a_line_says_they_were_pruned(forger: Forger) -> None:
    covered = at(forger, records.CheckpointEntry, policy=Policy(0, 2))
    prune = records.PruneEntry(kept_from=records.FrameId(3, 0), policy=Policy(0, 2))
    forger.insert(covered + 1, prune)
    shutil.rmtree(forger.root / "trajectories")


def a_result_line_is_missing(forger: Forger) -> None:
    del forger.entries[first_trained(forger)]


def the_line_of_a_refused_result_is_missing(forger: Forger) -> None:
    del forger.entries[at(forger, records.ResultEntry, verdict=AdmissionVerdict.REFUSED)]


def a_result_points_at_another_frame(forger: Forger) -> None:
    other = found(forger, records.ResultEntry, verdict=AdmissionVerdict.ACCEPTED, nth=9)
    forger.edit(first_trained(forger), frame=other.frame, index=other.index)


TAMPERINGS = (
    Tampering(a_version_is_edited_in_the_journal, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_kept_cache_is_denied_in_the_journal, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_kept_cache_is_denied_in_the_frame, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_digest_is_edited_in_the_journal, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_version_is_edited_in_the_frame, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_token_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_logprob_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_reward_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_mask_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_worker_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_worker_is_edited_in_frame_and_journal, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_frame_is_missing, (Code.FRAME_MISSING,)),
    Tampering(all_frames_are_missing, (Code.FRAME_MISSING,)),
    Tampering(frames_are_missing_and_a_line_says_they_were_pruned, (Code.PRUNED_TOO_EARLY,)),
    Tampering(a_result_line_is_missing, (Code.TRAINED_NOT_ACCEPTED,)),
    Tampering(a_result_line_is_missing, (Code.FRAME_UNJUDGED,), "a_result_line_is_missing_from_the_frames_side"),
    Tampering(the_line_of_a_refused_result_is_missing, (Code.FRAME_UNJUDGED,)),
    Tampering(a_result_points_at_another_frame, (Code.FRAME_CONTRADICTS,)),
)
