import json
from dataclasses import replace
from pathlib import Path

import pytest

from periplus.__main__ import run
from planner.fleet_file import to_tree
from tests.support.gpu_plan import FLEET, gpu_plan

Capture = pytest.CaptureFixture[str]


def test_a_plan_is_played_beside_its_prediction(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    svg = tmp_path / "gantt.svg"
    assert run(["simulate", plan_file, "--steps", "3", "--output-svg", str(svg)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("SECONDS")
    assert "weights to eu" in text
    assert "samples/s; tokens trained on by age in versions: " in text
    assert "actor training" in svg.read_text()


def test_the_same_seed_plays_the_same(plan_file: str, capsys: Capture) -> None:
    trees = []
    for seed in ("1", "1", "2"):
        assert run(["simulate", plan_file, "--steps", "2", "--seed", seed, "-o", "json"]) == 0
        trees.append(json.loads(capsys.readouterr().out))
    assert trees[0] == trees[1]
    assert trees[0]["step_s"] != trees[2]["step_s"]
    assert trees[0]["schema"] == "periplus.simulation/1"
    assert trees[0]["predicted_step_s"] == pytest.approx(gpu_plan().evaluation.step_s)  # type: ignore[union-attr]


def test_a_slow_link_and_lost_machines_slow_a_plan_down(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    def step_s(*words: str) -> float:
        assert run(["simulate", plan_file, "--steps", "3", "-o", "json", *words]) == 0
        found: float = json.loads(capsys.readouterr().out)["step_s"]
        return found

    usual = step_s()
    assert step_s("--rate", "us>eu=0.2@0") > 1.2 * usual
    assert step_s("--lose", "eu/L40S/4/spot=0.25@0") > usual
    slower = tmp_path / "slower.json"
    links = tuple(replace(link, bytes_per_s=link.bytes_per_s / 5) for link in FLEET.links)
    slower.write_text(json.dumps(to_tree(replace(FLEET, links=links))))
    assert step_s("--fleet", str(slower)) > 1.2 * usual
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,n_instances\n0,8\n1,2\n")
    traced = step_s("--trace", str(trace), "--trace-of", "eu/L40S/4/spot")
    assert traced > usual
    ticks = tmp_path / "ticks.json"
    ticks.write_text('{"metadata": {"gap_seconds": 1}, "data": [8, 2]}')
    assert step_s("--trace", str(ticks), "--trace-of", "eu/L40S/4/spot") == traced
    assert step_s("--wander", "0") == usual
    assert step_s("--wander", "0.5") != usual


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lose", "eu=half@0"], "write WHAT=NUMBER@SECONDS"),
        (["--lose", "eu=0.5"], "write WHAT=NUMBER@SECONDS"),
        (["--lose", "eu=nan@3"], "write WHAT=NUMBER@SECONDS"),
        (["--rate", "us=0.5@0"], "write SRC>DST=FACTOR@SECONDS"),
        (["--trace", "t.csv"], "--trace and --trace-of belong together"),
        (["--steps", "0"], "Invalid value for '--steps'"),
    ],
)
def test_faults_that_make_no_sense_are_usage_errors(
    words: list[str], message: str, plan_file: str, capsys: Capture
) -> None:
    assert run(["simulate", plan_file, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["[1, 2]", '{"metadata": {}, "data": [1]}', '{"metadata": {"gap_seconds": 1}, "data": [null]}']
)
def test_a_trace_of_another_shape_is_refused(text: str, plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "t.json").write_text(text)
    assert run(["simulate", plan_file, "--trace", str(tmp_path / "t.json"), "--trace-of", "eu"]) == 2
    assert "no metadata.gap_seconds and data of numbers" in capsys.readouterr().err


def test_a_fleet_that_lacks_what_the_plan_uses_is_refused(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "smaller.json"
    path.write_text(json.dumps(to_tree(replace(FLEET, regions=FLEET.regions[1:], links=()))))
    assert run(["simulate", plan_file, "--fleet", str(path)]) == 2
    assert "has no us/A100-80GB-SXM/8, which the plan uses" in capsys.readouterr().err
