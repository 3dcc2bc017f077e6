"""A plan in words, for a terminal."""

from planner.plan import Assignment, Plan, TaskKind


def explain(plan: Plan) -> str:
    """One line a region: what runs there and when new weights arrive; then what binds."""
    width = max(len(region) for region in plan.regions)
    lines = [f"method {plan.method}, trainer in {plan.trainer_region}"]
    for region in plan.regions:
        runs = ", ".join(_runs(a) for a in plan.assignments if a.region == region)
        lines.append(f"  {region:<{width}}  {runs}{_arrival(plan, region)}")
    lines.append(f"binding: {plan.binding}")
    return "\n".join(lines)


def _runs(assignment: Assignment) -> str:
    if assignment.task is TaskKind.TRAINER:
        return "trainer"
    return f"{assignment.num_workers} rollout worker{'s' if assignment.num_workers > 1 else ''}"


def _arrival(plan: Plan, region: str) -> str:
    for prediction in plan.predictions:
        if prediction.region == region:
            seconds = "after an unknown time" if prediction.weights_s is None else f"after {prediction.weights_s:.3f} s"
            return f"; weights arrive {seconds}, round trip {prediction.rtt_s * 1e3:.0f} ms"
    return ""
