"""What a heuristic keeps: how often it asked the oracle, the best valid placement, the budget that is left.

A placement that misses only the goal's deadline or budget is no answer, but it has a loss: a search needs to know how
far away it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, objective_value
from planner.answer.placement import Placement
from planner.cost.batch import Verdict, evaluate_many
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.question.goal import Objective

INFEASIBLE = float("inf")
_MISSED = 1e12
"""Loss of a placement that misses the goal's limit, times by how much: more than of any that does not."""


def ignore(incumbent: Incumbent) -> None:
    """A report that nobody reads."""


def never() -> bool:
    """A stop that nobody asks for."""
    return False


class Judge:
    """One search's view of the oracle. Its budget is of evaluations if `max_evals` is given, else of seconds."""

    def __init__(
        self,
        prices: Prices,
        *,
        budget_s: float,
        now_s: Callable[[], float],
        max_evals: int | None = None,
        report: Callable[[Incumbent], None] = ignore,
        should_stop: Callable[[], bool] = never,
    ) -> None:
        self.prices = prices
        self.goal = prices.problem.goal
        self.num_evaluations = 0
        self.trace: list[Incumbent] = []
        self._unlimited = replace(self.goal, max_step_s=None, max_usd_per_hour=None)
        self._budget_s, self._max_evals = budget_s, max_evals
        self._now_s, self._started_s = now_s, now_s()
        self._report, self._should_stop = report, should_stop

    @property
    def best(self) -> Incumbent | None:
        return self.trace[-1] if self.trace else None

    @property
    def best_loss(self) -> float:
        return self.best.value(self.goal) if self.best else INFEASIBLE

    @property
    def is_over(self) -> bool:
        return self.spent() >= 1

    @property
    def ceiling_s(self) -> float:
        """A group whose tasks take so long together is in no placement that is better than the best so far."""
        if self.goal.objective is Objective.COST_AT_THROUGHPUT:
            most_s = self.goal.planned_step_s
            return most_s * (1 + 1e-6) if most_s is not None else INFEASIBLE
        return self.best_loss

    def spent(self) -> float:
        """Share of the budget, 1 or more when it is over."""
        if self._should_stop():
            return 1.0
        if self._max_evals is not None:
            return self.num_evaluations / self._max_evals
        return (self._now_s() - self._started_s) / self._budget_s if self._budget_s > 0 else 1.0

    def evaluations_within(self, share: float) -> float:
        """How many evaluations that share of the budget may hold, by the rate so far."""
        if self._max_evals is not None:
            return share * self._max_evals
        elapsed_s = self._now_s() - self._started_s
        rate = self.num_evaluations / elapsed_s if self.num_evaluations > 100 and elapsed_s > 0 else 1000.0
        return share * self._budget_s * rate

    def losses(self, placements: Sequence[Placement | None]) -> list[float]:
        """Of each, in order; of None, and of what the oracle refuses, INFEASIBLE."""
        asked = [placement for placement in placements if placement is not None]
        self.num_evaluations += len(asked)
        batch = evaluate_many(self.prices, asked)
        judged = iter(zip(batch.step_s.tolist(), batch.usd_per_hour.tolist(), batch.verdict.tolist(), strict=True))
        return [INFEASIBLE if each is None else self._loss(each, *next(judged)) for each in placements]

    def offer(self, placement: Placement) -> float:
        """The loss of one placement."""
        return self.losses([placement])[0]

    def judge(self, placement: Placement) -> float:
        """The objective value of one placement, by the oracle itself and not its batched form; else INFEASIBLE."""
        self.num_evaluations += 1
        judged = evaluate(self.prices, placement)
        if isinstance(judged, Violation):
            return INFEASIBLE
        self._keep(placement, judged)
        return objective_value(self.goal, judged)

    def explain(self, placement: Placement) -> Evaluation | None:
        """All terms of a placement whose loss is finite, whether or not it misses the goal's limits."""
        judged = evaluate(self.prices, placement, goal=self._unlimited)
        return None if isinstance(judged, Violation) else judged

    def outcome(self, method: str) -> Found | BudgetExhausted:
        """The best so far, of a heuristic: nothing is proved."""
        if self.best is None:
            return BudgetExhausted(best=None, bound=None, num_evaluations=self.num_evaluations, method=method)
        return Found(best=self.best, trace=tuple(self.trace), num_evaluations=self.num_evaluations, method=method)

    def _loss(self, placement: Placement, step_s: float, usd_per_hour: float, verdict: int) -> float:
        match verdict:
            case Verdict.VALID:
                pays = self.goal.objective is Objective.COST_AT_THROUGHPUT
                loss = usd_per_hour if pays else step_s
                if loss < self.best_loss and isinstance(judged := evaluate(self.prices, placement), Evaluation):
                    self._keep(placement, judged)
                return loss
            case Verdict.DEADLINE | Verdict.BUDGET:
                return _MISSED * self._missed(step_s, usd_per_hour)
            case _:
                return INFEASIBLE

    def _missed(self, step_s: float, usd_per_hour: float) -> float:
        """How many times the goal's limit, at least 1."""
        missed = 1.0
        if (most_s := self.goal.planned_step_s) is not None:
            missed = max(missed, step_s / most_s)
        if (most_usd := self.goal.planned_usd_per_hour) is not None:
            missed = max(missed, usd_per_hour / most_usd)
        return missed

    def _keep(self, placement: Placement, judged: Evaluation) -> None:
        """Every incumbent has the oracle's own word, `judged`."""
        if objective_value(self.goal, judged) >= self.best_loss:
            return
        elapsed_s = self._now_s() - self._started_s
        found = Incumbent(placement=placement, evaluation=judged, bound=None, elapsed_s=elapsed_s)
        self.trace.append(found)
        self._report(found)
