"""What a search of this package keeps while it runs: the best placement so far, and whether its time is over."""

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.answer.evaluation import Evaluation, Violation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, objective_value
from planner.answer.placement import Placement
from planner.cost.oracle import evaluate
from planner.cost.pools import Prices
from planner.question.goal import Objective


@dataclass(slots=True, kw_only=True)
class Progress:
    """Of one search. Nothing is ever proved here: bounds are None."""

    prices: Prices
    budget_s: float
    now_s: Callable[[], float]
    report: Callable[[Incumbent], None]
    should_stop: Callable[[], bool]
    method: str
    trace: list[Incumbent] = field(default_factory=list)
    num_evaluations: int = 0
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.now_s()

    @property
    def is_over(self) -> bool:
        return self.now_s() - self._began_s >= self.budget_s or self.should_stop()

    @property
    def best_value(self) -> float:
        return self.trace[-1].value(self.prices.problem.goal) if self.trace else float("inf")

    @property
    def ceiling_s(self) -> float:
        """A group whose tasks take so long together is in no placement that is better than the best so far."""
        goal = self.prices.problem.goal
        if goal.objective is Objective.COST_AT_THROUGHPUT:
            return goal.max_step_s * (1 + 1e-6) if goal.max_step_s is not None else float("inf")
        return self.best_value

    def judge(self, placement: Placement) -> Evaluation | Violation:
        """Ask the oracle, and keep the placement if it is the best yet."""
        self.num_evaluations += 1
        evaluation = evaluate(self.prices, placement)
        if isinstance(evaluation, Evaluation) and self._value(evaluation) < self.best_value:
            elapsed_s = self.now_s() - self._began_s
            found = Incumbent(placement=placement, evaluation=evaluation, bound=None, elapsed_s=elapsed_s)
            self.trace.append(found)
            self.report(found)
        return evaluation

    def outcome(self) -> Found | BudgetExhausted:
        if not self.trace:
            return BudgetExhausted(best=None, bound=None, num_evaluations=self.num_evaluations, method=self.method)
        return Found(
            best=self.trace[-1], trace=tuple(self.trace), num_evaluations=self.num_evaluations, method=self.method
        )

    def _value(self, evaluation: Evaluation) -> float:
        return objective_value(self.prices.problem.goal, evaluation)
