"""Application of a delta's parts to files: the base's bytes first, and over them what changed, span by span.

A span's new elements are absolute values, so writing one twice does no harm. A file that is its own base may be changed
in place: span i of a delta is decoded against span i of the base alone, and no other span writes there.
"""

from pathlib import Path

import numpy as np

from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.layout import StateLayout, layout_of
from periplus.codec.weights.staged import Update
from periplus.errors import CorruptFrame
from periplus.values.weight_state import WeightState, read_safetensors_file
from periplus.weights.checkpoint import Target, open_target, single_file
from periplus.weights.files import DeltaReader
from periplus.weights.progress import Progress

WRITE_BYTES = 16 << 20
"""Bytes written at a time. Progress is shown and Ctrl-C handled between two writes."""


def copy_tensors(base: WeightState, layout: StateLayout, target: Target, progress: Progress) -> None:
    """Copy the base's bytes of each tensor that the layout has too, with the same dtype and shape."""
    done_bytes = 0
    for line in layout.lines:
        tensor = base.get(line.name)
        # A tensor of another dtype or shape has no old bytes to keep: the delta writes all of it.
        if tensor is None or (tensor.dtype, tensor.shape) != (line.dtype, line.shape):
            continue
        for start in range(0, tensor.data.size, WRITE_BYTES):
            data = tensor.data[start : start + WRITE_BYTES]
            target.write(line.name, start, data.data)
            done_bytes += data.size
            progress("copying the base", done_bytes, layout.content_bytes)


def overwrite(base: WeightState, delta: DeltaReader, target: Target, progress: Progress) -> None:
    """Write what the delta changes. Raises: CorruptFrame, WrongBase; the target then holds some of the changes."""
    head = delta.head
    total_bytes = head.layout.content_bytes
    decoder = Decoder(base, max_content_bytes=total_bytes, max_parts=head.num_parts, keep=False)
    for index, part in enumerate(delta.parts()):
        staged = decoder.feed(part)
        # The file's own head and the payload's head both have the layout; the plan of files followed the first one.
        if staged is None and decoder.layout != head.layout:
            raise CorruptFrame(f"{delta.path} describes two different layouts; make it again")
        if staged is not None:
            for update in staged.updates():
                _write(update, target)
        progress(f"applying {delta.path}", total_bytes * index // head.num_parts, total_bytes)


def _write(update: Update, target: Target) -> None:
    values, width = update.values, update.values.itemsize
    if update.positions is None:
        target.write(update.name, update.start * width, np.ascontiguousarray(values).view(np.uint8).data)
    elif len(update.positions):
        # Read, change and write the range around the changes: three calls in place of one for each element.
        first, stop = int(update.positions.min()), int(update.positions.max()) + 1
        held = target.read(update.name, first * width, (stop - first) * width)
        np.frombuffer(held, values.dtype)[update.positions - first] = values
        target.write(update.name, first * width, memoryview(held))


class ReplayedState:
    """A state to which deltas are applied one after another, in a file in `folder`. The caller removes the folder."""

    def __init__(self, folder: Path, base: WeightState) -> None:
        self._folder = folder
        self._path: Path | None = None
        self._num_files = 0
        self.state = base

    def advance(self, delta: DeltaReader, progress: Progress) -> None:
        """Apply a delta to the state. Raises: CorruptFrame, WrongBase; then the state is undefined."""
        layout = delta.head.layout
        # With the same layout the scratch file is its own base, and is changed in place.
        if self._path is not None and layout == layout_of(self.state):
            with open_target(self._path.parent, (single_file(layout),), existing=True) as target:
                overwrite(self.state, delta, target, progress)
            return
        self._num_files += 1
        folder = self._folder / f"scratch{self._num_files}"
        folder.mkdir()
        planned = single_file(layout)
        with open_target(folder, (planned,)) as target:
            copy_tensors(self.state, layout, target, progress)
            overwrite(self.state, delta, target, progress)
        before, self._path = self._path, folder / planned.name
        self.state = read_safetensors_file(self._path)
        # The old scratch file was needed until now, as the base of the copy.
        if before is not None:
            before.unlink()
