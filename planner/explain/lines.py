"""A plan as lines of text for a terminal."""

from periplus.view import units
from planner.answer.evaluation import Evaluation
from planner.answer.placement import Group, Layout, Pool, Sharding
from planner.cost.step.binding import names, seconds
from planner.explain.effects import percent
from planner.explain.money import has_prices, num_unpriced, rounded_up, usd_words
from planner.plan import Assignment, Plan, SimulatedFigures, TaskKind
from planner.plan_of_placement import idle_pools
from planner.problem.margins import regime_words
from planner.problem.workload import TRAINING, Task

NOTHING = 0.95
"""Gap above which the bound is called of no help. Chosen by hand."""
_DISAGREES = 0.1
"""Relative difference between prediction and simulation from which the text mentions it. Chosen by hand."""


def explain(plan: Plan) -> str:
    """Return the plan as text: expectations, a line per region with its processes, groups of tasks, and what binds."""
    width = max(len(region) for region in plan.regions)
    lines = [f"method {plan.method}, trainer in {plan.trainer_region}", *_expectations(plan)]
    # One line per region: its processes, and when a version arrives there.
    for region in plan.regions:
        runs = ", ".join(_runs(a) for a in plan.assignments if a.region == region)
        lines.append(f"  {region:<{width}}  {runs}{_arrival(plan, region)}")
    lines += _groups(plan)
    lines.append(f"binding: {plan.binding}")
    lines += [f"figures: {sentence}" for sentence in plan.figures]
    return "\n".join(lines)


def proof(plan: Plan) -> str:
    """Return in a few words what is proved about better placements; empty for the static method."""
    if plan.evaluation is None:
        return ""
    if plan.gap is None:
        return "nothing is proved of better ones"
    # Below what the text could show with two decimals of a percent.
    if plan.gap < 5e-5:
        return "no placement is better"
    if plan.gap > NOTHING:
        return "next to nothing is proved of better ones"
    return f"the best placement is at most {percent(plan.gap)} better"


def _expectations(plan: Plan) -> list[str]:
    if plan.evaluation is None or plan.rates is None:
        return []
    facts = [
        f"{seconds(plan.evaluation.step_s)} a step",
        f"{units.short(plan.rates.samples_per_s)} samples/s",
        f"{units.short(plan.rates.completion_tokens_per_s)} completion tokens/s",
    ]
    facts += _usd(plan, plan.evaluation)
    lines = [f"expected: {', '.join(facts)}; {proof(plan)}", *_margin(plan)]
    if plan.simulated is not None:
        lines.append(f"simulated: {_simulated(plan)}")
        lines += _disagreement(plan.evaluation, plan.simulated)
    return [*lines, *_cheaper(plan, plan.evaluation)]


def _margin(plan: Plan) -> list[str]:
    """Return a line with the operator's limit, the tighter limit that was planned within, and the margin's reason."""
    goal, question = plan.goal, plan.question
    if goal is None or question is None or not (goal.step_margin or goal.usd_margin):
        return []
    kept = f"{percent(goal.step_margin or goal.usd_margin)} for {regime_words(question)}"
    # Only one of the two limits has a margin, that of the goal's objective.
    if goal.step_margin and goal.max_step_s is not None and goal.planned_step_s is not None:
        limit, planned, unit = seconds(goal.max_step_s), seconds(goal.planned_step_s), "a step"
    else:
        limit, planned, unit = f"{goal.max_usd_per_hour:,.2f}", f"{goal.planned_usd_per_hour:,.2f}", "dollars an hour"
    return [f"limit {limit} {unit}, planned within {planned}: margin {kept}"]


def _usd(plan: Plan, evaluation: Evaluation) -> list[str]:
    """Return the dollars per hour, and for how many devices the price is unknown."""
    if plan.question is None or plan.placement is None:
        return [f"{evaluation.usd_per_hour:,.2f} dollars an hour"] if evaluation.usd_per_hour > 0 else []
    words = usd_words(plan.question.fleet, plan.placement, evaluation)
    # `usd_words` puts devices without a price after a plus sign; the unit belongs before it.
    usd, plus, rest = words.partition(" + ")
    return [f"{usd} dollars an hour{plus}{rest}"] if words else []


def _cheaper(plan: Plan, evaluation: Evaluation) -> list[str]:
    """Return a hint if prices are known but the goal ignores them."""
    question, placement = plan.question, plan.placement
    if question is None or placement is None or question.goal.needs_prices or not has_prices(question.fleet):
        return []
    limit = rounded_up(evaluation.step_s)
    text = f"dollars were not considered: --objective cost --max-step-s {limit} finds the least for this speed"
    return [f"{text}, of devices with a price only" if num_unpriced(question.fleet, placement) else text]


def _disagreement(evaluation: Evaluation, simulated: SimulatedFigures) -> list[str]:
    if simulated.step_s is None or abs(error := simulated.step_s / evaluation.step_s - 1) <= _DISAGREES:
        return []
    how = f"{abs(error) * 100:.0f} % {'longer' if error > 0 else 'shorter'}"
    return [f"the simulator disagrees: {how}; what it shows and the model does not: docs/planner-limits.md"]


def _simulated(plan: Plan) -> str:
    assert plan.simulated is not None
    assert plan.evaluation is not None
    simulated = plan.simulated
    if simulated.step_s is None:
        return f"stalled: {simulated.stalled}"
    error = simulated.step_s / plan.evaluation.step_s - 1
    age = f", oldest token {simulated.max_age} version{'s' if simulated.max_age != 1 else ''} old"
    return f"{seconds(simulated.step_s)} a step over {simulated.num_steps} steps ({error * 100:+.1f} %){age}"


def _runs(assignment: Assignment) -> str:
    device = f" on {assignment.device}" if assignment.device else ""
    if assignment.task is TaskKind.TRAINER:
        return f"trainer{device}"
    turns = ", by turns with the trainer" if assignment.by_turns else ""
    return f"{assignment.num_workers:,} rollout worker{'s' if assignment.num_workers > 1 else ''}{device}{turns}"


def _arrival(plan: Plan, region: str) -> str:
    for prediction in plan.predictions:
        if prediction.region == region:
            known = prediction.weights_s is not None
            when = f"after {prediction.weights_s:.3f} s" if known else "after an unknown time"
            return f"; weights arrive {when}, round trip {prediction.rtt_s * 1e3:.0f} ms"
    return ""


def _groups(plan: Plan) -> list[str]:
    """Return lines on the tasks of each group and their layouts."""
    if plan.placement is None or plan.evaluation is None:
        return []
    # Tasks of a group share its devices, so their busy seconds add up.
    times = dict(plan.evaluation.task_s)
    lines = ["groups of tasks, which share their devices by turns:"]
    for group in plan.placement.groups:
        busy = sum(times[task] for task in group.tasks)
        lines.append(f"  {names('+'.join(group.tasks))}: busy {seconds(busy)} a step")
        for i, pool in enumerate(group.pools):
            idle = " (idles: too slow or too far to help)" if i in _idle(plan, group) else ""
            layouts = "; ".join(f"{names(task)} {_layout(task, pool, layout)}" for task, layout in pool.layouts)
            lines.append(f"    {pool.num_gpus:,} of {pool.device_class}: {layouts}{idle}")
    return lines


def _idle(plan: Plan, group: Group) -> frozenset[int]:
    return idle_pools(plan) if Task.GENERATION in group.tasks else frozenset()


def _layout(task: Task, pool: Pool, layout: Layout) -> str:
    # What is left of the devices after tensor and pipeline degree: data-parallel pipelines or replicas.
    data = pool.num_gpus // layout.tensor // layout.pipeline
    parts = [("tensor", layout.tensor), ("pipeline", layout.pipeline)]
    parts.append(("data" if task in TRAINING else "replicas", data))
    shown = " x ".join(f"{what} {num}" for what, num in parts if num > 1) or "one device"
    extras = [f"{layout.sharding.value} sharded"] if layout.sharding is not Sharding.NONE else []
    extras += [f"{layout.copies} copies"] * (layout.copies > 1)
    extras += ["recomputing"] * layout.recompute
    extras += [f"{layout.batch} sequences each"] * bool(layout.batch)
    return shown + (f" ({', '.join(extras)})" if extras else "")
