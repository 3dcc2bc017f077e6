"""Matching of the device classes of two plans: which of them are the same machines.

The name of a class does not identify its machines. A job's processes are a class whose name has their number and their
share of a core, so it differs when the trainer runs in another region. Classes that differ only in price or network
rate are numbered in the order of their prices, so the numbers change when one price does. Without the matching, each
device of such a class would seem to move.
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace

from planner.answer.placement import Placement
from planner.jobs.hosts import without_trainer
from planner.plan import Plan
from planner.problem.device_classes import DeviceClass, classes_of


def in_names_of(before: Plan, after: Plan) -> Placement | None:
    """Return the placement of `after` with each device class named as the same machines are in `before`.

    None if `after` has no placement. The names stay as they are if a plan does not hold its problem.
    """
    if after.placement is None or before.question is None or after.question is None:
        return after.placement
    # Only names change; groups, pools and their order stay.
    names = _names(before, after)
    groups = []
    for group in after.placement.groups:
        pools = (replace(pool, device_class=names.get(pool.device_class, pool.device_class)) for pool in group.pools)
        groups.append(replace(group, pools=tuple(pools)))
    return replace(after.placement, groups=tuple(groups))


def _names(before: Plan, after: Plan) -> Mapping[str, str]:
    """Return the name in `before`'s terms of each class of `after`.

    Classes with equal prices and rates are the same machines. Of the others, those that differ in nothing else are
    matched in order. A class that matches none keeps its name, or gets a number if machines of `before` have that name.
    """
    was, will = _classes(before), _classes(after)
    # Equal classes under equal names need no matching.
    if was.keys() == will.keys() and all(_exactly(was[key]) == _exactly(will[key]) for key in was):
        return {}
    names: dict[str, str] = {}
    of_job = _is_of_processes(before) and _is_of_processes(after)
    # Each pass matches what the pass before left over, so exact matches are not taken away by looser ones.
    for identity in (_host,) if of_job else (_exactly, _kind):
        free: dict[Hashable, list[str]] = {}
        for key, at in was.items():
            # Names of `before` that no class has taken yet, in the order of classes.
            if key not in names.values():
                free.setdefault(identity(at), []).append(key)
        for key, at in will.items():
            if key not in names and (same := free.get(identity(at))):
                names[key] = same.pop(0)
    for key in will:
        if key not in names:
            # New machines must not get the name of other machines of `before`, which would make them seem the same.
            names[key] = _unused(key, {*was, *names.values()})
    return names


def _classes(plan: Plan) -> dict[str, DeviceClass]:
    assert plan.question is not None
    return {at.key: at for at in classes_of(plan.question.fleet)}


def _is_of_processes(plan: Plan) -> bool:
    """Return whether the devices are the processes of a job, of which each host is one class."""
    assert plan.question is not None
    return without_trainer(plan.question, plan.trainer_region) is not plan.question


def _host(at: DeviceClass) -> Hashable:
    return at.region.name


def _kind(at: DeviceClass) -> Hashable:
    return at.region.name, at.gpu.name, at.gpus_per_machine, at.is_spot, at.fabric


def _exactly(at: DeviceClass) -> Hashable:
    return _kind(at), at.usd_per_gpu_hour, at.fabric_bytes_per_s


def _unused(name: str, taken: set[str]) -> str:
    plain, number = name.partition("#")[0], 1
    while name in taken:
        number += 1
        name = f"{plain}#{number}"
    return name
