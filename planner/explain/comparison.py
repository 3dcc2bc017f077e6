"""Comparison of methods on one problem: what each found, how soon, and what was proved."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from periplus.view import units
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible, Outcome
from planner.explain.columns import columns
from planner.explain.money import known_usd, num_unpriced
from planner.plan import SimulatedFigures
from planner.problem.goal import Goal, Objective, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of one planning method in a comparison of several on the same problem."""

    method: str
    best: Incumbent | None
    trace: tuple[Incumbent, ...]
    bound: float | None
    elapsed_s: float
    num_evaluations: int
    note: str = ""
    """Why there is no placement, or why the method did not finish."""
    simulated: SimulatedFigures | None = None
    """The simulator's result for the best placement. None if it was not requested."""


def compared(method: str, found: Outcome, elapsed_s: float) -> Compared:
    """Return the row of a method from its outcome."""
    match found:
        case Infeasible(conflict=why):
            return Compared(
                method=method, best=None, trace=(), bound=None, elapsed_s=elapsed_s, num_evaluations=0, note=why
            )
        case Found() | BudgetExhausted():
            # A search that ran out of time may have proved more than its best incumbent recorded when it was found.
            bound = found.best.bound if found.best else None
            if isinstance(found, BudgetExhausted) and found.bound is not None:
                bound = found.bound
            return Compared(
                method=method,
                best=found.best,
                trace=found.trace,
                bound=bound,
                elapsed_s=elapsed_s,
                num_evaluations=found.num_evaluations,
                note=_note(found),
            )


def _note(found: Found[Incumbent] | BudgetExhausted[Incumbent]) -> str:
    if isinstance(found, BudgetExhausted) and found.refuted:
        return str(found.refuted)
    return "" if found.best else "nothing in time"


def failed(method: str, best: Incumbent | None, why: str, elapsed_s: float) -> Compared:
    """Return the row of a method that could not start or did not finish."""
    trace = (best,) if best else ()
    return Compared(
        method=method,
        best=best,
        trace=trace,
        bound=best.bound if best else None,
        elapsed_s=elapsed_s,
        num_evaluations=0,
        note=why,
    )


def best_bound(runs: Sequence[Compared]) -> float | None:
    """Return the highest proved lower bound: each holds for every method. None if nothing was proved."""
    return max((run.bound for run in runs if run.bound is not None), default=None)


def best_value(runs: Sequence[Compared], goal: Goal) -> float | None:
    """Return the least objective value that was found. None if nothing was found."""
    return min((run.best.value(goal) for run in runs if run.best), default=None)


def unit_of(goal: Goal) -> str:
    """Return the unit of the objective value."""
    return "dollars an hour" if goal.objective is Objective.COST_AT_THROUGHPUT else "seconds a step"


def comparison_tree(runs: Sequence[Compared], problem: Problem) -> dict[str, Any]:
    """Return the comparison as plain JSON values. Dollars are null if nothing has a price."""
    goal = problem.goal
    return {
        "schema": "periplus.plan-comparison/1",
        "objective": goal.objective.value,
        "bound": best_bound(runs),
        "methods": [
            {
                "method": run.method,
                "value": run.best.value(goal) if run.best else None,
                "step_s": run.best.evaluation.step_s if run.best else None,
                "simulated": asdict(run.simulated) if run.simulated else None,
                "usd_per_hour": run.best and known_usd(problem.fleet, run.best.placement, run.best.evaluation),
                "devices_without_a_price": run.best and num_unpriced(problem.fleet, run.best.placement),
                "bound": run.bound,
                "best_after_s": run.trace[-1].elapsed_s if run.trace else None,
                "elapsed_s": run.elapsed_s,
                "num_evaluations": run.num_evaluations,
                "note": run.note,
                "trace": [[each.elapsed_s, each.value(goal)] for each in run.trace],
            }
            for run in runs
        ],
    }


def comparison_text(runs: Sequence[Compared], problem: Problem) -> str:
    """Return the comparison as a table with the best method first.

    It shows how far each method is from the proved bound, and the simulator's result.
    """
    goal = problem.goal
    bound, best = best_bound(runs), best_value(runs, goal)
    # Best value first, methods without a placement last; ties by name.
    order = sorted(runs, key=lambda run: (run.best is None, run.best.value(goal) if run.best else 0.0, run.method))
    rows: list[Sequence[str]] = []
    for run in order:
        # A method without a placement has its time and the reason, in as many cells as the heading.
        if run.best is None:
            rows.append((run.method, "-", "-", "-", "-", "-", f"{run.elapsed_s:.2f} s", run.note))
            continue
        value, found = run.best.value(goal), run.best.evaluation
        usd = known_usd(problem.fleet, run.best.placement, found)
        unknown = num_unpriced(problem.fleet, run.best.placement)
        money = "-" if usd is None else f"{usd:,.2f}{f' + {unknown:,} unpriced' if unknown else ''}"
        # A best value of 0 (nothing has a price) has no ratios.
        ratio = f"{value / best:.3f}x" if best else "-"
        # Time at which the final value was first reached. Later incumbents may only have raised the bound.
        first_s = next((each.elapsed_s for each in run.trace if each.value(goal) <= value * (1 + 1e-9)), run.elapsed_s)
        rows.append(
            (
                run.method,
                f"{units.short(found.step_s)} s",
                _simulated(run),
                money,
                ratio,
                # The bound is the best of all methods, so a heuristic is also measured against what the exact method
                # proved.
                "-" if bound is None else f"{max(0.0, 1 - bound / value) * 100:.2f} %",
                f"{first_s:.2f} s",
                "",
            )
        )
    heading = ["METHOD", "STEP", "SIMULATED", "DOLLARS/H", "TO BEST", "GAP", "FOUND AFTER", ""]
    # The column of simulated seconds is left out if nothing was simulated.
    if not any(run.simulated for run in runs):
        heading, rows = _without(2, heading), [_without(2, row) for row in rows]
    table = columns(heading, rows, right=range(1, len(heading) - 1))
    proved = "nothing was proved" if bound is None else f"proved: nothing below {units.short(bound)} {unit_of(goal)}"
    return f"{table}\n{proved}"


def _simulated(run: Compared) -> str:
    """Format the simulated step and its difference from the prediction."""
    if run.simulated is None or run.best is None:
        return "-"
    if run.simulated.step_s is None:
        return "stalled"
    error = run.simulated.step_s / run.best.evaluation.step_s - 1
    return f"{units.short(run.simulated.step_s)} s ({error * 100:+.0f} %)"


def _without(at: int, row: Sequence[str]) -> list[str]:
    return [*row[:at], *row[at + 1 :]]
