import json
from pathlib import Path

import pytest

from periplus.__main__ import run
from periplus.config import yaml_text
from planner.files.fleet_file import fleet_of
from tests.support.planner.gpu_plan import FLEET

Capture = pytest.CaptureFixture[str]


def test_a_fleet_is_shown_as_tables(gpu_fleet: str, capsys: Capture) -> None:
    assert run(["fleet", "show", gpu_fleet]) == 0
    text = capsys.readouterr().out
    assert "us      A100-80GB-SXM" in text
    assert "2 x 4  spot" in text
    assert "[0] ap         4,000  4,000" in text
    assert text.endswith("3 regions, 28 devices, 6 links\n")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_fleet_is_shown_as_the_file_that_it_is(form: str, gpu_fleet: str, capsys: Capture) -> None:
    assert run(["fleet", "show", gpu_fleet, "-o", form]) == 0
    shown = fleet_of(yaml_text.parse(capsys.readouterr().out, "output"), "output")
    assert {region.name for region in shown.regions} == {region.name for region in FLEET.regions}
    assert len(shown.links) == len(FLEET.links)


def test_hosts_without_links_are_a_fleet_too(hosts: str, capsys: Capture) -> None:
    tree = json.loads(Path(hosts).read_text())
    Path(hosts).write_text(json.dumps(tree | {"links": []}))
    assert run(["fleet", "show", hosts]) == 0
    assert "no link was measured" in capsys.readouterr().out


def test_a_core_is_probed(capsys: Capture) -> None:
    assert run(["fleet", "probe", "--seconds", "1", "-o", "json"]) == 0
    (core,) = json.loads(capsys.readouterr().out)["gpu_types"]
    assert (core["name"], core["is_cpu"]) == ("cpu", True)
    tree = {"schema": "periplus.fleet/1", "gpu_types": [core], "regions": [{"name": "a", "num_cores": 2}]}
    assert fleet_of(tree, "x").gpu_types["cpu"].matmul_flop_per_s == core["matmul_flop_per_s"]


@pytest.mark.parametrize("seconds", ["nan", "inf", "0.5", "601"])
def test_a_core_is_probed_for_a_while_that_ends(seconds: str, capsys: Capture) -> None:
    assert run(["fleet", "probe", "--seconds", seconds]) == 2
    assert "Invalid value for '--seconds'" in capsys.readouterr().err


def test_the_schema_of_fleets_is_printed(capsys: Capture) -> None:
    assert run(["fleet", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$comment"] == "periplus.fleet/1"
