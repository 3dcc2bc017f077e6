"""The samples that a run directory can show: the blocks of its steps, of the surviving history, that have their frames.

A new fork replaces the versions that it repeats: of a resumed run, the steps of the older fork from there on led
nowhere, and are left out. So are rows whose frames were removed because newer ones needed the room
(`output.trajectories_mib`).

A run that goes on may be read: a block that is half written is not there yet, and a file that the trainer removes
meanwhile is as if it had never been.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from periplus.errors import NotFound, StorageError
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.step_blocks import StepBlock, column, is_block_file, read_blocks
from periplus.process.disk import open_regular
from periplus.spool.files import explained
from periplus.spool.format import Position
from periplus.spool.reader import SpoolReader

MAX_FILE_BYTES = 1 << 30
"""Largest file of blocks that is read. A trainer begins a new file after 4 MiB and one block, so this is far above what
a step of any usual size leaves."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleIndex:
    """The blocks of a run's surviving steps, in the order of their versions, and which of their rows have frames.

    `evaluations` are the blocks of evaluations, in the order in which they ended. `oldest` is the first position that
    the store of frames may still have; rows before it have none.
    """

    blocks: Sequence[StepBlock]
    evaluations: Sequence[StepBlock]
    oldest: Position | None

    @property
    def num_samples(self) -> int:
        """Number of samples in all blocks, with and without frames."""
        return sum(len(block.rows) for block in self.blocks)

    def has_frames(self, blocks: Sequence[StepBlock]) -> npt.NDArray[np.bool_]:
        """Return for each row of the blocks, one after the other, whether its frame may still be in the store."""
        epochs, first = column(blocks, "epoch"), self.oldest
        if first is None:
            return np.zeros(len(epochs), np.bool_)
        in_first = (epochs == first.epoch) & (column(blocks, "sequence") >= first.sequence)
        found: npt.NDArray[np.bool_] = (epochs > first.epoch) | in_first
        return found


def read_index(run: RunDirectory) -> SampleIndex:
    """Read the blocks of a run directory. Raises: NotFound if it has no `samples/`; StorageError."""
    if not run.samples.is_dir():
        raise NotFound(
            f"{run.root} has no {run.samples.name}/: no step of it has been trained yet, or it was written by an older "
            "version"
        )
    with explained(run.samples):
        names = sorted(filter(is_block_file, os.listdir(run.samples)))
    blocks = [block for name in names for block in read_blocks(_content(run.samples / name))]
    steps = [block for block in blocks if not block.evaluation]
    evaluations = [block for block in blocks if block.evaluation]
    return SampleIndex(blocks=surviving(steps), evaluations=evaluations, oldest=_oldest_frame(run.trajectories))


def surviving(blocks: Sequence[StepBlock]) -> tuple[StepBlock, ...]:
    """Return the blocks of the surviving history, in the order of versions.

    A version of a fork is dead if a newer fork has stepped to it or to an earlier one.
    """
    begins: dict[int, int] = {}
    for block in blocks:
        fork, version = block.policy.fork, block.policy.version
        begins[fork] = min(begins.get(fork, version), version)
    kept: dict[int, StepBlock] = {}
    for block in blocks:
        fork, version = block.policy.fork, block.policy.version
        if all(version < begin for newer, begin in begins.items() if newer > fork):
            kept[version] = block  # a version that a fork wrote twice is there as it was written last
    return tuple(kept[version] for version in sorted(kept))


def _content(path: Path) -> bytes:
    with explained(path):
        try:
            with open(path, "rb", opener=open_regular) as file:
                return file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            return b""  # removed meanwhile


def _oldest_frame(store: Path) -> Position | None:
    # Frames are removed from the oldest on.
    try:
        with contextlib.closing(SpoolReader.open(store)) as reader:
            return reader.oldest
    except NotFound:
        return None
    except StorageError:
        return Position(0, 0)  # whoever reads a frame says what is wrong
