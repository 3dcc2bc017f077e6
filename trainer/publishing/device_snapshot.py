"""Snapshots of weights on an accelerator: the device compares versions, and only what changed is copied to the host.

*Masters* are the float32 weights that the optimizer changes. Their bfloat16 rounding is published. The device keeps the
published state as one vector of 16-bit words, in the order of the codec's spans (periplus/codec/weights/layout.py). A
*chunk* is a range of that vector, made of CHUNK_SPANS spans.

A new version is taken in two parts. Training waits for the first one alone, which is one pass over the masters:
1. Round the masters to bfloat16, into a second vector.

The second part (the function that `take` returns) goes on beside training, on a CUDA stream of its own, so that neither
waits for the other. For each chunk:
2. Compare bit patterns with the published words, and gather the positions that differ and their new words.
3. Write the new words over the published ones.
4. Copy positions and words to the host. If they would be larger than the chunk, copy the whole chunk instead.

Afterwards the host makes its copy of the new state from its copy of the old state and the changes. The encoder is given
the positions, and does not compare again.

Invariants (tests/trainer/publishing/test_device_snapshot.py):
- The host's new state equals `bf16_state` bit for bit, and its encoding equals that of a comparison on the host.
- Bit patterns are compared, never numbers: -0.0 differs from 0.0.
- Masters that are NaN, which no training step leaves behind, are rounded to some NaN. Which payload torch chooses
  depends on the element's place in a vector.

One test needs an accelerator. The others run on torch's CPU device, which executes the same operations, but has no
streams.

Units: positions and bounds count elements.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from periplus.codec.weights.layout import SPAN_BYTES, Span, StateLayout, TensorLayout
from periplus.values.weight_state import Tensor, WeightState

CHUNK_SPANS = 32
"""Number of spans that are compared at a time: 256 MiB of bfloat16. The host waits once per chunk for the number of
changes, which costs little for a chunk of this size, while scratch memory stays within 1 GiB. Chosen by hand."""

ELEMENT_BYTES = 2
"""Bytes of one bfloat16 element."""

POSITION_BYTES = 4
"""Bytes of one position when it is copied to the host (int32)."""


@dataclass(frozen=True, slots=True)
class DeviceSpanChanges:
    """Changes of one span: ascending positions within it, and the new words at these positions.

    If `positions` is None, `values` holds all words of the span.
    """

    positions: npt.NDArray[np.uint32] | None
    values: npt.NDArray[np.uint16]


class DeviceCopy:
    """The state that was published last, kept on the device next to the masters from which it was rounded.

    `parameters` are the masters by their name in a checkpoint. They are not copied: `take` reads them as they are then.
    Creating the object rounds them once, as the first state. With the vector of the next version it takes 4 bytes of
    the device for each element.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], *, span_bytes: int = SPAN_BYTES) -> None:
        self._parameters = {name: tensor.detach() for name, tensor in parameters.items()}
        lines = (
            TensorLayout(name=name, dtype="BF16", shape=tuple(t.shape)) for name, t in sorted(self._parameters.items())
        )
        self.layout = StateLayout(lines=tuple(lines))
        self.spans = self.layout.spans(span_bytes)
        device = next(iter(self._parameters.values())).device
        num_elements = _num_elements(self.spans)
        self._published = torch.empty(num_elements, dtype=torch.int16, device=device)
        self._next = torch.empty_like(self._published)
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        for start, spans in self._chunks():
            self._round_into(self._published[start : start + _num_elements(spans)], spans)

    def state(self) -> WeightState:
        """Copy the state that was published last to the host."""
        arrays = _arrays(self.layout)
        for start, spans in self._chunks():
            values = self._published[start : start + _num_elements(spans)].cpu().numpy().view(np.uint16)
            at = 0
            for piece in (piece for span in spans for piece in span.pieces):
                size = piece.stop - piece.start
                arrays[self.layout.lines[piece.line].name][piece.start : piece.stop] = values[at : at + size]
                at += size
        return _state(self.layout, arrays)

    def take(self) -> Callable[[], list[DeviceSpanChanges]]:
        """Round the masters as they are now. Call the result, in any thread, to publish them and to get what changed.

        Call it before the next version is taken.
        """
        for start, spans in self._chunks():
            self._round_into(self._next[start : start + _num_elements(spans)], spans)
        rounded = None if self._stream is None else torch.cuda.current_stream(self._stream.device).record_event()
        return lambda: self._advance(rounded)

    @torch.no_grad()
    def _advance(self, rounded: torch.cuda.Event | None) -> list[DeviceSpanChanges]:
        changes: list[DeviceSpanChanges] = []
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if self._stream is not None and rounded is not None:
                self._stream.wait_event(rounded)
            for start, spans in self._chunks():
                part = slice(start, start + _num_elements(spans))
                changes += replace_changed(self._published[part], self._next[part], spans)
            if self._stream is not None:
                self._stream.synchronize()  # the next version is rounded on another stream
        return changes

    def _chunks(self) -> Iterator[tuple[int, Sequence[Span]]]:
        # Yields the index of a chunk's first element, and the chunk's spans.
        start = 0
        for first in range(0, len(self.spans), CHUNK_SPANS):
            spans = self.spans[first : first + CHUNK_SPANS]
            yield start, spans
            start += _num_elements(spans)

    @torch.no_grad()
    def _round_into(self, words: torch.Tensor, spans: Sequence[Span]) -> None:
        # The spans' pieces of all tensors, one after the other, in the order of the codec.
        rounded, at = words.view(torch.bfloat16), 0
        for piece in (piece for span in spans for piece in span.pieces):
            source = self._parameters[self.layout.lines[piece.line].name].reshape(-1)[piece.start : piece.stop]
            rounded[at : at + source.numel()].copy_(source)
            at += source.numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceChanges:
    """Changes of the elements [start, stop) of one tensor: ascending positions in the tensor, and the new words there.

    If `positions` is None, `values` holds all words of the piece.
    """

    name: str
    start: int
    stop: int
    positions: npt.NDArray[np.int64] | None
    values: npt.NDArray[np.uint16]


def pieces_of(copy: DeviceCopy, changes: Sequence[DeviceSpanChanges]) -> Iterator[PieceChanges]:
    """Divide the changes of spans among the tensors. The pieces of one tensor come in ascending order."""
    for span, change in zip(copy.spans, changes, strict=True):
        bounds = np.cumsum([0, *(piece.stop - piece.start for piece in span.pieces)])
        # Where the pieces' shares begin, in `values`.
        cuts = bounds if change.positions is None else np.searchsorted(change.positions, bounds)
        for piece, at, first, last in zip(span.pieces, bounds[:-1], cuts[:-1], cuts[1:], strict=True):
            positions = change.positions
            yield PieceChanges(
                name=copy.layout.lines[piece.line].name,
                start=piece.start,
                stop=piece.stop,
                # Positions within the span become positions within the tensor.
                positions=None if positions is None else positions[first:last].astype(np.int64) - at + piece.start,
                values=change.values[first:last],
            )


def patched(base: WeightState, copy: DeviceCopy, changes: Sequence[DeviceSpanChanges]) -> WeightState:
    """Return a copy of the state `base` with the changes applied. `copy` says how spans map to tensors."""
    arrays = {name: tensor.data.view(np.uint16).copy() for name, tensor in base.items()}
    for piece in pieces_of(copy, changes):
        write_piece(arrays, piece)
    return _state(copy.layout, arrays)


def write_piece(arrays: Mapping[str, npt.NDArray[np.uint16]], piece: PieceChanges) -> None:
    """Write the changes of one piece into the words of its tensor."""
    words = arrays[piece.name]
    if piece.positions is None:
        words[piece.start : piece.stop] = piece.values
    else:
        words[piece.positions] = piece.values


def replace_changed(published: torch.Tensor, new: torch.Tensor, spans: Sequence[Span]) -> list[DeviceSpanChanges]:
    """Return the changes of one chunk from `published` to `new`, by span, and overwrite `published` with `new`.

    This waits for the current stream and makes at most two transfers.
    """
    index = (published != new).nonzero().squeeze(1)
    bounds = np.cumsum([0, *(span.num_elements for span in spans)])  # where each span starts within the chunk
    # With many changes, positions and words together are larger than the whole chunk.
    if index.numel() * (POSITION_BYTES + ELEMENT_BYTES) > new.numel() * ELEMENT_BYTES:
        published.copy_(new)
        whole = new.to("cpu", copy=True).numpy().view(np.uint16)
        return [DeviceSpanChanges(None, whole[start:stop]) for start, stop in pairwise(bounds)]
    values = new[index]
    published[index] = values
    positions, words = index.to(torch.int32).cpu().numpy(), values.cpu().numpy().view(np.uint16)
    # Divide the ascending positions among the spans, and make them relative to the start of their span.
    cuts = np.searchsorted(positions, bounds)
    return [
        DeviceSpanChanges((positions[first:last] - start).astype(np.uint32), words[first:last])
        for start, (first, last) in zip(bounds[:-1], pairwise(cuts), strict=True)
    ]


def _num_elements(spans: Sequence[Span]) -> int:
    return sum(span.num_elements for span in spans)


def _arrays(layout: StateLayout) -> dict[str, npt.NDArray[np.uint16]]:
    return {line.name: np.empty(line.num_bytes // ELEMENT_BYTES, np.uint16) for line in layout.lines}


def _state(layout: StateLayout, arrays: Mapping[str, npt.NDArray[np.uint16]]) -> WeightState:
    return {line.name: Tensor(line.dtype, line.shape, arrays[line.name]) for line in layout.lines}
