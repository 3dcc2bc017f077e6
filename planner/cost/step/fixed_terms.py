"""Terms of a placement that do not depend on which pools generate.

`fixed_terms` checks that a placement is in the plan space, that its pools fit into memory and that all regions are
connected. It then computes busy seconds of training and scoring, and collects the pools that generate.
`planner.cost.step.step_estimate` decides which of these generate and adds the remaining terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.answer.evaluation import Violation
from planner.answer.placement import Group, Placement
from planner.cost.tables import validity
from planner.cost.tables.cost_tables import CostTables, UnitCost
from planner.cost.tables.transfers import CriticTransfer, TrainerRegion, critic_transfer, trainer_transfers
from planner.problem.workload import SCORING, TRAINING, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratingPool:
    """A pool whose devices generate, with what its region and its weights' transfer need to know of it."""

    region: str
    """Region of the pool."""
    num_units: int
    """Units of the pool."""
    price: UnitCost
    """Cost of one unit."""
    has_version: bool
    """Whether the pool belongs to the actor's own mesh, which needs no transfer of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedTerms:
    """A valid placement with all terms of its step time but those of generation."""

    placement: Placement
    trainer: TrainerRegion
    """The trainer's region, with the transfers between it and all others."""
    making: tuple[GeneratingPool, ...]
    """Pools that generate, in the placement's order."""
    busy_s: Mapping[Task, float]
    """Busy seconds per step of each task but generation."""
    training_s: float
    """Longest training of any group, including the transfer of samples to it."""
    scoring_s: float
    """Longest scoring of any group, including the transfer of samples to it and back."""
    critic_scoring_s: float
    """Scoring of the group that infers with the critic, transfers included; 0 without a critic."""
    critics: Mapping[tuple[str, str], CriticTransfer]
    """Transfers of the critic's weights by (source region, destination region); empty if they stay within a group."""

    @property
    def generating(self) -> Group:
        """The group that generates."""
        return self.placement.group_of(Task.GENERATION)


def fixed_terms(cost_tables: CostTables, placement: Placement) -> FixedTerms | Violation:
    """Return the terms of a placement without generation, or the first constraint that it violates."""
    if found := validity.violation(cost_tables, placement):
        return found
    # Memory is checked only for placements of the plan space, and routes only if everything fits: the first violation
    # counts.
    priced: list[list[UnitCost]] = []
    for group in placement.groups:
        of_group = [cost_tables.pool(group.tasks, pool) for pool in group.pools]
        if refused := next((each for each in of_group if isinstance(each, Violation)), None):
            return refused
        priced.append([each for each in of_group if isinstance(each, UnitCost)])
    # Every region in use must be reachable from the trainer's region, in both directions.
    start = trainer_transfers(cost_tables, trainer_region_of(cost_tables, placement))
    for name in (name for group in placement.groups for name in regions_of(cost_tables, group)):
        if name not in start.transfers:
            return Violation(kind="link", what=f"no route from {start.name} to {name} and back")
    critics = _critics(cost_tables, placement)
    if isinstance(critics, Violation):
        return critics
    busy = _busy_s(cost_tables, placement, priced)
    training_s, scoring_s, critic_scoring_s = _phases_s(cost_tables, placement, start, busy)
    # Pools of generation's group, in the order of its pools, which `Evaluation.idle` refers to.
    making = tuple(
        GeneratingPool(
            region=cost_tables.classes[pool.device_class].region.name,
            num_units=pool.num_units,
            price=price,
            has_version=Task.ACTOR_TRAINING in group.tasks,
        )
        for group, of_group in zip(placement.groups, priced, strict=True)
        if Task.GENERATION in group.tasks
        for pool, price in zip(group.pools, of_group, strict=True)
    )
    return FixedTerms(
        placement=placement,
        trainer=start,
        making=making,
        busy_s=busy,
        training_s=training_s,
        scoring_s=scoring_s,
        critic_scoring_s=critic_scoring_s,
        critics=critics,
    )


def trainer_region_of(cost_tables: CostTables, placement: Placement) -> str:
    """Return the region that publishes versions: that of the first pool of the actor's mesh."""
    return cost_tables.classes[placement.group_of(Task.ACTOR_TRAINING).pools[0].device_class].region.name


def regions_of(cost_tables: CostTables, group: Group) -> list[str]:
    """Return the names of the group's regions, sorted."""
    return sorted({cost_tables.classes[pool.device_class].region.name for pool in group.pools})


def _critics(cost_tables: CostTables, placement: Placement) -> dict[tuple[str, str], CriticTransfer] | Violation:
    """Return the transfers of the critic's weights in each step, or a violation if a route is missing."""
    if not {Task.CRITIC_TRAINING, Task.CRITIC_INFERENCE} <= set(cost_tables.problem.workload.models):
        return {}
    trains, scores = placement.group_of(Task.CRITIC_TRAINING), placement.group_of(Task.CRITIC_INFERENCE)
    # The same group has the weights where it needs them.
    if trains is scores:
        return {}
    src = cost_tables.classes[trains.pools[0].device_class].region.name
    found = {}
    for dst in regions_of(cost_tables, scores):
        transfer = critic_transfer(cost_tables, src, dst)
        if transfer is None:
            return Violation(kind="link", what=f"no route from {src} to {dst} for the critic's weights")
        found[src, dst] = transfer
    return found


def _busy_s(cost_tables: CostTables, placement: Placement, priced: Sequence[Sequence[UnitCost]]) -> dict[Task, float]:
    """Return the busy seconds per step of each task but generation."""
    samples = cost_tables.problem.workload.samples_per_step
    busy: dict[Task, float] = {}
    for group, of_group in zip(placement.groups, priced, strict=True):
        if group.trains:
            busy |= {task: each.total_s for task, each in cost_tables.mesh(group.tasks, group.pools).times.items()}
        # Scoring is divided over all units in proportion to their rates.
        for task in (task for task in group.tasks if task in SCORING):
            rate = sum(p.num_units * price.rates[task] for p, price in zip(group.pools, of_group, strict=True))
            busy[task] = samples / rate
    return busy


def _phases_s(
    cost_tables: CostTables, placement: Placement, start: TrainerRegion, busy: Mapping[Task, float]
) -> tuple[float, float, float]:
    """Return (training, scoring, scoring of the group that infers with the critic) in seconds, transfers included.

    Training and scoring are each the longest over all groups.
    """
    training_s, scoring_s, critic_s = 0.0, 0.0, 0.0
    for group in placement.groups:
        # A group waits for the transfers of its most distant region.
        transfers = [start.transfers[name] for name in regions_of(cost_tables, group)]
        if group.trains:
            away_s = max(each.training_s for each in transfers)
            training_s = max(training_s, away_s + sum(busy[task] for task in group.tasks if task in TRAINING))
        if any(task in SCORING for task in group.tasks):
            away_s = max(each.scoring_s for each in transfers)
            group_s = away_s + sum(busy[task] for task in group.tasks if task in SCORING)
            scoring_s = max(scoring_s, group_s)
            critic_s = group_s if Task.CRITIC_INFERENCE in group.tasks else critic_s
    return training_s, scoring_s, critic_s
