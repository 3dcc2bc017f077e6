"""What a plan predicts of a job's step beside what was measured, term by term.

The plan is the tree of a `periplus.plan/1` file, in which keys that equal their defaults are left out. So the page of a
run and the watch can show terms, which must not know the planner. Metrics are means over steps, by name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from periplus.process.telemetry import REGION_GENERATION_S, REGION_TOKENS_PER_S, REGION_WEIGHTS_S

PlanTree = Mapping[str, Any]
"""A plan as the values of its JSON file."""

STEP, TRAINING, WAITING, PUBLICATION = "step", "training", "waiting", "publication"
"""Names of the terms of the whole job."""
GENERATION, WEIGHTS, SAMPLES = "generation in", "weights to", "samples of"
"""Names of the terms of a region, without the region."""

MEASURED = {STEP: "step_s", TRAINING: "train_s", WAITING: "wait_s", PUBLICATION: "publish_s"}
"""Metric of each term that is not one of a region."""

TRAINER_TASKS = ("actor_training", "critic_training", "reference", "critic_inference")
"""Names of the tasks whose seconds are in a step's `train_s`: the trainer's processes compute all of them."""

MEASURED_STEPS = 20
"""Steps over which means of what was measured go, about. Chosen by hand: long enough for a mean, short enough to follow
a change."""

NOTABLE = 0.1
"""Relative difference below which a term is not named. Chosen by hand: steps vary by some percent."""

CAUSES = {
    "training": "samples have another length, or the trainer's devices another speed, than the plan counts with",
    "waiting": "samples come at another pace than predicted",
    "generation": "engines compute at another pace, or with fewer requests at once, than the plan counts with",
    "weights": "the link, encoding or loading takes another time than predicted",
    "samples": "the region's workers generate at another pace than predicted",
}
"""Likely cause of a difference, by the first word of the term's name. A step is the sum of others, and no plan predicts
a publication: they have none."""


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
    region: str = ""
    """The region of which it is a term; empty for a term of the whole job."""

    @property
    def difference(self) -> float | None:
        """What was measured over what was predicted, less one; None without both, or if one of them is 0."""
        return self.measured / self.predicted - 1 if self.measured and self.predicted else None


def is_measured(metric: str) -> bool:
    """Return whether a metric of training steps is one that `terms_of` reads."""
    families = (REGION_GENERATION_S, REGION_TOKENS_PER_S, REGION_WEIGHTS_S)
    return metric in MEASURED.values() or any(family.thing_of(metric) for family in families)


def mean_after(known: Mapping[str, float], num_steps: int, step: Mapping[str, float]) -> dict[str, float]:
    """Return the means of what `terms_of` reads after another step, of which `step` has the values of its record.

    `known` are the means after `num_steps` steps. The first step is not counted: in it, processes begin.
    """
    weight = 1.0 / min(max(1, num_steps), MEASURED_STEPS)
    before = known if num_steps > 1 else {}
    # A region from which a step has no samples is not in its record.
    rates = {name: 0.0 for name in before if REGION_TOKENS_PER_S.thing_of(name)}
    means = {
        name: before.get(name, value) + weight * (value - before.get(name, value))
        for name, value in (rates | dict(step)).items()
        if is_measured(name)
    }
    return {**before, **means}


def figure(value: float | None, unit: str) -> str:
    """Return a term's figure for a person, with its unit; empty if there is none."""
    return "" if value is None else f"{value:.0%}" if unit == "share" else f"{value:.3g} s"


def terms_of(plan: PlanTree, measured: Mapping[str, float]) -> tuple[Term, ...]:
    """Return the terms of a job's steps. `measured` has means of metrics by name.

    Seconds of a step, of training, of waiting for samples and of a publication, which no plan predicts. For each region
    that generates: the seconds of a step in which an engine there is busy, those from the end of a training step until
    the slowest worker there holds the new version, and its share of the samples.
    """
    predicted, simulated = _predicted(plan), _simulated(plan)

    def term(name: str, unit: str, found: float | None, region: str = "") -> Term:
        name = f"{name} {region}".rstrip()
        known, played = predicted.get(name), simulated.get(name)
        return Term(name=name, unit=unit, predicted=known, simulated=played, measured=found, region=region)

    terms = [term(name, "s", measured.get(metric)) for name, metric in MEASURED.items()]
    regions = sorted({each["region"] for each in plan.get("assignments", ()) if each.get("task") == "rollout"})
    rates = {region: measured.get(REGION_TOKENS_PER_S.name(region)) for region in regions}
    total = sum(rate for rate in rates.values() if rate)
    for region, rate in rates.items():
        terms += [
            term(GENERATION, "s", measured.get(REGION_GENERATION_S.name(region)), region),
            term(WEIGHTS, "s", measured.get(REGION_WEIGHTS_S.name(region)), region),
            term(SAMPLES, "share", rate / total if rate else None, region),
        ]
    return tuple(terms)


def _predicted(plan: PlanTree) -> dict[str, float]:
    """Return what the plan predicts, by the names of terms."""
    found = {}
    # A plan without an evaluation predicts at least when a version's last byte arrives.
    for each in plan.get("predictions", ()):
        if each["weights_s"] is not None:
            found[f"{WEIGHTS} {each['region']}"] = each["weights_s"]
    for each in plan.get("assignments", ()):
        if each.get("task") == "rollout" and each.get("share") is not None:
            name = f"{SAMPLES} {each['region']}"
            found[name] = found.get(name, 0.0) + each["share"]
    if (evaluation := plan.get("evaluation")) is not None:
        training_s = sum(seconds for task, seconds in evaluation["task_s"].items() if task in TRAINER_TASKS)
        step_s = evaluation["step_s"]
        found |= {STEP: step_s, TRAINING: training_s, WAITING: max(0.0, step_s - training_s)}
        for each in evaluation["regions"]:
            found[f"{GENERATION} {each['region']}"] = each.get("generation_s", 0.0)
            found[f"{WEIGHTS} {each['region']}"] = each["weights_s"] + each.get("load_s", 0.0)
    return found


def planned_metrics(plan: PlanTree) -> dict[str, float]:
    """Return what the plan predicts of the job's terms, under the names of metrics beside the measured ones."""
    predicted = _predicted(plan)
    return {f"planned_{MEASURED[name]}": predicted[name] for name in MEASURED if name in predicted}


def _simulated(plan: PlanTree) -> dict[str, float]:
    """Return what a simulation of the plan found, by the names of terms."""
    figures = plan.get("simulated")
    if figures is None or figures["step_s"] is None:
        return {}
    found = {STEP: figures["step_s"]}
    for name, key in ((TRAINING, "training_s"), (WAITING, "waiting_s")):
        if key in figures:
            found[name] = figures[key]
    # The simulator's arrivals are those in the region; engines then load the version.
    loads_s = {each["region"]: each.get("load_s", 0.0) for each in (plan.get("evaluation") or {}).get("regions", ())}
    for each in figures.get("regions", ()):
        found[f"{GENERATION} {each['region']}"] = each["generation_s"]
        found[f"{WEIGHTS} {each['region']}"] = each["weights_s"] + loads_s.get(each["region"], 0.0)
    return found


def largest_difference(terms: Sequence[Term]) -> str:
    """Return a sentence about the term that differs most from its prediction, or an empty text if none is notable.

    Seconds are compared by how much they matter in a step; the step itself is named only if no part of it is. What
    takes long in a region costs no time unless the trainer waits for it: generation and weights count at most as much
    as the difference of waiting, of which they are then the cause.
    """
    known = {each.name: each for each in terms}
    step_s = (STEP in known and known[STEP].predicted) or 1.0
    has_waiting = WAITING in known and None not in (known[WAITING].predicted, known[WAITING].measured)
    waits_s = _apart(known[WAITING]) if has_waiting else math.inf

    def weight(term: Term) -> float:
        if term.unit != "s":
            return _apart(term)
        return (min(waits_s, _apart(term)) if term.region else _apart(term)) / step_s

    parts = [each for each in terms if each.name != STEP and abs(each.difference or 0.0) >= NOTABLE]
    parts = [each for each in parts if not each.region or each.unit != "s" or weight(each) >= NOTABLE]
    if not parts:
        return ""
    worst = max(parts, key=lambda term: (weight(term), term.name != WAITING, _apart(term)))
    change = worst.difference or 0.0
    more = f"{abs(change):.0%} {'more' if change > 0 else 'less'} than predicted"
    return f"{worst.name}: {more}; probably {CAUSES[worst.name.split()[0]]}"


def _apart(term: Term) -> float:
    """Return how far what was measured is from what was expected; 0 without one of both.

    The simulator counts the busy seconds of generation as they are measured, and predictions those at the full rate.
    """
    is_simulated = term.name.startswith(GENERATION) and term.simulated is not None
    expected = term.simulated if is_simulated else term.predicted
    return 0.0 if term.measured is None or expected is None else abs(term.measured - expected)
