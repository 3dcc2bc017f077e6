"""A finished run is changed by somebody who would rather it looked different.

Each change is made twice: by a clumsy hand, which leaves the hash chain as it was, and by a forger, who recomputes the
chain, the roots, the claimed ages and the manifests' hashes and positions, so that only what the lines and the frames
mean can show it. What a forger can hide who also rewrites the frames is in docs/audit.md, and tested here.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from periplus.audit import records
from periplus.audit.findings import Code
from periplus.audit.records import AdmissionVerdict
from periplus.job.run_directory import RunDirectory
from periplus.spool.reader import SpoolReader
from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.values.trajectory import PolicyRun, Purpose, Trajectory, content_digest, read_only, token_ids
from tests.support.audit_run import Forger, audited
from tests.support.keys import AUTHORITY

BY_THE_SEAL = {Code.CHAIN_BROKEN, Code.NUMBER_BROKEN, Code.ROOT_WRONG, Code.MANIFEST_WRONG, Code.LINE_UNREADABLE}
"""What a forger who recomputes hashes is never caught by."""


def at(forger: Forger, kind: type[Any], *, nth: int = 0, **fields: object) -> int:
    """Where the nth record of a kind is that has these fields."""
    fits = forger.indices(
        lambda r: isinstance(r, kind) and all(getattr(r, name) == value for name, value in fields.items())
    )
    return fits[nth]


def consumed(forger: Forger, policy: Policy) -> records.ConsumeEntry:
    record = forger.entries[at(forger, records.ConsumeEntry, policy=policy)].record
    assert isinstance(record, records.ConsumeEntry)
    return record


def accepted_and_trained(forger: Forger, policy: Policy) -> int:
    """The result line of the first sample of the step that starts from this policy."""
    used = consumed(forger, policy).samples[0]
    return at(forger, records.ResultEntry, verdict=AdmissionVerdict.ACCEPTED, digest=used.digest)


# ---- the changes -----------------------------------------------------------------------------------------------------


def a_group_is_trained_on_again(forger: Forger) -> None:
    first = consumed(forger, Policy(2, 4)).samples[:2]
    later = at(forger, records.ConsumeEntry, policy=Policy(2, 6))
    forger.edit(later, samples=(*first, *consumed(forger, Policy(2, 6)).samples[2:]))


def a_sample_is_trained_on_again(forger: Forger) -> None:
    samples = consumed(forger, Policy(0, 1)).samples
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=(*samples, samples[0]))


def a_version_is_edited_in_the_journal(forger: Forger) -> None:
    index = accepted_and_trained(forger, Policy(0, 1))
    runs = forger.entries[index].record.policies  # type: ignore[union-attr]
    forger.edit(index, policies=(PolicyRun(Policy(0, 1), sum(run.num_tokens for run in runs)),))


def a_digest_is_edited_in_the_journal(forger: Forger) -> None:
    forger.edit(accepted_and_trained(forger, Policy(0, 1)), digest=bytes(16))


def _first_trained(forger: Forger) -> Callable[[Trajectory], bool]:
    used = consumed(forger, Policy(0, 1)).samples[0]
    return lambda t: (t.group, t.sample) == (used.group, used.sample)


def a_version_is_edited_in_the_frame(forger: Forger) -> None:
    wanted = _first_trained(forger)
    runs = (PolicyRun(Policy(0, 1), 0),)
    forger.rewrite_frames(
        lambda t: replace(t, policies=(replace(runs[0], num_tokens=len(t.completion_ids)),)) if wanted(t) else t
    )


def a_token_is_edited(forger: Forger) -> None:
    wanted = _first_trained(forger)
    forger.rewrite_frames(
        lambda t: replace(t, completion_ids=token_ids([91, *t.completion_ids[1:].tolist()])) if wanted(t) else t
    )


def a_logprob_is_edited(forger: Forger) -> None:
    wanted = _first_trained(forger)
    forger.rewrite_frames(
        lambda t: replace(t, logprobs=read_only(np.nextafter(t.logprobs, 0), np.float32)) if wanted(t) else t
    )


def a_reward_is_edited(forger: Forger) -> None:
    wanted = _first_trained(forger)
    forger.rewrite_frames(lambda t: replace(t, reward=0.5) if wanted(t) else t)


def a_mask_is_edited(forger: Forger) -> None:
    wanted = _first_trained(forger)

    def masked(t: Trajectory) -> Trajectory:
        return replace(t, mask=read_only(~t.mask, np.bool_), logprobs=read_only(np.zeros_like(t.logprobs), np.float32))

    forger.rewrite_frames(lambda t: masked(t) if wanted(t) else t)


def a_worker_is_edited(forger: Forger) -> None:
    forger.edit(accepted_and_trained(forger, Policy(0, 1)), worker_id="somebody else")


def a_worker_is_edited_in_frame_and_journal(forger: Forger) -> None:
    """A result carries the lease of another worker, and frame, digest and batch fit together."""
    index = accepted_and_trained(forger, Policy(0, 1))
    result = forger.entries[index].record
    assert isinstance(result, records.ResultEntry)
    forger.rewrite_everything(
        lambda t: replace(t, worker_id="rollout-eu-9") if content_digest(t) == result.digest else t
    )
    forger.edit(index, worker_id="rollout-eu-9")


def a_loss_is_of_another_workers_lease(forger: Forger) -> None:
    forger.edit(at(forger, records.LostEntry), worker_id="rollout-eu-9")


def a_frame_is_missing(forger: Forger) -> None:
    record = forger.entries[accepted_and_trained(forger, Policy(0, 1))].record
    assert isinstance(record, records.ResultEntry)
    assert record.frame
    forger.remove_frame(record.frame)


def all_frames_are_missing(forger: Forger) -> None:
    shutil.rmtree(forger.root / "trajectories")


def frames_are_missing_and_a_line_says_they_were_pruned(forger: Forger) -> None:
    covered = at(forger, records.CheckpointEntry, policy=Policy(0, 2))
    prune = records.PruneEntry(kept_from=records.FrameId(3, 0), policy=Policy(0, 2))
    forger.insert(covered + 1, prune)
    shutil.rmtree(forger.root / "trajectories")


def a_result_line_is_missing(forger: Forger) -> None:
    del forger.entries[accepted_and_trained(forger, Policy(0, 1))]


def the_line_of_a_refused_result_is_missing(forger: Forger) -> None:
    del forger.entries[at(forger, records.ResultEntry, verdict=AdmissionVerdict.REFUSED)]


def a_lease_line_is_missing(forger: Forger) -> None:
    del forger.entries[at(forger, records.LeaseEntry, group=0, nth=1)]


def a_result_points_at_another_frame(forger: Forger) -> None:
    other = forger.entries[at(forger, records.ResultEntry, verdict=AdmissionVerdict.ACCEPTED, nth=9)].record
    assert isinstance(other, records.ResultEntry)
    forger.edit(accepted_and_trained(forger, Policy(0, 1)), frame=other.frame, index=other.index)


def a_batch_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.ConsumeEntry, policy=Policy(2, 5))]


def the_last_batch_of_a_dead_branch_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.ConsumeEntry, policy=Policy(0, 3))]


def two_batches_change_places(forger: Forger) -> None:
    one, other = (
        at(forger, records.ConsumeEntry, policy=Policy(0, 0)),
        at(forger, records.ConsumeEntry, policy=Policy(0, 1)),
    )
    forger.entries[one], forger.entries[other] = forger.entries[other], forger.entries[one]


def a_result_is_moved_before_its_lease(forger: Forger) -> None:
    result = accepted_and_trained(forger, Policy(0, 1))
    record = forger.entries[result].record
    lease = at(forger, records.LeaseEntry, lease_id=record.lease_id)  # type: ignore[union-attr]
    forger.entries.insert(lease, forger.entries.pop(result))


def a_group_is_trained_without_one_sample(forger: Forger) -> None:
    forger.edit(
        at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=consumed(forger, Policy(0, 1)).samples[1:]
    )


def a_group_is_taken_out_of_a_batch(forger: Forger) -> None:
    forger.edit(
        at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=consumed(forger, Policy(0, 1)).samples[2:]
    )


def a_batch_was_never_leased(forger: Forger) -> None:
    samples = [records.UsedSample(group, sample, bytes(16)) for group in (900, 901) for sample in (0, 1)]
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=tuple(samples))


def leases_of_a_trained_group_are_removed(forger: Forger) -> None:
    group = consumed(forger, Policy(0, 1)).samples[0].group
    forger.entries = [
        e for e in forger.entries if not (isinstance(e.record, records.LeaseEntry) and e.record.group == group)
    ]


def another_content_was_trained_on(forger: Forger) -> None:
    samples = consumed(forger, Policy(0, 1)).samples
    changed = (samples[0]._replace(digest=bytes(16)), *samples[1:])
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=changed)


def a_sample_of_a_dead_branch_is_trained_on(forger: Forger) -> None:
    dead, samples = consumed(forger, Policy(0, 3)).samples, consumed(forger, Policy(1, 2)).samples
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(1, 2)), samples=(*dead[-2:], *samples[2:]))


def a_sample_that_was_dropped_is_trained_on(forger: Forger) -> None:
    index = at(forger, records.DropEntry)
    drop = forger.entries[index].record
    assert isinstance(drop, records.DropEntry)
    dropped = drop.samples[0]
    samples = consumed(forger, Policy(0, 1)).samples
    used = records.UsedSample(drop.group, dropped.sample, dropped.digest)
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=(used, *samples[1:]))


def a_sample_of_an_evaluation_is_trained_on(forger: Forger) -> None:
    measured = forger.entries[at(forger, records.EvalEntry)].record
    assert isinstance(measured, records.EvalEntry)
    samples = consumed(forger, Policy(0, 1)).samples
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), samples=(measured.samples[0], *samples[1:]))


def an_evaluation_measures_what_was_leased_to_train_on(forger: Forger) -> None:
    measured = forger.entries[at(forger, records.EvalEntry)].record
    assert isinstance(measured, records.EvalEntry)
    forger.edit(at(forger, records.EvalEntry), samples=(consumed(forger, Policy(0, 1)).samples[0], *measured.samples))


def a_drop_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.DropEntry)]


def a_drop_lists_fewer_samples(forger: Forger) -> None:
    forger.edit(at(forger, records.DropEntry), samples=())


def a_loss_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.LostEntry)]


def a_loss_is_invented(forger: Forger) -> None:
    forger.insert(20, records.LostEntry(lease_id=4000, group=0, sample=0, worker_id="w", why="expired"))


def a_refused_sample_is_said_to_be_accepted(forger: Forger) -> None:
    forger.edit(
        at(forger, records.ResultEntry, verdict=AdmissionVerdict.REFUSED, why="late"),
        verdict=AdmissionVerdict.ACCEPTED,
        why="",
    )


def an_accepted_sample_is_said_to_be_a_duplicate(forger: Forger) -> None:
    forger.edit(accepted_and_trained(forger, Policy(0, 1)), verdict=AdmissionVerdict.DUPLICATE, why="duplicate")


def an_abandoned_sample_is_said_to_be_accepted(forger: Forger) -> None:
    forger.edit(at(forger, records.ResultEntry, verdict=AdmissionVerdict.ABANDONED), verdict=AdmissionVerdict.ACCEPTED)


def the_bound_changes_midway(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=1), bound=5)


def the_bound_is_another_than_the_jobs(forger: Forger) -> None:
    for index in forger.indices(lambda r: isinstance(r, records.OpenEntry)):
        forger.edit(index, bound=5)


def a_fork_has_the_wrong_parent(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=2), parent=Policy(0, 2))


def a_fork_starts_from_what_is_no_checkpoint(forger: Forger) -> None:
    forger.edit(at(forger, records.OpenEntry, fork=2), parent=Policy(1, 3))


def a_fork_is_taken_out(forger: Forger) -> None:
    first, last = at(forger, records.OpenEntry, fork=1), at(forger, records.OpenEntry, fork=2)
    del forger.entries[first:last]


def a_fork_is_said_not_to_be_one(forger: Forger) -> None:
    del forger.entries[at(forger, records.OpenEntry, fork=1)]


def the_start_is_missing(forger: Forger) -> None:
    del forger.entries[0]


def the_end_is_cut_off_behind_the_last_checkpoint(forger: Forger) -> None:
    del forger.entries[at(forger, records.CheckpointEntry, policy=Policy(2, 6)) + 1 :]


def the_end_is_cut_off_before_the_last_checkpoint(forger: Forger) -> None:
    del forger.entries[at(forger, records.OpenEntry, fork=2) + 3 :]


def a_checkpoint_line_is_removed(forger: Forger) -> None:
    del forger.entries[at(forger, records.CheckpointEntry, policy=Policy(2, 6))]


def a_checkpoint_is_removed(forger: Forger) -> None:
    shutil.rmtree(forger.root / "checkpoints" / "1.4")


def the_newest_checkpoint_is_removed(forger: Forger) -> None:
    shutil.rmtree(forger.root / "checkpoints" / "2.6")


def two_manifests_change_places(forger: Forger) -> None:
    one, other = (forger.root / "checkpoints" / name / "manifest.json" for name in ("0.2", "1.4"))
    texts = one.read_text(), other.read_text()
    other.write_text(texts[0])
    one.write_text(texts[1])


def another_manifest_field(name: str, value: object) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        path = forger.root / "checkpoints" / "1.4" / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return edit


def the_weights_are_replaced(forger: Forger) -> None:
    shutil.copy(*(forger.root / "checkpoints" / name / "model.safetensors" for name in ("0.2", "1.4")))


def a_part_is_missing(forger: Forger) -> None:
    (forger.root / "checkpoints" / "1.4" / "optimizer.pt").unlink()


def other_weights_were_published(forger: Forger) -> None:
    forger.edit(at(forger, records.PublishEntry, policy=Policy(1, 4)), digest=bytes(32))


def weights_are_published_before_they_exist(forger: Forger) -> None:
    forger.insert(10, records.PublishEntry(policy=Policy(0, 9), digest=bytes(32)))


def a_group_answers_two_problems(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, group=0, sample=1), item=55)


def a_trained_group_is_leased_again(forger: Forger) -> None:
    lease = forger.entries[at(forger, records.LeaseEntry, group=0, sample=0)].record
    assert isinstance(lease, records.LeaseEntry)
    forger.insert(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), replace(lease, lease_id=999))


def a_lease_number_is_used_twice(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=6), lease_id=1)


def an_evaluation_is_removed(nth: int) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        del forger.entries[at(forger, records.EvalEntry, nth=nth)]

    return edit


def half_an_evaluation_is_left_out(forger: Forger) -> None:
    index = at(forger, records.EvalEntry)
    forger.edit(index, samples=forger.entries[index].record.samples[:1])  # type: ignore[union-attr]


def an_evaluation_is_credited_to_a_later_policy(forger: Forger) -> None:
    index = at(forger, records.EvalEntry)
    entry = forger.entries.pop(index)
    later = next(
        i for i in range(index, len(forger.entries)) if isinstance(forger.entries[i].record, records.ConsumeEntry)
    )
    policy = forger.entries[later].record.policy.next()  # type: ignore[union-attr]
    entry.record = replace(entry.record, policy=policy)  # type: ignore[arg-type]
    forger.entries.insert(later + 3, entry)  # behind the step's seal and its publication


def the_region_of_a_lease_is_changed(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=9), region="us-east")


def the_region_of_a_result_is_changed(forger: Forger) -> None:
    forger.edit(accepted_and_trained(forger, Policy(0, 1)), region="us-east")


def a_lease_starts_at_another_version(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=30), start_at=Policy(0, 0))


def a_lease_must_be_consumed_later(forger: Forger) -> None:
    forger.edit(at(forger, records.LeaseEntry, nth=30), consume_by_version=9)


def a_lease_is_for_versions_long_gone(forger: Forger) -> None:
    index = at(forger, records.LeaseEntry, purpose=Purpose.TRAIN, start_at=Policy(0, 3))
    forger.edit(index, start_at=Policy(0, 0), consume_by_version=1)


def a_lease_starts_after_its_tokens_were_sampled(forger: Forger) -> None:
    index = at(forger, records.LeaseEntry, purpose=Purpose.TRAIN, start_at=Policy(0, 0))
    forger.edit(index, start_at=Policy(0, 1), consume_by_version=2)


def a_publication_is_removed(policy: Policy) -> Callable[[Forger], None]:
    def edit(forger: Forger) -> None:
        del forger.entries[at(forger, records.PublishEntry, policy=policy)]

    return edit


def a_restored_version_was_published_with_another_digest(forger: Forger) -> None:
    forger.edit(at(forger, records.PublishEntry, policy=Policy(1, 2)), digest=bytes(32))


def another_model_is_exported(forger: Forger) -> None:
    shutil.copy(forger.root / "checkpoints" / "0.2" / "model.safetensors", forger.root / "final" / "model.safetensors")


def the_exported_model_cannot_be_read(forger: Forger) -> None:
    (forger.root / "final" / "model.safetensors").write_bytes(b"no model")


def another_setting_of_the_job(forger: Forger) -> None:
    config = json.loads((forger.root / "config.yaml").read_text())
    (forger.root / "config.yaml").write_text(json.dumps(config | {"optimizer": {"lr": 1.0}}))


@dataclass(frozen=True, slots=True)
class Tampering:
    """`caught`: by which codes, any of them, when everything that follows from the change was recomputed."""

    edit: Callable[[Forger], None]
    caught: tuple[Code, ...]
    name: str = ""
    is_sealable: bool = True

    def __str__(self) -> str:
        return self.name or self.edit.__name__


TAMPERINGS = (
    Tampering(a_group_is_trained_on_again, (Code.TRAINED_TWICE,)),
    Tampering(a_sample_is_trained_on_again, (Code.TRAINED_TWICE,)),
    Tampering(a_version_is_edited_in_the_journal, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_digest_is_edited_in_the_journal, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_version_is_edited_in_the_frame, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_token_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_logprob_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_reward_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_mask_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_worker_is_edited, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_worker_is_edited_in_frame_and_journal, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_loss_is_of_another_workers_lease, (Code.LOST_CONTRADICTS,)),
    Tampering(a_frame_is_missing, (Code.FRAME_MISSING,)),
    Tampering(all_frames_are_missing, (Code.FRAME_MISSING,)),
    Tampering(frames_are_missing_and_a_line_says_they_were_pruned, (Code.PRUNED_TOO_EARLY,)),
    Tampering(a_result_line_is_missing, (Code.TRAINED_NOT_ACCEPTED,)),
    Tampering(a_result_line_is_missing, (Code.FRAME_UNJUDGED,), "a_result_line_is_missing_from_the_frames_side"),
    Tampering(the_line_of_a_refused_result_is_missing, (Code.FRAME_UNJUDGED,)),
    Tampering(a_lease_line_is_missing, (Code.LEASE_MISSING,)),
    Tampering(a_result_points_at_another_frame, (Code.FRAME_CONTRADICTS,)),
    Tampering(a_batch_is_removed, (Code.VERSION_GAP,)),
    Tampering(the_last_batch_of_a_dead_branch_is_removed, (Code.PUBLISH_CONTRADICTS,)),
    Tampering(two_batches_change_places, (Code.VERSION_GAP,)),
    Tampering(a_result_is_moved_before_its_lease, (Code.RESULT_WITHOUT_LEASE,)),
    Tampering(a_group_is_trained_without_one_sample, (Code.GROUP_INCOMPLETE,)),
    Tampering(a_group_is_taken_out_of_a_batch, (Code.BATCH_SIZE,)),
    Tampering(a_batch_was_never_leased, (Code.TRAINED_NOT_LEASED,)),
    Tampering(leases_of_a_trained_group_are_removed, (Code.RESULT_WITHOUT_LEASE,)),
    Tampering(another_content_was_trained_on, (Code.DIGEST_DIFFERS,)),
    Tampering(a_sample_of_a_dead_branch_is_trained_on, (Code.DEAD_BRANCH,)),
    Tampering(a_sample_that_was_dropped_is_trained_on, (Code.TRAINED_AFTER_DROP,)),
    Tampering(a_sample_of_an_evaluation_is_trained_on, (Code.TRAINED_EVAL,)),
    Tampering(an_evaluation_measures_what_was_leased_to_train_on, (Code.EVAL_CONTRADICTS,)),
    Tampering(a_drop_is_removed, (Code.UNACCOUNTED,)),
    Tampering(a_drop_lists_fewer_samples, (Code.DROP_CONTRADICTS,)),
    Tampering(a_loss_is_removed, (Code.UNACCOUNTED,)),
    Tampering(a_loss_is_invented, (Code.LOST_CONTRADICTS,)),
    Tampering(a_refused_sample_is_said_to_be_accepted, (Code.ACCEPTED_TWICE,)),
    Tampering(an_accepted_sample_is_said_to_be_a_duplicate, (Code.DUPLICATE_OF_NOTHING,)),
    Tampering(an_abandoned_sample_is_said_to_be_accepted, (Code.ACCEPTED_UNFIT,)),
    Tampering(the_bound_changes_midway, (Code.SETTINGS_CHANGED,)),
    Tampering(the_bound_is_another_than_the_jobs, (Code.SETTINGS_CHANGED,)),
    Tampering(a_fork_has_the_wrong_parent, (Code.VERSION_GAP,)),
    Tampering(a_fork_starts_from_what_is_no_checkpoint, (Code.PARENT_UNKNOWN,)),
    Tampering(a_fork_is_taken_out, (Code.PARENT_UNKNOWN,)),
    Tampering(a_fork_is_said_not_to_be_one, (Code.VERSION_GAP,)),
    Tampering(the_start_is_missing, (Code.NOT_OPENED,)),
    Tampering(the_end_is_cut_off_behind_the_last_checkpoint, (Code.FRAME_UNJUDGED,)),
    Tampering(
        the_end_is_cut_off_behind_the_last_checkpoint, (Code.METRICS_AHEAD,), "the_end_is_cut_off_and_metrics_tell"
    ),
    Tampering(the_end_is_cut_off_before_the_last_checkpoint, (Code.MANIFEST_UNRECORDED, Code.JOURNAL_TRUNCATED)),
    Tampering(a_checkpoint_line_is_removed, (Code.MANIFEST_UNRECORDED,)),
    Tampering(a_checkpoint_is_removed, (Code.MANIFEST_MISSING,)),
    Tampering(the_newest_checkpoint_is_removed, (Code.MANIFEST_MISSING,)),
    Tampering(two_manifests_change_places, (Code.MANIFEST_CONTRADICTS,), is_sealable=False),
    Tampering(another_manifest_field("parent", [0, 1]), (Code.MANIFEST_CONTRADICTS,), "another_parent"),
    Tampering(another_manifest_field("next_group", 1), (Code.MANIFEST_CONTRADICTS,), "another_next_group"),
    Tampering(another_manifest_field("open_groups", []), (Code.MANIFEST_CONTRADICTS,), "no_open_groups"),
    Tampering(another_manifest_field("open_groups", [0]), (Code.MANIFEST_CONTRADICTS,), "ended_groups_are_open"),
    Tampering(another_manifest_field("job_id", "other"), (Code.MANIFEST_CONTRADICTS,), "of_another_job"),
    Tampering(another_manifest_field("audit", "none"), (Code.MANIFEST_UNREADABLE,), "a_manifest_that_is_none"),
    Tampering(the_weights_are_replaced, (Code.MANIFEST_CONTRADICTS,)),
    Tampering(another_manifest_field("next_group", 1000), (Code.MANIFEST_CONTRADICTS,), "a_larger_next_group"),
    Tampering(another_manifest_field("parents", [[0, 1]]), (Code.MANIFEST_CONTRADICTS,), "another_lineage"),
    Tampering(another_manifest_field("parents", []), (Code.MANIFEST_CONTRADICTS,), "no_lineage"),
    Tampering(another_manifest_field("progress", {"steps": 3.0}), (Code.MANIFEST_CONTRADICTS,), "other_sums"),
    Tampering(an_evaluation_is_removed(0), (Code.EVAL_CONTRADICTS,), "the_first_evaluation_is_removed"),
    Tampering(an_evaluation_is_removed(-1), (Code.EVAL_CONTRADICTS,), "the_last_evaluation_is_removed"),
    Tampering(half_an_evaluation_is_left_out, (Code.EVAL_CONTRADICTS,)),
    Tampering(an_evaluation_is_credited_to_a_later_policy, (Code.EVAL_CONTRADICTS,)),
    Tampering(the_region_of_a_lease_is_changed, (Code.LEASE_CONTRADICTS,)),
    Tampering(the_region_of_a_result_is_changed, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_starts_at_another_version, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_must_be_consumed_later, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_is_for_versions_long_gone, (Code.LEASE_CONTRADICTS,)),
    Tampering(a_lease_starts_after_its_tokens_were_sampled, (Code.ACCEPTED_UNFIT,)),
    Tampering(a_publication_is_removed(Policy(0, 1)), (Code.PUBLISH_MISSING,), "a_publication_is_removed"),
    Tampering(a_publication_is_removed(Policy(2, 7)), (Code.PUBLISH_MISSING,), "the_last_publication_is_removed"),
    Tampering(a_restored_version_was_published_with_another_digest, (Code.PUBLISH_CONTRADICTS,)),
    Tampering(another_model_is_exported, (Code.FINAL_WRONG,)),
    Tampering(the_exported_model_cannot_be_read, (Code.FINAL_WRONG,)),
    Tampering(another_setting_of_the_job, (Code.SETTINGS_CHANGED,)),
    Tampering(a_part_is_missing, (Code.PART_WRONG,)),
    Tampering(other_weights_were_published, (Code.MANIFEST_CONTRADICTS,)),
    Tampering(weights_are_published_before_they_exist, (Code.PUBLISH_CONTRADICTS,)),
    Tampering(a_group_answers_two_problems, (Code.GROUP_MIXED,)),
    Tampering(a_trained_group_is_leased_again, (Code.LEASE_AFTER_END,)),
    Tampering(a_lease_number_is_used_twice, (Code.LEASE_REPEATED,)),
)


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=str)
def test_a_forger_who_recomputes_every_hash_is_caught_by_what_the_records_mean(run: Path, tampering: Tampering) -> None:
    forger = Forger(run)
    tampering.edit(forger)
    forger.reseal()
    counts = audited(run).counts
    assert counts.keys() & set(tampering.caught), counts
    assert not (tampering.is_sealable and counts.keys() & BY_THE_SEAL), counts


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=str)
def test_a_clumsy_hand_is_caught(run: Path, tampering: Tampering) -> None:
    forger = Forger(run)
    tampering.edit(forger)
    forger.write_unsealed()
    assert not audited(run).is_clean


def test_a_forger_who_changes_nothing_leaves_the_run_as_it_was(run: Path) -> None:
    before = (run / "audit.jsonl").read_bytes()
    Forger(run).reseal()
    assert (run / "audit.jsonl").read_bytes() == before


def test_an_edited_line_is_named_and_so_is_what_was_found_in_it(run: Path) -> None:
    forger = Forger(run)
    index = accepted_and_trained(forger, Policy(0, 1))
    a_version_is_edited_in_the_journal(forger)
    forger.write_unsealed()
    findings = {finding.code: finding for finding in audited(run).findings}
    assert findings[Code.FRAME_CONTRADICTS].place == f"audit.jsonl:{index + 1}"
    assert findings[Code.FRAME_CONTRADICTS].values["name"] == "policies"
    assert findings[Code.CHAIN_BROKEN].place == f"audit.jsonl:{index + 2}"


def test_a_histogram_that_flatters_is_found(run: Path) -> None:
    forger = Forger(run)
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), staleness_tokens={0: 17})
    forger.write_unsealed()
    assert Code.STALENESS_CLAIMED in audited(run).counts


def test_a_root_that_is_not_the_samples_is_found(run: Path) -> None:
    forger = Forger(run)
    forger.edit(at(forger, records.ConsumeEntry, policy=Policy(0, 1)), root=bytes(16))
    forger.write_unsealed()
    assert {Code.ROOT_WRONG, Code.MANIFEST_CONTRADICTS} <= audited(run).counts.keys()


def test_one_cause_that_breaks_every_line_is_counted_and_shown_in_part(run: Path) -> None:
    lines = (run / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (run / "audit.jsonl").write_bytes(b"".join(line.replace(b'"prev":"', b'"prev":"g') for line in lines))
    report = audited(run)
    assert report.counts[Code.LINE_UNREADABLE] == len(lines)
    assert sum(finding.code is Code.LINE_UNREADABLE for finding in report.findings) == 100


def test_a_store_that_cannot_be_read_is_one_finding(run: Path) -> None:
    file = sorted((run / "trajectories").glob("*.spool"))[3]
    file.write_bytes(file.read_bytes()[:-60])
    report = audited(run)
    assert set(report.counts) == {Code.FRAME_UNREADABLE}
    assert report.surviving is not None
    assert report.surviving.trained_by_frame == 0


def a_key_occurs_twice(forger: Forger) -> bytes:
    """The chain holds, and the value that a reader of JSON takes is the honest one."""
    chain, lines = bytes(16), []
    for n, entry in enumerate(forger.entries):
        line = records.to_line(n, chain, entry.time_s, entry.record)
        if n == 20:
            line = line.replace(b'"kind"', b'"kind":"drop","kind"')
        lines.append(line + b"\n")
        chain = records.chain_hash(line)
    return b"".join(lines)


def test_a_key_that_occurs_twice_is_found_though_the_chain_holds(run: Path) -> None:
    (run / "audit.jsonl").write_bytes(a_key_occurs_twice(Forger(run)))
    findings = [f for f in audited(run).findings if f.code is Code.LINE_UNREADABLE]
    assert [f.place for f in findings] == ["audit.jsonl:21"]


# ---- what only a signature shows -------------------------------------------------------------------------------------


def every_reward_is_changed_in_frames_and_journal(forger: Forger) -> None:
    forger.rewrite_everything(lambda t: replace(t, reward=0.0))


def another_digest_was_published(forger: Forger) -> None:
    forger.edit(at(forger, records.PublishEntry, policy=Policy(2, 5)), digest=bytes(32))


def the_learner_is_replaced(forger: Forger) -> None:
    (forger.root / "checkpoints" / "1.4" / "optimizer.pt").write_bytes(b"other moments")


def the_job_is_renamed(forger: Forger) -> None:
    for index in forger.indices(lambda r: isinstance(r, records.OpenEntry)):
        forger.edit(index, job_id="other-1")
    for path in forger.root.glob("checkpoints/*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"job_id": "other-1"}))


def another_setting_of_the_job_and_its_hash(forger: Forger) -> None:
    another_setting_of_the_job(forger)
    config = blake3((forger.root / "config.yaml").read_bytes()).digest()
    for index in forger.indices(lambda r: isinstance(r, records.OpenEntry)):
        forger.edit(index, settings=config)


def the_region_of_a_worker_is_changed_throughout(forger: Forger) -> None:
    for index in forger.indices(lambda r: getattr(r, "worker_id", "") == "rollout-ap-0" and hasattr(r, "region")):
        forger.edit(index, region="us-east")


def times_are_changed(forger: Forger) -> None:
    for entry in forger.entries:
        entry.time_s += 1e6


def everything_behind_a_checkpoint_is_cut_off(forger: Forger) -> None:
    """The journal, the frames, the metrics, the later checkpoints, the model: as if the trainer had died there."""
    end = at(forger, records.CheckpointEntry, policy=Policy(0, 2)) + 2
    frames = [entry.record.frame for entry in forger.entries[:end] if isinstance(entry.record, records.ResultEntry)]
    del forger.entries[end:]
    (forger.root / "metrics.jsonl").unlink()
    shutil.rmtree(forger.root / "final")
    for name in ("1.4", "2.6"):
        shutil.rmtree(forger.root / "checkpoints" / name)
    for record in list(SpoolReader.open(forger.root / "trajectories").records()):
        frame = records.FrameId(record.position.epoch, record.position.sequence)
        if frame not in frames:
            forger.remove_frame(frame)


SIGNED_ONLY = (
    every_reward_is_changed_in_frames_and_journal,
    another_digest_was_published,
    the_learner_is_replaced,
    the_job_is_renamed,
    another_setting_of_the_job_and_its_hash,
    the_region_of_a_worker_is_changed_throughout,
    times_are_changed,
)


@pytest.mark.parametrize("edit", SIGNED_ONLY)
def test_what_a_consistent_forger_can_hide_is_shown_by_the_authoritys_key_alone(
    run: Path, edit: Callable[[Forger], None]
) -> None:
    """docs/audit.md says so of each: keep its table and these tests together."""
    assert audited(run, authorities=[AUTHORITY.public_key]).is_clean
    forger = Forger(run)
    edit(forger)
    forger.reseal()
    assert audited(run).is_clean
    counts = audited(run, authorities=[AUTHORITY.public_key]).counts
    assert {Code.SEAL_WRONG, Code.SEAL_MISSING} & counts.keys()


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=str)
def test_no_forger_is_believed_by_who_has_the_authoritys_key(run: Path, tampering: Tampering) -> None:
    forger = Forger(run)
    tampering.edit(forger)
    forger.reseal()
    assert not audited(run, authorities=[AUTHORITY.public_key]).is_clean


def test_what_no_digest_covers_is_not_found_and_is_in_the_docs(run: Path) -> None:
    """If one of these is found one day, docs/audit.md has a line too many."""
    forger = Forger(run)
    forger.rewrite_frames(lambda t: replace(t, metadata='{"other": 1}', generation_s=9.0))
    config = run / "config.yaml"
    config.write_text(config.read_text() + " ")
    record = Record(kind=RecordKind.PHASE, policy=Policy(3, 0), time_s=0.0, text="loading the model")
    RunDirectory(run).append(record)
    report = audited(run, authorities=[AUTHORITY.public_key])
    assert report.is_clean
    assert any("config.yaml is of fork 3" in note for note in report.notes)


def test_a_fork_that_is_added_behind_the_last_signature_is_told(run: Path) -> None:
    forger = Forger(run)
    first = forger.entries[at(forger, records.OpenEntry, fork=1)].record
    assert isinstance(first, records.OpenEntry)
    chain, n = records.chain_hash(forger.path.read_bytes().splitlines()[-1]), len(forger.entries)
    with forger.path.open("ab") as file:
        file.write(records.to_line(n, chain, 1.8e9, replace(first, fork=3)) + b"\n")
    report = audited(run, authorities=[AUTHORITY.public_key])
    assert any("nobody signed that it began" in note for note in report.notes)


def test_a_history_that_is_cut_at_a_seal_looks_like_that_of_a_trainer_that_died_there(run: Path) -> None:
    """Nothing within the files can show it, and docs/audit.md says so; the report says where the signatures end."""
    forger = Forger(run)
    everything_behind_a_checkpoint_is_cut_off(forger)
    forger.write_unsealed()
    report = audited(run, authorities=[AUTHORITY.public_key])
    assert (report.findings, report.is_ended) == ((), False)
    assert report.forks[-1].head == Policy(0, 2)


@pytest.mark.parametrize("kept", ["metrics.jsonl", "final", "checkpoints/2.6", "frames"])
def test_a_history_that_is_cut_is_found_by_any_file_that_was_forgotten(honest: Path, run: Path, kept: str) -> None:
    forger = Forger(run)
    everything_behind_a_checkpoint_is_cut_off(forger)
    forger.write_unsealed()
    for name in [kept] if kept != "frames" else ["trajectories"]:
        if (honest / name).is_dir():
            shutil.copytree(honest / name, run / name, dirs_exist_ok=True)
        else:
            shutil.copy(honest / name, run / name)
    assert not audited(run).is_clean
