"""Reading plans and printing answers, for all of the planner's commands."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from periplus.config import finite_json, loading, yaml_text
from periplus.config.file_kinds import need_kind
from periplus.errors import ConfigError, PlanInfeasible, StorageError, TimedOut
from planner.answer.evaluation import Violation
from planner.answer.outcome import Incumbent
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.plan import NoPlanExists, Outcome, Plan, PlanningTimedOut, SimulatedFigures
from planner.propose import plan_of
from planner.simulate.run_record import Simulated

_SAME = 1e-6
"""Relative difference of numbers that were written and read again."""

form_option = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)


_FOLDER = click.Path(exists=True, file_okay=False, writable=True)


def _drawable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Before anything is thought about. Raises: StorageError."""
    if path is not None:
        try:
            _FOLDER.convert(str(path.parent), param, ctx)
        except click.BadParameter as error:
            why = f"--output-svg {path} cannot be written: {error.message}"
            raise StorageError(f"{why} Choose another place") from error
    return path


svg_option = click.option(
    "--output-svg",
    "svg",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Draw it there.",
    callback=_drawable,
)


def show(tree: dict[str, Any], form: str, text: Callable[[], str]) -> None:
    """On standard output: a tree for programs, text for people."""
    match form:
        case "json":
            click.echo(finite_json.dumps(tree, indent=2))
        case "yaml":
            click.echo(yaml_text.dump(json.loads(finite_json.dumps(tree))).rstrip("\n"))
        case _:
            click.echo(text())


def say(message: str) -> None:
    """On standard error."""
    click.echo(message, err=True)


def read_plan(path: Path) -> Plan:
    """A plan file, JSON or YAML; its numbers are the oracle's of today. Raises: ConfigError."""
    tree = loading.read_yaml(path)
    need_kind(tree, str(path), ("plan",))
    plan = Plan.from_tree(tree, str(path))
    return plan if plan.placement is None or plan.question is None else _judged(plan, path)


def _judged(plan: Plan, path: Path) -> Plan:
    """A plan whose placement its own question allows, and whose numbers are those of its placement."""
    assert plan.question is not None
    assert plan.placement is not None
    cost_tables = CostTables(plan.question)
    found = evaluate(cost_tables, plan.placement)
    if isinstance(found, Violation):
        raise ConfigError(
            f"{path}: its question does not allow its placement: {found.what}; "
            "make it anew with `periplus plan FILE --fleet FLEET -o json`"
        )
    old = plan.evaluation
    if old is not None and all(
        math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME)
        for a, b in ((old.step_s, found.step_s), (old.usd_per_hour, found.usd_per_hour))
    ):
        return replace(plan, evaluation=found)
    said = "says nothing of it" if old is None else f"says {old.step_s:.6g} s, {old.usd_per_hour:,.2f} dollars an hour"
    say(
        f"{path}: its placement takes {found.step_s:.6g} s a step, {found.usd_per_hour:,.2f} dollars an hour; the file "
        f"{said}. The numbers are made anew, and nothing is proved of them"
    )
    anew = Incumbent(placement=plan.placement, evaluation=found, bound=None, elapsed_s=0.0)
    return plan_of(cost_tables, anew, method=plan.method, seed=plan.seed)


def read_whole_plan(path: Path) -> Plan:
    """A plan with its placement and question. Raises: ConfigError for one without."""
    return whole(read_plan(path), path)


def whole(plan: Plan, path: Path) -> Plan:
    """The plan that was read there. Raises: ConfigError if it lacks its placement or question."""
    if plan.placement is None or plan.question is None:
        raise ConfigError(
            f"{path} has no placement with its question: it was made by the static method, or for workers; "
            "make one with `periplus plan FILE --fleet FLEET -o json`"
        )
    return plan


def write_svg(path: Path | None, draw: Callable[[], str]) -> None:
    """Draw into a file, if one was asked for. Raises: StorageError."""
    if path is None:
        return
    try:
        path.write_text(draw(), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; choose another place") from error
    say(f"drawn: {path}")


def committed(outcome: Outcome) -> Plan:
    """The plan to go on with. Raises: PlanInfeasible; TimedOut if there is not even an incumbent."""
    match outcome:
        case Plan():
            return outcome
        case NoPlanExists():
            remedy = "; at least one of these has to change" if outcome.facts[1:] else ""
            if outcome.facts and not outcome.is_minimal:
                remedy += f" ({_doubt(outcome)})"
            raise PlanInfeasible(f"no plan: {outcome.conflict}{remedy}")
        case PlanningTimedOut():
            if outcome.incumbent is None:
                raise TimedOut("no plan was found in time, and none was proved impossible; allow more with --budget-s")
            return outcome.incumbent


def _doubt(found: NoPlanExists) -> str:
    """What is not known of a conflict. That its facts contradict each other is always proved."""
    if found.is_cut:
        return "time ended before this was known to be the smallest such set"
    return "it is proved that these contradict each other, but not that each of them is needed for that"


def played(simulated: Simulated, num_steps: int, seed: int) -> SimulatedFigures:
    """What a plan keeps of its simulation."""
    return SimulatedFigures(
        step_s=simulated.step_s if math.isfinite(simulated.step_s) else None,
        samples_per_s=simulated.samples_per_s,
        max_age=max(simulated.max_age, 0),
        num_steps=num_steps,
        seed=seed,
        stalled=simulated.stalled,
    )
