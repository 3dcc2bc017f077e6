"""Pools that their window limits may begin what a step needs: a run whose quotas were less would never get a batch."""

import time

from bench.executed_plans import study
from planner.answer.outcome import Infeasible
from planner.plan_of_placement import idle_pools, limited_pools
from planner.simulate.simulator import simulate
from planner.solve import Thinking, plan


def test_a_plan_of_one_region_does_not_stall() -> None:
    """With quotas of what fits into the window, this one did after a step."""
    problem = study("RTX-4090", 128, "Qwen3-0.6B", 1)
    found = plan(problem, Thinking(budget_s=0.5, now_s=time.monotonic))
    assert not isinstance(found, Infeasible)
    made = found.best
    assert made is not None
    assert made.placement is not None
    limited = limited_pools(made)
    assert limited, "the window limits the only pool"
    assert sum(samples for _, samples in limited) >= problem.workload.samples_per_step * (1 - 1e-9)
    played = simulate(problem, made.placement, seed=1, num_steps=3, idle=idle_pools(made), at_most=limited)
    assert not played.stalled
