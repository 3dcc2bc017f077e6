"""Placements, evaluations and questions as plain JSON values within `periplus.plan/1`, and back.

The readers raise KeyError, TypeError or ValueError for what is none, and ConfigError for a fleet or workload that is
none.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NoReturn

from periplus.errors import ConfigError
from planner import fleet_file, workload_file
from planner.answer.evaluation import Evaluation, RegionTimes
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.question.goal import Goal, Limits, Objective, Problem, Rules
from planner.question.workload import TASKS, Task

Tree = dict[str, Any]

_PLAIN = Layout(tensor=1)


def placement_tree(placement: Placement) -> Tree:
    """Layouts without what is as in a plain one."""
    return {"groups": [_group_tree(group) for group in placement.groups]}


def placement_of(tree: Mapping[str, Any]) -> Placement:
    return Placement(groups=tuple(_group_of(group) for group in tree["groups"]))


def evaluation_tree(evaluation: Evaluation) -> Tree:
    tree = asdict(evaluation)
    task_s = {task.value: seconds for task, seconds in evaluation.task_s}
    return {
        **tree,
        "task_s": task_s,
        "regions": list(tree["regions"]),
        "idle": list(tree["idle"]),
        "limited": list(map(list, tree["limited"])),
    }


def evaluation_of(tree: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        **{
            **tree,
            "task_s": tuple((Task(task), float(seconds)) for task, seconds in tree["task_s"].items()),
            "regions": tuple(RegionTimes(**region) for region in tree["regions"]),
            "idle": tuple(map(int, tree.get("idle", ()))),
            "limited": tuple((int(place), float(made)) for place, made in tree.get("limited", ())),
        }
    )


def goal_tree(goal: Goal) -> Tree:
    """A goal without margins is written as ever, so that older programs read it."""
    return {key: value for key, value in asdict(goal).items() if value or not key.endswith("_margin")}


def goal_of(tree: Mapping[str, Any]) -> Goal:
    return Goal(**{**tree, "objective": Objective(tree["objective"])})


def question_tree(question: Problem) -> Tree:
    return {
        "fleet": fleet_file.to_tree(question.fleet),
        "workload": workload_file.to_tree(question.workload),
        "goal": goal_tree(question.goal),
        "rules": _rules_tree(question.rules),
        "limits": {**asdict(question.limits), "roles_on_trainer": _sorted_tasks(question.limits.roles_on_trainer)},
    }


def question_of(tree: Mapping[str, Any], source: str) -> Problem:
    """Raises: ConfigError, too."""
    sources = workload_file.Sources(config_json=_no_file, rows=_no_file)
    limits = tree["limits"]
    return Problem(
        fleet=fleet_file.fleet_of(tree["fleet"], f"{source}.fleet"),
        workload=workload_file.workload_of(tree["workload"], f"{source}.workload", sources),
        goal=goal_of(tree["goal"]),
        rules=_rules_of(tree["rules"]),
        limits=Limits(**{**limits, "roles_on_trainer": frozenset(map(Task, limits["roles_on_trainer"]))}),
    )


def _no_file(name: str) -> NoReturn:
    raise ConfigError(f"a plan's question refers to no file, this one to {name}")


def _group_tree(group: Group) -> Tree:
    return {"tasks": [task.value for task in group.tasks], "pools": [_pool_tree(pool) for pool in group.pools]}


def _group_of(tree: Mapping[str, Any]) -> Group:
    return Group(tasks=tuple(map(Task, tree["tasks"])), pools=tuple(_pool_of(pool) for pool in tree["pools"]))


def _pool_tree(pool: Pool) -> Tree:
    return {
        "device_class": pool.device_class,
        "unit_gpus": pool.unit_gpus,
        "num_units": pool.num_units,
        "layouts": {task.value: _layout_tree(layout) for task, layout in pool.layouts},
    }


def _pool_of(tree: Mapping[str, Any]) -> Pool:
    _check_whole(tree, "unit_gpus", "num_units")
    layouts = {Task(task): _layout_of(layout) for task, layout in tree["layouts"].items()}
    return Pool(**{**tree, "layouts": tuple((task, layouts[task]) for task in TASKS if task in layouts)})


def _layout_tree(layout: Layout) -> Tree:
    kept = {key: value for key, value in asdict(layout).items() if value != getattr(_PLAIN, key)}
    return {"tensor": layout.tensor, **kept}


def _layout_of(tree: Mapping[str, Any]) -> Layout:
    _check_whole(tree, "tensor", "pipeline", "micro_batch", "batch")
    return Layout(**{**tree, "sharding": Sharding(tree.get("sharding", Sharding.NONE))})


def _check_whole(tree: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if key in tree and type(tree[key]) is not int:
            raise ValueError(f"{key} is {tree[key]!r}, but must be a whole number")


def _rules_tree(rules: Rules) -> Tree:
    def pairs(of: tuple[tuple[Task, frozenset[str]], ...]) -> list[Tree]:
        return [{"task": task.value, "regions": sorted(regions)} for task, regions in of]

    return {
        "pins": pairs(rules.pins),
        "forbidden": pairs(rules.forbidden),
        "forbidden_regions": sorted(rules.forbidden_regions),
        "max_regions": rules.max_regions,
        "min_regions": rules.min_regions,
        "generating": sorted(rules.generating),
        "spot_for_rollouts_only": rules.spot_for_rollouts_only,
    }


def _rules_of(tree: Mapping[str, Any]) -> Rules:
    def pairs(of: list[Tree]) -> tuple[tuple[Task, frozenset[str]], ...]:
        return tuple((Task(each["task"]), frozenset(each["regions"])) for each in of)

    return Rules(
        **{
            **tree,
            "pins": pairs(tree["pins"]),
            "forbidden": pairs(tree["forbidden"]),
            "forbidden_regions": frozenset(tree["forbidden_regions"]),
            "generating": frozenset(tree["generating"]),
        }
    )


def _sorted_tasks(tasks: frozenset[Task]) -> list[str]:
    return [task.value for task in TASKS if task in tasks]
