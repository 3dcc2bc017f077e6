"""Shared links: fair rates, caps, relays, links whose rates change, and queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem.fleet import Fleet, Link, Region
from planner.simulate.event_queue import EventQueue
from planner.simulate.faults import NONE, Faults, RateChange
from planner.simulate.network.links import Links


def region(name: str, *, up: float | None = None, down: float | None = None, is_public: bool = True) -> Region:
    return Region(
        name=name,
        machines=(),
        fabric_bytes_per_s=1e9,
        wan_up_bytes_per_s=up,
        wan_down_bytes_per_s=down,
        is_public=is_public,
    )


def link(src: str, dst: str, rate: float, rtt_s: float = 0.0) -> Link:
    return Link(src_region=src, dst_region=dst, rtt_s=rtt_s, bytes_per_s=rate)


def fleet(regions: list[Region], links: list[Link]) -> Fleet:
    return Fleet(regions=tuple(regions), links=tuple(links), gpu_types={})


def run_flows(
    fleet: Fleet, sends: list[tuple[float, str, str, float]], faults: Faults = NONE
) -> tuple[list[float], Links]:
    """Ends of publications that begin at given times."""
    events = EventQueue()
    links = Links(fleet, events, faults)
    ended = [0.0] * len(sends)

    def begin(i: int) -> None:
        _, src, dst, size = sends[i]
        links.publish(src, dst, size, lambda: ended.__setitem__(i, events.now_s))

    for i, (begin_s, *_) in enumerate(sends):
        events.at(begin_s, lambda i=i: begin(i))  # type: ignore[misc]
    while events.step():
        pass
    return ended, links


def test_alone_a_publication_takes_its_bytes_over_the_link_and_half_a_round_trip() -> None:
    world = fleet([region("a"), region("b")], [link("a", "b", 100.0, rtt_s=0.2)])
    ended, links = run_flows(world, [(1.0, "a", "b", 500.0)])
    assert ended == [pytest.approx(1.0 + 5.0 + 0.1)]
    assert links.sent_bytes["a", "b"] == pytest.approx(500.0)
    assert links.busy_s["a", "b"] == pytest.approx(5.0)


def test_two_that_leave_together_share_the_uplink_and_the_rest_is_the_laters() -> None:
    world = fleet([region("a", up=100.0), region("b"), region("c")], [link("a", "b", 80.0), link("a", "c", 80.0)])
    ended, _ = run_flows(world, [(0.0, "a", "b", 100.0), (0.0, "a", "c", 260.0)])
    assert ended == [pytest.approx(2.0), pytest.approx(2.0 + 160.0 / 80.0)]


def test_a_slow_links_share_goes_to_the_others() -> None:
    world = fleet([region("a", up=100.0), region("b"), region("c")], [link("a", "b", 10.0), link("a", "c", 500.0)])
    ended, _ = run_flows(world, [(0.0, "a", "b", 10.0), (0.0, "a", "c", 90.0)])
    assert ended == [pytest.approx(1.0), pytest.approx(1.0)]


@given(
    st.lists(st.floats(1.0, 50.0), min_size=1, max_size=6),
    st.floats(5.0, 200.0),
    st.lists(st.floats(10.0, 1000.0), min_size=6, max_size=6),
)
def test_no_byte_is_lost_and_no_cap_exceeded(rates: list[float], up: float, sizes: list[float]) -> None:
    names = [f"r{i}" for i in range(len(rates))]
    world = fleet(
        [region("home", up=up), *map(region, names)],
        [link("home", name, rate) for name, rate in zip(names, rates, strict=True)],
    )
    ended, links = run_flows(world, [(0.0, "home", name, size) for name, size in zip(names, sizes, strict=False)])
    for end, name, rate, size in zip(ended, names, rates, sizes, strict=False):
        assert links.sent_bytes["home", name] == pytest.approx(size, rel=1e-6)
        assert end >= size / rate * (1 - 1e-6)
    assert max(ended) >= sum(sizes[: len(rates)]) / up * (1 - 1e-6)
    alone = max(size / rate for rate, size in zip(rates, sizes, strict=False))
    assert max(ended) <= (alone + sum(sizes[: len(rates)]) / up) * (1 + 1e-6)


def test_two_regions_that_cannot_be_dialled_meet_in_the_third_that_leaves_the_most() -> None:
    hidden = [region("a", is_public=False), region("b", is_public=False)]
    world = fleet(
        [*hidden, region("slow"), region("fast")],
        [
            link("a", "b", 1e9),
            link("a", "slow", 10.0),
            link("slow", "b", 90.0),
            link("a", "fast", 50.0),
            link("fast", "b", 40.0),
        ],
    )
    ended, links = run_flows(world, [(0.0, "a", "b", 400.0)])
    assert ended == [pytest.approx(10.0)]
    assert links.path("a", "b") == (("a", "fast"), ("fast", "b"))


def test_regions_without_a_way_are_refused() -> None:
    world = fleet([region("a"), region("b")], [])
    with pytest.raises(ValueError, match="no route from a to b"):
        Links(world, EventQueue(), NONE).path("a", "b")


def test_a_link_that_slows_down_slows_what_is_on_it() -> None:
    world = fleet([region("a"), region("b")], [link("a", "b", 100.0)])
    faults = Faults(rates=(RateChange(time_s=1.0, src_region="a", dst_region="b", factor=0.5),))
    ended, _ = run_flows(world, [(0.0, "a", "b", 200.0)], faults)
    assert ended == [pytest.approx(1.0 + 100.0 / 50.0)]


def test_trajectories_of_a_pair_queue() -> None:
    world = fleet([region("a"), region("b")], [link("a", "b", 100.0, rtt_s=0.2)])
    links = Links(world, EventQueue(), NONE)
    assert links.send_s("a", "b", 100.0) == pytest.approx(1.1)
    assert links.send_s("a", "b", 50.0) == pytest.approx(1.6)
    assert links.send_s("a", "a", 1e9) == pytest.approx(1.0, rel=1e-3)


def test_what_a_dead_link_carries_waits_until_it_is_back() -> None:
    world = fleet([region("a"), region("b")], [link("a", "b", 100.0)])
    down, up = (
        RateChange(time_s=at_s, src_region="a", dst_region="b", factor=f) for at_s, f in ((1.0, 0.0), (5.0, 0.5))
    )
    sends = [(0.0, "a", "b", 150.0)]
    ended, links = run_flows(world, sends, Faults(rates=(up, down)))
    assert ended == [pytest.approx(5.0 + 50.0 / 50.0)]
    assert links.down == ()
    ended, links = run_flows(world, sends, Faults(rates=(down,)))
    assert ended == [0.0]
    assert links.down == (("a", "b"),)


def test_trajectories_wait_at_a_dead_link_and_follow_its_rate() -> None:
    world = fleet([region("a"), region("b", down=80.0)], [link("a", "b", 100.0)])
    changes = tuple(
        RateChange(time_s=at_s, src_region="a", dst_region="b", factor=f) for at_s, f in ((1.0, 0.0), (5.0, 0.5))
    )
    links = Links(world, EventQueue(), Faults(rates=changes))
    assert links.send_s("a", "b", 80.0) == pytest.approx(1.0)
    assert links.send_s("a", "b", 100.0) == pytest.approx(5.0 + 2.0)
    assert links.busy_s["a", "b"] == pytest.approx(7.0)
    dead = Links(world, EventQueue(), Faults(rates=changes[:1]))
    assert dead.send_s("a", "b", 160.0) == float("inf")
    assert dead.send_s("a", "b", 1.0) == float("inf")
    assert not dead.sent_bytes
