"""Evaluation budget of a heuristic: count calls of the oracle, keep the best valid placement, limit the search.

Heuristics minimise a *loss*. For a valid placement it is the objective value. A placement that only misses the goal's
deadline or budget is not an answer, but it has a finite loss that says by how much, so that a search can approach the
valid ones. All other placements have the loss `INFEASIBLE`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, objective_value
from planner.answer.placement import Placement
from planner.cost.batched.evaluate_many import PlacementVerdict, evaluate_many
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Objective

INFEASIBLE = float("inf")
"""Loss of a placement that violates a constraint."""
_MISSED = 1e12
"""Factor of the loss of a placement that misses the goal's limit: such losses are above those of all valid
placements."""


def ignore(incumbent: Incumbent) -> None:
    """Ignore a reported incumbent."""


def never() -> bool:
    """Never ask to stop."""
    return False


class EvaluationBudget:
    """Budget and incumbent of one search.

    The budget is a number of evaluations if `max_evals` is given, otherwise seconds.
    """

    def __init__(
        self,
        cost_tables: CostTables,
        *,
        budget_s: float,
        now_s: Callable[[], float],
        max_evals: int | None = None,
        report: Callable[[Incumbent], None] = ignore,
        should_stop: Callable[[], bool] = never,
    ) -> None:
        self.cost_tables = cost_tables
        self.goal = cost_tables.problem.goal
        self.num_evaluations = 0
        self.trace: list[Incumbent] = []
        # The goal without limits, for placements that miss them and still guide a search.
        self._unlimited = replace(self.goal, max_step_s=None, max_usd_per_hour=None)
        self._budget_s, self._max_evals = budget_s, max_evals
        self._now_s, self._started_s = now_s, now_s()
        self._report, self._should_stop = report, should_stop

    @property
    def best(self) -> Incumbent | None:
        """Best valid placement so far, or None."""
        return self.trace[-1] if self.trace else None

    @property
    def best_loss(self) -> float:
        """Objective value of the best valid placement; `INFEASIBLE` if there is none."""
        return self.best.value(self.goal) if self.best else INFEASIBLE

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up or the caller asked to stop."""
        return self.spent() >= 1

    def spent(self) -> float:
        """Return the share of the budget that is used, 1 or more when it is over."""
        if self._should_stop():
            return 1.0
        if self._max_evals is not None:
            return self.num_evaluations / self._max_evals
        return (self._now_s() - self._started_s) / self._budget_s if self._budget_s > 0 else 1.0

    def evaluations_within(self, share: float) -> float:
        """Return an estimate of how many evaluations fit into that share of the budget, from the rate so far."""
        if self._max_evals is not None:
            return share * self._max_evals
        elapsed_s = self._now_s() - self._started_s
        rate = self.num_evaluations / elapsed_s if self.num_evaluations > 100 and elapsed_s > 0 else 1000.0
        return share * self._budget_s * rate

    def losses(self, placements: Sequence[Placement | None]) -> list[float]:
        """Return the loss of each placement, in order.

        It is `INFEASIBLE` for None and for placements that the oracle rejects.
        """
        given = [placement for placement in placements if placement is not None]
        self.num_evaluations += len(given)
        batch = evaluate_many(self.cost_tables, given)
        estimate = iter(zip(batch.step_s.tolist(), batch.usd_per_hour.tolist(), batch.verdict.tolist(), strict=True))
        return [INFEASIBLE if each is None else self._loss(each, *next(estimate)) for each in placements]

    def offer(self, placement: Placement) -> float:
        """Return the loss of one placement."""
        return self.losses([placement])[0]

    def evaluate(self, placement: Placement) -> float:
        """Return the objective value of one placement by the oracle instead of its batched form.

        The value is `INFEASIBLE` for a placement that the oracle rejects.
        """
        self.num_evaluations += 1
        estimate = evaluate(self.cost_tables, placement)
        if isinstance(estimate, Violation):
            return INFEASIBLE
        self._keep(placement, estimate)
        return objective_value(self.goal, estimate)

    def explain(self, placement: Placement) -> Evaluation | None:
        """Return the evaluation of a placement with a finite loss, even if it misses the goal's limits."""
        estimate = evaluate(self.cost_tables, placement, goal=self._unlimited)
        return None if isinstance(estimate, Violation) else estimate

    def outcome(self, method: str) -> Found[Incumbent] | BudgetExhausted[Incumbent]:
        """Return the best placement so far as a heuristic's outcome, without a bound."""
        if self.best is None:
            return BudgetExhausted(best=None, bound=None, num_evaluations=self.num_evaluations, method=method)
        return Found(best=self.best, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method=method)

    def _loss(self, placement: Placement, step_s: float, usd_per_hour: float, verdict: int) -> float:
        match verdict:
            case PlacementVerdict.VALID:
                pays = self.goal.objective is Objective.COST_AT_THROUGHPUT
                loss = usd_per_hour if pays else step_s
                # The batched oracle equals the oracle up to rounding only. What is kept and reported is the oracle's
                # own.
                if loss < self.best_loss and isinstance(estimate := evaluate(self.cost_tables, placement), Evaluation):
                    self._keep(placement, estimate)
                return loss
            case PlacementVerdict.DEADLINE | PlacementVerdict.BUDGET:
                return _MISSED * self._missed(step_s, usd_per_hour)
            case _:
                return INFEASIBLE

    def _missed(self, step_s: float, usd_per_hour: float) -> float:
        """Return by which factor the goal's limits are exceeded, at least 1."""
        missed = 1.0
        if (most_s := self.goal.planned_step_s) is not None:
            missed = max(missed, step_s / most_s)
        if (most_usd := self.goal.planned_usd_per_hour) is not None:
            missed = max(missed, usd_per_hour / most_usd)
        return missed

    def _keep(self, placement: Placement, estimate: Evaluation) -> None:
        """Keep a placement as incumbent if it is better. `estimate` must be the oracle's own evaluation."""
        if objective_value(self.goal, estimate) >= self.best_loss:
            return
        elapsed_s = self._now_s() - self._started_s
        found = Incumbent(placement=placement, evaluation=estimate, bound=None, elapsed_s=elapsed_s)
        self.trace.append(found)
        self._report(found)
