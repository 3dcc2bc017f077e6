"""`periplus plan make|show|explain|compare|diff`: what would run where, and why, without starting anything."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from periplus import clock
from periplus.command import DefaultGroup
from periplus.errors import ConfigError, TimedOut
from planner.answer import outcome
from planner.answer.outcome import objective_value
from planner.commands.asking import FILE, METHODS, Question, options_of, question, question_options
from planner.commands.output import (
    committed,
    form_option,
    played,
    read_plan,
    read_whole_plan,
    say,
    show,
    svg_option,
    write_svg,
)
from planner.commands.thinking import GRACE_S, Interrupt, Progress, thought
from planner.cost.pools import Prices
from planner.explain import comparison
from planner.explain.comparison import Compared, compared, failed
from planner.explain.counterfactuals import Effect, effect, lifts, unanswered, unused_regions
from planner.explain.difference import difference
from planner.explain.effects import effects_text, effects_tree
from planner.explain.lines import explain
from planner.picture.placement import placement_svg
from planner.picture.quality import quality_svg
from planner.plan import BudgetExhausted, Plan
from planner.propose import idle_pools, limited_pools, plan_of
from planner.question.goal import Problem
from planner.solve import Thinking, searched

T = TypeVar("T")

SIMULATED_STEPS = 8
"""Of each plan that is made: enough to see whether it holds, and a second at most for a thousand devices."""
_SHARE_S = 0.25
"""Least thinking about one counterfactual."""

_budget_option = click.option(
    "--budget-s", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Seconds to think."
)
_seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of searches that draw at random."
)
_fleet_option = click.option(
    "--fleet", required=True, type=FILE, help="Regions, machines and measured links (periplus.fleet/1)."
)


def _is_file(word: str) -> bool:
    return "." in word or "/" in word or Path(word).exists()


@click.group(cls=DefaultGroup, default="make", takes=_is_file)
def plan() -> None:
    """Decide where the tasks of a job or a workload would run."""


@plan.command()
@click.argument("file", type=FILE, metavar="JOB_OR_WORKLOAD")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_fleet_option
@question_options
@_budget_option
@_seed_option
@click.option("--explain", "with_why", is_flag=True, help="Say what would lift it, and why regions are not used.")
@click.option("--compare", "with_all", is_flag=True, help="Ask every method; --output-svg draws quality against time.")
@click.option("--simulate/--no-simulate", "with_play", default=True, show_default=True, help="Play the plan, too.")
@form_option
@svg_option
def make(
    file: Path, overrides: tuple[str, ...], fleet: Path, budget_s: float, seed: int, with_why: bool, with_all: bool,
    with_play: bool, form: str, svg: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Plan the job or workload in FILE on a fleet. Exit code 4: no plan exists, and the message says why.

    For a job, only what this runtime executes is planned; --study lifts that. Interrupted, the best so far is printed.
    """
    asked, interrupt = question(file, overrides, fleet, options_of(options)), Interrupt()
    made = _made(asked, budget_s, seed, interrupt)
    if with_play and not interrupt.is_set:
        made = _simulated(made, seed, interrupt)
    extra: dict[str, Any] = {}
    texts: list[str] = []
    problem = made.question
    if with_why and problem is not None and not interrupt.is_set:
        changes, regions = _effects(made, budget_s, seed, interrupt)
        extra["explanation"] = effects_tree(changes, regions)
        texts.append(effects_text(changes, regions, problem.goal, made.gap or 0.0))
    runs: list[Compared] = []
    if with_all and problem is not None and not interrupt.is_set:
        runs = _runs(problem, METHODS, budget_s, seed, interrupt)
        extra["comparison"] = comparison.comparison_tree(runs, problem.goal)
        texts.append(comparison.comparison_text(runs, problem.goal))
    show({**made.to_tree(), **extra}, form, lambda: "\n\n".join([explain(made), *texts]))
    if runs and problem is not None:
        write_svg(svg, lambda: _quality(runs, problem, budget_s))
    else:
        write_svg(svg, lambda: placement_svg(made))
    interrupt.leave()


@plan.command("show")
@click.argument("file", type=FILE, metavar="PLAN")
@form_option
@svg_option
def show_plan(file: Path, form: str, svg: Path | None) -> None:
    """Print a plan that was made before, or draw its placement by region."""
    shown = read_plan(file)
    show(shown.to_tree(), form, lambda: explain(shown))
    write_svg(svg, lambda: placement_svg(read_whole_plan(file)))


@plan.command("explain")
@click.argument("file", type=FILE, metavar="PLAN")
@_budget_option
@_seed_option
@form_option
def explain_plan(file: Path, budget_s: float, seed: int, form: str) -> None:
    """What binds in a plan, what would lift it and by how much, and why each unused region is unused.

    Every answer is a plan of its own, with one machine more, one link twice as fast, a larger bound on staleness, or
    one region made to generate.
    """
    made, interrupt = read_whole_plan(file), Interrupt()
    assert made.question is not None
    goal = made.question.goal
    changes, regions = _effects(made, budget_s, seed, interrupt)
    tree = {"schema": "periplus.plan-explanation/1", "binding": made.binding, **effects_tree(changes, regions)}
    show(tree, form, lambda: f"binding: {made.binding}\n{effects_text(changes, regions, goal, made.gap or 0.0)}")
    interrupt.leave()


@plan.command("compare")
@click.argument("file", type=FILE, metavar="JOB_OR_WORKLOAD")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_fleet_option
@question_options
@_budget_option
@_seed_option
@click.option("--methods", default=",".join(METHODS), show_default=True, metavar="A,B,C", help="Which ones.")
@form_option
@svg_option
def compare_methods(
    file: Path, overrides: tuple[str, ...], fleet: Path, budget_s: float, seed: int, methods: str, form: str,
    svg: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Ask every method the same question, each with the whole budget; --output-svg draws quality against time."""
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if unknown := [name for name in names if name not in METHODS]:
        raise click.UsageError(f"--methods: {unknown[0]!r} is none of {', '.join(METHODS)}")
    asked, interrupt = question(file, overrides, fleet, options_of(options)), Interrupt()
    problem = asked.problem or _made(asked, budget_s, seed, interrupt).question
    if problem is None:
        raise click.UsageError("the static method leaves nothing to compare; is the job's model there to be seen?")
    runs = _runs(problem, names, budget_s, seed, interrupt)
    show(comparison.comparison_tree(runs, problem.goal), form, lambda: comparison.comparison_text(runs, problem.goal))
    write_svg(svg, lambda: _quality(runs, problem, budget_s))
    interrupt.leave()


@plan.command("diff")
@click.argument("before", type=FILE, metavar="A")
@click.argument("after", type=FILE, metavar="B")
@form_option
def diff_plans(before: Path, after: Path, form: str) -> None:
    """What changes from plan A to plan B, and how much would move."""
    found = difference(read_plan(before), read_plan(after))
    show(found.to_tree(), form, found.text)


# ---- thinking --------------------------------------------------------------------------------------------------------


def _made(asked: Question, budget_s: float, seed: int, interrupt: Interrupt) -> Plan:
    """The plan, or the best so far. Raises: PlanInfeasible, TimedOut."""
    progress = Progress(goal=asked.goal, what=asked.method)
    call = partial(asked.answer, progress.thinking(budget_s, seed, interrupt))
    try:
        found = _watched(call, progress, interrupt, budget_s)
    except TimedOut:
        if asked.problem is None or progress.best is None:
            raise
        return plan_of(Prices(asked.problem), progress.best, method=asked.method, seed=seed)
    made = committed(found)
    if isinstance(found, BudgetExhausted) and not interrupt.is_set:
        say(f"time ended after {budget_s:g} s before more was proved; allow more with --budget-s")
    return made


def _watched(call: Callable[[], T], progress: Progress, interrupt: Interrupt, budget_s: float = math.inf) -> T:
    try:
        return thought(call, progress.show, interrupt, budget_s + GRACE_S)
    finally:
        progress.clear()


def _simulated(made: Plan, seed: int, interrupt: Interrupt) -> Plan:
    """The plan with what the simulator made of it; as it was, if it was interrupted or has no placement."""
    from planner.simulate.simulator import simulate

    problem, placement = made.question, made.placement
    if problem is None or placement is None:
        return made
    progress = Progress(goal=None, what="simulation")
    found = _watched(
        lambda: simulate(
            problem, placement, seed=seed, num_steps=SIMULATED_STEPS, idle=idle_pools(made), at_most=limited_pools(made)
        ),
        progress,
        interrupt,
    )
    return replace(made, simulated=played(found, SIMULATED_STEPS, seed))


def _effects(
    made: Plan, budget_s: float, seed: int, interrupt: Interrupt
) -> tuple[tuple[Effect, ...], tuple[Effect, ...]]:
    """Each counterfactual with its share of the budget, until interrupted."""
    problem, placement, evaluation = made.question, made.placement, made.evaluation
    assert problem is not None
    assert placement is not None
    assert evaluation is not None
    goal = problem.goal
    base = objective_value(goal, evaluation)
    asked = (lifts(problem, placement), unused_regions(problem, placement))
    share_s = max(_SHARE_S, budget_s / max(1, sum(map(len, asked))))
    found: list[tuple[Effect, ...]] = []
    for changes in asked:
        effects = []
        for change in changes:
            if interrupt.is_set:
                break
            progress = Progress(goal=goal, what=change.what)
            thinking = progress.thinking(share_s, seed, interrupt)
            call = partial(effect, change, placement, base, _solver(thinking))
            try:
                effects.append(_watched(call, progress, interrupt, share_s))
            except TimedOut:
                effects.append(unanswered(change))
        found.append(tuple(effects))
    return found[0], found[1]


def _solver(thinking: Thinking) -> Callable[[Problem], outcome.Outcome]:
    return lambda problem: searched(Prices(problem), thinking, "auto")


def _runs(
    problem: Problem, methods: tuple[str, ...], budget_s: float, seed: int, interrupt: Interrupt
) -> list[Compared]:
    runs = []
    for method in methods:
        if interrupt.is_set:
            break
        progress = Progress(goal=problem.goal, what=method)
        thinking, began_s = progress.thinking(budget_s, seed, interrupt), clock.monotonic_s()
        try:
            found = _watched(partial(searched, Prices(problem), thinking, method), progress, interrupt, budget_s)
            runs.append(compared(method, found, clock.monotonic_s() - began_s))
        except (ConfigError, TimedOut) as error:
            runs.append(failed(method, progress.best, str(error), clock.monotonic_s() - began_s))
    return runs


def _quality(runs: list[Compared], problem: Problem, budget_s: float) -> str:
    return quality_svg(
        comparison.traces(runs, problem.goal), unit=comparison.unit_of(problem.goal),
        bound=comparison.best_bound(runs), budget_s=budget_s, title="quality against time",
    )  # fmt: skip
