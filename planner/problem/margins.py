"""Margins: by how much a plan's predictions must stay below the operator's limits.

Steps take longer in the simulator than the cost model predicts. By how much depends on the staleness bound: from a
bound of 1 versions bunch, and at larger bounds batches wait for the last groups of a window
(docs/planner-limits.md, "Known errors of the cost model"). A plan under a limit on seconds is therefore predicted to
take at most `max_step_s / (1 + step_margin)`. The proved bound is about such plans: no plan whose prediction keeps that
limit costs less.

The margin depends on the problem alone, not on the placement, so that every method searches the same plan space.
Problems without a limit have no margin and are not changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from planner.problem.goal import Problem
from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regime:
    """Properties of a problem on which the cost model's error was found to depend."""

    eta: str
    """Range of the staleness bound: `0`, `1 to 2` or `3 and more`."""
    has_several_regions: bool
    has_critic: bool


def _regime(eta: str, *, several: bool, critic: bool) -> _Regime:
    return _Regime(eta=eta, has_several_regions=several, has_critic=critic)


_STEP_MARGINS: Mapping[_Regime, float] = MappingProxyType(
    {
        _regime("0", several=False, critic=False): 0.04,
        _regime("0", several=False, critic=True): 0.04,
        _regime("0", several=True, critic=False): 0.04,
        _regime("0", several=True, critic=True): 0.04,
        _regime("1 to 2", several=False, critic=False): 0.13,
        _regime("1 to 2", several=False, critic=True): 0.13,
        _regime("1 to 2", several=True, critic=False): 0.14,
        _regime("1 to 2", several=True, critic=True): 0.14,
        _regime("3 and more", several=False, critic=False): 0.19,
        _regime("3 and more", several=False, critic=True): 0.14,
        _regime("3 and more", several=True, critic=False): 0.23,
        _regime("3 and more", several=True, critic=True): 0.14,
    }
)
"""Fraction by which a step may take longer than predicted, by regime.

Each value is the largest error of its regime plus about a fifth of it. The error is the simulated step divided by the
predicted one, minus 1. It was measured over 40 simulated steps of the plans under limits on seconds of 78 pairs of
fleet and workload (docs/planner-comparison/2026-11-22-limits-without-margin.md). The largest error was 0.03 at a bound
of 0. At bounds of 1 and 2 it was 0.10 in one region and 0.11 over several. At 4 and 8 it was 0.16 in one region and
0.19 over several without a critic, and 0.11 over several regions with a critic. The five plans with a critic in one
region at 4 were within 0.02; they get the margin of several regions.
"""
_USD_MARGIN = 0.01
"""Fraction by which dollars per hour may exceed the prediction if versions cross regions: steps that are shorter than
predicted send more per hour. The plans of the same record cost at most 0.003 more. Rent alone has no error."""


def with_margin(problem: Problem) -> Problem:
    """Return the problem with the margins of its regime in its goal. A problem without a limit is returned as it is."""
    goal, regime = problem.goal, _regime_of(problem)
    # A margin is only for a limit that exists. Rent has no error, but the egress of versions that cross regions has.
    step_margin = 0.0 if goal.max_step_s is None else _STEP_MARGINS[regime]
    usd_margin = _USD_MARGIN if goal.max_usd_per_hour is not None and regime.has_several_regions else 0.0
    if (step_margin, usd_margin) == (goal.step_margin, goal.usd_margin):
        return problem
    return replace(problem, goal=replace(goal, step_margin=step_margin, usd_margin=usd_margin))


def regime_words(problem: Problem) -> str:
    """Return the problem's regime in words, such as `a staleness bound of 0 in one region, without a critic`."""
    regime = _regime_of(problem)
    regions = "over several regions" if regime.has_several_regions else "in one region"
    return f"a staleness bound of {regime.eta} {regions}, {'with' if regime.has_critic else 'without'} a critic"


def _regime_of(problem: Problem) -> _Regime:
    eta, rules = problem.workload.eta, problem.rules
    # Regions that a plan may use together.
    usable = {region.name for region in problem.fleet.regions} - rules.forbidden_regions
    return _Regime(
        eta="0" if eta == 0 else "1 to 2" if eta <= 2 else "3 and more",
        has_several_regions=len(usable) > 1 and rules.max_regions != 1,
        has_critic=Task.CRITIC_TRAINING in problem.workload.models,
    )
