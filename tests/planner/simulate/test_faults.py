"""Published spot traces become the fraction of a class that is available over time."""

import pytest

from planner.problem.fleet import Fleet, Link, Region
from planner.simulate.faults import Availability, availability_of, ticks_counts, trace_counts, wandering_rates

BAMBOO = [
    {"time_s": "0", "n_instances": "10"},
    {"time_s": "41", "n_instances": "10"},
    {"time_s": "41", "n_instances": "9"},
]
EVENTS = [
    {"time_ms": "0", "event": "add", "node": "node1", "n_nodes": "1"},
    {"time_ms": "60000", "event": "add", "node": "node2", "n_nodes": "2"},
]
RESTARTED = [
    {"timestamp": "2021-12-10 13:07:45", "n_instances": "80"},
    {"timestamp": "2021-12-10 13:09:45", "n_instances": "80"},
    {"timestamp": "2021-12-10 13:08:45", "n_instances": "70"},
    {"timestamp": "2021-12-10 13:10:45", "n_instances": "60"},
]
SAILOR = [{"time_s": "0.0", "n_gpus": "16"}, {"time_s": "630.0", "n_gpus": "10"}]


def test_each_published_shape_of_rows_is_read() -> None:
    assert trace_counts(BAMBOO) == ((0.0, 10.0), (41.0, 10.0), (41.0, 9.0))
    assert trace_counts(EVENTS) == ((0.0, 1.0), (60.0, 2.0))
    assert [count for _, count in trace_counts(RESTARTED)] == [80.0, 80.0, 60.0]
    assert [at_s for at_s, _ in trace_counts([{**row, "timestamp": row["timestamp"] + "Z"} for row in RESTARTED])] == [
        at_s for at_s, _ in trace_counts(RESTARTED)
    ]
    assert trace_counts(SAILOR) == ((0.0, 16.0), (630.0, 10.0))
    assert ticks_counts(195.0, [1, 0, 1]) == ((0.0, 1.0), (195.0, 0.0), (390.0, 1.0))


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="time_s"):
        trace_counts([{"when": "0", "n_nodes": "1"}])
    with pytest.raises(ValueError, match="n_instances"):
        trace_counts([{"time_s": "0", "nodes": "1"}])


def test_counts_become_fractions_from_the_traces_own_start_and_only_changes_count() -> None:
    found = availability_of(((100.0, 10.0), (141.0, 10.0), (141.0, 9.0), (200.0, 9.0), (230.0, 10.0)), "r")
    assert found == (
        Availability(time_s=0.0, subject="r", fraction=1.0),
        Availability(time_s=41.0, subject="r", fraction=0.9),
        Availability(time_s=130.0, subject="r", fraction=1.0),
    )
    assert availability_of(((0.0, 4.0),), "r", most=16)[0].fraction == 0.25


def test_what_is_no_trace_is_refused() -> None:
    for refused in (lambda: availability_of((), "r"), lambda: trace_counts([]), lambda: ticks_counts(0.0, [1.0])):
        with pytest.raises(ValueError, match="spot trace"):
            refused()
    for count in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at least 0"):
            availability_of(((0.0, 4.0), (1.0, count)), "r")


def test_wandering_links_stay_about_what_was_measured_and_follow_the_seed() -> None:
    regions = tuple(Region(name=name, machines=(), fabric_bytes_per_s=1e9) for name in "ab")
    links = tuple(Link(src_region=a, dst_region=b, rtt_s=0.1, bytes_per_s=1e8) for a, b in ("ab", "ba"))
    fleet = Fleet(regions=regions, links=links, gpu_types={})
    turned = Fleet(regions=regions[::-1], links=links[::-1], gpu_types={})
    one = wandering_rates(fleet, 1, 60_000.0)
    factors = [change.factor for change in one if change.src_region == "a"]
    assert 0.9 < sum(factors) / len(factors) < 1.1
    assert min(factors) > 0.3
    assert one == wandering_rates(turned, 1, 60_000.0)
    assert one != wandering_rates(fleet, 2, 60_000.0)
