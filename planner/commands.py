"""`periplus plan`: what would run where, without starting anything."""

import json
from pathlib import Path

import click

from periplus import config, yaml_text
from periplus.command import DefaultGroup
from periplus.errors import PlanInfeasible, TimedOut
from periplus.job import load_job
from planner.capabilities import load_capabilities
from planner.checkpoint import published_bytes
from planner.explain import explain
from planner.fleet import fleet_of
from planner.plan import BudgetExhausted, Infeasible, Outcome, Plan
from planner.problem import Budget, Objective
from planner.solve import plan as solve
from planner.workload import workload_of

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=DefaultGroup, default="make")
def plan() -> None:
    """Decide where the tasks of a job would run."""


@plan.command()
@click.argument("file", type=_FILE)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--fleet", required=True, type=_FILE, help="Regions and measured links (periplus.fleet/1, JSON or YAML).")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.option("--budget-s", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds to think.")
def make(file: Path, overrides: tuple[str, ...], fleet: Path, output: str, budget_s: float) -> None:
    """Plan the job in FILE on a fleet. Exit code 4: no plan exists, and the message says why."""
    job = load_job(file, overrides)
    workload = workload_of(job.to_json(), published_bytes(job.model.path))
    snapshot = fleet_of(config.read_yaml(fleet), str(fleet))
    budget = Budget(seconds=budget_s)
    made = committed(solve(snapshot, workload, Objective.WEIGHTS_TIME, load_capabilities(), budget))
    click.echo(_rendered(made, output))


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


def _rendered(made: Plan, output: str) -> str:
    match output:
        case "json":
            return json.dumps(made.to_tree(), indent=2)
        case "yaml":
            return yaml_text.dump(json.loads(made.to_json())).rstrip()
        case _:
            return explain(made)
