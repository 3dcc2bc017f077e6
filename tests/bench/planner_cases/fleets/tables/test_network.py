import pytest

from bench.planner_cases.fleets.tables.names import cloud_of, region_of
from bench.planner_cases.fleets.tables.network import skyplane_grid
from periplus.errors import ConfigError
from planner.problem.fleet import Link

A, B, C = "aws:us-east-1", "gcp:us-central1-a", "azure:eastus"


def grid_row(src: str, dst: str, gbit: str, rtt_ms: str) -> dict[str, str]:
    return {"src_region": src, "dst_region": dst, "throughput_gbps": gbit, "rtt_ms": rtt_ms}


def test_gigabits_become_bytes_and_milliseconds_seconds() -> None:
    measured = skyplane_grid([grid_row(A, B, "8", "30")])
    assert measured.links == (Link(src_region=A, dst_region=B, rtt_s=0.03, bytes_per_s=1e9),)
    assert measured.places == (A, B)


@pytest.mark.parametrize(
    "row",
    [grid_row(A, B, "8", ""), grid_row(A, B, "", "9"), grid_row(A, B, "", ""), grid_row(A, B, "0", "9")],
)
def test_a_direction_that_lacks_a_measurement_is_absent_whatever_the_opposite_one_has(row: dict[str, str]) -> None:
    measured = skyplane_grid([row, grid_row(B, A, "4", "30")])
    assert [(link.src_region, link.dst_region) for link in measured.links] == [(B, A)]


def test_what_was_measured_within_one_region_is_no_link() -> None:
    assert skyplane_grid([grid_row(A, A, "8", "1")]).links == ()


def test_no_answer_depends_on_the_order_of_rows() -> None:
    rows = [grid_row(A, B, "8", "3"), grid_row(B, A, "4", "30"), grid_row(A, C, "", "9")]
    assert skyplane_grid(rows) == skyplane_grid(rows[::-1])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (grid_row(A, B, "-1", "3"), f"{A} to {B}: throughput_gbps is '-1', but must be a finite number from 0"),
        (grid_row(A, B, "nan", "3"), "throughput_gbps is 'nan', but must be a finite number"),
        (grid_row(A, B, "1", "inf"), "rtt_ms is 'inf', but must be a finite number"),
        (grid_row(A, B, "fast", "3"), "throughput_gbps is 'fast', but must be a number or empty"),
    ],
)
def test_a_cell_that_is_no_measurement_is_refused_by_name(row: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        skyplane_grid([row])


def test_a_direction_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"{A} to {B}: occurs twice"):
        skyplane_grid([grid_row(A, B, "1", "1"), grid_row(A, B, "2", "1")])


def test_a_table_without_its_columns_is_refused_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match="no column throughput_gbps, rtt_ms; the columns are src_region, dst_region"):
        skyplane_grid([{"src_region": A, "dst_region": B}])
    with pytest.raises(ConfigError, match="no rows"):
        skyplane_grid([])


def test_links_among_some_places_end_at_these_alone() -> None:
    measured = skyplane_grid([grid_row(A, B, "8", "3"), grid_row(B, C, "8", "3")])
    assert [link.dst_region for link in measured.among([A, B])] == [B]


@pytest.mark.parametrize(
    ("place", "region", "cloud"),
    [
        ("gcp:us-central1-a", "gcp:us-central1", "gcp"),
        ("gcp:us-central1", "gcp:us-central1", "gcp"),
        ("gcp:northamerica-northeast2-a", "gcp:northamerica-northeast2", "gcp"),
        ("aws:us-east-1", "aws:us-east-1", "aws"),
        ("aws:us-east-1a", "aws:us-east-1", "aws"),
        ("aws:us-gov-east-1b", "aws:us-gov-east-1", "aws"),
        ("azure:eastus", "azure:eastus", "azure"),
        ("ibm:Washington DC", "ibm:Washington DC", "ibm"),
        ("attic", "attic", ""),
    ],
)
def test_zones_are_joined_to_their_regions(place: str, region: str, cloud: str) -> None:
    assert (region_of(place), cloud_of(place)) == (region, cloud)
