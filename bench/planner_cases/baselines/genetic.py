"""`genetic`: DEAP's genetic algorithm over the genomes that `random` draws.

Source: DEAP 1.4 (https://github.com/DEAP/deap), `algorithms.eaMuPlusLambda` with the operators of its documentation:
two-point crossover, tournaments of three, and a mutation that draws each key again with a small probability. HetRL
compares with DEAP too but publishes no settings. Population, rates and mutation (`POPULATION`, `MATE`, `MUTATE`,
`REDRAWN`) are the best of six settings that were tried on two generated fleets, which are not among those compared.

Placements that the oracle rejects have an infinite value. DEAP is an optional dependency.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.planner_cases.baselines.genome import PlacementGenome
from planner.answer.outcome import BudgetExhausted, Found, Incumbent
from planner.cost.tables.cost_tables import CostTables
from planner.methods.evaluation_budget import EvaluationBudget, ignore, never

POPULATION = 50
"""Number of individuals."""
MATE, MUTATE = 0.3, 0.6
"""Probability of a child by crossover and (`MUTATE`) by mutation; otherwise a parent is kept."""
REDRAWN = 0.05
"""Share of keys that a mutation draws again; at least one."""
_REFUSED = float("inf")
"""Value of a placement that the oracle rejects, or that is decoded after the budget has ended."""


def search(
    cost_tables: CostTables,
    *,
    seed: int,
    budget_s: float,
    now_s: Callable[[], float],
    report: Callable[[Incumbent], None] = ignore,
    should_stop: Callable[[], bool] = never,
) -> Found[Incumbent] | BudgetExhausted[Incumbent]:
    """Breed until the budget ends.

    Raises: ModuleNotFoundError if DEAP is not installed.
    """
    budget = EvaluationBudget(cost_tables, budget_s=budget_s, now_s=now_s, report=report, should_stop=should_stop)
    with _seeded(seed):
        _breed(budget, np.random.default_rng(seed))
    return budget.outcome("genetic")


def _breed(budget: EvaluationBudget, rng: np.random.Generator) -> None:
    """Run generations of DEAP's algorithm on random keys until the budget ends."""
    from deap import algorithms, base, tools

    # DEAP maximises weighted values, so the objective value has the weight -1.
    class Fitness(base.Fitness):  # type: ignore[misc]
        weights = (-1.0,)

    class Individual(list[float]):
        """A genome in the form that DEAP needs."""

        fitness: Any

        def __init__(self, keys: Any) -> None:
            super().__init__(keys)
            self.fitness = Fitness()

    genome = PlacementGenome(budget.cost_tables)

    def value(individual: Individual) -> tuple[float]:
        if budget.is_over:
            return (_REFUSED,)
        placement = genome.placement(np.asarray(individual))
        return (_REFUSED if placement is None else budget.evaluate(placement),)

    def redraw(individual: Individual) -> tuple[Individual]:
        anew = rng.random(genome.length) < max(REDRAWN, 1 / genome.length)
        for i in np.flatnonzero(anew):
            individual[i] = float(rng.random())
        return (individual,)

    toolbox = base.Toolbox()
    toolbox.register("evaluate", value)
    toolbox.register("mate", tools.cxTwoPoint)
    toolbox.register("mutate", redraw)
    toolbox.register("select", tools.selTournament, tournsize=3)
    population = [Individual(rng.random(genome.length).tolist()) for _ in range(POPULATION)]
    while not budget.is_over:
        population, _ = algorithms.eaMuPlusLambda(
            population, toolbox, mu=POPULATION, lambda_=POPULATION, cxpb=MATE, mutpb=MUTATE, ngen=1, verbose=False
        )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the interpreter's global generator, from which DEAP draws, and restore it afterwards."""
    from deap import algorithms

    # DEAP takes no generator of its own, so the interpreter's state is saved and restored.
    state = algorithms.random.getstate()
    algorithms.random.seed(seed)
    try:
        yield
    finally:
        algorithms.random.setstate(state)
