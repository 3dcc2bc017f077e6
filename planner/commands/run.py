"""What the commands have the planner think about, each with its budget: a plan, counterfactuals, all methods in turn.

An operator's interrupt ends what is being thought about; what was found by then is kept, and says that it is not all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from periplus import clock
from periplus.errors import ConfigError, PlanInfeasible, TimedOut
from planner.answer import outcome
from planner.answer.outcome import objective_value
from planner.commands.background_search import OVERRUN_S, Interrupt, SearchProgress, is_search_left_alone, thought
from planner.commands.options import Question
from planner.commands.output import committed, played, say
from planner.cost.tables.cost_tables import CostTables
from planner.explain import comparison
from planner.explain.comparison import Compared, compared, failed
from planner.explain.counterfactuals import Effect, effect, lifts, unanswered, unused_regions
from planner.explain.effects import effects_text, effects_tree
from planner.explain.pictures.quality import quality_svg
from planner.plan import Plan, PlanningTimedOut
from planner.problem.goal import Goal, Problem
from planner.propose import idle_pools, limited_pools, plan_of
from planner.solve import Thinking, searched, sentence

T = TypeVar("T")

SIMULATED_STEPS = 8
"""Simulated steps of each plan that is made. They take a second at most for a thousand devices."""
SIMULATION_S = 5.0
"""Longest that a plan is simulated for when it is made; `periplus simulate` takes as long as it takes."""
_SHARE_S = 0.25
"""Least thinking about one counterfactual."""
_WHOLE = 0.9
"""A method that ends before that part of its budget has nothing more to look into."""


def made_plan(asked: Question, budget_s: float, seed: int, interrupt: Interrupt) -> Plan:
    """The plan, or the best so far; ends the command if it was interrupted before there was one.

    Raises: PlanInfeasible, TimedOut, click.exceptions.Exit.
    """
    progress = SearchProgress(goal=asked.goal, what=asked.method)
    call = partial(asked.answer, progress.thinking(budget_s, seed, interrupt))
    try:
        found = _watched(call, progress, interrupt, budget_s + OVERRUN_S)
    except TimedOut:
        if asked.problem is not None and progress.best is not None:
            say("the search did not end in time and was left alone; this is the best that it had found")
            return plan_of(CostTables(asked.problem), progress.best, method=asked.method, seed=seed)
        _leave_without(interrupt)
        raise
    if isinstance(found, PlanningTimedOut) and found.incumbent is None:
        _leave_without(interrupt)
        if (took_s := clock.monotonic_s() - progress.began_s) < _WHOLE * budget_s:
            raise TimedOut(
                f"the method {asked.method} ended after {took_s:.1f} s without a placement of its kind, which does not "
                "prove that there is none; ask --method auto or exact"
            )
    made = committed(found)
    if isinstance(found, PlanningTimedOut) and not interrupt.is_set:
        if clock.monotonic_s() - progress.began_s < _WHOLE * budget_s:
            say("the search gave up before more was proved; ask another --method, or plan explain what binds")
        else:
            say(f"time ended after {budget_s:g} s before more was proved; allow more with --budget-s")
    return made


def _leave_without(interrupt: Interrupt) -> None:
    if interrupt.is_set:
        say("interrupted before any placement was found")
    interrupt.leave()


def _watched(call: Callable[[], T], progress: SearchProgress, interrupt: Interrupt, limit_s: float) -> T:
    try:
        return thought(call, progress.show, interrupt, limit_s)
    finally:
        progress.clear()


def simulated(made: Plan, seed: int, interrupt: Interrupt) -> Plan:
    """The plan with what the simulator made of it; as it was, if there was no time for that or it has no placement."""
    from planner.simulate.simulator import TooLarge, simulate

    problem, placement = made.question, made.placement
    if problem is None or placement is None or is_search_left_alone():
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
        found = _watched(call, progress, interrupt, SIMULATION_S)
        is_whole = found.num_played == SIMULATED_STEPS or bool(found.stalled)
    except TimedOut:
        is_whole = False
    except TooLarge as error:
        say(f"not simulated: {error}")
        return made
    if not is_whole:
        if not interrupt.is_set:
            say(f"not simulated: {SIMULATED_STEPS} steps take more than {SIMULATION_S:g} s; see periplus simulate")
        return made
    return replace(made, simulated=played(found, SIMULATED_STEPS, seed))


# ---- counterfactuals -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Counterfactuals of one plan, and how many were asked for."""

    changes: tuple[Effect, ...]
    regions: tuple[Effect, ...]
    num_asked: int
    budget_s: float

    @property
    def num_answered(self) -> int:
        return len(self.changes) + len(self.regions)

    def tree(self) -> dict[str, Any]:
        """For programs."""
        numbers = {"num_asked": self.num_asked, "num_answered": self.num_answered}
        return {**effects_tree(self.changes, self.regions), **numbers}

    def text(self, goal: Goal, gap: float | None, *, plan_s: float) -> str:
        """For a person. `gap` and `plan_s`: of the plan, and what it was thought about for."""
        lines = []
        if self.num_answered:
            lines.append(effects_text(self.changes, self.regions, goal, gap, budget_s=self.budget_s, plan_s=plan_s))
        if self.num_answered < self.num_asked:
            lines.append(f"(interrupted: {self.num_answered} of {self.num_asked} questions were answered)")
        return "\n".join(lines)


def explained(made: Plan, budget_s: float, seed: int, interrupt: Interrupt) -> Explained:
    """Each counterfactual with its share of the budget, until interrupted."""
    problem, placement, evaluation = made.question, made.placement, made.evaluation
    assert problem is not None
    assert placement is not None
    assert evaluation is not None
    goal = problem.goal
    base = objective_value(goal, evaluation)
    asked = (lifts(problem, placement), unused_regions(problem, placement))
    num_asked = sum(map(len, asked))
    left, end_s = num_asked, clock.monotonic_s() + budget_s
    found: list[tuple[Effect, ...]] = []
    for changes in asked:
        effects = []
        for change in changes:
            if interrupt.is_set:
                break
            if clock.monotonic_s() > end_s + OVERRUN_S:
                effects.append(unanswered(change))
                continue
            share_s, left = max(_SHARE_S, (end_s - clock.monotonic_s()) / left), left - 1
            progress = SearchProgress(goal=goal, what=change.what)
            thinking = progress.thinking(share_s, seed, interrupt)
            call = partial(effect, change, placement, base, _solver(thinking))
            try:
                answer = _watched(call, progress, interrupt, share_s + OVERRUN_S)
            except TimedOut:
                answer = unanswered(change)
            if not interrupt.is_set:  # else it is an answer to nothing
                effects.append(answer)
        found.append(tuple(effects))
    return Explained(changes=found[0], regions=found[1], num_asked=num_asked, budget_s=budget_s)


def _solver(thinking: Thinking) -> Callable[[Problem], outcome.Outcome]:
    return lambda problem: searched(CostTables(problem), thinking, "auto")


# ---- methods ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What each method found. `cut_short`, `not_asked`: methods, after an interrupt."""

    problem: Problem
    budget_s: float
    runs: tuple[Compared, ...]
    refused: str = ""
    """Why no placement exists, if a method proved it."""
    errors: tuple[ConfigError, ...] = ()
    cut_short: tuple[str, ...] = ()
    not_asked: tuple[str, ...] = ()

    def tree(self) -> dict[str, Any]:
        """For programs."""
        parts = {"cut_short": list(self.cut_short), "not_asked": list(self.not_asked)}
        return {**comparison.comparison_tree(self.runs, self.problem), **parts}

    def text(self) -> str:
        """For a person."""
        lines = [comparison.comparison_text(self.runs, self.problem)]
        parts = [f"{', '.join(self.cut_short)} was cut short"] if self.cut_short else []
        if self.not_asked:
            parts.append(f"{', '.join(self.not_asked)} {'was' if len(self.not_asked) == 1 else 'were'} not asked")
        if parts:
            lines.append(f"(interrupted: {', and '.join(parts)})")
        return "\n".join(lines)

    def svg(self) -> str:
        """Quality against time."""
        return quality_svg(
            comparison.traces(self.runs, self.problem.goal),
            unit=comparison.unit_of(self.problem.goal),
            bound=comparison.best_bound(self.runs),
            budget_s=self.budget_s,
            title="quality against time",
        )

    def check(self) -> None:
        """Raises: PlanInfeasible, ConfigError or TimedOut if no method found a placement."""
        if any(run.best is not None for run in self.runs):
            return
        if self.refused:
            raise PlanInfeasible(f"no plan: {self.refused}")
        if self.errors and len(self.errors) == len(self.runs):
            raise self.errors[0]
        raise TimedOut(
            "no method found a placement, and none proved that there is none; allow more with --budget-s, or ask exact"
        )


def runs_of(
    problem: Problem, methods: Sequence[str], budget_s: float, seed: int, interrupt: Interrupt, with_play: bool
) -> Runs:
    """Every method with the whole budget, until interrupted; `with_play`: what they found in the simulator, too."""
    runs: list[Compared] = []
    refused, errors, cut_short = "", [], ()
    for method in methods:
        if interrupt.is_set:
            break
        progress = SearchProgress(goal=problem.goal, what=method)
        thinking, began_s = progress.thinking(budget_s, seed, interrupt), clock.monotonic_s()
        try:
            found = _watched(
                partial(searched, CostTables(problem), thinking, method), progress, interrupt, budget_s + OVERRUN_S
            )
            elapsed_s = clock.monotonic_s() - began_s
            run = compared(method, found, elapsed_s)
            if isinstance(found, outcome.Infeasible):
                refused = refused or sentence(found.conflict)
            elif run.best is None and elapsed_s < _WHOLE * budget_s:
                run = replace(run, note="no placement of its kind")
        except (ConfigError, TimedOut) as error:
            run = failed(method, progress.best, str(error), clock.monotonic_s() - began_s)
            errors += [error] if isinstance(error, ConfigError) else []
        if interrupt.is_set:
            cut_short = (method,)
            run = run if run.best else replace(run, note="interrupted before it had a placement")
        if with_play and run.best is not None and not interrupt.is_set:
            made = plan_of(CostTables(problem), run.best, method=method, seed=seed)
            run = replace(run, simulated=simulated(made, seed, interrupt).simulated)
        runs.append(run)
    return Runs(
        problem=problem,
        budget_s=budget_s,
        runs=tuple(runs),
        refused=refused,
        errors=tuple(errors),
        cut_short=cut_short,
        not_asked=tuple(methods[len(runs) :]),
    )
