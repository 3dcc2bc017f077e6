"""Changes that publications make to the stored full state, and folds and full states derived from it, by span.

Nothing here holds a whole state: one span of the copy is in memory at a time, besides the parts that concern it.
"""

from collections.abc import Iterator, Sequence

from periplus.codec.weights import head
from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import Encoder
from periplus.codec.weights.layout import StateLayout
from periplus.errors import CorruptFrame, WrongBase
from periplus.values.policy import Policy
from region_agent.weights.chain import ChainLink, base_of
from region_agent.weights.disk.full_state import FullState
from region_agent.weights.disk.placement import FilePlacement, SpanScratch
from region_agent.weights.disk.redo_log import SpanChanges, span_changes


def head_of(link: ChainLink, base: StateLayout | None) -> head.Head:
    """Return the head of a link's payload (its first part). Raises: CorruptFrame, WrongBase, StorageError."""
    opening = link.opening
    return head.read(link.part(0), base, max_content_bytes=opening.content_bytes, max_spans=link.closing.num_chunks - 1)


def anchor_changes(link: ChainLink, layout: StateLayout, span_bytes: int) -> Iterator[SpanChanges | None]:
    """Yield the content of a full state, span by span. Raises: CorruptFrame, StorageError."""
    placement = FilePlacement(layout, span_bytes)
    yield from _changes(link, placement, _decoder(link, None))


def delta_changes(link: ChainLink, copy: FullState) -> Iterator[SpanChanges | None]:
    """Yield what a delta changes in the copy, which is its base; None for an unchanged span.

    Raises: CorruptFrame, WrongBase, StorageError.
    """
    placement = FilePlacement(copy.layout, _same_layout(link, copy.layout))
    scratch = SpanScratch(placement)
    decoder = _decoder(link, scratch)
    for index in range(len(placement.spans)):
        # The decoder needs only the base's bytes of the span that it decodes.
        scratch.load(index, copy.read_span(placement, index))
        yield from _changes(link, placement, decoder, index, index + 1)
        scratch.drop(index)


def fold(copy: FullState, links: Sequence[ChainLink], have: Policy) -> Iterator[bytes]:
    """Yield the parts of one delta from the state `have` to the state to which `links` lead.

    `links` lead from the copy through `have`. Raises: WrongBase if the layout changes on the way, CorruptFrame,
    StorageError.
    """
    sizes = {_same_layout(link, copy.layout) for link in links}
    if len(sizes) > 1:
        raise WrongBase(f"deltas up to {links[-1].opening.policy} have spans of {sorted(sizes)} bytes; send them apart")
    span_bytes = sizes.pop()
    placement = FilePlacement(copy.layout, span_bytes)
    # `now` runs through all links, `before` stays at `have`. The encoder compares the two, one span at a time.
    before, now = SpanScratch(placement), SpanScratch(placement)
    decoders = [_decoder(link, now) for link in links]
    parts = iter(Encoder(before.state, now.state, span_bytes=span_bytes).parts())
    yield next(parts)
    for index in range(len(placement.spans)):
        now.load(index, copy.read_span(placement, index))
        for link, decoder in zip(links, decoders, strict=True):
            # The deltas so far have led to `have`: keep the span as the base of the fold.
            if base_of(link) == have:
                before.load(index, now.span(index).data)
            staged = decoder.feed(link.part(index + 1), index=index + 1)
            assert staged is not None
            staged.write_into(now.arrays)
        yield next(parts)
        before.drop(index)
        now.drop(index)


def full(copy: FullState) -> Iterator[bytes]:
    """Yield the parts of an anchor of the copy. Raises: StorageError."""
    placement = copy.placement
    scratch = SpanScratch(placement)
    parts = iter(Encoder(None, scratch.state).parts())
    yield next(parts)
    for index in range(len(placement.spans)):
        scratch.load(index, copy.read_span(placement, index))
        yield next(parts)
        scratch.drop(index)


def _decoder(link: ChainLink, base: SpanScratch | None) -> Decoder:
    opening = link.opening
    decoder = Decoder(
        None if base is None else base.state,
        max_content_bytes=opening.content_bytes,
        max_parts=link.closing.num_chunks,
        keep=False,
    )
    decoder.feed(link.part(0), index=0)
    return decoder


def _changes(
    link: ChainLink, placement: FilePlacement, decoder: Decoder, first: int = 0, end: int | None = None
) -> Iterator[SpanChanges | None]:
    for index in range(first, len(placement.spans) if end is None else end):
        staged = decoder.feed(link.part(index + 1), index=index + 1)
        if staged is None:
            raise CorruptFrame(f"part {index + 1} of {link.opening} is no span; fetch an anchor")
        start = placement.span_start(index)
        yield span_changes(start, placement.layout, placement.spans[index], staged.updates())


def _same_layout(link: ChainLink, layout: StateLayout) -> int:
    """Return the link's span size, after checking that it keeps the copy's layout. Raises: WrongBase, CorruptFrame."""
    found = head_of(link, layout)
    if found.layout != layout:
        raise WrongBase(f"{link.opening} is a state of another layout; fetch an anchor")
    if link.closing.num_chunks != 1 + layout.num_spans(found.span_bytes):
        raise CorruptFrame(f"{link.opening} has {link.closing.num_chunks} parts, which is not one a span")
    return found.span_bytes
