import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from periplus.__main__ import run
from periplus.config import yaml_text
from periplus.errors import ConfigError
from planner import solve
from planner.answer import outcome
from planner.cost.tables.cost_tables import CostTables
from planner.plan import Plan, TaskKind
from planner.problem.fleet import Fleet
from planner.problem.goal import Objective
from planner.problem.workload import Task
from tests.support.planner.gpu_plan import FLEET, PROBLEM, gpu_plan
from tests.support.planner.hosts import rollout_regions
from tests.support.planner.quick_method import quick
from tests.support.planner.static_plan import PLAN

FACT = outcome.Fact(kind="memory", name="memory", what="it fits nowhere")
INFEASIBLE = outcome.Infeasible(facts=(FACT,), method="exact")
NOTHING: outcome.Outcome = outcome.BudgetExhausted(best=None, bound=None)
LATE = "as NOTHING, when time is over"
JOB = str(Path(__file__).parents[3] / "examples" / "arithmetic.yaml")
Capture = pytest.CaptureFixture[str]


def output(capsys: Capture) -> Plan:
    return Plan.from_tree(yaml_text.parse(capsys.readouterr().out, "output"), "output")


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_is_planned_as_a_table_with_its_simulation(hosts: str, capsys: Capture) -> None:
    assert run(["plan", JOB, "--fleet", hosts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("method auto, trainer in ")
    assert lines[1].startswith("expected: ")
    assert lines[2].startswith("simulated: ")
    assert "binding: " in "".join(lines)
    assert [line.split()[:3] for line in lines if line.startswith(("TASK", "rollout"))] == [
        ["TASK", "REGION", "DEVICE"],
        *(["rollout", region, "cores"] for region in "ab"),
    ]
    assert "no prices known: no dollars, no frontier" in lines
    assert lines[-1].startswith(f"next: periplus job submit {JOB} --plan PLAN ")


def test_a_job_on_devices_with_prices_has_dollars_and_a_frontier(
    gpu_fleet: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float | None]] = []

    def noting(cost_tables: CostTables, **more: Any) -> outcome.Outcome:
        goal = cost_tables.problem.goal
        asked.append((goal.objective.value, goal.max_step_s))
        return quick(cost_tables, **more)

    monkeypatch.setattr(solve, "method_of", lambda name: noting)
    tree = json.loads(Path(gpu_fleet).read_text())
    for region in tree["regions"]:
        for machines in region["machines"]:
            machines["usd_per_gpu_hour"] = 2.0
    Path(gpu_fleet).write_text(json.dumps(tree))
    assert run(["plan", JOB, "--fleet", gpu_fleet, "--no-simulate", "-o", "json", "--budget-s", "600"]) == 0
    made = json.loads(capsys.readouterr().out)
    step_s, dollars = made["evaluation"]["step_s"], made["dollars"]
    assert dollars["rent_usd_per_hour"] == sum(each["usd_per_hour"] for each in made["assignments"])
    an_hour = dollars["rent_usd_per_hour"] + dollars["egress_usd_per_hour"]
    assert dollars["usd_per_step"] == pytest.approx(an_hour * step_s / 3600)
    assert {kind for kind, _ in asked} == {"throughput", "cost"}
    assert asked[-1] == ("cost", None)
    assert pytest.approx(step_s, rel=1e-5) in [limit for kind, limit in asked if kind == "cost"]
    assert made["frontier"][0]["point"].startswith("fastest")
    assert run(["plan", JOB, "--fleet", gpu_fleet, "--no-simulate"]) == 0
    out = capsys.readouterr().out
    assert "\nFRONTIER " in out
    assert " per million trained tokens, " in out


def test_the_objective_of_a_job_is_a_key_of_it(gpu_fleet: str, capsys: Capture) -> None:
    words = ["--objective", "budget", "--max-usd-per-hour", "1000", "--no-simulate", "-o", "json"]
    assert run(["plan", JOB, "--fleet", gpu_fleet, *words]) == 0
    goal = output(capsys).goal
    assert goal is not None
    assert (goal.objective.value, goal.max_usd_per_hour) == ("budget", 1000)


@pytest.mark.parametrize("output_form", ["json", "yaml"])
def test_a_job_is_planned_for_programs(output_form: str, hosts: str, capsys: Capture) -> None:
    assert run(["plan", "make", JOB, "regions.trainer=b", "regions.min=2", "--fleet", hosts, "-o", output_form]) == 0
    made = output(capsys)
    assert made.trainer_region == "b"
    assert {a.region for a in made.assignments if a.task is TaskKind.ROLLOUT} == {"a", "b"}
    assert made.simulated is not None


def test_options_of_a_job_are_its_keys(hosts: str, capsys: Capture) -> None:
    words = ["--pin", "actor_training=b", "--pin", "generation=a", "--max-regions", "2", "--no-simulate", "-o", "json"]
    assert run(["plan", JOB, "--fleet", hosts, *words]) == 0
    made = output(capsys)
    assert (made.trainer_region, rollout_regions(made), made.simulated) == ("b", ("a",), None)
    assert run(["plan", JOB, "--fleet", hosts, "--forbid-region", "a", "--no-simulate", "-o", "json"]) == 0
    assert output(capsys).regions == ("b",)


def test_the_static_method_needs_no_model(hosts: str, capsys: Capture) -> None:
    assert run(["plan", JOB, "--fleet", hosts, "--method", "static"]) == 0
    assert capsys.readouterr().out.startswith("method static, trainer in a\n  a  trainer, 1 rollout worker\n")
    assert run(["plan", JOB, "model.path=/models/absent", "--fleet", hosts]) == 0
    assert "the model's size is not known here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("regions.trainer=x", 4, "error: no plan: regions.trainer names x, but the fleet has only a, b\n"),
        ("stepz=3", 2, "error: override 'stepz=3': unknown key stepz; did you mean steps?\n"),
    ],
)
def test_what_cannot_be_planned_has_its_exit_code_and_one_line(
    override: str, code: int, message: str, hosts: str, capsys: Capture
) -> None:
    assert run(["plan", "make", JOB, override, "--fleet", hosts]) == code
    assert capsys.readouterr() == ("", message)


# ---- workloads and studies -------------------------------------------------------------------------------------------


def test_a_workload_is_studied_beyond_what_the_runtime_executes(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    assert run(["plan", workload, "--fleet", gpu_fleet]) == 4
    assert "fits on no devices that it may use" in capsys.readouterr().err
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "--no-simulate", "-o", "json"]) == 0
    made = output(capsys)
    assert made.placement is not None
    assert made.question is not None
    assert {task for group in made.placement.groups for task in group.tasks} == set(Task)
    assert made.question.rules.spot_for_rollouts_only


def test_a_job_is_planned_on_the_accelerators_of_a_fleet(gpu_fleet: str, capsys: Capture) -> None:
    assert run(["plan", JOB, "--fleet", gpu_fleet, "--no-simulate", "-o", "json"]) == 0
    made = output(capsys)
    assert made.question is not None
    assert not any(gpu.is_cpu for gpu in made.question.fleet.gpu_types.values())


@pytest.mark.parametrize("flag", ["--pin", "--forbid"])
def test_a_rule_for_a_task_that_the_workload_lacks_is_refused(
    flag: str, workload: str, gpu_fleet: str, capsys: Capture
) -> None:
    tree = json.loads(Path(workload).read_text()) | {"algorithm": "grpo", "models": {}, "reward": "rule"}
    Path(workload).write_text(json.dumps(tree | {"reference": False}))
    assert run(["plan", workload, flag, "reward=us", "--fleet", gpu_fleet, "--study"]) == 2
    message = f"--pin or --forbid names reward, but the tasks of {workload} are generation, actor_training"
    assert message in capsys.readouterr().err
    assert run(["plan", JOB, flag, "critic_training=us", "--fleet", gpu_fleet, "--study"]) == 2
    assert "names critic_training, but the tasks of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{fleet}", "--fleet", "{fleet}"], "is a fleet, as its schema says; give a job or a workload"),
        (["{plan}", "--fleet", "{fleet}"], "is a plan, as its schema says; give a job or a workload"),
        ([JOB, "--fleet", JOB], "looks like a job; give a fleet"),
        (["{empty}", "--fleet", "{fleet}"], "empty.yaml: is empty"),
        ([JOB, "--fleet", "{empty}"], "empty.yaml: is empty; it must carry schema: periplus.fleet/1"),
        (["show", "{fleet}"], "is a fleet, as its schema says; give a plan"),
    ],
)
def test_a_file_of_the_wrong_kind_is_one_line(
    words: list[str], message: str, gpu_fleet: str, plan_file: str, tmp_path: Path, capsys: Capture
) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    given = [word.format(fleet=gpu_fleet, plan=plan_file, empty=empty) for word in words]
    assert run(["plan", *given]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_job_is_studied_on_gpus(gpu_fleet: str, capsys: Capture) -> None:
    assert run(["plan", JOB, "--fleet", gpu_fleet, "--study", "--no-simulate", "-o", "json"]) == 0
    made = output(capsys)
    assert made.placement is not None
    assert made.placement.num_gpus > 0


def test_objectives_and_rules_are_asked_as_they_are_given(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    words = [
        "--objective",
        "cost",
        "--max-step-s",
        "100000",
        "--forbid",
        "generation=us,ap",
        "--pin",
        "reward=us,eu",
        "--allow-spot-everywhere",
        "--study",
        "--no-simulate",
        "-o",
        "json",
    ]
    assert run(["plan", workload, "--fleet", gpu_fleet, *words]) == 0
    question = output(capsys).question
    assert question is not None
    assert question.goal.objective is Objective.COST_AT_THROUGHPUT
    assert question.rules.pins == ((Task.REWARD, frozenset({"us", "eu"})),)
    assert question.rules.forbidden == ((Task.GENERATION, frozenset({"us", "ap"})),)
    assert not question.rules.spot_for_rollouts_only


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--objective", "cost"], 2, "--objective cost needs --max-step-s"),
        (["--max-step-s", "3"], 2, "--max-step-s belongs to --objective cost, not throughput"),
        (["--objective", "budget", "--max-usd-per-hour", "-1"], 2, "Invalid value for '--max-usd-per-hour'"),
        (["--objective", "cost", "--max-step-s", "inf"], 2, "Invalid value for '--max-step-s'"),
        (["--objective", "cost", "--max-step-s", "1e308"], 2, "Invalid value for '--max-step-s'"),
        (["--objective", "cost", "--max-step-s", "nan"], 2, "Invalid value for '--max-step-s': 'nan' is not a number"),
        (["--objective", "budget", "--max-usd-per-hour", "nan"], 2, "Invalid value for '--max-usd-per-hour'"),
        (["--objective", "budget", "--max-usd-per-hour", "inf"], 2, "Invalid value for '--max-usd-per-hour'"),
        (["--budget-s", "nan"], 2, "Invalid value for '--budget-s'"),
        (["--budget-s", "inf"], 2, "Invalid value for '--budget-s'"),
        (["--pin", "training="], 2, "--pin training=: 'training' is not a task and names no region; write TASK=REGION"),
        (
            ["--pin", "trainer="],
            2,
            "'trainer' is not a task (the job's trainer does actor_training) and names no region",
        ),
        (["--forbid", "reward="], 2, "--forbid reward=: names no region; write TASK=REGION[,REGION]"),
        (["--pin", "=us"], 2, "'' is not a task"),
        (["--pin", "training=us"], 2, "write TASK=REGION[,REGION] with a task of generation, reward"),
        (["--pin", "reward"], 2, "write TASK=REGION"),
        (["--forbid-region", "mars"], 2, "has no region mars; it has ap, eu, us"),
        (["--method", "best"], 2, "'best' is not one of"),
        (["--method", "static", "--study"], 2, "--method static plans only jobs without --study"),
        (["steps=3", "--study"], 2, "is a workload, which takes no KEY=VALUE overrides"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(
    words: list[str], code: int, message: str, workload: str, gpu_fleet: str, capsys: Capture
) -> None:
    assert run(["plan", "make", workload, *words, "--fleet", gpu_fleet]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pin", "reward=a"], "a job cannot pin reward to a: only generation can be pinned"),
        (["--pin", "actor_training=a,b"], "a job cannot pin actor_training to a, b"),
        (["--forbid", "generation=a"], "a job cannot forbid a region to a single task"),
    ],
)
def test_what_a_job_cannot_say_is_refused(words: list[str], message: str, hosts: str, capsys: Capture) -> None:
    assert run(["plan", JOB, "--fleet", hosts, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes_per_s": -5.0}, "links.0.bytes_per_s is -5.0, but must be"),
        ({"bytes_per_s": None}, "the link from us to eu has no rate"),
        ({"bytes_per_s": float("nan")}, "NaN"),
        ({"dst_region": "mars"}, "names mars, which is no region of this fleet"),
    ],
)
def test_a_fleet_that_makes_no_sense_is_named(
    change: dict[str, object], message: str, workload: str, gpu_fleet: str, capsys: Capture
) -> None:
    tree = json.loads(Path(gpu_fleet).read_text())
    tree["links"][0] |= change
    Path(gpu_fleet).write_text(json.dumps(tree))
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study"]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_accelerator_is_named_with_its_nearest(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    text = Path(gpu_fleet).read_text().replace('"gpu": "L40S"', '"gpu": "L41S"')
    Path(gpu_fleet).write_text(text)
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study"]) == 2
    assert "'L41S' is no known accelerator; nearest: L40S" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said_to_be_not_there(gpu_fleet: str, capsys: Capture) -> None:
    assert run(["plan", "nowhere.yaml", "--fleet", gpu_fleet]) == 2
    assert "nowhere.yaml: no such file" in capsys.readouterr().err
    assert run(["plan", "mkae", "--fleet", gpu_fleet]) == 2
    assert "No such command 'mkae'" in capsys.readouterr().err


# ---- looking at plans ------------------------------------------------------------------------------------------------


def test_a_plan_says_why_and_what_other_methods_found(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    words = ["--study", "--no-simulate", "--explain", "--compare", "--budget-s", "1"]
    assert run(["plan", workload, "--fleet", gpu_fleet, *words]) == 0
    text = capsys.readouterr().out
    assert "binding: " in text
    assert "no gain: " in text or "what would lift it:" in text
    assert "METHOD" in text
    assert "areal_hex" in text


def test_a_plan_is_explained_from_its_file(plan_file: str, capsys: Capture) -> None:
    assert run(["plan", "explain", plan_file, "--budget-s", "1", "-o", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "periplus.plan-explanation/1"
    assert {each["kind"] for each in tree["lifts"]} == {"machine", "link", "eta"}
    assert [each["subject"] for each in tree["unused_regions"]] == ["ap"]


def test_methods_are_compared(workload: str, gpu_fleet: str, hosts: str, capsys: Capture) -> None:
    words = ["--study", "--methods", "exact,hetrl", "--budget-s", "1", "-o", "json"]
    assert run(["plan", "compare", workload, "--fleet", gpu_fleet, *words]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in tree["methods"]] == ["exact", "hetrl"]
    assert run(["plan", "compare", JOB, "--fleet", hosts, "--methods", "hetrl"]) == 0
    assert "hetrl" in capsys.readouterr().out
    assert run(["plan", "compare", JOB, "--fleet", hosts, "--methods", "magic"]) == 2
    assert run(["plan", "compare", JOB, "--fleet", hosts, "--methods", ","]) == 2
    assert run(["plan", "compare", workload, "--fleet", gpu_fleet, "--study", "--method", "hetrl"]) == 2
    assert "--method hetrl: compare runs several methods; choose them with --methods instead" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answers", "code", "note", "message"),
    [
        ((INFEASIBLE, NOTHING), 4, "it fits nowhere", "error: no plan: it fits nowhere"),
        ((NOTHING, INFEASIBLE), 4, "no placement in its part of the plan space", "error: no plan: it fits nowhere"),
        (
            (NOTHING, NOTHING),
            8,
            "no placement in its part of the plan space",
            "error: no method found a placement, and none proved that",
        ),
        ((LATE, NOTHING), 8, "nothing in time", "error: no method found a placement, and none proved that"),
        ((ConfigError("it needs x"), ConfigError("it needs y")), 2, "it needs y", "error: it needs x"),
    ],
)
def test_methods_that_find_nothing_have_an_exit_code(
    answers: tuple[Any, Any],
    code: int,
    note: str,
    message: str,
    workload: str,
    gpu_fleet: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    left = list(answers)

    def search(*_: object, budget_s: float, **__: object) -> outcome.Outcome:
        answer = left.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        if answer is LATE:
            time.sleep(budget_s)
        return NOTHING if answer is LATE else answer

    monkeypatch.setattr(solve, "method_of", lambda name: search)
    words = ["--study", "--methods", "exact,hetrl", "--budget-s", "0.3"]
    assert run(["plan", "compare", workload, "--fleet", gpu_fleet, *words]) == code
    out, err = capsys.readouterr()
    assert note in out
    assert message in err


def test_a_plan_is_shown(plan_file: str, capsys: Capture) -> None:
    assert run(["plan", "show", plan_file]) == 0
    assert "method exact, trainer in us" in capsys.readouterr().out
    assert run(["plan", "show", plan_file, "-o", "yaml"]) == 0
    assert output(capsys) == gpu_plan()


def test_what_needs_a_placement_is_refused_where_there_will_be_none(hosts: str, capsys: Capture) -> None:
    for flag in ("--explain", "--compare"):
        assert run(["plan", JOB, "--fleet", hosts, "--method", "static", flag]) == 2
        assert f"{flag} needs a placement, which the static method" in capsys.readouterr().err
        assert run(["plan", JOB, "model.path=/models/absent", "--fleet", hosts, flag]) == 2
        assert "model.path cannot be read on this machine" in capsys.readouterr().err


def test_a_plan_that_was_changed_by_hand_is_judged_again(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    whole = json.loads(Path(plan_file).read_text())
    path = tmp_path / "changed.json"

    def read(change: Callable[[Any], None], *words: str) -> tuple[int, str, str]:
        tree = copy.deepcopy(whole)
        change(tree)
        path.write_text(json.dumps(tree))
        code = run([*words, str(path)])
        return (code, *capsys.readouterr())

    def tensor_of_three(tree: Any) -> None:
        tree["placement"]["groups"][1]["pools"][0]["layouts"]["actor_training"]["tensor"] = 3

    for words in (["plan", "show"], ["simulate"], ["plan", "explain"], ["plan", "diff", plan_file]):
        code, out, err = read(tensor_of_three, *words)
        assert (code, out) == (2, "")
        assert (
            f"{path}: the problem of this plan does not allow its placement: us/A100-80GB-SXM/8: actor_training cannot"
            in err
        )

    def half_a_unit(tree: Any) -> None:
        tree["placement"]["groups"][1]["pools"][0]["num_units"] = 3.5

    code, out, err = read(half_a_unit, "plan", "show")
    assert (code, out) == (2, "")
    assert "num_units is 3.5, but must be a whole number" in err

    def slower(tree: Any) -> None:
        for link in tree["question"]["fleet"]["links"]:
            link["bytes_per_s"] /= 50

    code, out, err = read(slower, "plan", "show")
    assert code == 0
    assert "The computed numbers are used, and the file's bound is dropped" in err
    assert (
        gpu_plan(replace(PROBLEM, fleet=slow())).evaluation
        == Plan.from_tree(json.loads(read(slower, "plan", "show", "-o", "json")[1]), "x").evaluation
    )
    code, out, err = read(lambda tree: tree.pop("evaluation"), "plan", "show")
    assert code == 0
    assert "the file gives no numbers" in err
    assert read(lambda tree: None, "plan", "show")[2] == ""


def slow() -> Fleet:
    return replace(FLEET, links=tuple(replace(link, bytes_per_s=link.bytes_per_s / 50) for link in FLEET.links))


def test_a_key_that_a_plan_lacks_is_named(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema": "periplus.plan/1"}')
    assert run(["plan", "show", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: method is missing; it must be text")


def test_a_static_plan_can_be_shown_but_neither_drawn_nor_explained(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "static.json"
    path.write_text(PLAN.to_json())
    assert run(["plan", "show", str(path)]) == 0
    assert run(["plan", "explain", str(path)]) == 2
    assert "has no placement or no problem" in capsys.readouterr().err


def test_two_plans_are_compared(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["plan", "diff", plan_file, plan_file]) == 0
    assert capsys.readouterr().out == "the two plans are the same\n"
    path = tmp_path / "static.json"
    path.write_text(PLAN.to_json())
    assert run(["plan", "diff", str(path), plan_file, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["method"] == {"before": "static", "after": "exact"}


def test_a_bound_that_a_placement_refutes_is_said_in_one_line_and_proves_nothing(
    workload: str, gpu_fleet: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = outcome.RefutedBound(method="exact", bound=9.0, value=7.0)

    def lying(cost_tables: CostTables, **more: Any) -> outcome.Outcome:
        found = quick(cost_tables, **more)
        if not isinstance(found, outcome.Found):
            return found
        return outcome.BudgetExhausted(best=replace(found.best, bound=None), bound=None, refuted=wrong)

    monkeypatch.setattr(solve, "method_of", lambda name: lying)
    for asked in ([workload, "--fleet", gpu_fleet, "--study"], [JOB, "--fleet", gpu_fleet]):
        assert run(["plan", *asked, "--no-simulate", "-o", "json"]) == 0
        out, err = capsys.readouterr()
        (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
        assert "the method exact claimed that no placement has less than 9, and one has 7" in warning
        assert "bound" not in json.loads(out)
