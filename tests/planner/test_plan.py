import json
from dataclasses import replace

import pytest

from periplus.errors import ConfigError
from planner.plan import Plan, SimulatedFigures
from planner.plan_of_placement import without_question
from planner.problem.goal import Goal, Objective, Rules
from planner.problem.workload import Task
from tests.support.planner.gpu_plan import PROBLEM, gpu_plan
from tests.support.planner.static_plan import PLAN

BEFORE_SEARCH = (
    '{"schema":"periplus.plan/1","method":"static","trainer_region":"a","assignments":[{"task":"trainer","region":"a",'
    '"num_workers":1},{"task":"rollout","region":"a","num_workers":2},{"task":"rollout","region":"bbb","num_workers":1}'
    '],"weights_tree":[{"src_region":"a","dst_region":"bbb"}],"trajectory_routes":[{"src_region":"bbb","dst_region":'
    '"a"}],"predictions":[{"region":"bbb","weights_s":1.5,"rtt_s":0.1}],"binding":"the delay"}'
)
"""Plan as it is stored in old runs, from the time when only the static method existed."""


def test_a_plan_survives_json_and_one_without_placement_is_written_as_ever() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN
    assert PLAN.to_json() == BEFORE_SEARCH


def test_a_plan_with_everything_survives_json() -> None:
    figures = SimulatedFigures(step_s=None, samples_per_s=0.0, max_age=1, num_steps=8, seed=3, stalled="no weights")
    rules = Rules(
        pins=((Task.GENERATION, frozenset({"us", "eu"})),),
        forbidden=((Task.REWARD, frozenset({"ap"})),),
        forbidden_regions=frozenset({"ap"}),
        max_regions=2,
        min_regions=2,
        generating=frozenset({"eu"}),
        spot_for_rollouts_only=False,
    )
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=1e3)
    whole = replace(gpu_plan(replace(PROBLEM, rules=rules, goal=goal)), simulated=figures)
    assert Plan.from_json(whole.to_json()) == whole
    assert json.loads(whole.to_json())["schema"] == "periplus.plan/1"


def test_a_plan_is_written_without_defaults_and_with_tasks_as_keys_and_sets_in_order() -> None:
    rules = Rules(pins=((Task.REWARD, frozenset({"us", "eu"})),), generating=frozenset({"us", "eu", "ap"}))
    tree = replace(gpu_plan(), question=replace(PROBLEM, rules=rules)).to_tree()
    assert "simulated" not in tree
    assert tree["placement"]["groups"][0]["pools"][0]["layouts"] == {"generation": {"tensor": 1, "batch": 32}}
    assert next(iter(tree["evaluation"]["task_s"])) == "generation"
    assert tree["question"]["rules"] == {"pins": [["reward", ["eu", "us"]]], "generating": ["ap", "eu", "us"]}
    assert tree["question"]["limits"]["max_tensor"] == PROBLEM.limits.max_tensor


def test_a_plan_is_read_with_further_keys_at_its_top_and_with_tasks_in_any_order() -> None:
    tree = gpu_plan().to_tree()
    pool = tree["placement"]["groups"][-1]["pools"][0]
    pool["layouts"] = dict(reversed(pool["layouts"].items()))
    assert len(pool["layouts"]) > 1
    assert Plan.from_tree(tree | {"explanation": {"x": 1}}, "plan") == gpu_plan()


def test_what_travels_to_workers_leaves_the_question_out() -> None:
    sent = without_question(gpu_plan())
    assert "question" not in sent.to_tree()
    assert Plan.from_json(sent.to_json()) == sent


def test_a_plan_knows_its_regions() -> None:
    assert PLAN.regions == ("a", "bbb")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "periplus.plan/1"}',
        PLAN.to_json().replace('"trainer"', '"critic"'),
        PLAN.to_json().replace('"num_workers"', '"workers"'),
        PLAN.to_json().replace('[{"task"', '["x", {"task"'),
        gpu_plan().to_json().replace('"sharding":"optimizer"', '"sharding":"some"'),
        gpu_plan().to_json().replace('"task_s"', '"tasks"'),
        gpu_plan().to_json().replace('"max_tensor"', '"most"'),
        gpu_plan().to_json().replace('"gpu":"L40S"', '"gpu":"L40X"'),
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^plan"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"step_s":', '"step_s":1e300,"x":', "evaluation.step_s is 1e"),
        ('"goal":{', '"goal":{"max_step_s":1e-300', "max_step_s is 1e-300"),
        ('"max_regions":3', '"max_regions":0', "max_regions is 0, but must be a whole number from 1"),
        ('"num_units":8', '"num_units":1000000000000000000', "num_units is 1000000000000000000"),
        ('"tensor":2', '"tensor":0', "tensor is 0"),
        ('"region":"us"', '"region":"u\\ns"', "without control characters"),
        ('"rtt_s":0.08', '"rtt_s":1e300', "rtt_s is 1e"),
        ('"task":"rollout"', '"task":"critic"', 'assignments.1.task is "critic", but must be one of trainer, rollout'),
        ('"task_s":{', '"task_s":{"x":1,', "unknown key evaluation.task_s.x; it must be one of generation, reward"),
        ('"layouts":{', '"layouts":[],"x":{', "layouts is [], but must be a mapping"),
        ('"max_regions":3', '"generating":["a",1]', "question.rules.generating.1 is 1, but must be text"),
        (
            '"max_tensor":8',
            '"max_tensr":8',
            "max_tensr; did you mean question.limits.max_tensor?",
        ),
        ('"device":"L40S"', '"pace":{"prefill_s":-1,"decode_s":0,"training_s":0}', "assignments.1.pace: Pace("),
        ('"eta":1', '"eta":-1', "plan: question.workload: eta is -1"),
    ],
)
def test_numbers_and_names_of_a_plan_file_have_ranges(old: str, new: str, key: str) -> None:
    text = gpu_plan().to_json()
    assert old in text
    with pytest.raises(ConfigError) as caught:
        Plan.from_json(text.replace(old, new))
    assert str(caught.value).startswith("plan")
    assert key in str(caught.value)
