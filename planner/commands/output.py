"""Reading of plans and printing of answers, for all of the planner's commands.

A plan that is read is evaluated again by the cost oracle, so its numbers are those of the present cost model and not
those that the file claims. Answers are printed as a table, JSON or YAML on standard output; messages go to standard
error.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from periplus.config import finite_json, loading, yaml_text
from periplus.config.file_kinds import need_kind
from periplus.errors import ConfigError, PlanInfeasible, TimedOut
from periplus.view.terminal import visible
from planner.answer.evaluation import Violation
from planner.answer.outcome import BudgetExhausted, Found, Incumbent, Infeasible
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.plan import Plan, PlanOutcome
from planner.plan_of_placement import plan_of

_SAME = 1e-6
"""Relative tolerance within which a number of a plan file equals the oracle's. Chosen by hand."""

form_option = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


def show(tree: dict[str, Any], form: str, text: Callable[[], str]) -> None:
    """Print an answer on standard output: `tree` for the forms json and yaml, `text()` for the form table."""
    match form:
        case "json":
            click.echo(finite_json.dumps(tree, indent=2))
        case "yaml":
            # Through JSON first, so that both forms have the same values (null for infinity).
            click.echo(yaml_text.dump(json.loads(finite_json.dumps(tree))).rstrip("\n"))
        case _:
            visible.say(text())


def say(message: str) -> None:
    """Print a message on standard error."""
    visible.say(message, err=True)


def read_plan(path: Path) -> Plan:
    """Return the plan of a file, JSON or YAML, evaluated again by the oracle if it has a placement.

    Raises: ConfigError if the file is not a plan, or if its problem does not allow its placement.
    """
    tree = loading.read_yaml(path)
    need_kind(tree, str(path), ("plan",))
    plan = Plan.from_tree(tree, str(path))
    return plan if plan.placement is None or plan.question is None else _reevaluated(plan, path)


def _reevaluated(plan: Plan, path: Path) -> Plan:
    """Return the plan with the oracle's evaluation of its placement.

    If the file's numbers differ, the plan is made again from its placement and has no bound any more. Raises:
    ConfigError if the plan's problem does not allow its placement.
    """
    assert plan.question is not None
    assert plan.placement is not None
    cost_tables = CostTables(plan.question)
    found = evaluate(cost_tables, plan.placement)
    if isinstance(found, Violation):
        raise ConfigError(
            f"{path}: the problem of this plan does not allow its placement: {found.what}; "
            "make a new plan with `periplus plan FILE --fleet FLEET -o json`"
        )
    old = plan.evaluation
    # Plans are written with all digits. A larger difference means another version of the cost model or an edited file.
    if old is not None and all(
        math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME)
        for a, b in ((old.step_s, found.step_s), (old.usd_per_hour, found.usd_per_hour))
    ):
        return replace(plan, evaluation=found)
    stated = "gives no numbers" if old is None else f"says {old.step_s:.6g} s, {old.usd_per_hour:,.2f} dollars an hour"
    say(
        f"{path}: the placement of this plan takes {found.step_s:.6g} s a step and {found.usd_per_hour:,.2f} dollars "
        f"an hour; the file {stated}. The computed numbers are used, and the file's bound is dropped"
    )
    # The bound was proved for other numbers, so it is dropped.
    anew = Incumbent(placement=plan.placement, evaluation=found, bound=None, elapsed_s=0.0)
    return plan_of(cost_tables, anew, method=plan.method, seed=plan.seed)


def read_whole_plan(path: Path) -> Plan:
    """Return the plan of a file with its placement and problem. Raises: ConfigError, also for a plan without them."""
    return whole(read_plan(path), path)


def whole(plan: Plan, path: Path) -> Plan:
    """Return the plan, which was read from `path`. Raises: ConfigError if it has no placement or no problem."""
    if plan.placement is None or plan.question is None:
        raise ConfigError(
            f"{path} has no placement or no problem: it was made by the static method, or for workers; "
            "make a plan that has them with `periplus plan FILE --fleet FLEET -o json`"
        )
    return plan


def committed(outcome: PlanOutcome) -> Plan:
    """Return the plan of an outcome: the one that was found, or the best one when time ended.

    Raises: PlanInfeasible if no plan exists, TimedOut if none was found in time.
    """
    match outcome:
        case Found(best=plan) | BudgetExhausted(best=Plan() as plan):
            return plan
        case BudgetExhausted():
            raise TimedOut("no plan was found in time, and none was proved impossible; allow more with --budget-s")
        case Infeasible():
            # With several facts it is their combination that is impossible.
            remedy = "; at least one of these has to change" if outcome.facts[1:] else ""
            if outcome.facts and not outcome.is_minimal:
                remedy += f" ({_doubt(outcome)})"
            raise PlanInfeasible(f"no plan: {outcome.conflict}{remedy}")


def _doubt(found: Infeasible) -> str:
    """Return what is not proved about a conflict. It is always proved that its facts contradict each other."""
    if found.is_cut:
        return "time ended before it was known whether a smaller set of these already conflicts"
    return "it is proved that these contradict each other, but not that each of them is needed for the contradiction"
