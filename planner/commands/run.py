"""The long-running parts of the planner's commands: search a plan, simulate it, explain it, compare methods.

Each part runs in a background thread with a time budget of its own and shows its progress on standard error. An
operator's interrupt ends the part that is running. What was found by then is kept, and the output says that it is
incomplete.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from periplus import clock
from periplus.errors import ConfigError, PlanInfeasible, TimedOut
from planner.answer.outcome import BudgetExhausted, Infeasible, Outcome, objective_value
from planner.commands.background_search import (
    OVERRUN_S,
    Interrupt,
    SearchProgress,
    is_abandoned_search_running,
    run_in_background,
)
from planner.commands.options import Question
from planner.commands.output import committed, say
from planner.cost.tables.cost_tables import CostTables
from planner.explain import comparison
from planner.explain.comparison import Compared, compared, failed
from planner.explain.counterfactuals import Effect, effect, lifts, unanswered, unused_regions
from planner.explain.effects import effects_text, effects_tree
from planner.plan import Plan
from planner.plan_of_placement import idle_pools, limited_pools, plan_of
from planner.problem.goal import Goal, Problem
from planner.solve import Thinking, searched

T = TypeVar("T")

SIMULATED_STEPS = 8
"""Number of steps that are simulated of each plan that `periplus plan` makes. For a thousand devices they take a second
at most. Chosen by hand."""
SIMULATION_S = 5.0
"""Largest number of seconds for this simulation. `periplus simulate` has no such limit. Chosen by hand."""
_SHARE_S = 0.25
"""Least time budget of one counterfactual, in seconds. Chosen by hand."""
_WHOLE = 0.9
"""Fraction of the budget. A method that ends before it, without a proof, gave up by itself: more time would not help.
Chosen by hand."""


def made_plan(asked: Question, budget_s: float, seed: int, interrupt: Interrupt) -> Plan:
    """Return the plan that answers the question, or the best one found before time ended or the operator interrupted.

    Raises: PlanInfeasible if no plan exists, TimedOut if none was found in time, click.exceptions.Exit if the operator
    interrupted before one was found.
    """
    progress = SearchProgress(goal=asked.goal, what=asked.method)
    call = partial(asked.answer, progress.thinking(budget_s, seed, interrupt))
    try:
        # The method keeps its budget by itself; the longer limit is only for one that does not.
        found = watched(call, progress, interrupt, budget_s + OVERRUN_S)
    except TimedOut:
        # The thread is abandoned, but its last report is a valid placement without a proof.
        if asked.problem is not None and progress.best is not None:
            say("the search did not end in time and still runs; this is the best plan that it had found")
            return plan_of(CostTables(asked.problem), progress.best, method=asked.method, seed=seed)
        _leave_without(interrupt)
        raise
    # Three reasons for no placement: the operator interrupted, the method gave up, or its time ended (`committed`
    # reports that).
    if isinstance(found, BudgetExhausted) and found.best is None:
        _leave_without(interrupt)
        if (took_s := clock.monotonic_s() - progress.began_s) < _WHOLE * budget_s:
            raise TimedOut(
                f"the method {asked.method} ended after {took_s:.1f} s without finding a placement in its part of the "
                "plan space, which does not prove that none exists; try --method auto or --method exact"
            )
    made = committed(found)
    # A plan that is not proved to be the best: would more time help or not? An operator who interrupted knows the
    # reason.
    if isinstance(found, BudgetExhausted) and found.refuted:
        say(f"warning: {found.refuted}")
    elif isinstance(found, BudgetExhausted) and not interrupt.is_set:
        if clock.monotonic_s() - progress.began_s < _WHOLE * budget_s:
            say(
                "the search gave up before it proved that this plan is the best; try another --method, or see what "
                "limits the plan with `periplus plan explain`"
            )
        else:
            say(
                f"the budget of {budget_s:g} s ended before it was proved that this plan is the best; allow more with "
                "--budget-s"
            )
    return made


def _leave_without(interrupt: Interrupt) -> None:
    if interrupt.is_set:
        say("interrupted before any plan was found")
    interrupt.leave()


def watched(call: Callable[[], T], progress: SearchProgress, interrupt: Interrupt, limit_s: float) -> T:
    """Run a search in the background with its progress shown, and return its answer as `run_in_background` does."""
    try:
        return run_in_background(call, progress.show, interrupt, limit_s)
    finally:
        progress.clear()


def simulated(made: Plan, seed: int, interrupt: Interrupt) -> Plan:
    """Return the plan with the results of a short simulation.

    Return it unchanged if it has no placement, if an abandoned search still runs, or if the simulation was not finished
    in time.
    """
    from planner.simulate.simulator import TooLarge, simulate
    from planner.simulated_plan import simulated_figures

    problem, placement = made.question, made.placement
    # An abandoned search still uses a core, so the simulation would hardly end in time.
    if problem is None or placement is None or is_abandoned_search_running():
        return made
    progress = SearchProgress(goal=None, what="simulation")
    call = partial(
        simulate,
        problem,
        placement,
        seed=seed,
        num_steps=SIMULATED_STEPS,
        idle=idle_pools(made),
        at_most=limited_pools(made),
        should_stop=interrupt.should_stop,
    )
    try:
        found = watched(call, progress, interrupt, SIMULATION_S)
        # A stalled run is a complete result: more steps would not come.
        is_whole = found.num_played == SIMULATED_STEPS or bool(found.stalled)
    except TimedOut:
        is_whole = False
    except TooLarge as error:
        say(f"the plan was not simulated: {error}")
        return made
    if not is_whole:
        if not interrupt.is_set:
            say(
                f"the plan was not simulated: {SIMULATED_STEPS} steps take more than {SIMULATION_S:g} s; "
                "use `periplus simulate` instead"
            )
        return made
    return replace(made, simulated=simulated_figures(found, SIMULATED_STEPS, seed))


# ---- counterfactuals -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Counterfactuals of one plan, as far as an interrupt left time for them."""

    changes: tuple[Effect, ...]
    """Effects of more resources or looser limits."""
    regions: tuple[Effect, ...]
    """Effects of using each unused region."""
    num_asked: int
    """Number of counterfactuals in all, answered or not."""
    budget_s: float
    """Time budget for all counterfactuals together."""

    @property
    def num_answered(self) -> int:
        """Number of counterfactuals that were answered before an interrupt."""
        return len(self.changes) + len(self.regions)

    def tree(self) -> dict[str, Any]:
        """Return the counterfactuals as plain JSON values."""
        numbers = {"num_asked": self.num_asked, "num_answered": self.num_answered}
        return {**effects_tree(self.changes, self.regions), **numbers}

    def text(self, goal: Goal, gap: float | None, *, plan_s: float) -> str:
        """Return the counterfactuals as text. `gap` is the plan's own gap, `plan_s` the budget of its search."""
        lines = []
        if self.num_answered:
            lines.append(effects_text(self.changes, self.regions, goal, gap, budget_s=self.budget_s, plan_s=plan_s))
        if self.num_answered < self.num_asked:
            lines.append(f"(interrupted: {self.num_answered} of {self.num_asked} questions were answered)")
        return "\n".join(lines)


def answer_counterfactuals(made: Plan, budget_s: float, seed: int, interrupt: Interrupt) -> Explained:
    """Search each counterfactual of a plan with an equal share of the time that is left, until interrupted.

    The plan must have a placement, an evaluation and its problem.
    """
    problem, placement, evaluation = made.question, made.placement, made.evaluation
    assert problem is not None
    assert placement is not None
    assert evaluation is not None
    goal = problem.goal
    base = objective_value(goal, evaluation)
    # Kinds of counterfactuals: more resources or looser limits, then unused regions.
    kinds = (lifts(problem, placement), unused_regions(problem, placement))
    num_asked = sum(map(len, kinds))
    left, end_s = num_asked, clock.monotonic_s() + budget_s
    found: list[tuple[Effect, ...]] = []
    for changes in kinds:
        effects = []
        for change in changes:
            if interrupt.is_set:
                break
            # Earlier searches may have overrun the budget: what is left then gets no answer.
            if clock.monotonic_s() > end_s + OVERRUN_S:
                effects.append(unanswered(change))
                continue
            # An equal share of what is left, so that time which an earlier search did not use goes to the later ones.
            share_s, left = max(_SHARE_S, (end_s - clock.monotonic_s()) / left), left - 1
            progress = SearchProgress(goal=goal, what=change.what)
            thinking = progress.thinking(share_s, seed, interrupt)
            call = partial(effect, change, placement, base, _solver(thinking))
            try:
                answer = watched(call, progress, interrupt, share_s + OVERRUN_S)
            except TimedOut:
                answer = unanswered(change)
            if not interrupt.is_set:  # An interrupted search says nothing about the change.
                effects.append(answer)
        found.append(tuple(effects))
    return Explained(changes=found[0], regions=found[1], num_asked=num_asked, budget_s=budget_s)


def _solver(thinking: Thinking) -> Callable[[Problem], Outcome]:
    return lambda problem: searched(CostTables(problem), thinking, "auto")


# ---- methods ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Results of several methods on one problem."""

    problem: Problem
    runs: tuple[Compared, ...]
    refused: str = ""
    """Sentence on why no placement exists, if a method proved it."""
    errors: tuple[ConfigError, ...] = ()
    """Errors of methods that could not start, such as a missing optional dependency."""
    cut_short: tuple[str, ...] = ()
    """Method that was running when the operator interrupted."""
    not_asked: tuple[str, ...] = ()
    """Methods that did not run because the operator interrupted before their turn."""

    def tree(self) -> dict[str, Any]:
        """Return the comparison as plain JSON values."""
        parts = {"cut_short": list(self.cut_short), "not_asked": list(self.not_asked)}
        return {**comparison.comparison_tree(self.runs, self.problem), **parts}

    def text(self) -> str:
        """Return the comparison as text."""
        lines = [comparison.comparison_text(self.runs, self.problem)]
        parts = [f"{', '.join(self.cut_short)} was cut short"] if self.cut_short else []
        if self.not_asked:
            parts.append(f"{', '.join(self.not_asked)} did not run")
        if parts:
            lines.append(f"(interrupted: {', and '.join(parts)})")
        return "\n".join(lines)

    def check(self) -> None:
        """Check that at least one method found a placement.

        Raises: PlanInfeasible if a method proved that none exists, ConfigError if no method could start, TimedOut
        otherwise.
        """
        if any(run.best is not None for run in self.runs):
            return
        if self.refused:
            raise PlanInfeasible(f"no plan: {self.refused}")
        # If only some methods could not start, the budget of the others was the problem.
        if self.errors and len(self.errors) == len(self.runs):
            raise self.errors[0]
        raise TimedOut(
            "no method found a placement, and none proved that there is none; allow more with --budget-s, or add exact "
            "to --methods"
        )


def run_methods(
    problem: Problem, methods: Sequence[str], budget_s: float, seed: int, interrupt: Interrupt, with_simulation: bool
) -> Runs:
    """Run each method with the whole budget, one after the other, until interrupted.

    `with_simulation` says whether the best placement of each method is simulated too.
    """
    runs: list[Compared] = []
    refused, errors, cut_short = "", [], ()
    for method in methods:
        if interrupt.is_set:
            break
        progress = SearchProgress(goal=problem.goal, what=method)
        # Time starts before the cost tables are made, since each method pays for its own.
        thinking, began_s = progress.thinking(budget_s, seed, interrupt), clock.monotonic_s()
        try:
            found = watched(
                partial(searched, CostTables(problem), thinking, method), progress, interrupt, budget_s + OVERRUN_S
            )
            elapsed_s = clock.monotonic_s() - began_s
            run = compared(method, found, elapsed_s)
            if isinstance(found, Infeasible):
                # A proof of one method holds for all, so the first sentence is kept.
                refused = refused or found.conflict
            # Ended early without a placement and without a proof: the method searches only a part of the plan space.
            elif run.best is None and elapsed_s < _WHOLE * budget_s:
                run = replace(run, note="no placement in its part of the plan space")
        except (ConfigError, TimedOut) as error:
            # The best report of a method that did not end counts as its result.
            run = failed(method, progress.best, str(error), clock.monotonic_s() - began_s)
            errors += [error] if isinstance(error, ConfigError) else []
        # The method that was running is shown with what it had; those after it are listed as not run.
        if interrupt.is_set:
            cut_short = (method,)
            run = run if run.best else replace(run, note="interrupted before it had a placement")
        if with_simulation and run.best is not None and not interrupt.is_set:
            # The simulation takes a plan, so one is made of the placement. Only its figures are kept.
            made = plan_of(CostTables(problem), run.best, method=method, seed=seed)
            run = replace(run, simulated=simulated(made, seed, interrupt).simulated)
        runs.append(run)
    return Runs(
        problem=problem,
        runs=tuple(runs),
        refused=refused,
        errors=tuple(errors),
        cut_short=cut_short,
        not_asked=tuple(methods[len(runs) :]),
    )
