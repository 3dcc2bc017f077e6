"""Encoder of a weight payload: turns two states into the parts of a delta, one span at a time.

Part 0 is the head (head.py); part i is span i - 1 (part.py). Each part needs its own span of both states and nothing
else, so one part can be signed and sent while the next is encoded. Besides the two states, memory is one span per
thread: its new and base bytes if it has several pieces, and up to 12 bytes per changed element. Without a base the
payload is a full copy.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from periplus.codec.weights import head, part
from periplus.codec.weights.entropy.kernels import Positions
from periplus.codec.weights.layout import SPAN_BYTES, Span, layout_of
from periplus.values.safetensors_format import ELEMENT_BYTES
from periplus.values.weight_state import WeightState

AHEAD = 2
"""Spans per thread that are encoded before they are asked for. Two keep the threads busy while one part is sent. Chosen
by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaStats:
    """Size figures of a payload. Elements without a base count as changed."""

    num_elements: int
    num_changed: int
    content_bytes: int
    payload_bytes: int

    @property
    def density(self) -> float:
        """Share of elements that changed; 0 for an empty state."""
        return self.num_changed / self.num_elements if self.num_elements else 0.0

    @property
    def bits_per_change(self) -> float:
        """Bits of the whole payload per changed element; 0 if nothing changed."""
        return 8 * self.payload_bytes / self.num_changed if self.num_changed else 0.0

    @property
    def ratio(self) -> float:
        """Bytes of the new state over bytes of the payload."""
        return self.content_bytes / self.payload_bytes


class Encoder:
    """Encodes one delta, or a full copy if there is no base. Neither state may change meanwhile.

    `changes` gives, for each span, the positions that differ, if the caller has compared the states already (None
    otherwise). The bytes are the same either way.
    """

    def __init__(
        self,
        base: WeightState | None,
        new: WeightState,
        *,
        num_threads: int = 1,
        span_bytes: int = SPAN_BYTES,
        changes: Sequence[Positions | None] | None = None,
    ) -> None:
        self._base, self._new, self._num_threads = base, new, num_threads
        self._layout = layout_of(new)
        self._spans = self._layout.spans(span_bytes)
        self._changes = changes or (None,) * len(self._spans)
        self._base_layout = None if base is None else layout_of(base)
        known = head.with_base(self._base_layout, self._layout)
        self._head = head.Head(layout=self._layout, span_bytes=span_bytes, with_base=known)
        self._stats: DeltaStats | None = None

    @property
    def num_parts(self) -> int:
        return 1 + len(self._spans)

    @property
    def content_bytes(self) -> int:
        return self._layout.content_bytes

    @property
    def stats(self) -> DeltaStats:
        """Figures of all parts. Raises: ValueError before `parts()` is exhausted."""
        if self._stats is None:
            raise ValueError("a delta's stats are known when its last part is; iterate over parts() first")
        return self._stats

    def parts(self) -> Generator[bytes, None, None]:
        """Yield all parts in order.

        With threads, a few spans are encoded ahead of the caller; close() ends them early.
        """
        first = head.write(self._base_layout, self._head)
        yield first
        payload_bytes, num_changed = len(first), 0
        for data, changed in self._encoded():
            payload_bytes += len(data)
            num_changed += changed
            yield data
        # The counts are complete only when the last part was taken.
        self._stats = DeltaStats(
            num_elements=sum(line.num_bytes // ELEMENT_BYTES[line.dtype] for line in self._layout.lines),
            num_changed=num_changed,
            content_bytes=self._layout.content_bytes,
            payload_bytes=payload_bytes,
        )

    def _encoded(self) -> Iterator[tuple[bytes, int]]:
        if self._num_threads <= 1:
            yield from map(self._encode, self._spans, self._changes)
            return
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="weights") as pool:
            # A bounded number of spans is encoded ahead, so that memory does not grow with the state; results leave in
            # order.
            ahead: deque[Future[tuple[bytes, int]]] = deque()
            try:
                for span, positions in zip(self._spans, self._changes, strict=True):
                    ahead.append(pool.submit(self._encode, span, positions))
                    if len(ahead) > AHEAD * self._num_threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                # The caller closed the generator, or a span failed: what has not begun is not encoded.
                for future in ahead:
                    future.cancel()

    def _encode(self, span: Span, positions: Positions | None) -> tuple[bytes, int]:
        new = part.elements(self._layout, span, self._new)
        has_base = self._base is not None and all(self._head.with_base[piece.line] for piece in span.pieces)
        base = part.elements(self._layout, span, self._base) if has_base and self._base is not None else None
        return part.encode_part(span, base, new, positions)


def encode(
    base: WeightState | None,
    new: WeightState,
    *,
    num_threads: int = 1,
    span_bytes: int = SPAN_BYTES,
    changes: Sequence[Positions | None] | None = None,
) -> list[bytes]:
    """Return all parts of a payload."""
    return list(Encoder(base, new, num_threads=num_threads, span_bytes=span_bytes, changes=changes).parts())
