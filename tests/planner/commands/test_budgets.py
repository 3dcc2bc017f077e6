"""Whole commands keep their time budgets and limits of size."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from periplus import clock
from periplus.__main__ import run
from periplus.process import threads
from planner import solve
from planner.answer import outcome
from planner.commands import background_search
from planner.commands import run as searching
from planner.files.fleet_file import to_tree
from planner.methods import portfolio
from tests.support.planner.gpu_plan import FLEET, PLACEMENT, estimate

Capture = pytest.CaptureFixture[str]
SLACK_S = 10.0


def big(num_machines: int, gpus_per_machine: int) -> dict[str, Any]:
    machines = {"gpu": "A100-80GB-SXM", "gpus_per_machine": gpus_per_machine, "num_machines": num_machines}
    region = {"name": "a", "machines": [machines], "fabric_bytes_per_s": 5e10}
    return {"schema": "periplus.fleet/1", "regions": [region]}


@pytest.mark.parametrize("gpus_per_machine", [8, 1000])
def test_a_million_equal_machines_are_one_class(
    gpus_per_machine: int, workload: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "method_of", lambda name: portfolio.METHODS[name])
    path = tmp_path / "big.json"
    path.write_text(json.dumps(big(1_000_000, gpus_per_machine)))
    began_s = clock.process_s()
    assert run(["plan", workload, "--fleet", str(path), "--study", "--budget-s", "2", "--no-simulate"]) == 0
    assert clock.process_s() - began_s < 2 + SLACK_S
    assert "expected: " in capsys.readouterr().out


def test_a_search_that_does_not_end_is_left_alone_with_what_it_found(
    workload: str, gpu_fleet: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def endless(cost_tables: Any, *, report: Any, **_: Any) -> outcome.Outcome:
        report(estimate()[1])
        over.wait(60)
        return outcome.BudgetExhausted(best=None, bound=None)

    monkeypatch.setattr(solve, "method_of", lambda name: endless)
    monkeypatch.setattr(searching, "OVERRUN_S", 0.1)
    monkeypatch.setattr(background_search, "_LEFT_S", 0.1)
    try:
        assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "--budget-s", "0.5", "-o", "json"]) == 0
        assert threads.is_any_running()
    finally:
        over.set()
    out, err = capsys.readouterr()
    assert "still runs; this is the best plan that it had found" in err
    made = json.loads(out)
    assert len(made["placement"]["groups"]) == len(PLACEMENT.groups)
    assert "simulated" not in made


def test_a_method_that_ends_early_without_a_placement_does_not_speak_of_time(
    workload: str, gpu_fleet: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: outcome.Outcome = outcome.BudgetExhausted(best=None, bound=None)
    monkeypatch.setattr(solve, "method_of", lambda name: lambda cost_tables, **_: nothing)
    words = ["--study", "--method", "areal_hex", "--budget-s", "60"]
    assert run(["plan", workload, "--fleet", gpu_fleet, *words]) == 8
    err = capsys.readouterr().err
    assert "the method areal_hex ended after" in err
    assert "does not prove that none exists; try --method auto or --method exact" in err


def test_rules_that_leave_nothing_are_a_proved_conflict(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    forbidden = [word for region in FLEET.regions for word in ("--forbid-region", region.name)]
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "--budget-s", "40", *forbidden]) == 4
    err = capsys.readouterr().err
    assert "generation has no devices that it may use; and nothing may run in ap, eu, us" in err
    assert "time ended" not in err


def test_memory_that_nothing_has_is_a_proved_conflict(tmp_path: Path, capsys: Capture) -> None:
    machines = [{"gpu": "L4", "gpus_per_machine": 8, "num_machines": 4}]
    fleet, job = tmp_path / "l4.json", tmp_path / "70b.json"
    regions = [{"name": "a", "machines": machines, "fabric_bytes_per_s": 1e9}]
    fleet.write_text(json.dumps({"schema": "periplus.fleet/1", "regions": regions}))
    tokens = {"prompt_tokens": {"constant": 100}, "completion_tokens": {"constant": 100}}
    sizes = {"eta": 1, "prompts_per_step": 8, "group_size": 8}
    tree = {"schema": "periplus.workload/1", "algorithm": "grpo", "model": "Llama-3.1-70B", **sizes, **tokens}
    job.write_text(json.dumps(tree))
    assert run(["plan", str(job), "--fleet", str(fleet), "--study", "--budget-s", "40"]) == 4
    err = capsys.readouterr().err
    assert "actor training of Llama-3.1-70B (70.6 B parameters) fits on no devices that it may use" in err
    assert "time ended" not in err


def test_a_plan_of_too_many_engines_is_not_simulated(
    workload: str, gpu_fleet: str, plan_file: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.simulate.simulator.MAX_ENGINES", 2)
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert "the plan was not simulated: the plan has 8 engines, and at most 2 can be simulated" in err
    assert "simulated" not in json.loads(out)
    assert run(["simulate", plan_file]) == 2
    assert "the plan cannot be simulated: the plan has 8 engines" in capsys.readouterr().err


def test_counterfactuals_beyond_the_budget_are_not_settled(
    plan_file: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "OVERRUN_S", -1e9)
    assert run(["plan", "explain", plan_file, "--budget-s", "1", "-o", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    every = [*tree["lifts"], *tree["unused_regions"]]
    assert len(every) == tree["num_asked"]
    assert {each["why"] for each in every} == {"no placement was found in time"}
    assert not any(each["settled"] for each in every)


def test_three_thousand_regions_are_refused_with_the_number_that_may_be(
    workload: str, tmp_path: Path, capsys: Capture
) -> None:
    tree = to_tree(FLEET)
    tree["regions"] = [{**tree["regions"][0], "name": f"r{i}"} for i in range(3000)]
    path = tmp_path / "regions.json"
    path.write_text(json.dumps(tree))
    assert run(["plan", workload, "--fleet", str(path), "--study"]) == 2
    assert "regions has 3,000 items, but must be a list" in capsys.readouterr().err


def test_a_pin_to_no_region_is_refused(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "--pin", "generation=,"]) == 2
    assert "--pin generation=,: names no region" in capsys.readouterr().err
