from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.planner_cases.fleets.drawn import Tables, benchmark_fleets, generated_fleet, scaled_fleet
from bench.planner_cases.fleets.tables.egress import Egress
from bench.planner_cases.fleets.tables.names import cloud_of
from bench.planner_cases.fleets.tables.network import MeasuredNetwork
from bench.planner_cases.fleets.tables.prices import Offer, PriceTable
from planner.files.fleet_file import fleet_of, to_tree
from planner.problem.fleet import Link

_TYPES = (("p4d", "A100-40GB-SXM", 8, 4.0), ("p5", "H100-SXM", 8, 7.0), ("g6", "L4", 1, 0.8), ("g6x", "L4", 4, 1.2))


def tables(num_per_cloud: int = 12) -> Tables:
    """So many regions of each cloud; all pairs are measured but those of the first one of each cloud."""
    places = [f"{cloud}:{cloud}-r{i}" for cloud in ("aws", "azure", "gcp") for i in range(num_per_cloud)]
    links = tuple(
        Link(src_region=a, dst_region=b, rtt_s=0.05, bytes_per_s=1e8 * (1 + len(a) % 3 + len(b) % 5))
        for a, b in permutations(places, 2)
        if not (a.endswith("r0") and b.endswith("r0"))
    )
    offers = tuple(
        Offer(
            region=place,
            instance_type=kind,
            gpu=gpu,
            gpus_per_machine=num,
            usd_per_gpu_hour=usd / (1 + spot),
            is_spot=bool(spot),
            network_bytes_per_s=None if kind == "g6x" else 6.25e9 * num,
        )
        for place in places
        if cloud_of(place) != "azure"
        for kind, gpu, num, usd in _TYPES
        for spot in (0, 1)
    )
    return Tables(
        network=MeasuredNetwork(links=links),
        prices=PriceTable(offers=offers),
        egress=Egress(usd_per_gbyte={}, internet_usd_per_gbyte=dict.fromkeys(places, 0.09)),
    )


TABLES = tables()


@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 2000))
@settings(max_examples=40, deadline=None)
def test_a_generated_fleet_has_what_was_asked_for_and_every_pair_measured(seed: int, regions: int, more: int) -> None:
    fleet = generated_fleet(TABLES, seed=seed, num_regions=regions, num_gpus=regions + more).fleet
    assert (len(fleet.regions), fleet.num_gpus) == (regions, regions + more)
    assert len(fleet.links) == regions * (regions - 1)
    assert all(region.machines for region in fleet.regions)
    assert {machines.gpu for region in fleet.regions for machines in region.machines} == set(fleet.gpu_types)
    assert fleet_of(to_tree(fleet), "f") == fleet


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another() -> None:
    same = [generated_fleet(TABLES, seed=1, num_regions=5, num_gpus=100) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != generated_fleet(TABLES, seed=2, num_regions=5, num_gpus=100)


def test_clouds_take_turns_and_can_be_chosen() -> None:
    names = [region.name for region in generated_fleet(TABLES, seed=0, num_regions=9, num_gpus=90).fleet.regions]
    assert sorted(cloud_of(name) for name in names) == ["aws"] * 3 + ["azure"] * 3 + ["gcp"] * 3
    one = generated_fleet(TABLES, seed=0, num_regions=4, num_gpus=40, clouds=["gcp"])
    assert {cloud_of(region.name) for region in one.fleet.regions} == {"gcp"}


def test_gateways_are_capped_by_the_largest_rate_measured_through_them() -> None:
    fleet = generated_fleet(TABLES, seed=0, num_regions=3, num_gpus=30).fleet
    for region in fleet.regions:
        up = max(link.bytes_per_s for link in TABLES.network.links if link.src_region == region.name)
        assert region.wan_up_bytes_per_s == up


def test_links_across_clouds_cost_what_the_table_says_and_others_are_free_by_a_named_guess() -> None:
    drawn = generated_fleet(TABLES, seed=0, num_regions=4, num_gpus=40)
    prices: dict[bool, set[float]] = {True: set(), False: set()}
    for link in drawn.fleet.links:
        prices[cloud_of(link.src_region) != cloud_of(link.dst_region)].add(link.usd_per_gbyte)
    assert prices == {True: {0.09}, False: {0.0}}
    assert "egress, where no table has a price: free" in drawn.guesses


def test_what_nobody_published_is_a_guess_by_name() -> None:
    guesses = generated_fleet(TABLES, seed=0, num_regions=3, num_gpus=30).guesses
    assert any(guess.startswith("numbers of machines") for guess in guesses)
    assert any(guess.startswith("azure: no price list") for guess in guesses)


@pytest.mark.parametrize(
    ("regions", "gpus", "message"), [(40, 400, "only 34 of 40 regions"), (3, 2, "2 accelerators cannot fill 3 regions")]
)
def test_what_the_tables_cannot_give_is_refused(regions: int, gpus: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generated_fleet(TABLES, seed=0, num_regions=regions, num_gpus=gpus)


def test_the_benchmark_has_twenty_fleets_of_three_to_twenty_regions() -> None:
    fleets = [drawn.fleet for drawn in benchmark_fleets(TABLES)]
    assert len(fleets) == 20
    assert {len(fleet.regions) for fleet in fleets} == set(range(3, 21))
    assert all(fleet.num_gpus == 32 * len(fleet.regions) for fleet in fleets)


@pytest.mark.parametrize(("num_gpus", "num_regions"), [(64, 4), (1024, 16), (10_000, 32)])
def test_scaled_fleets_have_exactly_so_many_accelerators(num_gpus: int, num_regions: int) -> None:
    fleet = scaled_fleet(TABLES, num_gpus).fleet
    assert (fleet.num_gpus, len(fleet.regions)) == (num_gpus, num_regions)
