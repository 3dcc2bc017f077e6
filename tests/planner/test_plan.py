import json

import pytest

from periplus.errors import ConfigError
from planner.explain import explain
from planner.plan import Assignment, Edge, Plan, Prediction, TaskKind

PLAN = Plan(
    method="static",
    trainer_region="a",
    assignments=(
        Assignment(task=TaskKind.TRAINER, region="a", num_workers=1),
        Assignment(task=TaskKind.ROLLOUT, region="a", num_workers=2),
        Assignment(task=TaskKind.ROLLOUT, region="bbb", num_workers=1),
    ),
    weights_tree=(Edge(src_region="a", dst_region="bbb"),),
    trajectory_routes=(Edge(src_region="bbb", dst_region="a"),),
    predictions=(Prediction(region="bbb", weights_s=1.5, rtt_s=0.1),),
    binding="the delay",
)


def test_a_plan_survives_json() -> None:
    assert Plan.from_json(PLAN.to_json()) == PLAN
    assert json.loads(PLAN.to_json())["schema"] == "periplus.plan/1"


def test_a_plan_knows_its_regions() -> None:
    assert PLAN.rollout_regions == ("a", "bbb")
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
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^plan"):
        Plan.from_json(text)


def test_a_plan_explains_itself_in_lines() -> None:
    assert explain(PLAN).splitlines() == [
        "method static, trainer in a",
        "  a    trainer, 2 rollout workers",
        "  bbb  1 rollout worker; weights arrive after 1.500 s, round trip 100 ms",
        "binding: the delay",
    ]
