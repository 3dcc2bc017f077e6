"""What an engine gets of a state with low-rank adapters: the weights with the adapters merged, and their changes.

The published state has base weights and adapters (periplus/values/low_rank.py). `MergedWeights` keeps its own copy of
the adapters, of the weights that have some, and of the merged weights that the engine got last. A change of an adapter
becomes the changes of the merged bfloat16 values of its layer, by the layer's checkpoint name.

It also knows two digests, both recomputed from its copies: of the state as it was published, and of the merged weights
as the engine must hold them.

Raises: WrongBase for a state that the engine's model cannot have: adapters without a partner, or of other shapes.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.layout import Piece, Span, StateLayout, TensorLayout
from periplus.codec.weights.staged import Staged, StagedSpan, Update
from periplus.errors import WrongBase
from periplus.values.digest import digest_of, tensor_digest
from periplus.values.low_rank import adapted_weight, adapted_weights, adapters_of, changed_words, is_adapter, merged
from periplus.values.weight_state import Tensor, WeightState
from rollout_worker.engines.engine import ChangedElements, WholeState

DENSE_SHARE = 1 / 3
"""Share of changed elements from which a layer's merged values are handed over whole. A position has twice the bytes of
a value, so that positions and values would be larger from there on."""

MAX_POSITIONS = 1 << 32
"""Elements of a layer that positions can name. A larger layer is always handed over whole."""

_Line = tuple[str, tuple[int, ...], bytes]  # dtype, shape and digest of a tensor


class MergedWeights:
    """The merged weights of one engine. `scale` is the factor of the adapters' product, alpha / rank."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._published: StateLayout | None = None
        self._layout = StateLayout(lines=())
        # Copies of adapters and of the weights that have some, as published; the merged weights; and only the digests
        # of all other tensors.
        self._tensors: dict[str, Tensor] = {}
        self._merged: dict[str, Tensor] = {}
        self._others: dict[str, _Line] = {}

    def replaced(self, change: WholeState) -> WholeState:
        """Take over a whole state, and return what the engine gets: a whole state without adapters."""
        state = change.state
        adapted = set(adapted_weights(state))
        self._tensors = {
            name: Tensor(tensor.dtype, tensor.shape, tensor.data.copy())
            for name, tensor in state.items()
            if name in adapted or is_adapter(name)
        }
        self._merged = {weight: self._merge(weight) for weight in sorted(adapted)}
        self._others = {
            name: (tensor.dtype, tensor.shape, tensor_digest(tensor))
            for name, tensor in state.items()
            if name not in self._tensors
        }
        self._published = change.layout
        self._layout = StateLayout(lines=tuple(line for line in change.layout.lines if not is_adapter(line.name)))
        plain = {line.name: self._merged.get(line.name) or state[line.name] for line in self._layout.lines}
        return WholeState(layout=self._layout, state=plain)

    def changed(self, change: ChangedElements) -> ChangedElements:
        """Apply changes of the published state, and return what changes in the engine, which may be nothing."""
        if change.layout != self._published:
            raise WrongBase("the published tensors are others than those of the state that the engine holds")
        dirty: set[str] = set()
        passed: list[Update] = []
        for update in change.updates():
            if update.name not in self._tensors:
                passed.append(update)
            elif _write(self._tensors[update.name], update):
                dirty.add(adapted_weight(update.name) if is_adapter(update.name) else update.name)
        spans = tuple(self._spans(passed, sorted(dirty)))
        lines = self._layout.lines
        return ChangedElements(staged=(Staged(layout=self._layout, with_base=(True,) * len(lines), spans=spans),))

    def published_digest(self) -> bytes:
        """Return the digest of the published state that was taken over, as the trainer signs it."""
        return self._digest(self._tensors)

    def merged_digest(self) -> bytes:
        """Return the digest of the weights that the engine must hold."""
        return self._digest(self._merged)

    def _digest(self, tensors: Mapping[str, Tensor]) -> bytes:
        ours = ((name, tensor.dtype, tensor.shape, tensor_digest(tensor)) for name, tensor in tensors.items())
        return digest_of([*ours, *((name, *line) for name, line in self._others.items())])

    def _merge(self, weight: str) -> Tensor:
        state: WeightState = self._tensors
        try:
            return merged(state, weight, self._scale)
        except (KeyError, ValueError) as error:
            a, b = adapters_of(weight)
            raise WrongBase(
                f"{weight}, {a} and {b} cannot be merged: {error}; is the job's model.lora theirs?"
            ) from error

    def _spans(self, passed: list[Update], dirty: list[str]) -> Iterator[StagedSpan]:
        line_of = {line.name: (index, line) for index, line in enumerate(self._layout.lines)}
        # Tensors without adapters are the base's, and do not change; a relay may repeat their elements all the same.
        for update in passed:
            index, line = line_of[update.name]
            start = 0 if update.positions is not None else update.start
            stop = line.num_bytes // 2 if update.positions is not None else update.start + len(update.values)
            yield self._span(index, line, start, stop, update.positions, update.values)
        for weight in dirty:
            before, self._merged[weight] = self._merged[weight], self._merge(weight)
            positions, values = changed_words(before, self._merged[weight])
            index, line = line_of[weight]
            size = self._merged[weight].num_elements
            if len(positions) > DENSE_SHARE * size or size > MAX_POSITIONS:
                whole = self._merged[weight].data.view(np.uint16)
                yield self._span(index, line, 0, size, None, whole)
            elif len(positions):
                yield self._span(index, line, 0, size, positions, values)

    def _span(
        self,
        index: int,
        line: TensorLayout,
        start: int,
        stop: int,
        positions: npt.NDArray[np.int64] | None,
        values: npt.NDArray[np.unsignedinteger],
    ) -> StagedSpan:
        return StagedSpan(
            layout=self._layout,
            span=Span(dtype=line.dtype, pieces=(Piece(line=index, start=start, stop=stop),)),
            positions=None if positions is None else positions.astype(np.uint32),
            values=values,
        )


def _write(tensor: Tensor, update: Update) -> bool:
    # Write an update in place, and return whether it changes anything.
    words = tensor.data.view(np.uint16)
    where = update.positions
    place = slice(update.start, update.start + len(update.values)) if where is None else where
    changes = not np.array_equal(words[place], update.values)
    words[place] = update.values
    return changes
