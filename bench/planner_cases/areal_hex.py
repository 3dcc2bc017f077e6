"""Section `areal_hex`: two kinds of devices for one job, at equal money and at equal speed.

AReaL-Hex compares a fleet of H800 and H20 with fleets of one of them, at the same hourly price. Here a data centre has
more of both than the budget buys (2.0 and 0.8 dollars a device and hour): the planner chooses, with all devices to
choose from, with H800 alone, with H20 alone. All three are proved, so *homogeneous* is the certified best, not a layout
that somebody wrote. Published: 1.31 to 1.50 times the throughput at equal budget, up to 1.46 times cheaper at equal
throughput. Budgets and staleness bounds are not published: several are reported.

- Throughput: the least seconds a step that a budget buys, homogeneous over both.
- Dollars: the least that a speed costs, homogeneous over both; the speed is what the best homogeneous fleet reaches
  with the budget.
"""

from itertools import product

from bench.planner_cases.cells import Cell, Row, Rows, Section, Settings, measured, most, reached
from bench.planner_cases.fleets.published import areal_hex_fleet
from bench.planner_cases.fleets.published_workloads import AREAL_HEX_MODELS, areal_hex_workload
from bench.planner_cases.solving import Solved, solve
from planner.problem.goal import Goal, Objective, Problem

BUDGETS_USD_PER_HOUR = (32.0, 64.0, 128.0)
ETAS = (1, 4)
BUDGET_S = 60.0
MAX_GAP = 0.01
FLEETS = {"both": (True, True), "h800": (True, False), "h20": (False, True)}
_USD = {"h800": 2.0, "h20": 0.8}
_PER_MACHINE = 8


def section() -> Section:
    return Section(name="areal_hex", cells=cells, reach=reach)


def cells(settings: Settings) -> list[Cell]:
    cases = list(product(AREAL_HEX_MODELS, ETAS, BUDGETS_USD_PER_HOUR))
    cases = cases[4:5] if settings.quick else cases
    budget_s = 2.0 if settings.quick else BUDGET_S
    return [
        Cell(name=f"{model} eta {eta} {usd:g} usd", run=compare, arguments=(model, eta, usd, budget_s))
        for model, eta, usd in cases
    ]


def problem_of(model: str, eta: int, usd_per_hour: float, fleet: str, goal: Goal) -> Problem:
    """Of each kind as many machines as the whole budget buys, and one more."""
    counts = [
        int(usd_per_hour / (_USD[name] * _PER_MACHINE)) + 1 if wanted else 0
        for name, wanted in zip(_USD, FLEETS[fleet], strict=True)
    ]
    data_centre = areal_hex_fleet(num_h800_machines=counts[0], num_h20_machines=counts[1]).fleet
    return Problem(fleet=data_centre, workload=areal_hex_workload(model, eta=eta).workload, goal=goal)


def compare(model: str, eta: int, usd_per_hour: float, budget_s: float) -> Row:
    """One model, bound and budget."""
    goal = Goal(objective=Objective.THROUGHPUT_UNDER_BUDGET, max_usd_per_hour=usd_per_hour)
    fast = {
        name: solve(problem_of(model, eta, usd_per_hour, name, goal), "exact", budget_s=budget_s) for name in FLEETS
    }
    row: Row = {"model": model, "eta": eta, "usd_per_hour": usd_per_hour, **_figures("throughput", fast)}
    step_s = min(fast["h800"].value, fast["h20"].value)
    if step_s == float("inf"):
        return row
    goal = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=step_s)
    cheap = {
        name: solve(problem_of(model, eta, usd_per_hour, name, goal), "exact", budget_s=budget_s) for name in FLEETS
    }
    return row | _figures("cost", cheap)


def _figures(name: str, solved: dict[str, Solved]) -> Row:
    """Homogeneous over both; with the least that the homogeneous and the most that the other can be, certified."""
    both, alone = solved["both"], min((solved["h800"], solved["h20"]), key=lambda each: each.value)
    gaps = [each.gap for each in solved.values() if not each.is_infeasible]
    row: Row = {
        **{f"{name}_{fleet}": each.value if each.best else None for fleet, each in solved.items()},
        f"{name}_gap": max(gaps) if gaps else None,
        f"{name}_best_alone": next(key for key, each in solved.items() if each is alone),
        f"{name}_search_s": sum(each.wall_s for each in solved.values()),
    }
    if both.best and alone.best:
        row[f"{name}_ratio"] = alone.value / both.value
        if both.bound:
            row[f"{name}_ratio_at_most"] = alone.value / both.bound
        bounds = [solved[key].bound for key in ("h800", "h20") if not solved[key].is_infeasible]
        if bounds and all(bound is not None for bound in bounds):
            row[f"{name}_ratio_at_least"] = min(bound for bound in bounds if bound is not None) / both.value
        row[f"{name}_gpus"] = both.placement.num_gpus
    return row


def reach(rows: Rows) -> list[Row]:
    done = measured(rows)
    gaps = [gap for name in ("throughput_gap", "cost_gap") if (gap := most(done, name)) is not None]
    return [reached("areal_hex_gap_max", max(gaps), "fraction", "<=", MAX_GAP)] if gaps else []


def summary(rows: Rows) -> Row:
    """Ranges over all cases beside what is published."""
    table: Row = {}
    for name, published in (("throughput", [1.31, 1.50]), ("cost", [None, 1.46])):
        ratios = [row[f"{name}_ratio"] for row in measured(rows) if row.get(f"{name}_ratio")]
        if ratios:
            table[name] = {"least": min(ratios), "largest": max(ratios), "published": published}
    return table
