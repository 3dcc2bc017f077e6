"""Grids: the packaged presets, the factor, and what a file may get wrong."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus import errors
from periplus.wan import grid

HEAD = "src_region,dst_region,throughput_gbps,rtt_ms\n"


@given(st.lists(st.floats(1e3, 1e12), max_size=40))
def test_the_factor_is_at_most_one_and_fits_the_sum(rates: list[float]) -> None:
    factor = grid.scale(rates)
    assert 0 < factor <= 1
    assert sum(rates) * factor <= grid.TOTAL_BITS_PER_S * (1 + 1e-9)
    assert factor == 1 or sum(rates) * factor == pytest.approx(grid.TOTAL_BITS_PER_S)


def test_unlimited_rates_need_no_factor() -> None:
    assert grid.scale([math.inf, math.inf]) == 1


@pytest.mark.parametrize("preset", grid.PRESETS)
def test_each_preset_links_its_default_regions_both_ways(preset: str) -> None:
    network = grid.load(preset, grid.DEFAULT_REGIONS[preset])
    assert set(network.links) == set(itertools.permutations(grid.DEFAULT_REGIONS[preset], 2))


def test_the_intercontinental_preset_has_six_regions_and_measured_figures() -> None:
    network = grid.load("intercontinental", ())
    assert len(network.regions) == 6
    assert len(network.links) == 30
    spec = network.links["aws:us-east-1", "azure:westeurope"]
    assert spec.rate_bits_per_s == pytest.approx(4.2131e9 * network.factor)
    assert spec.rtt_s == pytest.approx(0.080432)
    assert sum(spec.rate_bits_per_s for spec in network.links.values()) == pytest.approx(1.5e9)


def test_node_caps_follow_the_cloud_and_are_scaled_alike() -> None:
    network = grid.load("intercontinental", grid.DEFAULT_REGIONS["intercontinental"])
    caps = network.egress_bits_per_s
    assert caps["aws:us-east-1"] == pytest.approx(5e9 * network.factor)
    assert caps["gcp:asia-northeast1-a"] == pytest.approx(7e9 * network.factor)
    assert caps["azure:westeurope"] == math.inf


def test_a_node_cap_is_never_below_a_rate_measured_out_of_the_node() -> None:
    rows = "gcp:a,gcp:b,29.0,30\ngcp:b,gcp:a,29.0,30\n"
    network = grid.choose(grid.parse(HEAD + rows, "x.csv"), (), "x.csv")
    assert network.egress_bits_per_s["gcp:a"] == network.links["gcp:a", "gcp:b"].rate_bits_per_s


def test_an_unknown_region_is_named_with_close_matches() -> None:
    with pytest.raises(errors.ConfigError, match=r"aws:us-est-1.*did you mean aws:us-east-1"):
        grid.load("intercontinental", ("aws:us-est-1", "azure:westeurope"))


def test_a_region_named_twice_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="twice"):
        grid.load("off", ("a", "b", "a"))


@pytest.mark.parametrize(
    ("rows", "lacks"),
    [
        ("a,b,1,\nb,a,1,10\n", "a to b has no measured round-trip time"),
        ("a,b,,10\nb,a,1,10\n", "a to b has no measured throughput"),
        ("a,b,1,10\n", "no row for b to a"),
    ],
)
def test_a_pair_in_use_that_was_not_measured_is_refused(rows: str, lacks: str) -> None:
    with pytest.raises(errors.ConfigError, match=lacks):
        grid.choose(grid.parse(HEAD + rows, "x.csv"), ("a", "b"), "x.csv")


def test_a_gap_between_regions_that_are_not_in_use_is_no_error() -> None:
    rows = "a,b,1,10\nb,a,1,10\na,c,,\nc,c,9,0\n# a remark\n"
    assert set(grid.choose(grid.parse(HEAD + rows, "x.csv"), ("a", "b"), "x.csv").links) == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("src_region,dst_region,rtt_ms\na,b,1\n", "no column 'throughput_gbps'"),
        ("", "no column"),
        (HEAD, "no rows"),
        (HEAD + "a,b,fast,1\n", "line 2: throughput_gbps is 'fast'"),
        ("# note\n" + HEAD + "a,b,0,1\n", "line 3: throughput_gbps is '0'"),
        (HEAD + "a,b,1,-2\n", "line 2: rtt_ms is '-2'"),
        (HEAD + "a,b,inf,2\n", "line 2: throughput_gbps is 'inf'"),
        (HEAD + "a,,1,2\n", "line 2: src_region or dst_region is empty"),
        (HEAD + "a,b,1,2\na,b,1,2\n", "line 3: a to b is there twice"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(text: str, complaint: str) -> None:
    with pytest.raises(errors.ConfigError, match=complaint):
        grid.parse(text, "x.csv")


def test_a_file_that_is_not_there_names_the_presets(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="off, continental, intercontinental"):
        grid.load(str(tmp_path / "none.csv"), ())


def test_a_file_by_path_works(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text(HEAD + "a,b,0.04,100\nb,a,0.01,100\n")
    network = grid.load(str(path), ())
    assert network.factor == 1
    assert network.links["b", "a"].rate_bits_per_s == pytest.approx(1e7)
