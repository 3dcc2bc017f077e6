import json
from pathlib import Path

import pytest

from periplus import yaml_text
from periplus.__main__ import run
from periplus.errors import ConfigError
from planner.fleet import fleet_of, to_tree
from planner.plan import Plan

JOB = str(Path(__file__).parents[2] / "examples" / "arithmetic.yaml")
FLEET = {
    "schema": "periplus.fleet/1",
    "regions": [{"name": name, "num_cores": 2, "memory_bytes": 8 * 10**9} for name in "ab"],
    "links": [
        {"src_region": src, "dst_region": dst, "rtt_s": 0.1, "throughput_bits_per_s": 1e9} for src, dst in ("ab", "ba")
    ],
}


@pytest.fixture
def fleet_file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(FLEET))
    return str(path)


def test_a_plan_is_printed_as_a_table(fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "make", JOB, "--fleet", fleet_file]) == 0
    assert capsys.readouterr().out.startswith("method static, trainer in a\n")


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_plan_is_printed_for_programs(output: str, fleet_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "make", JOB, "regions.trainer=b", "--fleet", fleet_file, "-o", output]) == 0
    tree = yaml_text.parse(capsys.readouterr().out, "output")
    assert Plan.from_json(json.dumps(tree)).trainer_region == "b"


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("regions.trainer=x", 4, "error: no plan: regions.trainer names x, but the fleet has only a, b\n"),
        ("stepz=3", 2, "error: override 'stepz=3': unknown key stepz; did you mean steps?\n"),
    ],
)
def test_what_cannot_be_planned_has_its_exit_code_and_one_line(
    override: str, code: int, message: str, fleet_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "make", JOB, override, "--fleet", fleet_file]) == code
    assert capsys.readouterr() == ("", message)


def test_a_fleet_survives_text() -> None:
    assert fleet_of(to_tree(fleet_of(FLEET, "x")), "x") == fleet_of(FLEET, "x")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema": "periplus.fleet/2"}, "must carry schema"),
        ({"regions": [*FLEET["regions"], FLEET["regions"][0]]}, "the region a is there twice"),
        ({"links": [{"src_region": "a"}]}, "links.0.dst_region is missing"),
        ({"link": []}, "unknown key link; did you mean links?"),
    ],
)
def test_a_file_that_is_no_fleet_is_refused(change: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=f"fleet.yaml: .*{expected}"):
        fleet_of(FLEET | change, "fleet.yaml")
