"""Snapshots of weights that several ranks hold by rows: each rank compares its own rows, and only changes go to rank 0.

Each rank keeps the published bfloat16 words of its rows on its device (device_snapshot.py). A version is taken in two
parts:

    take (every rank, training waits)      round the rows
    the function that it returns           compare them with the words, and send positions and words of what changed to
      (every rank, beside training)        rank 0, which patches its copy on the host

Positions travel relative to pieces of tensors. A rank's rows are one range of a tensor's elements, so rank 0 adds the
start of that range. A piece in which much changed travels whole.

Invariants (tests/trainer/publishing/test_sharded_snapshot.py):
- From equal masters, state, positions and encoded bytes equal those of a single process, however many ranks hold them.
- The full float32 model is never gathered, and no device holds a full tensor. Rank 0's host holds two bfloat16 states:
  that of the version before, and the new one.
- The second part uses a process group of its own (`ranks`), because training uses the default one meanwhile.

A rank that dies leaves the others waiting for the time limit of the process group, and then fails them.

Units: positions and starts count elements.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.layout import SPAN_BYTES, Span, StateLayout, TensorLayout
from periplus.errors import ConfigError
from periplus.values.weight_state import Tensor, WeightState
from trainer.data.adapters import adapted_layers
from trainer.distributed.collectives import Arrays, HostCollectives
from trainer.publishing import reference_logprobs
from trainer.publishing.device_snapshot import (
    DeviceCopy,
    DeviceSpanChanges,
    PieceChanges,
    pieces_of,
    write_piece,
)
from trainer.publishing.local_rows import LocalRows, gather_each, parameter_rows
from trainer.publishing.snapshot import Taken

HEAD_FIELDS = 4
"""Numbers in the head of a piece: index of its tensor, first element, number of elements, number of changes. A piece
that travels whole has the number of changes -1."""

WHOLE = -1
"""Number of changes in the head of a piece that travels whole."""


class ShardOfWeights:
    """The rows of the trained weights on one rank, with the words of these rows that were published last.

    Creating the object rounds the rows once, as the first version. `span_bytes` is the size of the codec's spans.

    Raises: ConfigError for a model with adapters.
    """

    def __init__(self, model: Any, ranks: HostCollectives, span_bytes: int) -> None:
        if adapted_layers(model):
            raise ConfigError("model.lora is set, and adapters cannot be divided among several devices; use one device")
        self.ranks = ranks
        self.span_bytes = span_bytes
        self.rows = parameter_rows(model, ranks.rank)
        self._copy = DeviceCopy({rows.name: rows.tensor for rows in self.rows}, span_bytes=span_bytes)
        lines = (TensorLayout(name=rows.name, dtype="BF16", shape=rows.shape) for rows in self.rows)
        self.layout = StateLayout(lines=tuple(lines))

    def send_all(self, visit: Callable[[LocalRows, Arrays], None]) -> None:
        """Send the published words of all rows to rank 0, where `visit` is called with each rank's words of a tensor.

        Tensors come by name, and for each tensor its ranks in order. Raises: the first error of `visit`, at the end.
        """
        local = self._copy.state()
        gather_each(self.rows, self.ranks, lambda rows: [local[rows.name].data.view(np.uint16)], visit)

    def take(self) -> Callable[[], list[DeviceSpanChanges]]:
        """Round the rows as they are now. Call the result to make them the published ones and to get what changed."""
        return self._copy.take()

    def message(self, changes: Sequence[DeviceSpanChanges]) -> Arrays:
        """Return the changes as three arrays: heads of pieces, positions in the pieces, and new words."""
        index_of = {rows.name: index for index, rows in enumerate(self.rows)}
        heads: list[int] = []
        positions: list[npt.NDArray[np.uint32]] = [np.empty(0, np.uint32)]
        values: list[npt.NDArray[np.uint16]] = [np.empty(0, np.uint16)]
        for piece in pieces_of(self._copy, changes):
            if not piece.values.size:
                continue
            rows = self.rows[index_of[piece.name]]
            first = rows.start * rows.row_elements + piece.start
            is_whole = piece.positions is None
            num_changes = WHOLE if is_whole else piece.values.size
            heads += [index_of[piece.name], first, piece.stop - piece.start, num_changes]
            if piece.positions is not None:
                positions.append((piece.positions - piece.start).astype(np.uint32))
            values.append(piece.values)
        return np.array(heads, np.int64), np.concatenate(positions), np.concatenate(values)


class ShardedWeights:
    """The trained weights as rank 0 sees them (`Weights` of snapshot.py). The other ranks have `FollowerWeights`.

    For each call of a method here, and of what `take` returns, every other rank must make the same call.
    """

    def __init__(self, model: Any, ranks: HostCollectives, *, span_bytes: int = SPAN_BYTES) -> None:
        assert ranks.rank == 0, "other ranks have FollowerWeights"
        self._model, self._ranks, self._span_bytes = model, ranks, span_bytes
        self._shard: ShardOfWeights | None = None

    def first(self) -> WeightState:
        """Return the first state, on the host."""
        self._shard = shard = ShardOfWeights(self._model, self._ranks, self._span_bytes)
        arrays = {line.name: np.empty(line.num_bytes // 2, np.uint16) for line in shard.layout.lines}
        filled = dict.fromkeys(arrays, 0)

        def visit(rows: LocalRows, words: Arrays) -> None:
            arrays[rows.name][filled[rows.name] : filled[rows.name] + words[0].size] = words[0]
            filled[rows.name] += words[0].size

        shard.send_all(visit)
        return _host_state(shard.layout, arrays)

    def take(self) -> Callable[[WeightState], Taken]:
        """Take the weights as they are now. Call the result with the state of the version before to get this one."""
        shard = self._shard
        assert shard is not None, "the first state comes first"
        changes = shard.take()
        return lambda base: _completed(shard, changes(), base)

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probabilities of the probe's prompts. It is a collective of the training's process group."""
        return reference_logprobs.logprobs(self._model, ids_RP)


class FollowerWeights:
    """The rows of the trained weights on a rank other than 0, with the same calls as rank 0 makes."""

    def __init__(self, model: Any, ranks: HostCollectives, *, span_bytes: int = SPAN_BYTES) -> None:
        assert ranks.rank, "rank 0 has ShardedWeights"
        self._model, self._ranks, self._span_bytes = model, ranks, span_bytes
        self._shard: ShardOfWeights | None = None

    def first(self) -> None:
        """Send this rank's rows of the first state to rank 0."""
        self._shard = ShardOfWeights(self._model, self._ranks, self._span_bytes)
        self._shard.send_all(lambda rows, words: None)

    def take(self) -> Callable[[], None]:
        """Take the rows as they are now. Call the result to send what changed to rank 0; it may run in a thread."""
        shard = self._shard
        assert shard is not None, "the first state comes first"
        changes = shard.take()
        return lambda: shard.ranks.gather(shard.message(changes()), lambda rank, message: None)

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> None:
        """Take part in the probe of rank 0, which gives the same prompts."""
        reference_logprobs.logprobs(self._model, ids_RP)


class _Patch:
    """A copy of a state, to which the messages of all ranks are applied in order."""

    def __init__(self, layout: StateLayout, base: WeightState) -> None:
        self._layout = layout
        self._words = {name: tensor.data.view(np.uint16).copy() for name, tensor in base.items()}
        # By tensor: ascending positions that changed, and the ranges [start, stop) that travelled whole.
        self._changed: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in self._words}
        self._whole: dict[str, list[tuple[int, int]]] = {name: [] for name in self._words}

    def apply(self, message: Arrays) -> None:
        heads, positions, values = message
        position, value = 0, 0
        for index, first, size, num_changes in heads.reshape(-1, HEAD_FIELDS).tolist():
            name, is_whole = self._layout.lines[index].name, num_changes == WHOLE
            num_values = size if is_whole else num_changes
            changed = None
            if is_whole:
                self._whole[name].append((first, first + size))
            else:
                changed = positions[position : position + num_changes].astype(np.int64) + first
                self._changed[name].append(changed)
                position += num_changes
            write_piece(
                self._words,
                PieceChanges(
                    name=name,
                    start=first,
                    stop=first + size,
                    positions=changed,
                    values=values[value : value + num_values],
                ),
            )
            value += num_values

    def state(self) -> WeightState:
        return _host_state(self._layout, self._words)

    def span_changes(self, span_bytes: int) -> list[npt.NDArray[np.uint32] | None]:
        """Return the positions that changed in each span of the codec, or None if a part of the span came whole."""
        # Ranks come in order, and so do the pieces of each: the positions of a tensor are ascending.
        nothing = np.empty(0, np.int64)
        changed = {name: np.concatenate([nothing, *found]) for name, found in self._changed.items()}
        return [self._changes_of(span, changed) for span in self._layout.spans(span_bytes)]

    def _changes_of(self, span: Span, changed: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.uint32] | None:
        found, at = [np.empty(0, np.uint32)], 0
        for piece in span.pieces:
            name = self._layout.lines[piece.line].name
            if any(start < piece.stop and piece.start < stop for start, stop in self._whole[name]):
                return None
            first, last = np.searchsorted(changed[name], [piece.start, piece.stop])
            found.append((changed[name][first:last] - piece.start + at).astype(np.uint32))
            at += piece.stop - piece.start
        return np.concatenate(found)


def _completed(shard: ShardOfWeights, changes: Sequence[DeviceSpanChanges], base: WeightState) -> Taken:
    patch = _Patch(shard.layout, base)
    shard.ranks.gather(shard.message(changes), lambda rank, message: patch.apply(message))
    return Taken(state=patch.state(), changes=patch.span_changes(shard.span_bytes))


def _host_state(layout: StateLayout, words: dict[str, npt.NDArray[np.uint16]]) -> WeightState:
    return {line.name: Tensor(line.dtype, line.shape, words[line.name]) for line in layout.lines}
