"""Conversion of placements, evaluations and problems to plain JSON values within `periplus.plan/1`, and back.

Readers raise KeyError, TypeError or ValueError for values of the wrong form, and ConfigError for an invalid fleet or
workload.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NoReturn

from periplus.errors import ConfigError
from planner.answer.evaluation import Evaluation, RegionTimes
from planner.answer.placement import Group, Layout, Placement, Pool, Sharding
from planner.files import fleet_file, workload_file
from planner.problem.goal import Goal, Limits, Objective, Problem, Rules
from planner.problem.workload import TASKS, Task

Tree = dict[str, Any]
"""A JSON object."""

_PLAIN = Layout(tensor=1)
"""Layout with default values. Values of a layout that equal these are left out of trees."""


def placement_tree(placement: Placement) -> Tree:
    """Return a placement as JSON values. Layouts omit values that equal those of a plain layout."""
    return {"groups": [_group_tree(group) for group in placement.groups]}


def placement_of(tree: Mapping[str, Any]) -> Placement:
    """Return the placement of a tree."""
    return Placement(groups=tuple(_group_of(group) for group in tree["groups"]))


def evaluation_tree(evaluation: Evaluation) -> Tree:
    """Return an evaluation as JSON values."""
    # `asdict` keeps tuples, which JSON does not have. Pairs with tasks become an object with tasks as keys.
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
    """Return the evaluation of a tree."""
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
    """Return a goal as JSON values. Margins of 0 are left out, so that readers that know no margins accept it."""
    return {key: value for key, value in asdict(goal).items() if value or not key.endswith("_margin")}


def goal_of(tree: Mapping[str, Any]) -> Goal:
    """Return the goal of a tree."""
    return Goal(**{**tree, "objective": Objective(tree["objective"])})


def question_tree(question: Problem) -> Tree:
    """Return a problem as JSON values."""
    return {
        "fleet": fleet_file.to_tree(question.fleet),
        "workload": workload_file.to_tree(question.workload),
        "goal": goal_tree(question.goal),
        "rules": _rules_tree(question.rules),
        "limits": _limits_tree(question.limits),
    }


def question_of(tree: Mapping[str, Any], source: str) -> Problem:
    """Return the problem of a tree. Raises: ConfigError too, which names `source`."""
    # A workload file may refer to a model or to rows of lengths on disk. A plan is self-contained, so both are refused.
    sources = workload_file.Sources(config_json=_no_file, rows=_no_file)
    return Problem(
        fleet=fleet_file.fleet_of(tree["fleet"], f"{source}.fleet"),
        workload=workload_file.workload_of(tree["workload"], f"{source}.workload", sources),
        goal=goal_of(tree["goal"]),
        rules=_rules_of(tree["rules"]),
        limits=_limits_of(tree["limits"]),
    )


def _limits_tree(limits: Limits) -> Tree:
    tensors = None if limits.engine_tensors is None else sorted(limits.engine_tensors)
    return {
        **asdict(limits),
        "engine_tensors": tensors,
        "roles_on_trainer": _sorted_tasks(limits.roles_on_trainer),
    }


def _limits_of(tree: Mapping[str, Any]) -> Limits:
    tensors, roles = tree.get("engine_tensors"), tree["roles_on_trainer"]
    return Limits(
        **{
            **tree,
            "engine_tensors": None if tensors is None else frozenset(tensors),
            "roles_on_trainer": frozenset(map(Task, roles)),
        }
    )


def _no_file(name: str) -> NoReturn:
    raise ConfigError(f"a plan's problem must not refer to files, but this one refers to {name}")


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
    # The order of keys in a file does not matter: layouts are always in the order of tasks.
    layouts = {Task(task): _layout_of(layout) for task, layout in tree["layouts"].items()}
    return Pool(**{**tree, "layouts": tuple((task, layouts[task]) for task in TASKS if task in layouts)})


def _layout_tree(layout: Layout) -> Tree:
    kept = {key: value for key, value in asdict(layout).items() if value != getattr(_PLAIN, key)}
    return {"tensor": layout.tensor, **kept}


def _layout_of(tree: Mapping[str, Any]) -> Layout:
    _check_whole(tree, "tensor", "pipeline", "micro_batch", "batch")
    return Layout(**{**tree, "sharding": Sharding(tree.get("sharding", Sharding.NONE))})


def _check_whole(tree: Mapping[str, Any], *keys: str) -> None:
    """Check that these values are integers and not, for example, booleans. Raises: ValueError."""
    for key in keys:
        # `isinstance` would accept a boolean, which is an int in Python.
        if key in tree and type(tree[key]) is not int:
            raise ValueError(f"{key} is {tree[key]!r}, but must be a whole number")


def _rules_tree(rules: Rules) -> Tree:
    def pairs(task_regions: tuple[tuple[Task, frozenset[str]], ...]) -> list[Tree]:
        return [{"task": task.value, "regions": sorted(regions)} for task, regions in task_regions]

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
    def pairs(trees: list[Tree]) -> tuple[tuple[Task, frozenset[str]], ...]:
        return tuple((Task(each["task"]), frozenset(each["regions"])) for each in trees)

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
