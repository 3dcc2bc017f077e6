"""`periplus simulate`: run a plan in the discrete-event simulator and compare the result with the plan's predictions.

The plan may be simulated on another fleet than its own, and with faults: lost devices, links that change, traces of
spot instances (`planner.commands.faults`). The table shows predicted and simulated seconds side by side.
"""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from periplus.view import units
from planner.answer.evaluation import Violation
from planner.commands.background_search import Interrupt, SearchProgress, run_in_background
from planner.commands.faults import FaultTarget
from planner.commands.numbers import MAX_SPREAD, Number
from planner.commands.output import form_option, read_whole_plan, say, show
from planner.cost.oracle import evaluate
from planner.cost.tables.cost_tables import CostTables
from planner.explain.columns import columns
from planner.files.loaders import load_fleet
from planner.plan import Plan
from planner.plan_of_placement import idle_pools, limited_pools
from planner.problem.device_classes import classes_of, fits
from planner.problem.goal import Goal, Problem
from planner.simulate.faults import wandering_rates
from planner.simulate.network.links import NoRoute
from planner.simulate.run_record import Simulated

_DRIFTS = 3
"""Simulated time for which links drift, as a multiple of the predicted time of all steps. Steps that take longer than
predicted still see drifting links. Chosen by hand."""
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("file", type=_FILE, metavar="PLAN")
@click.option("--fleet", type=_FILE, help="Simulate the plan on this fleet instead of the one it was made for.")
@click.option(
    "--steps", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Training steps to simulate."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the sampled lengths."
)
@click.option(
    "--lose",
    multiple=True,
    metavar="WHAT=FRACTION@SECONDS",
    help="From SECONDS on, only FRACTION of a device class, or of a region's spot machines, is left.",
)
@click.option(
    "--rate",
    multiple=True,
    metavar="SRC>DST=FACTOR@SECONDS",
    help="From SECONDS on, the link has FACTOR times its measured rate; with 0 it carries nothing.",
)
@click.option(
    "--wander",
    type=Number(MAX_SPREAD, least=0.0),
    metavar="SPREAD",
    help="Let link rates drift around the measured ones; SPREAD is the standard deviation of the logarithm, as 0.2.",
)
@click.option("--trace", type=_FILE, help="Published trace of spot instances (CSV or JSON); needs --trace-of.")
@click.option("--trace-of", metavar="WHAT", help="The device class or region that follows the trace.")
@form_option
def simulate(
    file: Path,
    fleet: Path | None,
    steps: int,
    seed: int,
    lose: tuple[str, ...],
    rate: tuple[str, ...],
    wander: float | None,
    trace: Path | None,
    trace_of: str | None,
    form: str,
) -> None:
    """Simulate the plan in PLAN (made by `periplus plan ... -o json`)."""
    from planner.simulate import simulator

    made = read_whole_plan(file)
    question, placement = made.question, made.placement
    assert question is not None
    assert placement is not None
    if (trace is None) != (trace_of is None):
        raise click.UsageError("--trace and --trace-of belong together; give both or neither")
    # The plan keeps its own problem and predictions; only the simulation runs on the other fleet.
    problem = question
    if fleet is not None:
        problem = replace(question, fleet=load_fleet(fleet))
        _check_fleet(made, problem, str(fleet))
    faults = FaultTarget(problem.fleet, placement, idle_pools(made)).faults(lose, rate, trace, trace_of)
    if wander:
        assert made.evaluation is not None
        # Drifting is scheduled in advance, so its end has to be guessed from the predicted step.
        until_s = _DRIFTS * (steps + 1) * made.evaluation.step_s
        faults = replace(faults, rates=(*faults.rates, *wandering_rates(problem.fleet, seed, until_s, spread=wander)))
    interrupt = Interrupt(follows="the result of the steps so far follows")
    progress = SearchProgress(goal=None, what="simulation")
    try:
        found = run_in_background(
            lambda: simulator.simulate(
                problem,
                placement,
                seed=seed,
                num_steps=steps,
                faults=faults,
                idle=idle_pools(made),
                at_most=limited_pools(made),
                should_stop=interrupt.should_stop,
            ),
            progress.show,
            interrupt,
        )
    except (NoRoute, simulator.TooLarge) as error:
        raise click.UsageError(f"the plan cannot be simulated: {error}") from error
    finally:
        progress.clear()
    # The run was stopped early: only the operator can do that.
    if found.num_played < steps and not found.stalled:
        if not found.num_played:
            say("interrupted before any step was complete")
            interrupt.leave()
        say(f"interrupted: the result covers {found.num_played:,} of {steps:,} steps")
    show(_tree(made, found, steps, seed), form, lambda: _text(made, found))
    # Only after everything is printed: this ends the command with the exit code of an interrupt.
    interrupt.leave()


def _check_fleet(made: Plan, problem: Problem, source: str) -> None:
    """Check that a fleet can run the plan. `problem` is the plan's problem with that fleet, `source` the fleet's file.

    Raises: click.UsageError if the fleet lacks machines or routes that the plan uses.
    """
    assert made.placement is not None
    classes = {each.key: each for each in classes_of(problem.fleet)}
    # Number of units by size, for each class: whether they fit is a question of all sizes together.
    units_by_class: dict[str, dict[int, int]] = {}
    for pool in (pool for group in made.placement.groups for pool in group.pools):
        if pool.device_class not in classes:
            raise click.UsageError(f"--fleet {source} has no {pool.device_class}, which the plan uses")
        of_class = units_by_class.setdefault(pool.device_class, {})
        of_class[pool.unit_gpus] = of_class.get(pool.unit_gpus, 0) + pool.num_units
    for key, held in units_by_class.items():
        at = classes[key]
        if not fits(at, held):
            needed = " and ".join(f"{num:,} x {size}" for size, num in sorted(held.items()))
            raise click.UsageError(
                f"--fleet {source} has too few of {key}: {at.num_machines:,} machines of {at.gpus_per_machine} devices "
                f"cannot hold the plan's {needed}; plan anew for that fleet"
            )
    # The oracle checks what counting does not see: routes, memory, rules. Limits of the goal do not matter for a
    # simulation, so the goal is the plain one.
    estimate = evaluate(CostTables(problem), made.placement, goal=Goal())
    if isinstance(estimate, Violation):
        raise click.UsageError(f"--fleet {source} cannot run the plan: {estimate.what}; plan anew for that fleet")


def _tree(made: Plan, found: Simulated, steps: int, seed: int) -> dict[str, Any]:
    assert made.evaluation is not None
    tree = asdict(found)
    # JSON has no infinity: seconds of a stalled run are null.
    finite = math.isfinite(found.step_s)
    tree |= {
        "step_s": found.step_s if finite else None,
        "steps_s": [each for each in found.steps_s if math.isfinite(each)],
        "task_busy_s": {task.value: busy_s for task, busy_s in found.task_busy_s},
        "max_age": found.max_age,
    }
    predicted = made.evaluation.step_s
    return {
        "schema": "periplus.simulation/1",
        "num_steps": steps,
        "seed": seed,
        "predicted_step_s": predicted,
        "simulated_over_predicted": found.step_s / predicted if finite else None,
        **tree,
    }


def _text(made: Plan, found: Simulated) -> str:
    assert made.evaluation is not None
    if found.stalled:
        return f"the simulated run stalled: {found.stalled}"
    predicted = made.evaluation
    rows = [("a step", _seconds(predicted.step_s), _seconds(found.step_s), _deviation(predicted.step_s, found.step_s))]
    busy = dict(found.task_busy_s)
    rows += [
        (task.value.replace("_", " "), _seconds(seconds), _seconds(busy.get(task)), _deviation(seconds, busy.get(task)))
        for task, seconds in predicted.task_s
    ]
    seen = {each.region: each for each in found.regions}
    for region in predicted.regions:
        if region.region in seen:
            took = seen[region.region]
            rows.append((f"weights to {region.region}", _seconds(region.weights_s), _seconds(took.weights_s), ""))
            rows.append((f"window of {region.region}", _seconds(region.window_s), "", ""))
            rows.append((f"a group in {region.region} (p99)", "", _seconds(took.group_p99_s or None), ""))
    table = columns(("SECONDS", "PREDICTED", "SIMULATED", "DIFFERENCE"), rows, right=(1, 2, 3))
    return "\n".join([table, *_facts(found)])


def _facts(found: Simulated) -> list[str]:
    ages = ", ".join(f"{age}: {num:,}" for age, num in enumerate(found.tokens_by_age))
    facts = [
        f"{units.short(found.samples_per_s)} samples/s; tokens trained on by age in versions: {ages or 'none'}",
        f"a complete batch waited {_seconds(found.hold_s)} s a step for older groups, which would otherwise become too "
        "stale",
    ]
    if found.units_lost:
        facts.append(f"{found.units_lost:,} units were lost, and {found.samples_lost:,} samples were started again")
    sent = [f"{use.src_region} to {use.dst_region} {units.size(use.num_bytes)}" for use in found.links]
    return [*facts, f"sent a step: {', '.join(sent)}"] if sent else facts


def _seconds(seconds: float | None) -> str:
    return units.short(seconds)


def _deviation(predicted: float, found: float | None) -> str:
    if found is None or not found > 0:
        return ""
    return f"{(found / predicted - 1) * 100:+.1f} %" if predicted > 0 else ""
