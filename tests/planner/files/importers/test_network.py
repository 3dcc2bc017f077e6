import pytest

from periplus.errors import ConfigError
from planner.files.importers.names import cloud_of, region_of
from planner.files.importers.network import dtfm, ibm_round_trips, merged, sailor, skyplane_grid, skyplane_runs
from planner.problem.fleet import Link

A, B, C = "aws:us-east-1", "gcp:us-central1-a", "azure:eastus"


def grid_row(src: str, dst: str, gbit: str, rtt_ms: str) -> dict[str, str]:
    return {"src_region": src, "dst_region": dst, "throughput_gbps": gbit, "rtt_ms": rtt_ms}


def sailor_row(src: str, dst: str, gpus: int, gbytes: float, cluster: str = "gcp") -> dict[str, str]:
    return {
        "src_zone": src,
        "dst_zone": dst,
        "src_gpus_per_vm": str(gpus),
        "dst_gpus_per_vm": str(gpus),
        "max_gbytes_per_s": str(gbytes),
        "cluster": cluster,
    }


def test_gigabits_become_bytes_and_milliseconds_seconds() -> None:
    measured = skyplane_grid([grid_row(A, B, "8", "30")])
    assert measured.links == (Link(src_region=A, dst_region=B, rtt_s=0.03, bytes_per_s=1e9),)
    assert measured.places == (A, B)


def test_a_direction_that_lacks_a_measurement_is_absent_and_named() -> None:
    measured = skyplane_grid([grid_row(A, B, "8", ""), grid_row(B, A, "4", "30"), grid_row(A, C, "", "9")])
    assert [(link.src_region, link.dst_region) for link in measured.links] == [(B, A)]
    assert measured.left_out == (
        f"{A} to {C}: no throughput measured",
        f"{A} to {B}: no round trip measured",
    )
    assert measured.rtt_s == {(B, A): 0.03, (A, C): 0.009}


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
    with pytest.raises(ConfigError, match=f"{A} to {B} occurs twice"):
        skyplane_grid([grid_row(A, B, "1", "1"), grid_row(A, B, "2", "1")])


def test_a_table_without_its_columns_is_refused_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match="no column throughput_gbps, rtt_ms; the columns are src_region, dst_region"):
        skyplane_grid([{"src_region": A, "dst_region": B}])
    with pytest.raises(ConfigError, match="no rows"):
        skyplane_grid([])


def test_runs_are_joined_newest_first_and_several_are_a_low_quantile() -> None:
    def run(gbit: float, date: str, tier: str = "PREMIUM", dst: str = B) -> dict[str, str]:
        return {
            "src_region": A,
            "src_tier": tier,
            "dst_region": dst,
            "dst_tier": tier,
            "throughput_gbps": str(gbit),
            "date": date,
        }

    rates = [run(1, "2022-01-29"), run(8, "2022-11-28"), run(16, "2022-11-28"), run(1, "2022-12-01", "STANDARD")]
    rtts = [{"src_region": A, "dst_region": B, "rtt_ms": "20", "date": "2022-04-16"}]
    measured = skyplane_runs([*rates, run(8, "2022-11-28", dst=C)], rtts)
    (link,) = measured.links
    assert link.bytes_per_s == pytest.approx(1.1e9)
    assert (link.bytes_per_s_p50, link.num_samples, link.rtt_s) == (1.5e9, 2, 0.02)
    assert measured.left_out == (f"{A} to {C}: no round trip measured",)


def test_dtfms_pairs_hold_both_ways_under_the_names_of_the_cloud() -> None:
    rows = [
        grid_row("Oregon", "Virginia", "0.8", "67") | {"scenario": "worldwide_10_regions"},
        grid_row("Oregon", "Virginia", "1.1", "67") | {"scenario": "us_4_regions"},
    ]
    links = dtfm(rows).links
    assert [(link.src_region, link.dst_region) for link in links] == [
        ("aws:us-east-1", "aws:us-west-2"),
        ("aws:us-west-2", "aws:us-east-1"),
    ]
    assert {link.bytes_per_s for link in links} == {1e8}
    with pytest.raises(ConfigError, match="no row of scenario 'x'; it has us_4_regions, worldwide_10_regions"):
        dtfm(rows, "x")


def test_sailors_zones_are_joined_with_round_trips_of_their_regions() -> None:
    rows = [
        sailor_row("us-central1-a", "us-west1-b", 1, 0.5),
        sailor_row("us-central1-a", "us-west1-b", 4, 1.0),
        sailor_row("us-central1-a", "us-central1-a", 4, 6.0),
        sailor_row("us-central1-a", "us-central1-b", 4, 6.0),
        sailor_row("us-central1-a", "us-west1-b", 8, 20.0, cluster="on_premise_or_other"),
    ]
    measured = sailor(rows, {("gcp:us-central1-a", "gcp:us-west1-a"): 0.04})
    (link,) = measured.links
    assert (link.src_region, link.dst_region) == ("gcp:us-central1-a", "gcp:us-west1-b")
    assert link.bytes_per_s == 1e9
    assert link.rtt_s == pytest.approx(0.04)
    assert measured.left_out == ("gcp:us-central1-a to gcp:us-central1-b: no round trip measured",)


def test_round_trips_alone_are_no_links() -> None:
    rows = [
        {"src_region": "ibm:Dallas", "dst_region": "ibm:Tokyo", "rtt_ms": ms, "month_ending": month}
        for ms, month in (("120", "2024-05-09"), ("130", "2024-06-09"))
    ]
    measured = ibm_round_trips(rows)
    assert measured.links == ()
    assert measured.rtt_s == {("ibm:Dallas", "ibm:Tokyo"): 0.13}
    assert measured.left_out == ("ibm:Dallas to ibm:Tokyo: no throughput measured",)


def test_of_two_tables_the_later_counts() -> None:
    both = merged([skyplane_grid([grid_row(A, B, "8", "3")]), skyplane_grid([grid_row(A, B, "4", "3")])])
    assert [link.bytes_per_s for link in both.links] == [5e8]


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
