"""Which part of each checkpoint tensor a rank of an engine holds, and what an update of the whole means for that part.

Under tensor parallelism a rank holds some rows of a tensor (attention heads, columns of the feed-forward network, rows
of the vocabulary) or some columns of all its rows (the projections that follow). One rank may hold it whole. A tensor
is treated here as a matrix: its first dimension are the rows, all others together are the columns.

Positions of an update count the elements of the whole tensor, row by row. `TensorShard.local` translates them to the
part, which is contiguous in the rank's memory.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from periplus.codec.weights.layout import StateLayout, TensorLayout
from periplus.codec.weights.staged import Bits, Update
from periplus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShard:
    """The rows [row_start, row_stop) and columns [column_start, column_stop) of the checkpoint tensor `name`.

    `shape` is that of the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int

    @property
    def num_columns(self) -> int:
        """Number of columns of the whole tensor."""
        return math.prod(self.shape[1:])

    @property
    def num_elements(self) -> int:
        """Number of elements of the part."""
        return (self.row_stop - self.row_start) * (self.column_stop - self.column_start)

    def to_json(self) -> list[Any]:
        """Return the shard as a JSON value."""
        return [self.name, list(self.shape), self.row_start, self.row_stop, self.column_start, self.column_stop]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> "TensorShard":
        """Invert `to_json`."""
        name, shape, row_start, row_stop, column_start, column_stop = value
        return cls(
            name=name,
            shape=tuple(shape),
            row_start=row_start,
            row_stop=row_stop,
            column_start=column_start,
            column_stop=column_stop,
        )

    def check(self, update: Update) -> None:
        """Check that an update lies within the whole tensor. Raises: ValueError."""
        positions, size = update.positions, math.prod(self.shape)
        if positions is None:
            first, last, num_positions = update.start, update.start + len(update.values) - 1, len(update.values)
        elif len(positions):
            first, last, num_positions = int(positions.min()), int(positions.max()), len(positions)
        else:
            first, last, num_positions = 0, -1, 0
        if first < 0 or last >= size or num_positions != len(update.values):
            raise ValueError(
                f"an update of {self.name} with {len(update.values)} values for {num_positions} elements in "
                f"[{first}, {last}]; it has {size}"
            )

    def local(self, update: Update) -> Iterator[Update]:
        """Yield the same update in elements of this part; nothing if the part has no changed element."""
        if self.column_stop - self.column_start < self.num_columns:
            yield from self._of_columns(update)
            return
        first, after = self.row_start * self.num_columns, self.row_stop * self.num_columns
        if update.positions is None:
            low, high = max(first, update.start), min(after, update.start + len(update.values))
            if low < high:
                values = update.values[low - update.start : high - update.start]
                yield Update(name=self.name, positions=None, start=low - first, values=values)
            return
        low, high = (int(place) for place in np.searchsorted(update.positions, (first, after)))
        if low < high:
            positions = update.positions[low:high] - first
            yield Update(name=self.name, positions=positions, start=int(positions[0]), values=update.values[low:high])

    def _of_columns(self, update: Update) -> Iterator[Update]:
        width, low, high = self.num_columns, self.column_start, self.column_stop
        if update.positions is not None:
            rows, columns = np.divmod(update.positions, width)
            here = (columns >= low) & (columns < high)
            if here.any():
                positions = rows[here] * (high - low) + (columns[here] - low)
                yield Update(name=self.name, positions=positions, start=int(positions[0]), values=update.values[here])
            return
        # A range has at most three pieces: the end of a row, whole rows, and the beginning of a row.
        start, stop = update.start, update.start + len(update.values)
        head_stop = min(stop, -(-start // width) * width)
        body_stop = max(head_stop, stop // width * width)
        for piece_start, piece_stop in ((start, head_stop), (body_stop, stop)):
            row, begin = divmod(piece_start, width)
            end = begin + piece_stop - piece_start
            left, right = max(begin, low), min(end, high)
            if left < right:
                from_value = piece_start - start + left - begin
                yield Update(
                    name=self.name,
                    positions=None,
                    start=row * (high - low) + left - low,
                    values=update.values[from_value : from_value + right - left],
                )
        if head_stop < body_stop:
            rows_of_values = update.values[head_stop - start : body_stop - start].reshape(-1, width)
            values: Bits = np.ascontiguousarray(rows_of_values[:, low:high]).reshape(-1)
            yield Update(name=self.name, positions=None, start=head_stop // width * (high - low), values=values)


def whole_layout(shards_of_ranks: Sequence[Iterable[TensorShard]]) -> StateLayout:
    """Return the layout of the state that all ranks together hold.

    Raises: ConfigError if ranks disagree about a shape, or if no rank holds some element.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    parts: dict[str, set[tuple[int, int, int, int]]] = {}
    for shards in shards_of_ranks:
        for shard in shards:
            if shapes.setdefault(shard.name, shard.shape) != shard.shape:
                raise ConfigError(f"ranks of vLLM disagree about {shard.name}: {shapes[shard.name]} and {shard.shape}")
            part = (shard.row_start, shard.row_stop, shard.column_start, shard.column_stop)
            parts.setdefault(shard.name, set()).add(part)
    for name, shape in shapes.items():
        held = sum((rows[1] - rows[0]) * (rows[3] - rows[2]) for rows in parts[name])
        if held != math.prod(shape):
            raise ConfigError(
                f"the ranks of vLLM hold {held} elements of {name}, which has {math.prod(shape)} {shape}: this way of "
                "dividing it is not supported; use engine parallelism 1 or another model"
            )
    lines = tuple(TensorLayout(name=name, dtype="BF16", shape=shapes[name]) for name in sorted(shapes))
    return StateLayout(lines=lines)
