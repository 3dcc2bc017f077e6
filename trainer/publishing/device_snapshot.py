"""The device path of publishing: weights that live on an accelerator are compared there, and only what changed comes to
the host.

The published bfloat16 state is kept on the device, all tensors in one line in the order of the codec's spans. To take a
version, chunk by chunk: round the masters, compare bit patterns with what was published, gather the positions that
differ and their new elements, write these over the old, send positions and elements to the host. What training waits
for is a few passes over memory at the card's own speed; a chunk that changed so much that positions would be
larger than the elements comes whole. The host makes its copy of the new state out of the old one and these changes, and
encodes with the positions given, so that it compares nothing again.

Invariant: the state that this makes on the host equals `bf16_state` bit for bit, and what is encoded from it equals
what the host's own comparison would have made, byte for byte (tests/trainer/publishing/test_device_snapshot.py). Bits
are compared, never numbers: -0.0 is not 0.0. Masters that are NaN, which no step leaves behind, are rounded to some
NaN: torch's choice of payload depends on where in a vector the element stands.

Not run so far: no test has had an accelerator; all run on torch's CPU device, which executes the same operations. No
speed is measured, and no transfer from another memory.

Units: positions and bounds count elements.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from periplus.codec.weights.layout import SPAN_BYTES, Span, StateLayout, TensorLayout
from periplus.values.weight_state import Tensor, WeightState

CHUNK_SPANS = 32
"""Compared at a time: 256 MiB, so that waiting for a chunk's count costs little beside reading it, while scratch stays
within 1 GiB."""

ELEMENT_BYTES = 2
POSITION_BYTES = 4


@dataclass(frozen=True, slots=True)
class DeviceSpanChanges:
    """Changes of one span: sorted positions in it and the new elements there. Without positions: all elements."""

    positions: npt.NDArray[np.uint32] | None
    values: npt.NDArray[np.uint16]


class DeviceCopy:
    """What was published last, beside the masters that it was rounded from. `parameters`: live, by checkpoint name."""

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
        for start, spans in self._chunks():
            self._round_into(self._published[start : start + _num_elements(spans)], spans)

    def state(self) -> WeightState:
        """What was published last, on the host."""
        arrays = _arrays(self.layout)
        for start, spans in self._chunks():
            values = self._published[start : start + _num_elements(spans)].cpu().numpy().view(np.uint16)
            _write_whole(self.layout, spans, values, arrays)
        return _state(self.layout, arrays)

    @torch.no_grad()
    def advance(self) -> list[DeviceSpanChanges]:
        """Round the masters as they are now: what differs from what was published, by span. It is published now."""
        changes: list[DeviceSpanChanges] = []
        scratch = torch.empty(
            max((_num_elements(spans) for _, spans in self._chunks()), default=0),
            dtype=torch.int16,
            device=self._published.device,
        )
        for start, spans in self._chunks():
            new = scratch[: _num_elements(spans)]
            self._round_into(new, spans)
            changes += replace_changed(self._published[start : start + new.numel()], new, spans)
        return changes

    def _chunks(self) -> Iterator[tuple[int, Sequence[Span]]]:
        start = 0
        for first in range(0, len(self.spans), CHUNK_SPANS):
            spans = self.spans[first : first + CHUNK_SPANS]
            yield start, spans
            start += _num_elements(spans)

    @torch.no_grad()
    def _round_into(self, words: torch.Tensor, spans: Sequence[Span]) -> None:
        rounded, at = words.view(torch.bfloat16), 0
        for piece in (piece for span in spans for piece in span.pieces):
            source = self._parameters[self.layout.lines[piece.line].name].reshape(-1)[piece.start : piece.stop]
            rounded[at : at + source.numel()].copy_(source)
            at += source.numel()


def patched(base: WeightState, copy: DeviceCopy, changes: Sequence[DeviceSpanChanges]) -> WeightState:
    """The new state, as a copy of its own: `base` with what differs."""
    arrays = {name: tensor.data.view(np.uint16).copy() for name, tensor in base.items()}
    for span, change in zip(copy.spans, changes, strict=True):
        if change.positions is None:
            _write_whole(copy.layout, (span,), change.values, arrays)
        else:
            _write_changed(copy.layout, span, change.positions, change.values, arrays)
    return _state(copy.layout, arrays)


def replace_changed(published: torch.Tensor, new: torch.Tensor, spans: Sequence[Span]) -> list[DeviceSpanChanges]:
    """What differs in one chunk, which then is what was published: one wait for the device, and two transfers."""
    index = (published != new).nonzero().squeeze(1)
    bounds = np.cumsum([0, *(span.num_elements for span in spans)])
    if index.numel() * (POSITION_BYTES + ELEMENT_BYTES) > new.numel() * ELEMENT_BYTES:
        published.copy_(new)
        whole = new.to("cpu", copy=True).numpy().view(np.uint16)
        return [DeviceSpanChanges(None, whole[start:stop]) for start, stop in pairwise(bounds)]
    values = new[index]
    published[index] = values
    positions, words = index.to(torch.int32).cpu().numpy(), values.cpu().numpy().view(np.uint16)
    cuts = np.searchsorted(positions, bounds)
    return [
        DeviceSpanChanges((positions[first:last] - start).astype(np.uint32), words[first:last])
        for start, (first, last) in zip(bounds[:-1], pairwise(cuts), strict=True)
    ]


def _write_whole(
    layout: StateLayout,
    spans: Sequence[Span],
    values: npt.NDArray[np.uint16],
    arrays: dict[str, npt.NDArray[np.uint16]],
) -> None:
    at = 0
    for piece in (piece for span in spans for piece in span.pieces):
        size = piece.stop - piece.start
        arrays[layout.lines[piece.line].name][piece.start : piece.stop] = values[at : at + size]
        at += size


def _write_changed(
    layout: StateLayout,
    span: Span,
    positions: npt.NDArray[np.uint32],
    values: npt.NDArray[np.uint16],
    arrays: dict[str, npt.NDArray[np.uint16]],
) -> None:
    bounds = np.cumsum([0, *(piece.stop - piece.start for piece in span.pieces)])
    cuts = np.searchsorted(positions, bounds)
    for piece, start, first, last in zip(span.pieces, bounds[:-1], cuts[:-1], cuts[1:], strict=True):
        inside = positions[first:last].astype(np.int64) - start + piece.start
        arrays[layout.lines[piece.line].name][inside] = values[first:last]


def _num_elements(spans: Sequence[Span]) -> int:
    return sum(span.num_elements for span in spans)


def _arrays(layout: StateLayout) -> dict[str, npt.NDArray[np.uint16]]:
    return {line.name: np.empty(line.num_bytes // ELEMENT_BYTES, np.uint16) for line in layout.lines}


def _state(layout: StateLayout, arrays: Mapping[str, npt.NDArray[np.uint16]]) -> WeightState:
    return {line.name: Tensor(line.dtype, line.shape, arrays[line.name]) for line in layout.lines}
