from typing import Any

import pytest

from bench.planner_cases.fleets.tables import egress, prices
from periplus.errors import ConfigError
from planner.problem.fleet import Link


def instance(kind: str, gpu: str, count: int, price: str, region: str, **more: str) -> dict[str, str]:
    row = {"InstanceType": kind, "AcceleratorName": gpu, "AcceleratorCount": str(count), "Price": price}
    return row | {"Region": region} | more


def aws(kind: str, gpu: str, count: int, price: str, region: str = "us-east-1", **more: str) -> dict[str, str]:
    return instance(kind, gpu, count, price, region, **({"RegionKind": "region", "Network": "High"} | more))


def gcp(kind: str, price: str, spot: str, date: str, zones: str = "2", region: str = "us-central1") -> dict[str, str]:
    return instance(kind, "L4", 8, price, region, SpotPrice=spot, date=date, ZonesInSkyPilotCatalog=zones)


def test_prices_are_of_one_accelerator_and_networks_of_the_machine() -> None:
    (offer,) = prices.aws_on_demand([aws("p4d.24xlarge", "A100-40GB", 8, "32", Network="400 Gbps EFA")]).offers
    assert (offer.region, offer.gpu, offer.gpus_per_machine) == ("aws:us-east-1", "A100-40GB-SXM", 8)
    assert (offer.usd_per_gpu_hour, offer.network_bytes_per_s) == (4.0, 50e9)
    machines = offer.machines(3)
    assert (machines.num_gpus, machines.network_bytes_per_s, machines.usd_per_gpu_hour) == (24, 6.25e9, 4.0)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("Up to 25 Gigabit", 25e9 / 8), ("3200 Gbps EFAv2", 400e9), ("High", None)],
)
def test_networks_are_read_from_their_texts(text: str, rate: float | None) -> None:
    (offer,) = prices.aws_on_demand([aws("x", "L4", 1, "1", Network=text)]).offers
    assert offer.network_bytes_per_s == rate


def test_what_is_no_ordinary_region_or_unknown_is_left_out() -> None:
    rows = [
        aws("g6.xlarge", "L4", 1, "1", "us-east-1-atl-1", RegionKind="local_or_wavelength_zone"),
        aws("p2.xlarge", "K80", 1, "1"),
    ]
    (offer,) = prices.aws_on_demand([*rows, aws("g6.xlarge", "L4", 1, "1")]).offers
    assert (offer.region, offer.gpu) == ("aws:us-east-1", "L4")


def test_spot_without_a_discount_or_a_price_is_no_spot_and_the_cheapest_zone_speaks() -> None:
    def row(price: str, spot: str, zone: str, region: str = "us-east-1") -> dict[str, str]:
        return instance("p4d.24xlarge", "A100-40GB", 8, price, region, SpotPrice=spot, AvailabilityZone=zone)

    rows = [row("32", "16", "a"), row("32", "8", "b"), row("32", "32", "c"), row("32", "", "d", "eu-west-1")]
    offers = prices.aws_spot(rows).offers
    assert [(o.region, o.is_spot, o.usd_per_gpu_hour) for o in offers] == [
        ("aws:eu-west-1", False, 4.0),
        ("aws:us-east-1", False, 4.0),
        ("aws:us-east-1", True, 1.0),
    ]


def test_gcps_newest_prices_count_where_the_machine_is_offered() -> None:
    rows = [
        gcp("g2-standard-96", "9", "", "2023-03-23"),
        gcp("g2-standard-96", "8", "4", "2025-12-19"),
        gcp("g2-standard-96", "8", "4", "2025-12-19", zones="0", region="us-west9"),
        gcp("g2-standard-96", "8", "", "2025-12-19", zones="", region="us-west4"),
    ]
    found = prices.gcp(rows)
    assert [(o.region, o.is_spot, o.usd_per_gpu_hour) for o in found.offers] == [
        ("gcp:us-central1", False, 1.0),
        ("gcp:us-central1", True, 0.5),
        ("gcp:us-west4", False, 1.0),
    ]
    assert found.offers[0].network_bytes_per_s == 12.5e9
    assert any("whether a region offers g2-standard is not known" in guess for guess in found.guesses)


def test_neoclouds_keep_their_names_apart() -> None:
    rows = [instance("h100", "H100", 8, "24", "eu-north1", SpotPrice="", Provider=name) for name in ("nebius", "verda")]
    assert [offer.region for offer in prices.neoclouds(rows).offers] == ["nebius:eu-north1", "verda:eu-north1"]


def test_a_type_without_a_price_is_not_offered() -> None:
    assert prices.aws_on_demand([aws("x", "L4", 1, "")]).offers == ()


@pytest.mark.parametrize("count", ["0", "1.5", "", "many"])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(ConfigError, match="AcceleratorCount is"):
        prices.aws_on_demand([aws("x", "L4", 1, "1") | {"AcceleratorCount": count}])


def test_one_lists_network_holds_for_another_lists_prices() -> None:
    on_demand = prices.aws_on_demand([aws("p4d.24xlarge", "A100-40GB", 8, "32", Network="400 Gbps EFA")])
    spot = prices.aws_spot(
        [instance("p4d.24xlarge", "A100-40GB", 8, "30", "us-east-1", SpotPrice="8", AvailabilityZone="a")]
    )
    offers = prices.merged([spot, on_demand]).offers
    assert [(o.is_spot, o.usd_per_gpu_hour, o.network_bytes_per_s) for o in offers] == [
        (False, 4.0, 50e9),
        (True, 1.0, 50e9),
    ]


def pair(src: str, dst: str, usd: str, **more: str) -> dict[str, str]:
    return {"src_region": src, "dst_region": dst, "usd_per_gb": usd} | more


def test_the_newest_price_of_a_pair_counts() -> None:
    rows = [pair("aws:a", "gcp:b", "0.09", date="2023-02-06"), pair("aws:a", "gcp:b", "0.12", date="2022-05-10")]
    assert egress.skyplane(rows).price("aws:a", "gcp:b") == 0.09


def test_other_clouds_are_the_internet_and_regions_stand_for_their_zones() -> None:
    aws_prices = egress.aws([pair("us-east-1", "internet", "0.09"), pair("us-east-1", "eu-west-1", "0.02")])
    row = {"src_region": "us-central1", "destination": "internet_worldwide", "tier_tib_per_month": "0-1"}
    later = row | {"tier_tib_per_month": "1-10", "usd_per_gib": "0.11"}
    gcp_prices = egress.gcp_internet([row | {"usd_per_gib": "0.12"}, later])
    known = egress.merged([aws_prices, gcp_prices])
    assert known.price("aws:us-east-1", "aws:eu-west-1") == 0.02
    assert known.price("aws:us-east-1", "gcp:us-central1-a") == 0.09
    assert known.price("gcp:us-central1-a", "aws:us-east-1") == pytest.approx(0.12 * 1e9 / 2**30)
    assert known.price("gcp:us-central1-a", "gcp:us-west1-a") is None
    assert known.price("azure:eastus", "aws:us-east-1") is None


def test_a_link_of_unknown_price_stays_free() -> None:
    def link(**more: Any) -> Link:
        return Link(src_region="aws:a", dst_region="aws:b", rtt_s=0.1, bytes_per_s=1.0, **more)

    known = egress.Egress(usd_per_gbyte={("aws:a", "aws:b"): 0.02}, internet_usd_per_gbyte={})
    assert egress.with_prices([link()], known) == (link(usd_per_gbyte=0.02),)
    assert egress.with_prices([link()], egress.merged([])) == (link(),)
