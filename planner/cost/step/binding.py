"""The oracle's `binding` as a sentence with its terms."""

from collections.abc import Sequence
from typing import assert_never

from periplus.view import units
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.cost.step.fixed_terms import FixedTerms, fixed_terms
from planner.cost.step.step_estimate import others_s
from planner.cost.tables import network
from planner.cost.tables.cost_tables import CostTables
from planner.problem.goal import Goal, Objective


def binding_sentence(cost_tables: CostTables, placement: Placement, evaluation: Evaluation) -> str:
    """Return a sentence on what equals the step time, with its terms, and on the goal's limit if there is one."""
    kind, _, subject = evaluation.binding.partition(":")
    match kind:
        case "path" if subject == "critic":
            text = _critic_path(cost_tables, placement, evaluation)
        case "path":
            text = _path(cost_tables, placement, evaluation, subject)
        case "group":
            text = _group(evaluation, subject)
        case "link":
            text = _link(cost_tables, evaluation, *subject.split(">"))
        case "up":
            text = _up(cost_tables, evaluation, subject)
        case "budget":
            text = f"the budget, which pays for one step's egress each {seconds(evaluation.step_s)}"
        case _:
            text = evaluation.binding
    return text + _limit(cost_tables, evaluation)


def seconds(value: float) -> str:
    """Format seconds as `12.3 ms`, `1.23 s` or `123 s`."""
    return f"{units.short(value * 1e3)} ms" if 0 < value < 1 else f"{units.short(value)} s"


def step_limit_words(goal: Goal) -> str:
    """Format the limit on seconds per step: `124 s`, or `124 s (planned within 113 s)` if the goal has a margin."""
    if goal.max_step_s is None or goal.planned_step_s is None:
        return ""
    kept = f" (planned within {seconds(goal.planned_step_s)})" if goal.step_margin else ""
    return f"{seconds(goal.max_step_s)}{kept}"


def usd_limit_words(goal: Goal) -> str:
    """Format the limit on dollars per hour: `10.00`, or `10.00 (planned within 9.90)` if the goal has a margin."""
    if goal.max_usd_per_hour is None or goal.planned_usd_per_hour is None:
        return ""
    kept = f" (planned within {goal.planned_usd_per_hour:,.2f})" if goal.usd_margin else ""
    return f"{goal.max_usd_per_hour:,.2f}{kept}"


def names(tasks: str) -> str:
    """Format `reward+critic_inference` as `reward and critic inference`."""
    words = [task.replace("_", " ") for task in tasks.split("+")]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _path(cost_tables: CostTables, placement: Placement, evaluation: Evaluation, region: str) -> str:
    fixed = fixed_terms(cost_tables, placement)
    assert isinstance(fixed, FixedTerms)
    at = next(each for each in evaluation.regions if each.region == region)
    eta = cost_tables.problem.workload.eta
    # The terms of the path in the order in which a version passes through them. Their sum is (eta + 1) steps.
    terms = [
        ("training", fixed.training_s),
        ("scoring", fixed.scoring_s),
        ("weights", at.weights_s),
        ("generation", at.window_s),
        ("other tasks on generation's devices", others_s(cost_tables, fixed)),
        ("trajectories", at.trajectories_s),
    ]
    return f"the path of a version through {region}: {_sum(terms)}, within {_steps(eta + 1)} (staleness bound {eta})"


def _critic_path(cost_tables: CostTables, placement: Placement, evaluation: Evaluation) -> str:
    fixed = fixed_terms(cost_tables, placement)
    assert isinstance(fixed, FixedTerms)
    eta = cost_tables.problem.workload.eta
    # This path equals (eta + 1) steps, so the transfer is what the other terms leave of it.
    weights_s = evaluation.step_s * (eta + 1) - fixed.training_s - fixed.critic_scoring_s
    terms = [("training", fixed.training_s), ("the critic's weights", weights_s)]
    terms += [("scoring where the critic infers", fixed.critic_scoring_s)]
    return f"the path of the critic's weights: {_sum(terms)}, within {_steps(eta + 1)} (staleness bound {eta})"


def _sum(terms: Sequence[tuple[str, float]]) -> str:
    """Format the terms as a sum, without negligible ones."""
    total = sum(value for _, value in terms)
    return " + ".join(f"{what} {seconds(value)}" for what, value in terms if value > 1e-6 * total)


def _steps(num: int) -> str:
    return "one step" if num == 1 else f"{num} steps"


def _group(evaluation: Evaluation, subject: str) -> str:
    times = {task.value: value for task, value in evaluation.task_s}
    tasks = subject.split("+")
    parts = " + ".join(f"{names(task)} {seconds(times[task])}" for task in tasks)
    verb = "keeps" if len(tasks) == 1 else "keep"
    return f"{names(subject)} {verb} the devices busy all the time" + (f": {parts}" if len(tasks) > 1 else "")


def _link(cost_tables: CostTables, evaluation: Evaluation, src: str, dst: str) -> str:
    route = cost_tables.network.route(src, dst)
    assert route is not None
    size, rate = evaluation.step_s * route.bytes_per_s, units.quantity(route.bytes_per_s * 8, "bit/s")
    return f"the link from {src} to {dst}: {units.size(size)} of weights a version at {rate}"


def _up(cost_tables: CostTables, evaluation: Evaluation, region: str) -> str:
    size = network.payload_bytes(cost_tables.problem.workload)
    num = sum(each.region != region for each in evaluation.regions)
    rate = cost_tables.network.up_bytes_per_s(region)
    cap = f" at {units.quantity(rate * 8, 'bit/s')}" if rate else ""
    return f"the uplink of {region}: {units.size(size)} of weights a version to {num} regions{cap}"


def _limit(cost_tables: CostTables, evaluation: Evaluation) -> str:
    goal = cost_tables.problem.goal
    match goal.objective:
        case Objective.THROUGHPUT:
            return ""
        case Objective.COST_AT_THROUGHPUT:
            return f"; {step_limit_words(goal) or seconds(evaluation.step_s)} a step are allowed"
        case Objective.THROUGHPUT_UNDER_BUDGET:
            return f"; {usd_limit_words(goal)} dollars an hour are allowed"
        case _:
            assert_never(goal.objective)
