import json
from pathlib import Path

import pytest

from periplus import yaml_text
from periplus.__main__ import run
from planner.plan import Plan, TaskKind
from planner.question.goal import Objective
from planner.question.workload import Task
from tests.support.gpu_plan import gpu_plan
from tests.support.static_plan import PLAN

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
    assert lines[-1].startswith("binding: ")


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
    assert (made.trainer_region, made.rollout_regions, made.simulated) == ("b", ("a",), None)
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
    assert "this runtime executes on cpu only" in capsys.readouterr().err
    assert run(["plan", workload, "--fleet", gpu_fleet, "--study", "--no-simulate", "-o", "json"]) == 0
    made = output(capsys)
    assert made.placement is not None
    assert made.question is not None
    assert {task for group in made.placement.groups for task in group.tasks} == set(Task)
    assert made.question.rules.spot_for_rollouts_only


def test_a_job_is_studied_on_gpus(gpu_fleet: str, capsys: Capture) -> None:
    assert run(["plan", JOB, "--fleet", gpu_fleet, "--study", "--no-simulate", "-o", "json"]) == 0
    made = output(capsys)
    assert made.placement is not None
    assert made.placement.num_gpus > 0


def test_objectives_and_rules_are_asked_as_they_are_given(workload: str, gpu_fleet: str, capsys: Capture) -> None:
    words = [
        "--objective", "cost", "--max-step-s", "100000", "--forbid", "generation=us,ap", "--pin", "reward=us,eu",
        "--allow-spot-everywhere", "--study", "--no-simulate", "-o", "json",
    ]  # fmt: skip
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
        (["--pin", "training=us"], 2, "write TASK=REGION[,REGION] with a task of generation, reward"),
        (["--pin", "reward"], 2, "write TASK=REGION"),
        (["--forbid-region", "mars"], 2, "has no region mars; it has ap, eu, us"),
        (["--method", "best"], 2, "'best' is not one of"),
        (["--method", "static", "--study"], 2, "--method static is for jobs without --study"),
        (["steps=3", "--study"], 2, "is a workload: it takes no KEY=VALUE"),
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
        (["--objective", "cost", "--max-step-s", "3"], "agents tell no prices"),
        (["--pin", "reward=a"], "a job's pins are of generation, and of actor_training to one region"),
        (["--pin", "actor_training=a,b"], "a job's pins are of generation, and of actor_training to one region"),
        (["--forbid", "generation=a"], "a job forbids regions to all of its tasks"),
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


def test_a_plan_says_why_and_what_other_methods_found(
    workload: str, gpu_fleet: str, tmp_path: Path, capsys: Capture
) -> None:
    svg = tmp_path / "quality.svg"
    words = ["--study", "--no-simulate", "--explain", "--compare", "--budget-s", "1", "--output-svg", str(svg)]
    assert run(["plan", workload, "--fleet", gpu_fleet, *words]) == 0
    text = capsys.readouterr().out
    assert "binding: " in text
    assert "no gain: " in text or "what would lift it:" in text
    assert "METHOD" in text
    assert "areal_hex" in text
    assert "proved bound" in svg.read_text()


def test_a_plan_is_explained_from_its_file(plan_file: str, capsys: Capture) -> None:
    assert run(["plan", "explain", plan_file, "--budget-s", "1", "-o", "json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "periplus.plan-explanation/1"
    assert {each["kind"] for each in tree["lifts"]} == {"machine", "link", "eta"}
    assert [each["subject"] for each in tree["unused_regions"]] == ["ap"]


def test_methods_are_compared(workload: str, gpu_fleet: str, hosts: str, tmp_path: Path, capsys: Capture) -> None:
    svg = tmp_path / "q.svg"
    words = ["--study", "--methods", "exact,random", "--budget-s", "1", "-o", "json", "--output-svg", str(svg)]
    assert run(["plan", "compare", workload, "--fleet", gpu_fleet, *words]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in tree["methods"]] == ["exact", "random"]
    assert svg.exists()
    assert run(["plan", "compare", JOB, "--fleet", hosts, "--methods", "random"]) == 0
    assert "random" in capsys.readouterr().out
    assert run(["plan", "compare", JOB, "--fleet", hosts, "--methods", "magic"]) == 2


def test_a_plan_is_shown_and_drawn(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    svg = tmp_path / "plan.svg"
    assert run(["plan", "show", plan_file, "--output-svg", str(svg)]) == 0
    assert "method exact, trainer in us" in capsys.readouterr().out
    assert "<svg" in svg.read_text()
    assert run(["plan", "show", plan_file, "-o", "yaml"]) == 0
    assert output(capsys) == gpu_plan()
    assert run(["plan", "show", plan_file, "--output-svg", str(tmp_path / "no" / "x.svg")]) == 1


def test_a_static_plan_can_be_shown_but_neither_drawn_nor_explained(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "static.json"
    path.write_text(PLAN.to_json())
    assert run(["plan", "show", str(path)]) == 0
    assert run(["plan", "explain", str(path)]) == 2
    assert "has no placement with its question" in capsys.readouterr().err


def test_two_plans_are_compared(plan_file: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["plan", "diff", plan_file, plan_file]) == 0
    assert capsys.readouterr().out == "the two plans are the same\n"
    path = tmp_path / "static.json"
    path.write_text(PLAN.to_json())
    assert run(["plan", "diff", str(path), plan_file, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["method"] == {"before": "static", "after": "exact"}
