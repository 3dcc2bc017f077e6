"""Reads the trajectories of chosen samples from a run's kept frames."""

import contextlib
from collections.abc import Sequence

from periplus.codec.frame import unpack
from periplus.codec.trajectory import decode
from periplus.errors import CorruptFrame, PeriplusError
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.selection import ChosenSample
from periplus.spool.format import Position
from periplus.spool.reader import SpoolReader
from periplus.values.trajectory import Trajectory

MAX_FRAME_BYTES = 64 << 20
"""Largest frame that is read, packed or decoded: the cap of a trainer's intake, which every kept frame has passed."""


def read_trajectories(run: RunDirectory, samples: Sequence[ChosenSample]) -> tuple[Trajectory | PeriplusError, ...]:
    """Return the trajectory of each sample in order, or the error that reading it met.

    A trainer that removes a frame meanwhile is such an error.
    """
    frames: dict[Position, tuple[Trajectory, ...] | PeriplusError] = {}
    try:
        reader = SpoolReader.open(run.trajectories, max_record_bytes=MAX_FRAME_BYTES)
    except PeriplusError as error:
        return tuple(error for _ in samples)
    found: list[Trajectory | PeriplusError] = []
    with contextlib.closing(reader):
        for sample in samples:
            row = sample.block.rows[sample.row]
            position = Position(int(row["epoch"]), int(row["sequence"]))
            if position not in frames:  # samples of a page often share a frame
                frames[position] = _frame(reader, position)
            frame = frames[position]
            found.append(frame if isinstance(frame, PeriplusError) else _trajectory(frame, sample))
    return tuple(found)


def _frame(reader: SpoolReader, position: Position) -> tuple[Trajectory, ...] | PeriplusError:
    try:
        packed = unpack(reader.read(position), max_payload_bytes=MAX_FRAME_BYTES)
        return decode(packed.payload, max_content_bytes=MAX_FRAME_BYTES)
    except PeriplusError as error:
        return error


def _trajectory(frame: tuple[Trajectory, ...], sample: ChosenSample) -> Trajectory | PeriplusError:
    row = sample.block.rows[sample.row]
    group, number, index = int(row["group"]), int(row["sample"]), int(row["index"])
    if index < len(frame) and (frame[index].group, frame[index].sample) == (group, number):
        return frame[index]
    return CorruptFrame(
        f"frame {row['epoch']}.{row['sequence']} does not hold sample {number} of group {group} at {index}, where "
        "samples/ says it is; restore both folders from the same copy of the run"
    )
