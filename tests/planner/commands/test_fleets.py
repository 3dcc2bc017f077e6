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


def test_the_schema_of_fleets_is_printed(capsys: Capture) -> None:
    assert run(["fleet", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$comment"] == "periplus.fleet/1"
