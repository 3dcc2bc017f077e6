"""The checkpointer: it writes checkpoints, records each one in the audit, and removes data that no restore needs.

A checkpoint *covers* all lines of the audit before it. Its manifest holds the number of the first line that it does not
cover, the hash of the line before, the groups that were open, and the root over all batches of its history. After it is
written, one line of the audit names the manifest by its hash. So journal and manifest confirm each other. A *frame* is
a record of finished trajectories in the trainer's store; a restore replays those that no checkpoint covers. A frame is
removed only after every checkpoint that is kept covers it.

If the disk is full, the checkpoint waits for room, and training waits with it. A run that continued would lose more
work with each step if it died, and would keep more frames. Older checkpoints are not removed meanwhile, because the new
one may never be complete.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from periplus.audit import records as audit
from periplus.codec.frame import unpack
from periplus.errors import WireError
from periplus.job.run_directory import RunDirectory
from periplus.process.telemetry import event
from periplus.spool.format import Position
from periplus.spool.spool import Spool
from periplus.values.trajectory import Purpose, TrajectoryLimits
from trainer.checkpointing import checkpoint
from trainer.checkpointing.manifest import Content
from trainer.checkpointing.replicas import Replicator, frames_of_replica
from trainer.disk_wait import DiskWait
from trainer.intake.committed import KeptTrajectory, kept
from trainer.intake.frames import MAX_FRAME_BYTES, decode
from trainer.intake.ledger_driver import LedgerDriver
from trainer.intake.write_ahead import WriteAheadJournal
from trainer.reporting.progress import Progress
from trainer.setup import Prepared

log = logging.getLogger(__name__)


class Checkpointer:
    """Writes the checkpoints of one fork of one job.

    `keep` is the number of complete checkpoints that stay; older ones are deleted after each new one. `trims` are
    called in order, each in a thread, with the position of the first frame that stays: they remove the frames before
    it, and what is about them. `replicator` copies each checkpoint elsewhere, if the job wants that.
    """

    def __init__(
        self,
        job_id: str,
        run: RunDirectory,
        prepared: Prepared,
        *,
        keep: int,
        journal: WriteAheadJournal,
        trims: Sequence[Callable[[Position], None]],
        driver: LedgerDriver,
        disk: DiskWait,
        replicator: Replicator | None,
    ) -> None:
        self._job_id = job_id
        self._run = run
        self._prepared = prepared
        self._keep = keep
        self._journal = journal
        self._trims = trims
        self._driver = driver
        self._disk = disk
        self.replicator = replicator
        self._newest = prepared.restored
        self._batches_root = prepared.restored.batches_root if prepared.restored else audit.START_OF_BATCHES

    def consumed(self, root: bytes) -> None:
        """Add a consumed batch, by its root, to the running root over all batches of this history."""
        self._batches_root = audit.next_batches_root(self._batches_root, root)

    async def note_missing_frames(self) -> None:
        """If the run was fetched from a replica, let the audit say which frames were not in it.

        To be called when the trainer's key is certified.
        """
        if (found := frames_of_replica(self._run)) is not None:
            policy, first = found
            await self._journal.write_milestone(
                audit.PruneEntry(kept_from=audit.FrameId(first.epoch, first.sequence), policy=policy)
            )

    async def checkpoint(self, progress: Progress) -> None:
        """Write a checkpoint of the present policy unless there is one, and remove what no restore needs any more.

        Raises: DiskFull if the trainer is asked to stop while the disk is full. Nothing of this checkpoint is left
        then.
        """
        ledger, policy = self._driver.ledger, self._driver.policy
        if self._newest is not None and self._newest.policy == policy:
            return
        # The checkpoint covers the journal up to here. These lines must be in the file before it is written.
        position = self._journal.position
        content = Content(
            job_id=self._job_id,
            policy=policy,
            lineage=self._prepared.lineage,
            progress=progress.to_mapping(),
            audit_line=position.n,
            audit_prev=position.prev,
            next_group=ledger.next_group,
            open_groups=ledger.open_groups,
            batches_root=self._batches_root,
            parent=self._newest,
            problems=self._prepared.problems,
        )
        await self._journal.flush()
        # Waits as long as the disk is full, and training with it.
        await self._disk.write_in_thread(lambda: self._save(content))
        assert self._newest is not None
        await self._journal.write_milestone(
            audit.CheckpointEntry(policy=policy, manifest=self._newest.digest, covers=position.n)
        )
        # Older checkpoints go only after the audit names the new one, and frames only after checkpoints.
        await asyncio.to_thread(checkpoint.prune, self._run.checkpoints, self._keep)
        await self._give_up_frames()
        if self.replicator is not None:
            await self.replicator.take(self._newest, self._driver.first_frame_needed(policy.version))
        event(log, logging.INFO, "checkpoint", policy=policy)

    def _save(self, content: Content) -> None:
        # The manifest says which lines it covers, so they must survive whatever it survives.
        self._journal.sync_flushed()
        self._newest = self._prepared.leader.save(self._run.checkpoints, content, self._prepared.model_files)

    async def _give_up_frames(self) -> None:
        oldest = checkpoint.oldest(self._run.checkpoints)
        stays = self._driver.give_up_frames(oldest.policy.version)
        if stays is not None:
            await self._journal.write_milestone(
                audit.PruneEntry(kept_from=audit.FrameId(stays.epoch, stays.sequence), policy=oldest.policy)
            )
            await asyncio.to_thread(self._journal.sync_flushed)  # the audit must say so before frames go
            for trim in self._trims:
                await asyncio.to_thread(trim, stays)


def replayable(store: Spool, limits: TrajectoryLimits) -> Iterator[tuple[Position, int, Sequence[KeptTrajectory]]]:
    """Yield the frames that earlier forks kept: position, size in bytes, and the trajectories to train on.

    A frame that cannot be decoded within `limits` is logged as an error and skipped.
    """
    for record in store.records():
        found = decode(unpack(bytes(record.data), max_payload_bytes=MAX_FRAME_BYTES), limits)
        if isinstance(found, WireError):
            event(log, logging.ERROR, "kept_frame_refused", frame=record.position, why=found)
            continue
        # Samples of an evaluation are never used again.
        trajectories = kept(record.position, found)
        yield record.position, len(record.data), [k for k in trajectories if k.trajectory.purpose is Purpose.TRAIN]
