"""`periplus plan make|show|explain|compare|diff`: what would run where, and why, without starting anything."""

from pathlib import Path
from typing import Any

import click

from periplus.cli.mounting import DefaultGroup
from planner.commands.background_search import Interrupt
from planner.commands.numbers import MAX_BUDGET_S, Number
from planner.commands.options import FILE, METHODS, options_of, question, question_options
from planner.commands.output import form_option, read_plan, read_whole_plan, say, show, svg_option, whole, write_svg
from planner.commands.run import explained, made_plan, runs_of, simulated
from planner.explain.difference import difference
from planner.explain.lines import explain
from planner.explain.pictures.placement import placement_svg
from planner.jobs.static import METHOD as STATIC

_PLAN_S = 10.0
"""Thinking about a plan, where nobody says how long."""

_budget_option = click.option(
    "--budget-s", type=Number(MAX_BUDGET_S), default=_PLAN_S, show_default=True, help="Seconds to think."
)
_seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of searches that draw at random."
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
    file: Path,
    overrides: tuple[str, ...],
    fleet: Path,
    budget_s: float,
    seed: int,
    with_why: bool,
    with_all: bool,
    with_play: bool,
    form: str,
    svg: Path | None,
    **options: Any,
) -> None:
    """Plan the job or workload in FILE on a fleet. Exit code 4: no plan exists, and the message says why.

    For a job, only what this runtime executes is planned; --study lifts that. Interrupted, the best so far is printed.
    """
    asked, interrupt = question(file, overrides, fleet, options_of(options)), Interrupt()
    flags = {"--explain": with_why, "--compare": with_all, "--output-svg": svg is not None}
    wanted = [flag for flag, is_on in flags.items() if is_on]
    if wanted and asked.method == STATIC:
        raise click.UsageError(f"{wanted[0]} needs a placement, which the static method does not make")
    made = made_plan(asked, budget_s, seed, interrupt)
    problem = made.question
    if wanted and problem is None:
        raise click.UsageError(f"{wanted[0]} needs a placement, and the job's model.path cannot be read here")
    if with_play and not interrupt.is_set:
        made = simulated(made, seed, interrupt)
    left_out = [name for name in wanted if name != "--output-svg"] if interrupt.is_set else []
    extra: dict[str, Any] = {}
    texts: list[str] = []
    if with_why and problem is not None and not interrupt.is_set:
        why = explained(made, budget_s, seed, interrupt)
        extra["explanation"] = why.tree()
        texts.append(why.text(problem.goal, made.gap, plan_s=budget_s))
        left_out = ["--compare"] if interrupt.is_set and with_all else []
    runs = None
    if with_all and problem is not None and not interrupt.is_set:
        runs = runs_of(problem, METHODS, budget_s, seed, interrupt, with_play)
        extra["comparison"] = runs.tree()
        texts.append(runs.text())
    if left_out:
        say(f"interrupted before {' and '.join(left_out)}")
    show({**made.to_tree(), **extra}, form, lambda: "\n\n".join([explain(made), *texts]))
    write_svg(svg, lambda: runs.svg() if runs else placement_svg(made))
    interrupt.leave()


@plan.command("show")
@click.argument("file", type=FILE, metavar="PLAN")
@form_option
@svg_option
def show_plan(file: Path, form: str, svg: Path | None) -> None:
    """Print a plan that was made before, or draw its placement by region."""
    shown = read_plan(file)
    show(shown.to_tree(), form, lambda: explain(shown))
    write_svg(svg, lambda: placement_svg(whole(shown, file)))


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
    made, interrupt = read_whole_plan(file), Interrupt(follows="what was answered so far follows")
    assert made.question is not None
    goal = made.question.goal
    why = explained(made, budget_s, seed, interrupt)
    tree = {"schema": "periplus.plan-explanation/1", "binding": made.binding, **why.tree()}
    show(tree, form, lambda: f"binding: {made.binding}\n{why.text(goal, made.gap, plan_s=_PLAN_S)}")
    interrupt.leave()


@plan.command("compare")
@click.argument("file", type=FILE, metavar="JOB_OR_WORKLOAD")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_fleet_option
@question_options
@_budget_option
@_seed_option
@click.option("--methods", default=",".join(METHODS), show_default=True, metavar="A,B,C", help="Which ones.")
@click.option("--simulate/--no-simulate", "with_play", default=True, show_default=True, help="Play their plans, too.")
@form_option
@svg_option
def compare_methods(
    file: Path,
    overrides: tuple[str, ...],
    fleet: Path,
    budget_s: float,
    seed: int,
    methods: str,
    with_play: bool,
    form: str,
    svg: Path | None,
    **options: Any,
) -> None:
    """Ask every method the same question, each with the whole budget; --output-svg draws quality against time.

    Exit code 4: no plan exists, as one of them proved; 8: none of them found one.
    """
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if unknown := [name for name in names if name not in METHODS]:
        raise click.UsageError(f"--methods: {unknown[0]!r} is none of {', '.join(METHODS)}")
    if not names:
        raise click.UsageError(f"--methods names none; choose from {', '.join(METHODS)}")
    asked, interrupt = question(file, overrides, fleet, options_of(options)), Interrupt()
    if asked.problem is not None and options["method"]:
        raise click.UsageError(f"--method {options['method']}: compare asks several; choose them with --methods")
    problem = asked.problem or made_plan(asked, budget_s, seed, interrupt).question
    if problem is None:
        raise click.UsageError("the static method leaves nothing to compare; is the job's model there to be seen?")
    runs = runs_of(problem, names, budget_s, seed, interrupt, with_play)
    show(runs.tree(), form, runs.text)
    write_svg(svg, runs.svg)
    interrupt.leave()
    runs.check()


@plan.command("diff")
@click.argument("before", type=FILE, metavar="A")
@click.argument("after", type=FILE, metavar="B")
@form_option
def diff_plans(before: Path, after: Path, form: str) -> None:
    """What changes from plan A to plan B, and how much would move."""
    found = difference(read_plan(before), read_plan(after))
    show(found.to_tree(), form, found.text)
