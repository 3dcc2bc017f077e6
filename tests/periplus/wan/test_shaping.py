"""The directed link: order, rate, delay, conservation and bounds over generated histories, against a closed form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.wan.shaping import CHUNK_MAX_BYTES, HELD_MAX_BYTES, DirectedLink, LinkSpec, NodeCap

MBIT = 1e6
rates = st.one_of(st.just(math.inf), st.floats(1e4, 1e10))
rtts = st.floats(0, 1)
specs = st.builds(lambda rate, rtt: LinkSpec(rate_bits_per_s=rate, rtt_s=rtt), rates, rtts)
gaps_s = st.floats(0, 0.3)

moves = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, CHUNK_MAX_BYTES), gaps_s),
        st.tuples(st.just("wait"), st.just(0), gaps_s),
        st.tuples(st.just("set"), specs, gaps_s),
        st.tuples(st.just("drop"), st.booleans(), gaps_s),
    ),
    max_size=60,
)


def make(spec: LinkSpec, egress: NodeCap | None = None, ingress: NodeCap | None = None) -> DirectedLink[int]:
    return DirectedLink(spec, egress=egress or NodeCap(), ingress=ingress or NodeCap())


def drain(link: DirectedLink[int], now_s: float) -> tuple[list[int], float]:
    """Let time pass until the link is empty. Return the items in order and the time of the last."""
    items: list[int] = []
    while (next_s := link.next_s()) is not None:
        now_s = max(now_s, next_s)
        items += [item for item, _ in link.due(now_s)]
    return items, now_s


@given(specs, moves)
def test_whatever_happens_items_arrive_once_in_order_and_bytes_are_conserved(spec: LinkSpec, history: list) -> None:  # type: ignore[type-arg]
    link = make(spec)
    now_s, offered, offered_bytes, arrived_bytes = 0.0, 0, 0, 0
    arrived: list[int] = []
    for move, argument, gap_s in history:
        now_s += gap_s
        if move == "offer" and link.room():
            size_bytes = min(argument, link.chunk_bytes)
            link.offer(offered, size_bytes, now_s)
            offered, offered_bytes = offered + 1, offered_bytes + size_bytes
        elif move == "set":
            link.set_spec(argument, now_s)
        elif move == "drop":
            link.set_dropped(argument, now_s)
        due = link.due(now_s)
        assert not (link.dropped and due)
        arrived += [item for item, _ in due]
        arrived_bytes += sum(size_bytes for _, size_bytes in due)
        assert offered_bytes == arrived_bytes + link.queued_bytes + link.line_bytes
        assert link.queued_bytes + link.line_bytes <= HELD_MAX_BYTES
    link.set_dropped(False, now_s)
    rest, _ = drain(link, now_s)
    assert arrived + rest == list(range(offered))
    assert link.queued_bytes == link.line_bytes == 0


@given(specs, st.lists(st.tuples(st.integers(1, CHUNK_MAX_BYTES), gaps_s), min_size=1, max_size=30))
def test_arrivals_follow_the_closed_form_of_a_queue(spec: LinkSpec, offers: list[tuple[int, float]]) -> None:
    link = make(spec)
    offered: list[tuple[float, int]] = []
    now_s = 0.0
    arrivals: list[float] = []

    def play(until_s: float) -> None:
        while (next_s := link.next_s()) is not None and next_s <= until_s:
            arrivals.extend(next_s for _ in link.due(next_s))

    for size_bytes, gap_s in offers:
        now_s += gap_s
        play(now_s)
        if link.room():
            offered.append((now_s, min(size_bytes, link.chunk_bytes)))
            link.offer(len(offered), offered[-1][1], now_s)
    play(math.inf)
    expected = [
        max(
            offered_s + sum(size * 8 / spec.rate_bits_per_s for _, size in offered[first : last + 1])
            for first, (offered_s, _) in enumerate(offered[: last + 1])
        )
        + spec.rtt_s / 2
        for last in range(len(offered))
    ]
    assert arrivals == pytest.approx(expected, abs=1e-6)


@given(st.floats(1e6, 1e9), st.floats(0.0001, 0.004))
def test_a_caller_that_comes_late_loses_no_rate(rate_bits_per_s: float, step_s: float) -> None:
    link = make(LinkSpec(rate_bits_per_s=rate_bits_per_s, rtt_s=0.01))
    now_s, arrived_bytes = 0.0, 0
    while now_s < 0.5:
        while link.room():
            link.offer(0, link.chunk_bytes, now_s)
        now_s += step_s
        arrived_bytes += sum(size_bytes for _, size_bytes in link.due(now_s))
    expected_bytes = rate_bits_per_s / 8 * (now_s - 0.005)
    assert abs(arrived_bytes - expected_bytes) <= 2 * link.chunk_bytes + rate_bits_per_s / 8 * step_s


@given(specs)
def test_the_queue_takes_no_more_than_its_limit(spec: LinkSpec) -> None:
    link = make(spec)
    while link.room():
        link.offer(0, link.chunk_bytes, 0.0)
        assert link.queued_bytes <= link.queue_limit_bytes
    link.offer(0, 0, 0.0)
    with pytest.raises(AssertionError):
        link.offer(0, 1, 0.0)


def test_a_full_queue_holds_fifty_milliseconds() -> None:
    link = make(LinkSpec(rate_bits_per_s=80 * MBIT, rtt_s=0.1))
    assert link.queue_limit_bytes == 500_000
    assert link.chunk_bytes == 50_000


def test_links_that_share_a_node_cap_fill_it_and_the_slow_one_is_not_starved() -> None:
    cap = NodeCap(50 * MBIT)
    fast, slow = (make(LinkSpec(rate_bits_per_s=rate * MBIT), egress=cap) for rate in (50, 10))
    arrived = {fast: 0, slow: 0}
    for tick in range(1, 1001):
        for link in arrived:
            while link.room():
                link.offer(0, link.chunk_bytes, (tick - 1) / 1000)
            arrived[link] += sum(size_bytes for _, size_bytes in link.due(tick / 1000))
    assert sum(arrived.values()) * 8 == pytest.approx(50 * MBIT, rel=0.02)
    assert 8 * MBIT < arrived[slow] * 8 <= 10 * MBIT


def test_a_dropped_link_delivers_nothing_and_sends_again_what_was_on_the_way() -> None:
    link = make(LinkSpec(rate_bits_per_s=8 * MBIT, rtt_s=0.1))
    link.offer(1, 4_000, 0.0)
    assert link.due(0.053) == []
    link.set_dropped(True, 0.053)
    assert link.due(1000.0) == []
    assert link.next_s() is None
    link.set_dropped(False, 10.0)
    assert link.due(10.053) == []
    assert link.due(10.0541) == [(1, 4_000)]


def test_a_faster_rate_applies_to_what_is_on_the_line_at_a_crawl() -> None:
    link = make(LinkSpec(rate_bits_per_s=8))
    link.offer(1, 1_000, 0.0)
    assert link.due(1.0) == []
    link.set_spec(LinkSpec(rate_bits_per_s=8 * MBIT), 1.0)
    assert link.due(1.0011) == [(1, 1_000)]


def test_a_shorter_delay_does_not_overtake() -> None:
    link = make(LinkSpec(rtt_s=1.0))
    link.offer(1, 1, 0.0)
    link.due(0.0)
    link.set_spec(LinkSpec(rtt_s=0.0), 0.1)
    link.offer(2, 1, 0.1)
    assert link.due(0.4) == []
    assert [item for item, _ in link.due(0.5)] == [1, 2]


@pytest.mark.parametrize(("rate", "rtt"), [(0, 0), (-1, 0), (math.nan, 0), (1, -1), (1, math.inf), (1, math.nan)])
def test_a_spec_refuses_what_is_no_rate_or_delay(rate: float, rtt: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        LinkSpec(rate_bits_per_s=rate, rtt_s=rtt)
