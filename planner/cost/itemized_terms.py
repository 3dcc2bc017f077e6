"""All numbers behind a placement's prediction, each with its value, unit, formula and source.

`terms` takes the values from the same functions that the oracle uses and computes nothing in another way. It is meant
for people who check the cost model; a test adds the terms up to the oracle's evaluation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from planner.answer.evaluation import Violation
from planner.answer.placement import Group, Placement, Pool
from planner.cost.oracle import rent_usd_per_hour
from planner.cost.step.fixed_terms import FixedTerms, fixed_terms
from planner.cost.step.step_estimate import StepEstimate, estimate_step
from planner.cost.tables import network
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tasks import layer_cuts, memory, training
from planner.problem.workload import SCORING, TRAINING, Task


class Unit(StrEnum):
    """Unit in which the value of a term is given."""

    SECONDS = "s"
    SAMPLES_PER_S = "samples/s"
    SEQUENCES = "sequences"
    BYTES = "B"
    USD_PER_HOUR = "USD/h"
    USD = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerm:
    """One number of a prediction."""

    subject: str
    """What the number belongs to: `group:TASK+TASK`, `pool:CLASS`, `region:NAME` or `plan`."""
    name: str
    value: float
    unit: Unit
    formula: str
    """How the value is computed, in words."""
    source: str
    """Paper or program that the formula is from; `definition` if it follows from the meaning of the words."""


_ROOFLINE = "Williams et al., CACM 2009; efficiencies fitted to published profiles (planner/data/efficiency.csv)"
"""Source of times of layers and heads."""
_RING = "Patarasuk and Yuan, JPDC 2009"
"""Source of times of gradient reductions."""
_1F1B = "Narayanan et al., SC 2021 (1F1B)"
"""Source of pipeline bubbles."""
_ZERO = "Rajbhandari et al., SC 2020 (ZeRO)"
"""Source of bytes of training states."""
_RENEWAL = "renewal theory: a running sequence has made E[L^2] / (2 E[L]) tokens on average"
"""Source of times of generation."""
_STALENESS = "AReaL's bound: a sample is trained on at most eta versions after its own"
"""Source of windows and paths."""
_DEFINITION = "definition"
"""Marks a term that follows from the meaning of its words."""


def terms(cost_tables: CostTables, placement: Placement) -> tuple[CostTerm, ...] | Violation:
    """Return all terms of a placement: by group and pool, then by region, then of the whole; or why it is invalid."""
    placed = fixed_terms(cost_tables, placement)
    if isinstance(placed, Violation):
        return placed
    best = estimate_step(cost_tables, placed)
    found: list[CostTerm] = []
    for group in placement.groups:
        found += _of_group(cost_tables, group, placed, best)
        for pool in group.pools:
            found += _of_pool(cost_tables, group, pool)
    return (*found, *_of_regions(cost_tables, best), *_of_plan(cost_tables, placed, best))


def _of_group(cost_tables: CostTables, group: Group, placed: FixedTerms, best: StepEstimate) -> Iterator[CostTerm]:
    subject = "group:" + "+".join(group.tasks)
    if group.trains:
        for task, each in cost_tables.mesh(group.tasks, group.pools).times.items():
            yield from _of_training(subject, task, each)
    for task in group.tasks:
        if task in SCORING:
            words = "samples per step / sum over units of samples per second (one forward pass, full packs)"
            yield _seconds(subject, f"{task}: busy", placed.busy_s[task], words, _ROOFLINE)
        elif task is Task.GENERATION:
            words = "samples per step / samples per second of all generating units, each region within its route"
            # Without a window of its own generation is a phase, which ends when the last sequences end.
            if group.trains or cost_tables.problem.workload.eta == 0:
                words = "least seconds in which all units together finish a step's samples, the last sequences drained"
            yield _seconds(subject, f"{task}: busy", best.generation_s, words, _RENEWAL)


def _of_training(subject: str, task: Task, times: training.MeshTime) -> Iterator[CostTerm]:
    parts = (
        (
            "compute",
            times.compute_s,
            "micro-batches x slowest stage (forward, backward, tensor-parallel sums, hops)",
            _ROOFLINE,
        ),
        ("bubble", times.bubble_s, "(stages - 1) x slowest stage, per update", _1F1B),
        ("reduce", times.reduce_s, "ring of n pipelines: 2 (n - 1) / n x gradients / slowest link, per update", _RING),
        ("update", times.update_s, "bytes of optimizer state that a device reads and writes / memory bandwidth", _ZERO),
    )
    for name, value, words, source in parts:
        yield _seconds(subject, f"{task}: {name}", value, words, source)


def _of_pool(cost_tables: CostTables, group: Group, pool: Pool) -> Iterator[CostTerm]:
    subject, workload = f"pool:{pool.device_class}", cost_tables.problem.workload
    price, at = cost_tables.pool(group.tasks, pool), cost_tables.classes[pool.device_class]
    assert isinstance(price, UnitCost)
    # Memory of each task: what stays, and what it needs while it runs.
    for task, layout in pool.layouts:
        rows = layer_cuts.of_layout(layout, pool.num_units)
        if task in TRAINING:
            stays = float(memory.trained_bytes(workload, task, rows)[0])
            words = "weights, gradients, optimizer and published copy, over the devices that share them"
            passing = float(memory.training_bytes(workload, task, rows)[0])
        else:
            stays, words = memory.served_bytes(workload, task, layout.tensor), "2 bytes per parameter / tensor degree"
            passing = 0.0 if task is Task.GENERATION else memory.scoring_bytes(workload, task, layout.tensor)
        yield _bytes(subject, f"{task}: resident", stays, words, _ZERO)
        yield _bytes(subject, f"{task}: while it runs", passing, "activations and logits", "Korthikanti et al., 2022")
    usable = memory.usable_bytes(at.gpu)
    yield _bytes(subject, "usable", usable, "nine tenths of the device's memory, less 1 GiB on a GPU", "vLLM's default")
    # Rates of tasks that do not train.
    for task, rate in price.rates.items():
        words = "replicas of a unit / seconds per sample"
        yield CostTerm(
            subject=subject,
            name=f"{task}: rate of a unit",
            value=rate,
            unit=Unit.SAMPLES_PER_S,
            formula=words,
            source=_ROOFLINE,
        )
    if Task.GENERATION in group.tasks:
        words = "the layout's batch, or as many as fit beside everything that is resident"
        yield CostTerm(
            subject=subject,
            name="sequences of a replica",
            value=price.batch,
            unit=Unit.SEQUENCES,
            formula=words,
            source="PagedAttention: Kwon et al., SOSP 2023",
        )
        words = "loading a version inside the region, then the 99th percentile of a group's duration"
        yield _seconds(subject, "load and group", price.group_s, words, _RENEWAL)


def _of_regions(cost_tables: CostTables, best: StepEstimate) -> Iterator[CostTerm]:
    for each in best.regions:
        subject = f"region:{each.region}"
        words = "version / link's rate, or all remote regions' versions / the trainer's uplink; half a round trip"
        yield _seconds(subject, "weights", each.weights_s, words, _DEFINITION)
        words = "a group's samples / rate of the route to the trainer; half a round trip"
        yield _seconds(subject, "trajectories", each.trajectories_s, words, _DEFINITION)
        words = "(eta + 1) steps - training - scoring - weights - trajectories; by turns with training: the whole phase"
        yield _seconds(subject, "window", each.window_s, words, _STALENESS)
    yield _bytes(
        "plan",
        "version",
        network.payload_bytes(cost_tables.problem.workload),
        "trained parameters x bytes per parameter",
        _DEFINITION,
    )


def _of_plan(cost_tables: CostTables, placed: FixedTerms, best: StepEstimate) -> Iterator[CostTerm]:
    words = "longest over groups of the sum of their training tasks, transfer of samples included"
    yield _seconds("plan", "training", placed.training_s, words, _DEFINITION)
    words = "longest over groups of the sum of their scoring tasks, transfer of samples there and back included"
    yield _seconds("plan", "scoring", placed.scoring_s, words, _DEFINITION)
    for name, value in best.needs:
        yield _seconds(
            "plan", f"need {name}", value, _need_in_words(name, cost_tables.problem.workload.eta), _STALENESS
        )
    rent = rent_usd_per_hour(cost_tables, placed.placement)
    for name, dollars, unit, formula in (
        ("rent", rent, Unit.USD_PER_HOUR, "devices x price"),
        ("egress", best.usd_per_step, Unit.USD, "versions, samples, critic's weights and gradients x price, per step"),
    ):
        yield CostTerm(subject="plan", name=name, value=dollars, unit=unit, formula=formula, source=_DEFINITION)


def _need_in_words(name: str, eta: int) -> str:
    """Return the formula of a need, by the kind that its name begins with."""
    kind = name.partition(":")[0]
    if kind == "path":
        return f"least step whose windows ({eta + 1} steps less training, scoring and transfers) hold a step's samples"
    if kind == "group":
        return "sum of its tasks' busy seconds"
    return "a version's bytes / the rate"


def _seconds(subject: str, name: str, value: float, formula: str, source: str) -> CostTerm:
    return CostTerm(subject=subject, name=name, value=value, unit=Unit.SECONDS, formula=formula, source=source)


def _bytes(subject: str, name: str, value: float, formula: str, source: str) -> CostTerm:
    return CostTerm(subject=subject, name=name, value=value, unit=Unit.BYTES, formula=formula, source=source)
