from importlib import resources

import pytest

from periplus.errors import ConfigError
from periplus.wan.grid import DEFAULT_REGIONS, OFF, PRESETS
from planner.files.fleet_file import fleet_of, to_tree
from planner.files.importers.assemble import Choice, import_fleet
from planner.files.importers.tables import TableKind, kind_of, rows_of

GRID = """src_region,dst_region,throughput_gbps,rtt_ms,source
aws:us-east-1,gcp:us-central1-a,4,30,x
gcp:us-central1-a,aws:us-east-1,6,30,x
aws:us-east-1,azure:eastus,4,,x
"""
AWS = """InstanceType,AcceleratorName,AcceleratorCount,GpuMemoryGB,vCPUs,MemoryGiB,Network,Price,Region,RegionKind
p4d.24xlarge,A100-40GB,8,40,96,1152,400 Gbps EFA,32,us-east-1,region
g6.xlarge,L4,1,24,4,16,Up to 10 Gigabit,0.8,us-east-1,region
g6.12xlarge,L4,4,24,48,192,40 Gigabit,4.8,us-east-1,region
"""
SPOT = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone
p4d.24xlarge,A100-40GB,8,32,8,us-east-1,use1-az1
"""
GCP = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,date,ZonesInSkyPilotCatalog
g2-standard-96,L4,8,8,3.2,us-central1,2025-12-19,
"""
EGRESS = """src_region,dst_region,usd_per_gb,date
aws:us-east-1,gcp:us-central1-a,0.09,2023-02-06
"""
ALL = {"grid.csv": GRID, "aws.csv": AWS, "spot.csv": SPOT, "gcp.csv": GCP, "egress.csv": EGRESS}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (GRID, TableKind.GRID),
        (AWS, TableKind.AWS_PRICES),
        (SPOT, TableKind.AWS_SPOT),
        (GCP, TableKind.GCP_PRICES),
        (EGRESS, TableKind.EGRESS),
        ("\ufeff" + GRID, TableKind.GRID),
        ("src_region,dst_region,throughput_gbps,rtt_ms,scenario,source\n", TableKind.DTFM),
        ("src_region,dst_region,rtt_ms,month_ending,source\n", TableKind.IBM),
        ("src_region,dst_region,usd_per_gb\n", TableKind.AWS_EGRESS),
        ("src_region,destination,tier_tib_per_month,usd_per_gib\n", TableKind.GCP_EGRESS),
        ("src_region,src_tier,dst_region,dst_tier,throughput_gbps,sent_gbps,date\n", TableKind.THROUGHPUT),
        ("src_region,src_tier,dst_region,dst_tier,rtt_ms,rtt_min_ms,date\n", TableKind.ROUND_TRIPS),
        ("src_zone,src_gpu,dst_zone,max_gbytes_per_s,cluster\n", TableKind.SAILOR),
        ("Provider,InstanceType,AcceleratorName,Price,SpotPrice,Region,AvailabilityZone\n", TableKind.NEOCLOUDS),
    ],
)
def test_tables_are_known_by_their_headers(text: str, kind: TableKind) -> None:
    assert kind_of(text, "file") is kind


def test_an_unknown_table_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ConfigError, match=r"x.csv: begins with 'a,b', which is no table that is known; .*network grid:"
    ):
        kind_of("a,b\n1,2\n", "x.csv")


def test_an_empty_file_is_called_empty() -> None:
    with pytest.raises(ConfigError, match=r"^x\.csv: is empty$"):
        kind_of("\ufeff\n", "x.csv")


def test_comment_lines_of_a_table_are_no_rows() -> None:
    commented = "# where this is from\n\n#a,b\n" + GRID.replace(
        "\naws:us-east-1,azure", "\n# left out:\naws:us-east-1,azure"
    )
    assert kind_of(commented, "x.csv") is TableKind.GRID
    assert rows_of(commented, "x.csv") == rows_of(GRID, "x.csv")
    with pytest.raises(ConfigError, match=r"^x\.csv: is empty$"):
        kind_of("# nothing but a comment\n", "x.csv")


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != OFF])
def test_the_emulators_own_grids_are_networks_of_a_fleet(preset: str) -> None:
    text = resources.files("periplus.wan").joinpath("grids", f"{preset}.csv").read_text(encoding="utf-8")
    regions = DEFAULT_REGIONS[preset]
    assert kind_of(text, "grid.csv") in (TableKind.GRID, TableKind.DTFM)
    rows = rows_of(text, "grid.csv")
    assert {*regions} <= {row["src_region"] for row in rows}
    assert all(float(row["throughput_gbps"] or 1) > 0 for row in rows)


def test_what_is_wrong_in_a_table_comes_with_its_file() -> None:
    with pytest.raises(ConfigError, match=r"^aws\.csv: aws:us-east-1, g6\.xlarge: Price is 'a lot'"):
        import_fleet({"aws.csv": AWS.replace(",0.8,", ",a lot,")})


def test_a_region_that_no_table_has_is_named_also_where_they_have_none() -> None:
    with pytest.raises(ConfigError, match=r"no table has the region mars; they have none$"):
        import_fleet({"egress.csv": EGRESS}, Choice(regions=("mars",)))


def test_a_torn_table_is_refused_with_its_row() -> None:
    with pytest.raises(ConfigError, match=r"x\.csv, row 2: has not as many values as the header"):
        rows_of("a,b\n1,2\n3\n", "x.csv")


def test_a_fleet_joins_networks_machines_and_prices_whatever_they_call_a_region() -> None:
    imported = import_fleet(ALL, Choice(num_machines=3))
    aws, gcp = imported.fleet.regions
    assert (aws.name, gcp.name) == ("aws:us-east-1", "gcp:us-central1-a")
    assert [(m.gpu, m.gpus_per_machine, m.num_machines, m.usd_per_gpu_hour, m.is_spot) for m in aws.machines] == [
        ("A100-40GB-SXM", 8, 3, 4.0, False),
        ("A100-40GB-SXM", 8, 3, 1.0, True),
        ("L4", 4, 3, 1.2, False),
    ]
    assert [(m.usd_per_gpu_hour, m.is_spot) for m in gcp.machines] == [(1.0, False), (0.4, True)]
    assert aws.fabric_bytes_per_s == 6.25e9
    assert [(link.bytes_per_s, link.usd_per_gbyte) for link in imported.fleet.links] == [(5e8, 0.09), (7.5e8, 0.0)]
    assert "aws:us-east-1 to azure:eastus: no round trip measured" in imported.left_out
    assert "gcp:us-central1-a to aws:us-east-1: no egress price, taken as free" in imported.left_out
    assert any(guess.startswith("numbers of machines: 3") for guess in imported.guesses)
    assert fleet_of(to_tree(imported.fleet), "f") == imported.fleet


def test_a_choice_narrows_regions_accelerators_and_spot() -> None:
    choice = Choice(regions=["gcp:us-central1"], gpus=["L4"], with_spot=False)
    (region,) = import_fleet(ALL, choice).fleet.regions
    assert [(m.gpu, m.is_spot) for m in region.machines] == [("L4", False)]
    with pytest.raises(ConfigError, match="no table has the region mars; they have aws:us-east-1"):
        import_fleet(ALL, Choice(regions=["mars"]))
    with pytest.raises(ConfigError, match="'L44' is no known accelerator"):
        import_fleet(ALL, Choice(gpus=["L44"]))


def test_nothing_is_said_of_regions_that_nobody_asked_for() -> None:
    tables = ALL | {
        "aws.csv": AWS + "x,K80,1,12,4,16,10 Gigabit,1,us-east-1-atl-1,local\nx,K80,1,12,4,16,,1,us-east-1,region\n"
    }
    told = import_fleet(tables).left_out
    assert "aws:us-east-1 to azure:eastus: no round trip measured" in told
    assert {"aws: no facts are known of K80", "aws:us-east-1-atl-1: not an ordinary region"} <= {*told}
    told = import_fleet(tables, Choice(regions=["aws:us-east-1", "gcp:us-central1"])).left_out
    assert told == (
        "aws: no facts are known of K80",
        "gcp:us-central1-a to aws:us-east-1: no egress price, taken as free",
    )
    assert import_fleet(tables, Choice(regions=["aws:us-east-1"], gpus=["L4"])).left_out == ()


def test_an_asked_region_without_machines_is_named_with_the_reason() -> None:
    both = ("aws:us-east-1", "gcp:us-central1")
    told = import_fleet(ALL, Choice(regions=both, gpus=["A100-40GB"])).left_out
    assert told == ("gcp:us-central1-a: no such accelerator in the price lists; they have L4",)
    fleet = {"grid.csv": GRID, "aws.csv": AWS}
    assert import_fleet(fleet, Choice(regions=both)).left_out == (
        "gcp:us-central1-a: no machines there in the price lists",
    )
    spot = {"grid.csv": GRID, "aws.csv": AWS, "gcp.csv": GCP.replace(",8,3.2,", ",,3.2,")}
    assert import_fleet(spot, Choice(regions=both, with_spot=False)).left_out == (
        "gcp:us-central1-a: spot machines only",
    )
    with pytest.raises(ConfigError, match=r"no region has machines: .*\ngcp:us-central1-a: no such accelerator"):
        import_fleet(ALL, Choice(regions=["gcp:us-central1"], gpus=["T4"]))
    with pytest.raises(ConfigError, match=r"\naws:us-east-1: no machines, since no price list was given"):
        import_fleet({"grid.csv": GRID}, Choice(regions=["aws:us-east-1"]))


def test_a_fleet_without_links_says_that_no_plan_will_cross_regions() -> None:
    ibm = "src_region,dst_region,rtt_ms,month_ending\nibm:Dallas,ibm:Tokyo,130,2026-07\n"
    imported = import_fleet({"ibm.csv": ibm, "aws.csv": AWS, "gcp.csv": GCP})
    assert imported.fleet.links == ()
    assert imported.left_out[0].startswith(
        "links: 0 between these regions, so no plan will cross them; add a table with"
    )
    assert imported.left_out[0].endswith("round trips; the tables have in 1 of their directions no throughput measured")
    assert not any("links: 0" in each for each in import_fleet({"aws.csv": AWS}).left_out)


def test_a_region_whose_round_trips_are_missing_is_in_the_tables_and_no_link_reaches_it() -> None:
    grid = GRID + "aws:us-east-1,aws:eu-west-3,5,,x\naws:eu-west-3,aws:us-east-1,5,,x\n"
    aws = AWS + AWS.splitlines()[-1].replace("us-east-1", "eu-west-3") + "\n"
    imported = import_fleet({"grid.csv": grid, "aws.csv": aws}, Choice(regions=["aws:eu-west-3"]))
    assert [region.name for region in imported.fleet.regions] == ["aws:eu-west-3"]
    assert any(
        each.startswith("aws:eu-west-3: no link reaches it, since most of its directions have no round trip measured")
        for each in imported.left_out
    )


def test_a_network_that_nobody_states_is_shared_by_the_devices_and_said_to_be() -> None:
    imported = import_fleet({"aws.csv": AWS.replace("40 Gigabit", "fast")})
    assert any("100 Gbit/s a machine, shared by its devices" in guess for guess in imported.guesses)
    (region,) = imported.fleet.regions
    assert [m.network_bytes_per_s for m in region.machines if m.gpu == "L4"] == [100e9 / 8 / 4]


def test_prices_alone_make_regions_without_links() -> None:
    fleet = import_fleet({"aws.csv": AWS, "gcp.csv": GCP}).fleet
    assert [region.name for region in fleet.regions] == ["aws:us-east-1", "gcp:us-central1"]
    assert fleet.links == ()


def test_a_network_alone_is_no_fleet() -> None:
    with pytest.raises(ConfigError, match=r"no region has machines: give a price list beside grid\.csv"):
        import_fleet({"grid.csv": GRID})


def test_throughput_and_round_trips_make_links_only_together() -> None:
    rates = "src_region,dst_region,throughput_gbps,date\naws:us-east-1,gcp:us-central1-a,8,2022-11-28\n"
    rtts = "src_region,dst_region,rtt_ms,date\naws:us-east-1,gcp:us-central1-a,30,2022-04-16\n"
    prices = {"aws.csv": AWS, "gcp.csv": GCP}
    assert len(import_fleet({"a": rates, "b": rtts, **prices}).fleet.links) == 1
    with pytest.raises(ConfigError, match="only together; give both tables"):
        import_fleet({"a": rates, **prices})
