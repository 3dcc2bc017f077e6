"""How far below an operator's limit a plan is predicted to stay: the settings, and how they get into a problem.

Steps take longer in the simulator than the cost model predicts, by how much depends on the staleness bound: versions
bunch at bounds from 1, and batches wait for the last groups of a window at larger ones
(docs/planner-limits.md, "Known errors of the cost model"). A plan under a limit of seconds is therefore predicted to
take at most `max_step_s / (1 + step_margin)`. Its certificate is about such plans: no plan that is predicted to keep
that costs less than the bound.

The margin depends on the problem alone, not on the placement, so that every method searches the same plan space.
Problems without a limit have none and are not changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from planner.problem.goal import Problem
from planner.problem.workload import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regime:
    """What the cost model's error was found to depend on."""

    eta: str
    """`0`, `1 to 2` or `3 and more`."""
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
"""Fraction by which a step may take longer than predicted. Each is the largest simulated over predicted step of its
regime, less one, and about a fifth of that more, over the plans under limits of seconds of 78 pairs of fleet and
workload, played for forty steps: docs/planner-comparison/2026-11-22-limits-without-margin.md. The largest was 0.03 at
a bound of 0; 0.10 and 0.11 (in one region, over several) at 1 and 2; at 4 and 8 it was 0.16 and 0.19 without a
critic, and 0.11 over several regions with one. The five plans with a critic in one region at 4 were within 0.02: they
get the margin that they have over several regions."""
_USD_MARGIN = 0.01
"""Fraction by which dollars an hour may be more than predicted, where versions cross regions: steps that are faster
than predicted send more an hour. The same record's plans cost at most 0.003 more. Rent alone has no error."""


def with_margin(problem: Problem) -> Problem:
    """The problem whose goal keeps the margins of its regime; as it was, if it has no limit."""
    goal, regime = problem.goal, _regime_of(problem)
    step_margin = 0.0 if goal.max_step_s is None else _STEP_MARGINS[regime]
    usd_margin = _USD_MARGIN if goal.max_usd_per_hour is not None and regime.has_several_regions else 0.0
    if (step_margin, usd_margin) == (goal.step_margin, goal.usd_margin):
        return problem
    return replace(problem, goal=replace(goal, step_margin=step_margin, usd_margin=usd_margin))


def regime_words(problem: Problem) -> str:
    """Why the problem has the margin that it has: `a staleness bound of 1 to 2 over several regions`."""
    regime = _regime_of(problem)
    regions = "over several regions" if regime.has_several_regions else "in one region"
    return f"a staleness bound of {regime.eta} {regions}, {'with' if regime.has_critic else 'without'} a critic"


def _regime_of(problem: Problem) -> _Regime:
    eta, rules = problem.workload.eta, problem.rules
    usable = {region.name for region in problem.fleet.regions} - rules.forbidden_regions
    return _Regime(
        eta="0" if eta == 0 else "1 to 2" if eta <= 2 else "3 and more",
        has_several_regions=len(usable) > 1 and rules.max_regions != 1,
        has_critic=Task.CRITIC_TRAINING in problem.workload.models,
    )
