"""Reading plans and printing answers, for all of the planner's commands."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from periplus import config, yaml_text
from periplus.errors import ConfigError, PlanInfeasible, StorageError, TimedOut
from planner.plan import BudgetExhausted, Infeasible, Outcome, Plan, Played
from planner.simulate.record import Simulated

form_option = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True
)
svg_option = click.option(
    "--output-svg", "svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw it there."
)


def show(tree: dict[str, Any], form: str, text: Callable[[], str]) -> None:
    """On standard output: a tree for programs, text for people."""
    match form:
        case "json":
            click.echo(json.dumps(tree, indent=2))
        case "yaml":
            click.echo(yaml_text.dump(json.loads(json.dumps(tree))).rstrip("\n"))
        case _:
            click.echo(text())


def say(message: str) -> None:
    """On standard error."""
    click.echo(message, err=True)


def read_plan(path: Path) -> Plan:
    """A plan file, JSON or YAML. Raises: ConfigError."""
    return Plan.from_tree(config.read_yaml(path), str(path))


def read_whole_plan(path: Path) -> Plan:
    """A plan with its placement and question. Raises: ConfigError for one without."""
    plan = read_plan(path)
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
        case Infeasible():
            raise PlanInfeasible(f"no plan: {outcome.conflict}")
        case BudgetExhausted():
            if outcome.incumbent is None:
                raise TimedOut("no plan was found in time; allow more with --budget-s")
            return outcome.incumbent


def played(simulated: Simulated, num_steps: int, seed: int) -> Played:
    """What a plan keeps of its simulation."""
    return Played(
        step_s=simulated.step_s if math.isfinite(simulated.step_s) else None, samples_per_s=simulated.samples_per_s,
        max_age=max(simulated.max_age, 0), num_steps=num_steps, seed=seed, stalled=simulated.stalled,
    )  # fmt: skip
