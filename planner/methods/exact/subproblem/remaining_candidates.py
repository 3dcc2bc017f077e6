"""Candidates that are left in one subproblem, given an upper bound on the step time.

Each group alone has lower bounds on training, scoring and generation (`GroupLowerBounds`). A candidate that does not
fit beside the other groups' lower bounds is dropped. This is done twice, since the bounds rise when candidates go. What
is left gives ranges for the scoring phase and for generation's window.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.methods.exact.program.linear_model import INFINITE, Bools, Floats
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.reachable_candidates import (
    ReachableMeshes,
    ReachableUnits,
    lags,
    meshes_at,
    phase_s,
    units_at,
)
from planner.problem.groupings import Grouping, Tasks
from planner.problem.workload import TRAINING, Task

_TOLERANCE = 1e-9
"""Relative tolerance of comparisons of times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subproblem:
    """A subproblem: placements of one grouping and trainer's region, within the ranges of the other fields."""

    grouping: Grouping
    """Tasks of each group."""
    trainer_region: int
    """Index of the trainer's region."""
    critic_regions: frozenset[int] | None = None
    """Possible regions of the first pool that trains the critic; None means any."""
    critic_in: tuple[tuple[int, bool], ...] = ()
    """(Region, whether the critic infers there) for each region where this is decided."""
    window_s: tuple[float, float] = (0.0, INFINITE)
    """Range of generation's window in seconds, as a region without lag would see it, where generation has its own
    devices."""
    receivers: tuple[int, int] = (0, 1 << 20)
    """Range of the number of regions that receive versions; only used if the uplink has a cap."""
    step_s: tuple[float, float] = (0.0, INFINITE)
    """Range of the step time in seconds; only used if there is a budget in dollars."""
    others_s: tuple[float, float] = (0.0, INFINITE)
    """Range of the seconds that other tasks take of generation's group, at eta >= 1 and apart from training."""
    levels: tuple[tuple[Tasks, float, float], ...] = ()
    """(Group, least, most seconds) of the longest transfer to a unit that scores, for groups where it is restricted."""

    def level_s(self, tasks: Tasks) -> tuple[float, float]:
        """Return the range of the longest transfer to a unit of this group that scores."""
        return next(((low, high) for of, low, high in self.levels if of == tasks), (0.0, INFINITE))

    def by_level(self, tasks: Tasks, most_s: float, least_s: float) -> tuple["Subproblem", "Subproblem"]:
        """Divide the subproblem: the group's longest transfer takes at most `most_s`, or at least `least_s`."""
        low, high = self.level_s(tasks)
        kept = tuple(each for each in self.levels if each[0] != tasks)
        first = replace(self, levels=(*kept, (tasks, low, most_s)))
        return first, replace(self, levels=(*kept, (tasks, least_s, high)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLowerBounds:
    """Lower bounds in seconds on what one group, or all groups together, need."""

    busy_s: float = 0.0
    """Busy time of the slowest group."""
    train_s: float = 0.0
    """Training."""
    score_s: float = 0.0
    """Scoring."""
    generation_s: float = 0.0
    """Generation: its window, or its phase with transfers where it takes turns with training."""
    others_s: float = 0.0
    """Other tasks of generation's group, at eta >= 1 and apart from training."""

    def path_s(self) -> float:
        """Return the sum of all phases of a path."""
        return self.train_s + self.score_s + self.generation_s + self.others_s

    def with_other(self, other: "GroupLowerBounds") -> "GroupLowerBounds":
        """Return the bounds of two groups together: each phase ends when both groups have ended theirs."""
        return GroupLowerBounds(
            busy_s=max(self.busy_s, other.busy_s),
            train_s=max(self.train_s, other.train_s),
            score_s=max(self.score_s, other.score_s),
            generation_s=max(self.generation_s, other.generation_s),
            others_s=max(self.others_s, other.others_s),
        )


NEVER = GroupLowerBounds(busy_s=INFINITE, train_s=INFINITE, score_s=INFINITE, generation_s=INFINITE)
"""Bounds of a group that has no candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingCandidates:
    """Candidates that are left in a subproblem, with their joint bounds."""

    meshes: Mapping[Tasks, ReachableMeshes]
    """Meshes of each group with training."""
    units: Mapping[Tasks, ReachableUnits]
    """Units of each group without training."""
    least: GroupLowerBounds
    """Lower bounds of all groups together."""
    most_s: float
    """Upper bound on the step time."""
    window_s: tuple[float, float]
    """Range of generation's window."""
    most_score_s: float
    """Upper bound on the scoring phase."""
    most_after_train_s: float
    """Upper bound on everything of a path except training."""


def least_alone(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> GroupLowerBounds:
    """Return the lower bounds of one group that could use the whole fleet, whatever the other groups do."""
    return data.known(("least", tasks, trainer_region), lambda: _least_alone(data, tasks, trainer_region))


def _least_alone(data: ProblemArrays, tasks: Tasks, trainer_region: int) -> GroupLowerBounds:
    if any(task in TRAINING for task in tasks):
        at = meshes_at(data, tasks, trainer_region)
        return _of_meshes(at) if len(at.rows) else NEVER
    units = units_at(data, tasks, trainer_region)
    if not len(units.rows):
        return NEVER
    window_s = units.least_window_s(data.samples, data.settings.window_points) if units.generates else 0.0
    return _of_units(data, units, window_s)


def _of_meshes(at: ReachableMeshes) -> GroupLowerBounds:
    return GroupLowerBounds(
        busy_s=float(at.busy_s.min()),
        train_s=float(at.train_s.min()),
        score_s=float(at.score_s.min()),
        generation_s=float(at.generation_s.min()),
    )


def _of_units(data: ProblemArrays, at: ReachableUnits, window_s: float) -> GroupLowerBounds:
    scoring_s = at.scoring_s(data.samples)
    generating_s = 0.0
    # At eta 0 generation's time is its window, not part of the group's busy time.
    if at.generates and not data.is_sync:
        generating_s = data.samples / float(at.fleet_total(at.rates))
    return GroupLowerBounds(
        busy_s=scoring_s + generating_s,
        score_s=float(at.level_s.min()) + scoring_s if at.scores else 0.0,
        generation_s=window_s,
        others_s=scoring_s if at.generates and not data.is_sync else 0.0,
    )


def remaining_candidates(data: ProblemArrays, subproblem: Subproblem, most_s: float) -> RemainingCandidates | None:
    """Return the candidates left if a step takes at most `most_s` seconds; None if some group has none."""
    path_s = data.ends * most_s * (1 + _TOLERANCE)
    meshes: dict[Tasks, ReachableMeshes] = {}
    units: dict[Tasks, ReachableUnits] = {}
    each: dict[Tasks, GroupLowerBounds] = {}
    # Candidates that keep the step limit alone, with each group's lower bounds on the whole fleet.
    for tasks in subproblem.grouping:
        if any(task in TRAINING for task in tasks):
            meshes[tasks] = _in_time(data, subproblem, tasks, most_s)
        else:
            units[tasks] = _reached(data, subproblem, tasks, most_s)
        each[tasks] = least_alone(data, tasks, subproblem.trainer_region)
    least = _together(each, subproblem)
    # Each round drops what does not fit beside the other groups' bounds, then raises the bounds.
    for _ in range(2):
        if max(least.busy_s, least.path_s() / data.ends) > most_s * (1 + _TOLERANCE):
            return None
        for tasks, at in meshes.items():
            meshes[tasks] = at = at.some(fits(at, least, path_s, Task.GENERATION in tasks))
            if not len(at.rows):
                return None
            each[tasks] = _of_meshes(at)
        for tasks, unit in units.items():
            units[tasks] = unit = _near(data, unit, each[tasks], least, path_s, subproblem.window_s[1])
            if not len(unit.rows) or (unit.generates and not unit.rates.any()):
                return None
            each[tasks] = _of_units(data, unit, each[tasks].generation_s)
        least = _together(each, subproblem)
    # What the path leaves for generation's window is its upper end; the bounds give the lower end.
    beside_s = least.train_s + least.others_s
    high_s = min(subproblem.window_s[1], path_s - beside_s - least.score_s)
    if least.path_s() > path_s or least.generation_s > high_s * (1 + _TOLERANCE):
        return None
    return RemainingCandidates(
        meshes=meshes,
        units=units,
        least=least,
        most_s=most_s,
        window_s=(least.generation_s, max(high_s, least.generation_s)),
        most_score_s=path_s - beside_s - least.generation_s,
        most_after_train_s=path_s - least.train_s,
    )


def _together(each: Mapping[Tasks, GroupLowerBounds], subproblem: Subproblem) -> GroupLowerBounds:
    """Return the bounds of all groups together, within the ranges of the subproblem."""
    found = GroupLowerBounds(generation_s=subproblem.window_s[0], others_s=subproblem.others_s[0])
    for one in each.values():
        found = found.with_other(one)
    return found


def critic_link_s(data: ProblemArrays, subproblem: Subproblem) -> Floats:
    """Return `[num_regions]`: seconds that the critic's weights certainly take of links from the trainer's region."""
    found = np.zeros(len(data.regions))
    trains, scores = (
        next((tasks for tasks in subproblem.grouping if task in tasks), ())
        for task in (Task.CRITIC_TRAINING, Task.CRITIC_INFERENCE)
    )
    if not scores or trains == scores:
        return found
    # If the critic may be trained elsewhere, which links its weights take is not certain.
    if Task.ACTOR_TRAINING not in trains and subproblem.critic_regions != frozenset({subproblem.trainer_region}):
        return found
    # Regions in which the subproblem says that the critic infers.
    is_known = [r for r, is_there in subproblem.critic_in if is_there]
    if Task.GENERATION in scores and not any(task in TRAINING for task in scores):
        # Generation and critic inference share units, so wherever samples are generated the critic infers, too.
        is_known = list(range(len(data.regions)))
    for r in is_known:
        link_s = data.critic_s(subproblem.trainer_region, r)[1]
        found[r] = link_s if link_s < INFINITE else 0.0
    return found


def _without_critic(subproblem: Subproblem, tasks: Tasks) -> list[int]:
    """Return the regions that are closed to the group, because the critic must not infer there."""
    return [r for r, is_there in subproblem.critic_in if not is_there] if Task.CRITIC_INFERENCE in tasks else []


def _in_time(data: ProblemArrays, subproblem: Subproblem, tasks: Tasks, most_s: float) -> ReachableMeshes:
    """Return the meshes of a group that keep the step limit alone and match the subproblem."""
    at = meshes_at(data, tasks, subproblem.trainer_region)
    if (
        Task.GENERATION in tasks
        and Task.ACTOR_TRAINING not in tasks
        and (more_s := critic_link_s(data, subproblem)).any()
    ):
        # The critic's weights share links with the actor's, which delays generation.
        transfers, regions = data.transfers(subproblem.trainer_region), at.block.regions[at.rows]
        generation_s = phase_s(data, at.block, at.rows, transfers.weights_s + more_s + transfers.trajectories_s)
        at = replace(at, generation_s=generation_s, link_s=(transfers.link_s + more_s)[regions].max(axis=1))
    # Regions that the subproblem closes to the critic's inference.
    if closed := _without_critic(subproblem, tasks):
        at = at.some(np.asarray(~np.isin(at.block.regions[at.rows], closed).any(axis=1)))
    keep = (at.busy_s <= most_s * (1 + _TOLERANCE)) & (at.link_s <= most_s * (1 + _TOLERANCE))
    if subproblem.critic_regions is not None and Task.CRITIC_TRAINING in tasks and Task.ACTOR_TRAINING not in tasks:
        keep &= np.isin(at.block.source_region[at.rows], sorted(subproblem.critic_regions))
    return at.some(keep)


def _reached(data: ProblemArrays, subproblem: Subproblem, tasks: Tasks, most_s: float) -> ReachableUnits:
    """Return the units of a group that match the subproblem, with lags for at least as many receivers as it has."""
    at = units_at(data, tasks, subproblem.trainer_region)
    # Regions that the subproblem closes to the critic's inference.
    if closed := _without_critic(subproblem, tasks):
        at = at.some(~np.isin(at.region, closed))
    # The subproblem may limit the longest transfer from both sides.
    if at.scores and subproblem.levels:
        low, high = subproblem.level_s(tasks)
        at = at.some(at.level_s <= high)
        at = replace(at, level_s=np.maximum(at.level_s, low))
    if not at.generates:
        return at
    more_s = critic_link_s(data, subproblem)
    if subproblem.receivers[0] > 1 or more_s.any():
        # With more receivers on the uplink, and the critic's weights on the same links, versions arrive later.
        lag_s = lags(data.transfers(subproblem.trainer_region), subproblem.receivers[0], more_s)[at.region]
        at = replace(at, lag_s=lag_s, link_s=at.link_s + more_s[at.region])
    return _making(data, at, at.link_s <= most_s * (1 + _TOLERANCE))


def _making(data: ProblemArrays, at: ReachableUnits, can: Bools) -> ReachableUnits:
    """Return the units, of which only those in `can` generate.

    The others still score if the group does and idling is allowed; otherwise they are dropped.
    """
    if not at.scores or data.cost_tables.problem.rules.demands_regions:
        return at.some(can)
    if can.all():
        return at
    # Units that only score keep a harmless lag, so that they do not widen the range of windows.
    return replace(
        at,
        rates=np.where(can, at.rates, 0.0),
        samples=np.where(can[:, None], at.samples, 0.0),
        lag_s=np.where(can, at.lag_s, at.lag_s[can].min(initial=0.0)),
    )


def fits(at: ReachableMeshes, least: GroupLowerBounds, path_s: float, generates: bool) -> Bools:
    """Return whether each mesh fits into a path of `path_s` seconds beside the other groups' lower bounds."""
    generation_s = at.generation_s if generates else np.full(len(at.rows), least.generation_s)
    whole: Floats = np.maximum(at.train_s, least.train_s) + np.maximum(at.score_s, least.score_s) + generation_s
    found: Bools = whole + least.others_s <= path_s
    return found


def _near(
    data: ProblemArrays,
    at: ReachableUnits,
    own: GroupLowerBounds,
    least: GroupLowerBounds,
    path_s: float,
    most_window_s: float,
) -> ReachableUnits:
    """Return the units near enough to score in the time left, and to finish a sample within their window."""
    # What the path needs beside this group's scoring; a unit whose transfer and the group's scoring exceed the rest is
    # too far.
    others_s = least.train_s + least.generation_s + least.others_s
    if at.scores:
        own_s = at.scoring_s(data.samples) if len(at.rows) else own.score_s
        at = at.some(others_s + np.maximum(at.level_s + own_s, least.score_s) <= path_s)
    if at.generates:
        # The longest window that the path leaves. A unit that makes nothing in it does not generate.
        window_s = min(path_s - least.train_s - least.score_s - least.others_s, most_window_s)
        at = _making(data, at, at.lag_s + at.block.starts_s[at.rows] <= window_s * (1 + 1e-6))
    return at
