"""`periplus plan make|show|explain|compare|diff|calibrate`: make, print and compare plans, and fit their figures.

Each command turns its arguments into a question (`planner.commands.options`) or reads a plan, lets
`planner.commands.run` do the work, and prints the answer (`planner.commands.output`).
"""

import shlex
from pathlib import Path
from typing import Any

import click

from periplus.cli.command_groups import DefaultGroup
from periplus.config import loading, yaml_text
from planner.commands.background_search import Interrupt
from planner.commands.frontier import frontier
from planner.commands.numbers import MAX_BUDGET_S, Number
from planner.commands.options import FILE, METHODS, options_of, question, question_options
from planner.commands.output import form_option, read_plan, read_whole_plan, say, show
from planner.commands.run import answer_counterfactuals, made_plan, run_methods, simulated
from planner.explain.columns import columns
from planner.explain.difference import difference
from planner.explain.frontier import frontier_text, frontier_tree
from planner.explain.lines import explain
from planner.explain.money import has_prices
from planner.explain.processes import dollars_of, dollars_text, processes_text
from planner.jobs.static_layout import METHOD as STATIC

_PLAN_S = 10.0
"""Default time budget of a search, in seconds. Chosen by hand."""

_budget_option = click.option(
    "--budget-s", type=Number(MAX_BUDGET_S), default=_PLAN_S, show_default=True, help="Seconds to search."
)
_seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of random searches."
)
_fleet_option = click.option(
    "--fleet", required=True, type=FILE, help="Fleet file with regions, machines and measured links (periplus.fleet/1)."
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
@click.option(
    "--explain", "with_why", is_flag=True, help="Say what would shorten the step, and why regions are unused."
)
@click.option("--compare", "with_all", is_flag=True, help="Run every method.")
@click.option(
    "--simulate/--no-simulate", "with_simulation", default=True, show_default=True, help="Simulate the plan too."
)
@form_option
def make(
    file: Path,
    overrides: tuple[str, ...],
    fleet: Path,
    budget_s: float,
    seed: int,
    with_why: bool,
    with_all: bool,
    with_simulation: bool,
    form: str,
    **options: Any,
) -> None:
    """Plan the job or workload in FILE on a fleet. Exit code 4: no plan exists, and the message says why.

    A job is planned within what this runtime can execute, unless --study is given. Its processes, its dollars and
    the command that submits it with this plan follow; if prices are known, half of the budget is for the frontier.
    After an interrupt, the best plan so far is printed.
    """
    asked, interrupt = question(file, overrides, fleet, options_of(options)), Interrupt()
    # Both need a placement. The static method makes none, which is known before any search.
    flags = {"--explain": with_why, "--compare": with_all}
    wanted = [flag for flag, is_on in flags.items() if is_on]
    if wanted and asked.method == STATIC:
        raise click.UsageError(
            f"{wanted[0]} needs a placement, which the static method does not make; omit one of the two"
        )
    has_frontier = asked.job is not None and asked.method != STATIC and has_prices(asked.fleet)
    made = made_plan(asked, budget_s / 2 if has_frontier else budget_s, seed, interrupt)
    # A job whose model is not visible here also gets a static plan, which is known only now.
    problem = made.question
    if wanted and problem is None:
        raise click.UsageError(
            f"{wanted[0]} needs a placement, but the job's model.path cannot be read on this machine; "
            f"omit {wanted[0]}, or run the command where the model is"
        )
    if with_simulation and not interrupt.is_set:
        made = simulated(made, seed, interrupt)
    # Parts that an interrupt skipped are named, so that nobody takes the output for complete.
    left_out = wanted if interrupt.is_set else []
    extra: dict[str, Any] = {}
    texts: list[str] = []
    if with_why and problem is not None and not interrupt.is_set:
        why = answer_counterfactuals(made, budget_s, seed, interrupt)
        extra["explanation"] = why.tree()
        texts.append(why.text(problem.goal, made.gap, plan_s=budget_s))
        # If it came during the explanation, only the comparison is missing.
        left_out = ["--compare"] if interrupt.is_set and with_all else []
    # A fresh budget for each method, as for the plan itself.
    if with_all and problem is not None and not interrupt.is_set:
        runs = run_methods(problem, METHODS, budget_s, seed, interrupt, with_simulation)
        extra["comparison"] = runs.tree()
        texts.append(runs.text())
    if asked.job is not None:
        steps = asked.job.steps
        named = frontier(asked, made, budget_s / 2, seed, interrupt) if has_frontier and problem else ()
        extra |= {"dollars": dollars_of(made, steps), "frontier": frontier_tree(named, steps)}
        unknown = "" if has_prices(asked.fleet) else ", no frontier"
        texts += [processes_text(made), dollars_text(made, steps) + unknown, frontier_text(named, steps)]
        again = shlex.join(["periplus", "job", "submit", str(file), *overrides, "--plan", "PLAN"])
        texts.append(f"next: {again}   (PLAN: what this command prints with -o json)")
    if left_out:
        say(f"interrupted before {' and '.join(left_out)}")
    # One answer: the explanation and the comparison are further keys of the plan, or paragraphs below it.
    show({**made.to_tree(), **extra}, form, lambda: "\n\n".join(filter(None, [explain(made), *texts])))
    interrupt.leave()


@plan.command("show")
@click.argument("file", type=FILE, metavar="PLAN")
@form_option
def show_plan(file: Path, form: str) -> None:
    """Print the plan in PLAN."""
    shown = read_plan(file)
    show(shown.to_tree(), form, lambda: explain(shown))


@plan.command("explain")
@click.argument("file", type=FILE, metavar="PLAN")
@_budget_option
@_seed_option
@form_option
def explain_plan(file: Path, budget_s: float, seed: int, form: str) -> None:
    """Say what limits the plan in PLAN, what would improve it by how much, and why each unused region is unused.

    Each answer is the result of a search with one change: one machine more, one link twice as fast, a larger staleness
    bound, a looser limit, or one unused region that must generate.
    """
    made, interrupt = read_whole_plan(file), Interrupt(follows="what was answered so far follows")
    assert made.question is not None
    goal = made.question.goal
    why = answer_counterfactuals(made, budget_s, seed, interrupt)
    tree = {"schema": "periplus.plan-explanation/1", "binding": made.binding, **why.tree()}
    show(tree, form, lambda: f"binding: {made.binding}\n{why.text(goal, made.gap, plan_s=_PLAN_S)}")
    interrupt.leave()


@plan.command("calibrate")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False), metavar="RUN...")
@form_option
def calibrate(runs: tuple[Path, ...], form: str) -> None:
    """Fit the types of devices to what the steps of runs took, and print them as `gpu_types` of a fleet file.

    Each RUN is the directory of a run; all are of one model and engine. Plans of that model on the same machines then
    predict what runs take there, their threads and streams included.
    """
    from planner.calibration.runs import calibrated_types  # no other command of this file reads runs

    found = calibrated_types(runs)
    tree = {"gpu_types": [loading.tree_of(each.gpu) for each in found]}
    rows = [(each.gpu.name, f"{each.before:.0%}", f"{each.after:.0%}", each.gpu.source) for each in found]
    heads = ("TYPE", "ERROR BEFORE", "AFTER", "MEASURED")
    show(tree, form, lambda: f"{columns(heads, rows, right=(1, 2))}\n\n{yaml_text.dump(tree).rstrip()}")


@plan.command("compare")
@click.argument("file", type=FILE, metavar="JOB_OR_WORKLOAD")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_fleet_option
@question_options
@_budget_option
@_seed_option
@click.option("--methods", default=",".join(METHODS), show_default=True, metavar="A,B,C", help="Methods to run.")
@click.option(
    "--simulate/--no-simulate", "with_simulation", default=True, show_default=True, help="Simulate the plans too."
)
@form_option
def compare_methods(
    file: Path,
    overrides: tuple[str, ...],
    fleet: Path,
    budget_s: float,
    seed: int,
    methods: str,
    with_simulation: bool,
    form: str,
    **options: Any,
) -> None:
    """Run every method on the same problem, each with the whole budget.

    Exit code 4: one of the methods proved that no plan exists; 8: none of them found a plan.
    """
    # Arguments are checked before files are read, and files before any search.
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    if unknown := [name for name in names if name not in METHODS]:
        raise click.UsageError(f"--methods: {unknown[0]!r} is not a method; choose from {', '.join(METHODS)}")
    if not names:
        raise click.UsageError(f"--methods names no method; choose from {', '.join(METHODS)}")
    asked, interrupt = question(file, overrides, fleet, options_of(options)), Interrupt()
    if asked.problem is not None and options["method"]:
        raise click.UsageError(
            f"--method {options['method']}: compare runs several methods; choose them with --methods instead"
        )
    # A job has no problem of its own until it is planned: it depends on the region of the trainer. Methods are then
    # compared on the problem of its best plan.
    problem = asked.problem or made_plan(asked, budget_s, seed, interrupt).question
    if problem is None:
        raise click.UsageError(
            "nothing to compare: the job's model.path cannot be read on this machine, and then only the static method "
            "can plan it; run the command where the model is"
        )
    runs = run_methods(problem, names, budget_s, seed, interrupt, with_simulation)
    show(runs.tree(), form, runs.text)
    interrupt.leave()
    # Last, because it raises if nothing was found; the table says more than the error.
    runs.check()


@plan.command("diff")
@click.argument("before", type=FILE, metavar="A")
@click.argument("after", type=FILE, metavar="B")
@form_option
def diff_plans(before: Path, after: Path, form: str) -> None:
    """Say what changes from plan A to plan B, and how many devices would move."""
    found = difference(read_plan(before), read_plan(after))
    show(found.to_tree(), form, found.text)
