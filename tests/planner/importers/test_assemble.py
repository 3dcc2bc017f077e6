import pytest

from periplus.errors import ConfigError
from planner.fleet_file import fleet_of, to_tree
from planner.importers.assemble import Choice, import_fleet
from planner.importers.tables import Kind, kind_of, rows_of

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
SMI = "GPU 0: NVIDIA L40S (UUID: GPU-0)\nGPU 1: NVIDIA L40S (UUID: GPU-1)\n"
TOPO = """\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\t0-23\t0
GPU1\tSYS\t X \t0-23\t0
"""
ALL = {"grid.csv": GRID, "aws.csv": AWS, "spot.csv": SPOT, "gcp.csv": GCP, "egress.csv": EGRESS}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (GRID, Kind.GRID), (AWS, Kind.AWS_PRICES), (SPOT, Kind.AWS_SPOT), (GCP, Kind.GCP_PRICES),
        (EGRESS, Kind.EGRESS), (SMI, Kind.NVIDIA_SMI), (TOPO, Kind.TOPOLOGY), ("\ufeff" + GRID, Kind.GRID),
        ("name, memory.total [MiB]\nNVIDIA L4, 23034 MiB\n", Kind.NVIDIA_SMI),
        ("NVIDIA L4, 23034 MiB\n", Kind.NVIDIA_SMI),
        ("src_region,dst_region,throughput_gbps,rtt_ms,scenario,source\n", Kind.DTFM),
        ("src_region,dst_region,rtt_ms,month_ending,source\n", Kind.IBM),
        ("src_region,dst_region,usd_per_gb\n", Kind.AWS_EGRESS),
        ("src_region,destination,tier_tib_per_month,usd_per_gib\n", Kind.GCP_EGRESS),
        ("src_region,src_tier,dst_region,dst_tier,throughput_gbps,sent_gbps,date\n", Kind.THROUGHPUT),
        ("src_region,src_tier,dst_region,dst_tier,rtt_ms,rtt_min_ms,date\n", Kind.ROUND_TRIPS),
        ("src_zone,src_gpu,dst_zone,max_gbytes_per_s,cluster\n", Kind.SAILOR),
        ("Provider,InstanceType,AcceleratorName,Price,SpotPrice,Region,AvailabilityZone\n", Kind.NEOCLOUDS),
    ],
)  # fmt: skip
def test_tables_are_known_by_their_headers(text: str, kind: Kind) -> None:
    assert kind_of(text, "file") is kind


def test_an_unknown_table_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ConfigError, match=r"x.csv: begins with 'a,b', which is no table that is known; .*network grid:"
    ):
        kind_of("a,b\n1,2\n", "x.csv")


def test_a_torn_table_is_refused_with_its_row() -> None:
    with pytest.raises(ConfigError, match=r"x\.csv, row 2: has not as many values as the header"):
        rows_of("a,b\n1,2\n3\n", "x.csv")


def test_a_fleet_joins_networks_machines_and_prices_whatever_they_call_a_region() -> None:
    imported = import_fleet(ALL, Choice(num_machines=3))
    aws, gcp = imported.fleet.regions
    assert (aws.name, gcp.name) == ("aws:us-east-1", "gcp:us-central1-a")
    assert [(m.gpu, m.gpus_per_machine, m.num_machines, m.usd_per_gpu_hour, m.is_spot) for m in aws.machines] == [
        ("A100-40GB-SXM", 8, 3, 4.0, False), ("A100-40GB-SXM", 8, 3, 1.0, True), ("L4", 4, 3, 1.2, False),
    ]  # fmt: skip
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


def test_machines_at_hand_are_a_region_and_join_a_cloud_where_they_are_said_to_be() -> None:
    (region,) = import_fleet({"smi.txt": SMI, "topo.txt": TOPO}).fleet.regions
    assert (region.name, region.machines[0].gpus_per_machine) == ("local", 2)
    fleet = import_fleet(ALL | {"smi.txt": SMI}, Choice(home_region="aws:us-east-1")).fleet
    aws = fleet.region("aws:us-east-1")
    assert aws is not None
    assert "L40S" in {machines.gpu for machines in aws.machines}


def test_prices_alone_make_regions_without_links() -> None:
    fleet = import_fleet({"aws.csv": AWS, "gcp.csv": GCP}).fleet
    assert [region.name for region in fleet.regions] == ["aws:us-east-1", "gcp:us-central1"]
    assert fleet.links == ()


def test_a_network_alone_is_no_fleet() -> None:
    with pytest.raises(ConfigError, match="no region has machines: give a price list or nvidia-smi's output"):
        import_fleet({"grid.csv": GRID})


def test_two_topologies_are_refused() -> None:
    with pytest.raises(ConfigError, match="two outputs of nvidia-smi topo -m"):
        import_fleet({"smi.txt": SMI, "a": TOPO, "b": TOPO})


def test_throughput_and_round_trips_make_links_only_together() -> None:
    rates = "src_region,dst_region,throughput_gbps,date\naws:us-east-1,gcp:us-central1-a,8,2022-11-28\n"
    rtts = "src_region,dst_region,rtt_ms,date\naws:us-east-1,gcp:us-central1-a,30,2022-04-16\n"
    prices = {"aws.csv": AWS, "gcp.csv": GCP}
    assert len(import_fleet({"a": rates, "b": rtts, **prices}).fleet.links) == 1
    with pytest.raises(ConfigError, match="only together; give both tables"):
        import_fleet({"a": rates, **prices})
