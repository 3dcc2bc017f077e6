import json
from dataclasses import replace
from pathlib import Path

import pytest

from periplus.__main__ import run
from planner.answer.placement import Layout
from planner.commands.background_search import Interrupt
from planner.files.fleet_file import to_tree
from planner.plan_of_placement import plan_of
from planner.simulate import simulator
from tests.support.planner.gpu_plan import FLEET, PLACEMENT, PROBLEM, estimate, gpu_plan

Capture = pytest.CaptureFixture[str]


def test_a_plan_is_simulated_beside_its_prediction(plan_file: str, capsys: Capture) -> None:
    assert run(["simulate", plan_file, "--steps", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("SECONDS")
    assert "weights to eu" in text
    assert "samples/s; tokens trained on by age in versions: " in text
    assert "\nactor training " in text


def test_the_same_seed_gives_the_same_run(plan_file: str, capsys: Capture) -> None:
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
    assert step_s("--lose", "eu/L40S/4/spot=0.25@0") == step_s("--lose", "eu=0.25@0")
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
    assert "a JSON trace needs metadata.gap_seconds and a list `data` of numbers" in capsys.readouterr().err


def test_a_fleet_that_lacks_what_the_plan_uses_is_refused(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "smaller.json"
    path.write_text(json.dumps(to_tree(replace(FLEET, regions=FLEET.regions[1:], links=()))))
    assert run(["simulate", plan_file, "--fleet", str(path)]) == 2
    assert "has no us/A100-80GB-SXM/8, which the plan uses" in capsys.readouterr().err


SPOT = "eu/L40S/4/spot"


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["--rate", "us>mars=0.1@100"], ["--rate us>mars=0.1@100: the fleet has no region mars", "us>ap, us>eu"]),
        (["--rate", "us>us=0.1@100"], ["no link was measured from us to us"]),
        (["--rate", "us>eu=1001@100"], ["--rate us>eu=1001@100", "from 0 to 1000"]),
        (["--rate", "us>eu=inf@100"], ["--rate us>eu=inf@100: write WHAT=NUMBER@SECONDS"]),
        (["--lose", "eu/H100/8=0.5@0"], ["--lose eu/H100/8=0.5@0: the fleet has no such class or region", SPOT]),
        (["--lose", "us=0.5@0"], ["us has no spot machines; name a class: us/A100-80GB-SXM/8"]),
        (["--lose", f"{SPOT}=1.5@0"], ["the fraction that is left is 1.5, but must be from 0 to 1"]),
        (["--lose", f"{SPOT}=0.5@inf"], ["write WHAT=NUMBER@SECONDS"]),
        (
            ["--lose", "us/A100-80GB-SXM/8=0.5@0"],
            [
                "actor training and critic training, and the simulator cannot simulate the loss of a trainer",
                f"are {SPOT}",
            ],
        ),
        (["--lose", "ap/L40S/4=0.5@0"], ["the plan generates nothing there", f"classes that can be lost are {SPOT}"]),
        (["--trace", "TRACE", "--trace-of", "mars"], ["--trace-of mars: the fleet has no such class or region"]),
        (["--trace", "TRACE", "--trace-of", "us"], ["--trace-of us: us has no spot machines"]),
        (["--trace", "EMPTY", "--trace-of", "eu"], ["empty.csv: a spot trace needs at least one row"]),
        (["--trace", "HEAD", "--trace-of", "eu"], ["head.csv: a spot trace needs at least one row"]),
        (["--trace", "NAN", "--trace-of", "eu"], ["finite and at least 0, but one is nan at 1 s"]),
        (["--trace", "NONE", "--trace-of", "eu"], ["none.json: a spot trace needs at least one row"]),
        (["--wander", "nan"], ["Invalid value for '--wander'"]),
        (["--wander", "50"], ["Invalid value for '--wander'"]),
        (["--wander", "inf"], ["Invalid value for '--wander'"]),
    ],
)
def test_a_fault_that_would_change_nothing_is_refused(
    words: list[str], messages: list[str], plan_file: str, tmp_path: Path, capsys: Capture
) -> None:
    traces = {
        "TRACE": ("trace.csv", "time_s,n_instances\n0,8\n1,2\n"),
        "EMPTY": ("empty.csv", ""),
        "HEAD": ("head.csv", "time_s,n_instances\n"),
        "NAN": ("nan.csv", "time_s,n_instances\n0,8\n1,nan\n"),
        "NONE": ("none.json", '{"metadata": {"gap_seconds": 1}, "data": []}'),
    }
    for name, (file, text) in traces.items():
        (tmp_path / file).write_text(text)
        words = [str(tmp_path / file) if word == name else word for word in words]
    assert run(["simulate", plan_file, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [message for message in messages if message not in err] == []


def test_machines_that_score_are_not_lost(tmp_path: Path, capsys: Capture) -> None:
    scoring = PLACEMENT.groups[3]
    pool = replace(scoring.pools[0], device_class="ap/L40S/4")
    placement = replace(PLACEMENT, groups=(*PLACEMENT.groups[:3], replace(scoring, pools=(pool,))))
    cost_tables, found = estimate(PROBLEM, placement)
    path = tmp_path / "plan.json"
    path.write_text(plan_of(cost_tables, found, method="exact", seed=0).to_json())
    assert run(["simulate", str(path), "--lose", "ap/L40S/4=0@0"]) == 2
    assert "the simulator can only simulate the loss of machines that only generate" in capsys.readouterr().err


def test_a_mesh_is_not_simulated_without_its_link(tmp_path: Path, capsys: Capture) -> None:
    critic = PLACEMENT.groups[2]
    layouts = tuple((task, Layout(tensor=4, recompute=True)) for task, _ in critic.pools[0].layouts)
    pools = (
        replace(critic.pools[0], layouts=tuple((task, Layout(tensor=2, recompute=True)) for task, _ in layouts)),
        replace(critic.pools[0], device_class="ap/L40S/4", unit_gpus=4, num_units=1, layouts=layouts),
    )
    groups = (*PLACEMENT.groups[:2], replace(critic, pools=pools), PLACEMENT.groups[3])
    cost_tables, found = estimate(PROBLEM, replace(PLACEMENT, groups=groups))
    path = tmp_path / "plan.json"
    path.write_text(plan_of(cost_tables, found, method="exact", seed=0).to_json())
    assert run(["simulate", str(path), "--steps", "2", "--rate", "us>ap=0@100"]) == 2
    assert "us and ap train together" in capsys.readouterr().err
    assert run(["simulate", str(path), "--steps", "2", "--rate", "us>ap=0.5@100"]) == 0


def test_a_link_that_is_out_is_simulated(plan_file: str, capsys: Capture) -> None:
    words = ["simulate", plan_file, "--steps", "3", "-o", "json", "--rate", "us>eu=0@0"]
    assert run(words) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["step_s"], tree["num_played"], tree["simulated_over_predicted"]) == (None, 0, None)
    assert "while no data flows from us to eu" in tree["stalled"]
    assert run(words[:4] + words[6:]) == 0
    assert capsys.readouterr().out.startswith("the simulated run stalled: no event is left after ")
    assert run([*words, "--rate", "us>eu=1@100"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["stalled"], tree["num_played"]) == ("", 3)
    assert tree["simulated_over_predicted"] == tree["step_s"] / tree["predicted_step_s"]


def test_an_error_of_the_simulators_own_is_no_usage_error(
    plan_file: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(simulator, "simulate", broken)
    assert run(["simulate", plan_file]) == 1
    assert "ValueError: a mistake; this is a defect" in capsys.readouterr().err


def test_a_fleet_with_fewer_machines_than_the_plan_uses_is_refused(
    plan_file: str, tmp_path: Path, capsys: Capture
) -> None:
    fewer = tuple(replace(each, num_machines=1) for each in FLEET.regions[1].machines)
    regions = (FLEET.regions[0], replace(FLEET.regions[1], machines=fewer), FLEET.regions[2])
    path = tmp_path / "smaller.json"
    path.write_text(json.dumps(to_tree(replace(FLEET, regions=regions))))
    assert run(["simulate", plan_file, "--fleet", str(path)]) == 2
    assert "too few of eu/L40S/4/spot: 1 machines of 4 devices cannot hold the plan's 8 x 1" in capsys.readouterr().err


def test_a_fleet_without_the_plans_ways_is_refused(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "apart.json"
    path.write_text(json.dumps(to_tree(replace(FLEET, links=()))))
    assert run(["simulate", plan_file, "--fleet", str(path)]) == 2
    assert "cannot run the plan: no route from us to eu" in capsys.readouterr().err


@pytest.mark.parametrize(("asked", "completed"), [(1, 0), (5, 2)])
def test_interrupted_it_prints_the_steps_that_are_whole(
    asked: int, completed: int, plan_file: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """As if the operator had pressed Ctrl-C during the last step but one."""
    num = [0]

    def should_stop(interrupt: Interrupt) -> bool:
        num[0] += 1
        interrupt.is_set = num[0] >= asked
        return interrupt.is_set

    monkeypatch.setattr(Interrupt, "should_stop", should_stop)
    assert run(["simulate", plan_file, "--steps", "2000", "-o", "json"]) == 130
    out, err = capsys.readouterr()
    if completed:
        assert (json.loads(out)["num_played"], json.loads(out)["num_steps"]) == (completed, 2000)
        assert "interrupted: the result covers 2 of 2,000 steps" in err
    else:
        assert (out, err) == ("", "interrupted before any step was complete\n")
