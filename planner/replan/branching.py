"""Search for placements after a change: solve integer programs on intervals of generation's window.

On a wide interval the program overestimates what units generate (`planner.methods.exact.relaxation.window_rows`), so
its optimum may be far from the best placement. Intervals near the running plan's window are solved first. Where the
oracle says less than the program, the interval is divided there. Intervals are taken by their lower bounds, least
first, and each is searched only for placements better than the known ones. The search ends with its time; it proves
nothing. Placements are yielded in the order in which they are found, so the best one found is the last.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.methods.exact.program.linear_model import INFINITE, Solution
from planner.methods.exact.program.ortools_solver import solve_whole
from planner.methods.exact.relaxation.building import build_relaxation
from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.subproblem.candidate_arrays import ProblemArrays
from planner.methods.exact.subproblem.remaining_candidates import Subproblem
from planner.problem.goal import Objective
from planner.problem.workload import Task
from planner.replan.program import add_moves
from planner.replan.replan_start import ReplanStart, estimate
from planner.replan.settings import SETTINGS


def placements(
    change: ReplanStart,
    data: ProblemArrays,
    trainer_region: str,
    most_moved: float | None,
    limit_s: float,
    now_s: Callable[[], float],
) -> Iterator[Placement]:
    """Yield placements of the running plan's grouping, trained in `trainer_region`, from the columns in `data`.

    At most `most_moved` devices move. Nothing is yielded if nothing better than the running plan by the policy's
    hysteresis was found in time. The time is `limit_s` seconds, or twice as long while no placement that runs is known.
    """
    # One node of the exact method's tree: the running grouping and one trainer's region, with generation's window open.
    node = Subproblem(
        grouping=tuple(group.tasks for group in change.running.groups), trainer_region=data.region_at[trainer_region]
    )
    began_s = now_s()

    # Time is doubled until something runs, since the job stands still without an answer.
    def left_s(is_known: bool) -> float:
        return began_s + (limit_s if is_known else 2 * limit_s) - now_s()

    def solved(part: Subproblem, most: tuple[float, float], is_known: bool) -> tuple[Relaxation, Solution] | None:
        built = build_relaxation(data, part, *most)
        if built is None:
            return None
        add_moves(change, built, trainer_region, most_moved)
        return built, solve_whole(
            built.model, limit_s=max(left_s(is_known), SETTINGS.least_program_s), gap=SETTINGS.gap
        )

    # Later ranges are wider, and only needed while nothing runs within the earlier ones.
    for most in _ranges(change):
        is_known = change.value is not None
        for placement in _branched(change, node, most, solved, left_s):
            is_known = is_known or isinstance(estimate(change.cost_tables, placement), Evaluation)
            yield placement
        if is_known:
            return


def _branched(
    change: ReplanStart,
    node: Subproblem,
    most: tuple[float, float],
    solved: Callable[[Subproblem, tuple[float, float], bool], tuple[Relaxation, Solution] | None],
    left_s: Callable[[bool], float],
) -> Iterator[Placement]:
    """Search the intervals of windows best first, within `most` (seconds per step, dollars per hour)."""
    # Heap of (lower bound, order, interval). The order breaks ties, so that subproblems are never compared.
    parts = [(0.0, place, replace(node, window_s=ends)) for place, ends in enumerate(_windows(change))]
    num, is_known = len(parts), change.value is not None
    while parts and left_s(is_known) > 0:
        _, _, part = heapq.heappop(parts)
        if (answer := solved(part, most, is_known)) is None:
            continue
        built, found = answer
        if found.values is None:
            continue
        placement = built.placement(found.values)
        yield placement
        evaluation = estimate(change.cost_tables, placement)
        if isinstance(evaluation, Evaluation):
            most, is_known = _better(change, most, evaluation), True
        # The program overestimates on this interval: divide it at its window, but leave some of it on either side.
        if (at := built.window_at(found.values)) is not None and built.looseness(found.values) > SETTINGS.gap:
            low, high = built.window_range_s
            middle = min(max(at, low + SETTINGS.least_part * (high - low)), high - SETTINGS.least_part * (high - low))
            for ends in ((low, middle), (middle, high)):
                heapq.heappush(parts, (found.bound * built.scale_s, num, replace(part, window_s=ends)))
                num += 1


def _ranges(change: ReplanStart) -> Iterator[tuple[float, float]]:
    """Yield limits (most seconds per step, most dollars per hour); narrow limits make tight programs."""
    # Only what beats the running plan by the hysteresis is worth finding. If it does not run any more, anything that
    # runs is.
    target = INFINITE if change.value is None else change.value / (1 + change.policy.hysteresis)
    if change.goal.objective is Objective.COST_AT_THROUGHPUT:
        yield change.goal.planned_step_s or SETTINGS.step_limits[-1] * change.last.step_s, target
    elif target < INFINITE:
        yield target, INFINITE
    else:
        yield from ((times * change.last.step_s, INFINITE) for times in SETTINGS.step_limits)


def _better(change: ReplanStart, most: tuple[float, float], than: Evaluation) -> tuple[float, float]:
    """Return limits that exclude placements no better than `than`."""
    most_s, most_usd = most
    if change.goal.objective is Objective.COST_AT_THROUGHPUT:
        return most_s, min(most_usd, than.usd_per_hour * (1 - SETTINGS.gap))
    return min(most_s, than.step_s * (1 - SETTINGS.gap)), most_usd


def _windows(change: ReplanStart) -> list[tuple[float, float]]:
    """Return intervals of generation's window, that of the running plan first."""
    if change.running.group_of(Task.GENERATION).trains:
        return [(0.0, INFINITE)]
    region = change.last.regions[0]
    window_s = region.window_s + region.weights_s + region.trajectories_s
    low, high = (window_s * factor for factor in SETTINGS.first_window)
    return [(low, high), (high, INFINITE), (0.0, low)]
