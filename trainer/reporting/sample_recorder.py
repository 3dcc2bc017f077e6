"""The recorder of samples: after each step it writes a block with the figures of each sample into `samples/`.

People look at samples with it (`periplus job samples`, periplus/job/samples/). Nothing in a run depends on these files,
so they may not cost a run anything:
- A block has 56 bytes for each sample, is written in one piece behind the step, and is not synced.
- If the disk is full, blocks are kept in memory and written with the next one. The training loop waits for that between
  two steps, as it does for records, so no more than the blocks of one step are kept.
- Any other failure is logged once, and then no samples are recorded any more.
- Files go with the frames that they point into, so they stay in proportion to `output.trajectories_mib`.

The tokenizer is written beside the first block, so that samples can be read as text before there is a checkpoint.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from periplus.errors import DiskFull, PeriplusError
from periplus.job.run_directory import append_whole, explained, write_atomically
from periplus.job.samples.step_blocks import (
    FILE_BYTES,
    NO_REGION,
    StepBlock,
    empty_rows,
    file_name,
    is_block_file,
    pack_block,
    read_blocks,
)
from periplus.job.samples.texts import TOKENIZER_FILE
from periplus.process.telemetry import event
from periplus.spool.format import Position
from periplus.values.policy import Policy
from periplus.values.trajectory import wire_reward
from trainer.disk_wait import DiskWait
from trainer.intake.committed import KeptTrajectory
from trainer.learning.sample_figures import SampleFigures

log = logging.getLogger(__name__)

_MAX_STALENESS = (1 << 16) - 1


class SampleRecorder:
    """Writes the blocks of one trainer into `folder`.

    `regions` maps the workers that are known to their regions; it is read at each step. `tokenizer` is the content of
    tokenizer.json, or None if the model has no such file.
    """

    def __init__(
        self,
        folder: Path,
        regions: Mapping[str, str],
        tokenizer: bytes | None,
        disk: DiskWait,
    ) -> None:
        self._folder = folder
        self._regions = regions
        self._tokenizer = tokenizer
        self._disk = disk
        self._file: Path | None = None  # the file that blocks are appended to
        self._file_bytes = 0
        self._unwritten: list[tuple[Policy, bytes]] = []
        self._has_failed = False

    def step(self, policy: Policy, trained: Sequence[KeptTrajectory], figures: Sequence[SampleFigures]) -> None:
        """Write the block of the step that made `policy`. If the disk is full, it is kept and written later.

        `trained` are the trajectories that the optimizer saw, and `figures` those of the same samples in any order.
        """
        self._keep(sample_block(policy, trained, figures, self._regions))

    def evaluation(self, name: str, policy: Policy, kept: Sequence[KeptTrajectory]) -> None:
        """Write the block of an evaluation that began at `policy`, as `step` does for a step. `name` is its set's."""
        figures = [
            SampleFigures(each.trajectory.group, each.trajectory.sample, each.trajectory.reward, 0.0, 0.0, 0.0)
            for each in kept
        ]
        self._keep(sample_block(policy, kept, figures, self._regions, name))

    def _keep(self, block: StepBlock) -> None:
        if not self._has_failed:
            self._unwritten.append((block.policy, pack_block(block)))
            with contextlib.suppress(DiskFull):
                self._write()

    async def write_pending(self) -> None:
        """Write the blocks that found no room before, and wait until all are written.

        Raises: DiskFull if the trainer is asked to stop while the disk is full.
        """
        await self._disk.write(self._write)

    def trim(self, kept_from: Position) -> None:
        """Remove the files all of whose rows point to frames before `kept_from`. It reads a file: call it in a thread.

        The file that is written is never removed. A failure is logged.
        """
        try:
            with explained(self._folder):
                names = sorted(filter(is_block_file, (path.name for path in self._folder.glob("*"))))
                for name in names:
                    path = self._folder / name
                    if path == self._file or _newest_frame(path) >= kept_from:
                        return
                    path.unlink(missing_ok=True)
        except PeriplusError as error:
            event(log, logging.WARNING, "samples_not_trimmed", why=error)

    def _write(self) -> None:
        try:
            while self._unwritten:
                self._append(*self._unwritten[0])
                del self._unwritten[0]
        except DiskFull:
            raise
        except PeriplusError as error:
            event(log, logging.WARNING, "samples_not_recorded", why=error)
            self._has_failed = True
            self._unwritten.clear()

    def _append(self, policy: Policy, block: bytes) -> None:
        if self._file is None:
            with explained(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            if self._tokenizer is not None:
                write_atomically(self._folder / TOKENIZER_FILE, self._tokenizer)
        # A new file at the start, since a killed trainer may have left half a block in its own.
        begins = self._file is None or self._file_bytes >= FILE_BYTES
        path = self._folder / file_name(policy) if begins or self._file is None else self._file
        with explained(path, len(block)), path.open("wb" if begins else "ab", buffering=0) as file:
            append_whole(file.fileno(), block)
        self._file, self._file_bytes = path, (0 if begins else self._file_bytes) + len(block)


def sample_block(
    policy: Policy,
    trained: Sequence[KeptTrajectory],
    figures: Sequence[SampleFigures],
    regions: Mapping[str, str],
    evaluation: str = "",
) -> StepBlock:
    """Return the block of the step that made `policy`, with its rows in the order of `figures`.

    Staleness is counted from the version that the step started from, which is one less than that of `policy`. With
    `evaluation` it is the block of an evaluation, and staleness is counted from `policy`.
    """
    from_version = policy.version - (not evaluation)
    kept_by_sample = {(kept.trajectory.group, kept.trajectory.sample): kept for kept in trained}
    numbers: dict[str, int] = {}
    rows = empty_rows(len(figures))
    for row, found in zip(rows, figures, strict=True):
        kept = kept_by_sample[found.group, found.sample]
        trajectory = kept.trajectory
        region = regions.get(trajectory.worker_id)
        # Policies rise within a sample, so its first token is its oldest.
        oldest = trajectory.policies[0].policy.version if trajectory.policies else from_version
        row["group"], row["sample"] = found.group, found.sample
        row["epoch"], row["sequence"], row["index"] = kept.frame.epoch, kept.frame.sequence, kept.index
        row["reward"], row["advantage"] = wire_reward(found.reward), found.advantage
        row["difference_mean"], row["difference_max"] = found.difference_mean, found.difference_max
        row["tokens"] = len(trajectory.completion_ids)
        row["staleness"] = max(0, min(from_version - oldest, _MAX_STALENESS))
        row["region"] = NO_REGION if region is None else numbers.setdefault(region, len(numbers))
    return StepBlock(policy=policy, regions=tuple(numbers), rows=rows, evaluation=evaluation)


def _newest_frame(path: Path) -> Position:
    newest = Position(0, 0)
    for block in read_blocks(path.read_bytes()):
        for epoch in map(int, set(block.rows["epoch"].tolist())):
            newest = max(newest, Position(epoch, int(block.rows["sequence"][block.rows["epoch"] == epoch].max())))
    return newest
