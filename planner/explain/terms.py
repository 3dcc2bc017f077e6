"""What a plan predicts of a job's step beside what was measured, term by term."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from periplus.process.telemetry import REGION_TOKENS_PER_S, REGION_WEIGHTS_S
from planner.plan import Plan, TaskKind
from planner.problem.workload import Task

STEP, TRAINING, WAITING = "step", "training", "waiting"

MEASURED = {STEP: "step_s", TRAINING: "train_s", WAITING: "wait_s"}
"""Metric of each term that is not one of a region."""

TRAINER_TASKS = (Task.ACTOR_TRAINING, Task.CRITIC_TRAINING, Task.REFERENCE, Task.CRITIC_INFERENCE)
"""Tasks whose seconds are in a step's `train_s`: the trainer's processes compute all of them."""

NOTABLE = 0.1
"""Relative difference below which a term is not named. Chosen by hand: steps vary by some percent."""

CAUSES = {
    "training": "samples have another length, or the trainer's devices another speed, than the plan counts with",
    "waiting": "samples come at another pace than predicted",
    "weights": "the link, encoding or loading takes another time than predicted",
    "samples": "the region's workers generate at another pace than predicted",
}
"""Likely cause of a difference, by the first word of the term's name. A step is the sum of others, and has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of a step: predicted by the plan, simulated, and measured; None where there is no figure.

    `unit` is `s`, or `share` for the fraction of a step's samples.
    """

    name: str
    unit: str
    predicted: float | None
    simulated: float | None
    measured: float | None

    @property
    def difference(self) -> float | None:
        """What was measured over what was predicted, less one; None without both, or if one of them is 0."""
        return self.measured / self.predicted - 1 if self.measured and self.predicted else None


def is_measured(metric: str) -> bool:
    """Return whether a metric of training steps is one that `terms_of` reads."""
    families = (REGION_TOKENS_PER_S, REGION_WEIGHTS_S)
    return metric in MEASURED.values() or any(family.thing_of(metric) for family in families)


def terms_of(plan: Plan, measured: Mapping[str, float]) -> tuple[Term, ...]:
    """Return the terms of a job's steps. `measured` has means of metrics by name.

    Seconds of a step, of training and of waiting for samples; for each region that generates, the seconds from the end
    of a training step until the slowest worker there holds the new version, and its share of the samples.
    """
    found = [
        Term(
            name=name,
            unit="s",
            predicted=_predicted(plan, name),
            simulated=plan.simulated.step_s if plan.simulated and name == STEP else None,
            measured=measured.get(metric),
        )
        for name, metric in MEASURED.items()
    ]
    # A plan without an evaluation predicts at least when a version's last byte arrives.
    weights = {each.region: each.weights_s for each in plan.predictions}
    if plan.evaluation is not None:
        weights |= {each.region: each.weights_s + each.load_s for each in plan.evaluation.regions}
    shares: dict[str, float | None] = {}
    for each in plan.assignments:
        if each.task is TaskKind.ROLLOUT:
            shares[each.region] = None if each.share is None else each.share + (shares.get(each.region) or 0.0)
    rates = {region: measured.get(REGION_TOKENS_PER_S.name(region)) for region in sorted(shares)}
    total = sum(rate for rate in rates.values() if rate)
    for region, rate in rates.items():
        seconds, share = measured.get(REGION_WEIGHTS_S.name(region)), None if not rate else rate / total
        for name, unit, predicted, found_there in (
            ("weights to", "s", weights.get(region), seconds),
            ("samples of", "share", shares[region], share),
        ):
            found.append(
                Term(name=f"{name} {region}", unit=unit, predicted=predicted, simulated=None, measured=found_there)
            )
    return tuple(found)


def _predicted(plan: Plan, name: str) -> float | None:
    if plan.evaluation is None:
        return None
    training_s = sum(seconds for task, seconds in plan.evaluation.task_s if task in TRAINER_TASKS)
    step_s = plan.evaluation.step_s
    return {STEP: step_s, TRAINING: training_s, WAITING: max(0.0, step_s - training_s)}[name]


def largest_difference(terms: Sequence[Term]) -> str:
    """Return a sentence about the term that differs most from its prediction, or an empty text if none is notable.

    Seconds are compared by how much they matter in a step; the step itself is named only if no part of it is.
    """
    parts = [each for each in terms if each.name != STEP and abs(each.difference or 0.0) >= NOTABLE]
    if not parts:
        return ""
    step_s = next((each.predicted for each in terms if each.name == STEP), None) or 1.0

    def weight(term: Term) -> float:
        apart = abs((term.measured or 0.0) - (term.predicted or 0.0))
        return apart / step_s if term.unit == "s" else apart

    worst = max(parts, key=weight)
    change = worst.difference or 0.0
    more = f"{abs(change):.0%} {'more' if change > 0 else 'less'} than predicted"
    return f"{worst.name}: {more}; probably {CAUSES[worst.name.split()[0]]}"
