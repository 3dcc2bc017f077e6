"""What is left to choose from in one part of the plan space, if a step is to take at most so long.

Each group alone says what training, scoring and generation take at least; what does not fit beside the others' least is
left out, twice. What is left says between which ends the scoring phase and generation's window lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.exact.blocks import Blocks
from planner.exact.linear import INFINITE, Bools, Floats
from planner.exact.sites import MeshesAt, UnitsAt, lags, meshes_at, phase_s, units_at
from planner.groupings import Grouping, Tasks
from planner.question.workload import TRAINING, Task

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of the plan space."""

    grouping: Grouping
    home: int
    critic_homes: frozenset[int] | None = None
    """Regions of critic training's first pool; None: any."""
    critic_in: tuple[tuple[int, bool], ...] = ()
    """Regions of which it is known whether the critic scores there; not named: either."""
    window_s: tuple[float, float] = (0.0, INFINITE)
    """Of generation apart from training, as a region without lag would see it."""
    receivers: tuple[int, int] = (0, 1 << 20)
    """Regions that are sent versions; used where an uplink is shared."""
    step_s: tuple[float, float] = (0.0, INFINITE)
    """Only placements of such a step; used where money binds."""
    others_s: tuple[float, float] = (0.0, INFINITE)
    """What other tasks take of generation's group, at eta >= 1 and apart from training."""
    levels: tuple[tuple[Tasks, float, float], ...] = ()
    """Of groups that score, without training: the longest way (seconds) in use is within; not named: any."""

    def level_s(self, tasks: Tasks) -> tuple[float, float]:
        return next(((low, high) for of, low, high in self.levels if of == tasks), (0.0, INFINITE))

    def by_level(self, tasks: Tasks, most_s: float, least_s: float) -> tuple["Node", "Node"]:
        """The part in two: a group's longest way is at most the one, or at least the other."""
        low, high = self.level_s(tasks)
        kept = tuple(each for each in self.levels if each[0] != tasks)
        first = replace(self, levels=(*kept, (tasks, low, most_s)))
        return first, replace(self, levels=(*kept, (tasks, least_s, high)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """What one group needs at least, or all of them."""

    busy_s: float = 0.0
    train_s: float = 0.0
    score_s: float = 0.0
    after_s: float = 0.0
    """Generation: its window, or the phase with its ways where it takes turns with training."""
    others_s: float = 0.0
    """What other tasks take of generation's group, at eta >= 1 and apart from training."""

    def path_s(self) -> float:
        return self.train_s + self.score_s + self.after_s + self.others_s

    def with_other(self, other: "Least") -> "Least":
        """Both: each phase ends with the last group's."""
        return Least(
            busy_s=max(self.busy_s, other.busy_s), train_s=max(self.train_s, other.train_s),
            score_s=max(self.score_s, other.score_s), after_s=max(self.after_s, other.after_s),
            others_s=max(self.others_s, other.others_s),
        )  # fmt: skip


NEVER = Least(busy_s=INFINITE, train_s=INFINITE, score_s=INFINITE, after_s=INFINITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Of one node."""

    meshes: Mapping[Tasks, MeshesAt]
    units: Mapping[Tasks, UnitsAt]
    least: Least
    most_s: float
    window_s: tuple[float, float]
    most_score_s: float
    """The scoring phase, at most."""
    most_after_train_s: float
    """All of a path but training, at most."""


def least_alone(data: Blocks, tasks: Tasks, home: int) -> Least:
    """On the whole fleet, whatever the other groups do."""
    return data.known(("least", tasks, home), lambda: _least_alone(data, tasks, home))


def _least_alone(data: Blocks, tasks: Tasks, home: int) -> Least:
    if any(task in TRAINING for task in tasks):
        at = meshes_at(data, tasks, home)
        return _of_meshes(at) if len(at.rows) else NEVER
    units = units_at(data, tasks, home)
    if not len(units.rows):
        return NEVER
    return _of_units(data, units, units.least_window_s(data.samples) if units.generates else 0.0)


def _of_meshes(at: MeshesAt) -> Least:
    return Least(
        busy_s=float(at.busy_s.min()), train_s=float(at.train_s.min()), score_s=float(at.score_s.min()),
        after_s=float(at.rest_s.min()),
    )  # fmt: skip


def _of_units(data: Blocks, at: UnitsAt, window_s: float) -> Least:
    scoring_s = at.scoring_s(data.samples)
    generating_s = 0.0
    if at.generates and not data.is_sync:
        generating_s = data.samples / float(at.fleets(at.rates))
    return Least(
        busy_s=scoring_s + generating_s, score_s=float(at.level_s.min()) + scoring_s if at.scores else 0.0,
        after_s=window_s, others_s=scoring_s if at.generates and not data.is_sync else 0.0,
    )  # fmt: skip


def choices(data: Blocks, node: Node, most_s: float) -> Choices | None:
    """None where nothing is left."""
    path_s = data.ends * most_s * (1 + _TOLERANCE)
    meshes: dict[Tasks, MeshesAt] = {}
    units: dict[Tasks, UnitsAt] = {}
    each: dict[Tasks, Least] = {}
    for tasks in node.grouping:
        if any(task in TRAINING for task in tasks):
            meshes[tasks] = _in_time(data, node, tasks, most_s)
        else:
            units[tasks] = _reached(data, node, tasks, most_s)
        each[tasks] = least_alone(data, tasks, node.home)
    least = _together(each, node)
    for _ in range(2):
        if max(least.busy_s, least.path_s() / data.ends) > most_s * (1 + _TOLERANCE):
            return None
        for tasks, at in meshes.items():
            meshes[tasks] = at = at.some(fits(at, least, path_s, Task.GENERATION in tasks))
            if not len(at.rows):
                return None
            each[tasks] = _of_meshes(at)
        for tasks, unit in units.items():
            units[tasks] = unit = _near(data, unit, each[tasks], least, path_s, node.window_s[1])
            if not len(unit.rows) or (unit.generates and not unit.rates.any()):
                return None
            each[tasks] = _of_units(data, unit, each[tasks].after_s)
        least = _together(each, node)
    beside_s = least.train_s + least.others_s
    high_s = min(node.window_s[1], path_s - beside_s - least.score_s)
    if least.path_s() > path_s or least.after_s > high_s * (1 + _TOLERANCE):
        return None
    return Choices(
        meshes=meshes, units=units, least=least, most_s=most_s, window_s=(least.after_s, max(high_s, least.after_s)),
        most_score_s=path_s - beside_s - least.after_s, most_after_train_s=path_s - least.train_s,
    )  # fmt: skip


def _together(each: Mapping[Tasks, Least], node: Node) -> Least:
    found = Least(after_s=node.window_s[0], others_s=node.others_s[0])
    for one in each.values():
        found = found.with_other(one)
    return found


def beside_s(data: Blocks, node: Node) -> Floats:
    """[regions]: what the critic's weights surely take of links from the part's home, beside the actor's."""
    found = np.zeros(len(data.regions))
    trains, scores = (
        next((tasks for tasks in node.grouping if task in tasks), ())
        for task in (Task.CRITIC_TRAINING, Task.CRITIC_INFERENCE)
    )
    if not scores or trains == scores:
        return found
    if Task.ACTOR_TRAINING not in trains and node.critic_homes != frozenset({node.home}):
        return found
    is_known = [r for r, is_there in node.critic_in if is_there]
    if Task.GENERATION in scores and not any(task in TRAINING for task in scores):
        is_known = list(range(len(data.regions)))  # nothing generates there without scoring
    for r in is_known:
        link_s = data.critic_s(node.home, r)[1]
        found[r] = link_s if link_s < INFINITE else 0.0
    return found


def _without_critic(node: Node, tasks: Tasks) -> list[int]:
    """Regions in which a group cannot be, as the critic does not score there."""
    return [r for r, is_there in node.critic_in if not is_there] if Task.CRITIC_INFERENCE in tasks else []


def _in_time(data: Blocks, node: Node, tasks: Tasks, most_s: float) -> MeshesAt:
    at = meshes_at(data, tasks, node.home)
    if Task.GENERATION in tasks and Task.ACTOR_TRAINING not in tasks and (more_s := beside_s(data, node)).any():
        ways, regions = data.ways(node.home), at.block.regions[at.rows]
        rest_s = phase_s(data, at.block, at.rows, ways.weights_s + more_s + ways.trajectories_s)
        at = replace(at, rest_s=rest_s, link_s=(ways.link_s + more_s)[regions].max(axis=1))
    if closed := _without_critic(node, tasks):
        at = at.some(np.asarray(~np.isin(at.block.regions[at.rows], closed).any(axis=1)))
    keep = (at.busy_s <= most_s * (1 + _TOLERANCE)) & (at.link_s <= most_s * (1 + _TOLERANCE))
    if node.critic_homes is not None and Task.CRITIC_TRAINING in tasks and Task.ACTOR_TRAINING not in tasks:
        keep &= np.isin(at.block.home[at.rows], sorted(node.critic_homes))
    return at.some(keep)


def _reached(data: Blocks, node: Node, tasks: Tasks, most_s: float) -> UnitsAt:
    at = units_at(data, tasks, node.home)
    if closed := _without_critic(node, tasks):
        at = at.some(~np.isin(at.region, closed))
    if at.scores and node.levels:
        low, high = node.level_s(tasks)
        at = at.some(at.level_s <= high)
        at = replace(at, level_s=np.maximum(at.level_s, low))
    if not at.generates:
        return at
    more_s = beside_s(data, node)
    if node.receivers[0] > 1 or more_s.any():
        lag_s = lags(data.ways(node.home), node.receivers[0], more_s)[at.region]
        at = replace(at, lag_s=lag_s, link_s=at.link_s + more_s[at.region])
    return _making(data, at, at.link_s <= most_s * (1 + _TOLERANCE))


def _making(data: Blocks, at: UnitsAt, can: Bools) -> UnitsAt:
    """What cannot generate idles, but still scores where its group does; unless none may idle."""
    if not at.scores or data.prices.problem.rules.demands_regions:
        return at.some(can)
    if can.all():
        return at
    return replace(
        at, rates=np.where(can, at.rates, 0.0), samples=np.where(can[:, None], at.samples, 0.0),
        lag_s=np.where(can, at.lag_s, at.lag_s[can].min(initial=0.0)),
    )  # fmt: skip


def fits(at: MeshesAt, least: Least, path_s: float, generates: bool) -> Bools:
    """Meshes beside what the others need at least."""
    after_s = at.rest_s if generates else np.full(len(at.rows), least.after_s)
    whole: Floats = np.maximum(at.train_s, least.train_s) + np.maximum(at.score_s, least.score_s) + after_s
    found: Bools = whole + least.others_s <= path_s
    return found


def _near(data: Blocks, at: UnitsAt, own: Least, least: Least, path_s: float, most_window_s: float) -> UnitsAt:
    """Units near enough to score in the time that there is, and to have a sample done in their window."""
    others_s = least.train_s + least.after_s + least.others_s
    if at.scores:
        own_s = at.scoring_s(data.samples) if len(at.rows) else own.score_s
        at = at.some(others_s + np.maximum(at.level_s + own_s, least.score_s) <= path_s)
    if at.generates:
        window_s = min(path_s - least.train_s - least.score_s - least.others_s, most_window_s)
        at = _making(data, at, at.lag_s + at.block.starts_s[at.rows] <= window_s * (1 + 1e-6))
    return at
