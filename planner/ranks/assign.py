"""Seats and ranks of a whole placement. The oracle's value does not change; this says which devices attain it.

If all links of a class are equal, units are packed in order: stages of a pipeline next to each other, then pipelines.
No other order is better. If links were measured and differ, `mesh` orders the units. The ring of a mesh of two pools
visits one pool and then the other, so it crosses between them twice, which is the least possible.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.answer.placement import Group, Placement, Pool
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks.memory import stage_params
from planner.problem.workload import TRAINING, Workload
from planner.ranks import mesh, metis
from planner.ranks.links import UNMEASURED, MachineLinks, inside_rate
from planner.ranks.packing import PackedMachines, Seat

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Data-parallel order of one group's pipelines. Ranks are numbered along it."""

    group: int
    order: tuple[tuple[int, int], ...]
    """Pairs (pool, pipeline). Neighbours are adjacent, and the last one is next to the first."""
    slowest_link_bytes_per_s: float | None
    """Least rate of one device to its neighbour in the ring. None with a single pipeline."""
    slowest_hop_bytes_per_s: float | None
    """Least rate between consecutive stages. None without a pipeline of several stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """Which machine and devices each unit of a placement takes.

    In a pool that trains with p stages, unit u is stage u mod p of pipeline u div p.
    """

    seats: Mapping[tuple[int, int, int], Seat]
    """Seat of each unit by (group, pool, unit)."""
    rings: tuple[Ring, ...]
    """Ring of each group that trains."""


def assign(
    cost_tables: CostTables, placement: Placement, links: MachineLinks = UNMEASURED, *, seed: int = 0
) -> RankAssignment:
    """Return seats and ranks of a placement that the oracle accepts."""
    rng = np.random.default_rng(seed)
    machines = {key: PackedMachines(at) for key, at in sorted(cost_tables.classes.items())}
    priority = {key: _training_priority(cost_tables, placement, links, key) for key in _classes_in(placement)}
    seats: dict[tuple[int, int, int], Seat] = {}
    for g, p, group, pool in _in_order(placement):
        of_class, num_machines = machines[pool.device_class], cost_tables.classes[pool.device_class].num_machines
        # Training takes machines from the front of the order and other tasks from its back, so that small pools of
        # other tasks do not break up the well connected part.
        rank = priority[pool.device_class] if group.trains else num_machines - priority[pool.device_class]
        # Only a mesh whose links differ gains from an order. Everything else is packed, which keeps machines whole for
        # the units after it.
        if group.trains and links.rates_within(of_class.at) is not None:
            chosen = _mesh_machines(cost_tables.problem.workload, pool, of_class, links, rng)
        else:
            chosen = of_class.compact(pool.unit_gpus, pool.num_units, rank)
        # Seats are taken in the order of units, and later pools see what is left.
        for unit, seat in enumerate(of_class.take(pool.unit_gpus, chosen)):
            seats[g, p, unit] = seat
    rings = tuple(
        _ring(cost_tables, g, group, seats, links) for g, group in enumerate(placement.groups) if group.trains
    )
    return RankAssignment(seats=seats, rings=rings)


def _in_order(placement: Placement) -> Iterator[tuple[int, int, Group, Pool]]:
    """Yield pools by unit size, large ones first (see `packing`); within a size those that train come first."""
    pools = [(g, p, group, pool) for g, group in enumerate(placement.groups) for p, pool in enumerate(group.pools)]
    # Large units need whole aligned parts of machines, so they come before small ones could break these up. Meshes
    # choose first because only they depend on links.
    yield from sorted(pools, key=lambda each: (-each[3].unit_gpus, not each[2].trains, each[0], each[1]))


def _classes_in(placement: Placement) -> list[str]:
    return sorted({pool.device_class for group in placement.groups for pool in group.pools})


def _training_priority(cost_tables: CostTables, placement: Placement, links: MachineLinks, key: str) -> Ints:
    """Return each machine's priority for training, 0 first: if links differ, the best connected part of the class."""
    at = cost_tables.classes[key]
    plain = np.arange(at.num_machines, dtype=np.int64)
    rates = links.rates_within(at)
    trains = sum(
        pool.num_gpus for group in placement.groups if group.trains for pool in group.pools if pool.device_class == key
    )
    # If nothing or everything of the class trains, there is no part to choose.
    share = trains / at.num_gpus
    if rates is None or not 0 < share < 1:
        return plain
    # METIS cuts the class into a training part and the rest; the better connected part trains. A link counts at the
    # rate of its slower direction, and the diagonal (inside a machine) is no edge.
    bare = np.minimum(rates, rates.T) * (1 - np.eye(len(rates)))
    parts = metis.partition(bare, [share, 1 - share])
    means = [float(bare[np.ix_(parts == p, parts == p)].mean()) if (parts == p).any() else 0.0 for p in (0, 1)]
    # Machines of that part first, each part by number. `rank` is the inverse permutation: the position of each machine.
    order = np.lexsort((plain, parts != int(np.argmax(means))))
    rank = np.empty_like(plain)
    rank[order] = plain
    return rank


def _mesh_machines(
    workload: Workload, pool: Pool, machines: PackedMachines, links: MachineLinks, rng: np.random.Generator
) -> list[int]:
    """Return the machine of each unit of a mesh, chosen among all machines that have room."""
    room = machines.room(pool.unit_gpus)
    # One slot per unit that a machine has room for, `[num_slots]`: a mesh may use any of them.
    machine_of = np.repeat(np.arange(len(room)), room)
    # Layouts are in the order of tasks, in which training comes last.
    stages = pool.layouts[-1][1].pipeline
    measured = links.rates_within(machines.at)
    assert measured is not None
    # Activations and gradients go both ways, so the slower direction counts. Units on one machine use its inner links.
    rates = np.minimum(measured, measured.T)
    np.fill_diagonal(rates, inside_rate(machines.at))
    order = mesh.arrange(machine_of, rates, (pool.num_units // stages, stages), demand(workload, pool), rng)
    return [int(machine) for machine in machine_of[order.slots.ravel()]]


def demand(workload: Workload, pool: Pool) -> mesh.Demand:
    """Return the bytes per step of one pool's training tasks.

    A pipeline hop carries activations and their gradients; a ring link carries gradients.
    """
    hop_bytes = ring_bytes = 0.0
    for task, layout in pool.layouts:
        if task not in TRAINING:
            continue
        arch = workload.models[task]
        data = pool.num_units // layout.pipeline
        tokens = workload.samples_per_step * workload.tokens_per_sample / data
        # Two bytes for each value of the hidden states, once forward and once as a gradient backward. Each device sends
        # its tensor shard.
        hop_bytes += 2 * 2 * tokens * arch.hidden_size / layout.tensor * workload.epochs_per_step
        reduces = workload.epochs_per_step * workload.minibatches_per_step
        params = stage_params(arch, task, tensor=layout.tensor, pipeline=np.array([layout.pipeline]))
        # A ring all-reduce of d members sends 2 (d - 1) / d of the gradients, two bytes each, once per optimizer step.
        ring_bytes += 2 * (data - 1) / data * 2 * float(params[0]) * reduces
    return mesh.Demand(hop_bytes=hop_bytes, ring_bytes=ring_bytes)


def _ring(
    cost_tables: CostTables, g: int, group: Group, seats: Mapping[tuple[int, int, int], Seat], links: MachineLinks
) -> Ring:
    """Return the ring of one group, with the slowest links of the chosen seats."""
    # Machines of each pool, `[num_pipelines, num_stages]`: unit u is stage u mod p of pipeline u div p.
    tables = []
    for p, pool in enumerate(group.pools):
        stages = _stages(pool)
        machines = np.array([seats[g, p, unit].machine for unit in range(pool.num_units)])
        tables.append(machines.reshape(-1, stages))
    order = tuple((p, d) for p, table in enumerate(tables) for d in range(len(table)))
    ring_links, hops = [], []
    for p, table in enumerate(tables):
        rates = _rates(cost_tables, group.pools[p], group.pools[p], links)
        if len(table) > 1:
            # Rate from each stage to the same stage of the next pipeline, `[num_pipelines, num_stages]`. The last row
            # closes the ring, which only a single pool does by itself.
            neighbours = rates[table, np.roll(table, -1, axis=0)]
            ring_links.append(float((neighbours if len(tables) == 1 else neighbours[:-1]).min()))
        if table.shape[1] > 1:
            hops.append(float(rates[table[:, :-1], table[:, 1:]].min()))
    if len(tables) == 2:
        rates = _rates(cost_tables, group.pools[0], group.pools[1], links)
        # The two crossings: from the end of the first pool to the start of the second, and from its end back to the
        # start.
        for a, b in ((-1, 0), (0, -1)):
            ring_links.append(_crossing(rates, tables[0][a], tables[1][b]))
    return Ring(
        group=g,
        order=order,
        slowest_link_bytes_per_s=min(ring_links, default=None),
        slowest_hop_bytes_per_s=min(hops, default=None),
    )


def _crossing(rates: npt.NDArray[np.float64], a: Ints, b: Ints) -> float:
    """Return the least rate between two pipelines, which may have different numbers of stages.

    Stages that hold the same part of the model exchange gradients.
    """
    # Go through the stages of the deeper pipeline; stage i of `deep` lies in stage i * n div deep of one with n stages.
    deep = max(len(a), len(b))
    at = np.arange(deep)
    return float(rates[a[at * len(a) // deep], b[at * len(b) // deep]].min())


def _rates(cost_tables: CostTables, a: Pool, b: Pool, links: MachineLinks) -> npt.NDArray[np.float64]:
    """Return the rates between machines of two pools' classes, `[num_machines_a, num_machines_b]`."""
    first, second = cost_tables.classes[a.device_class], cost_tables.classes[b.device_class]
    between = links.rates_between(cost_tables, first, second)
    rates = np.array(np.broadcast_to(between, (first.num_machines, second.num_machines)), dtype=np.float64)
    if first.key == second.key:
        rates = np.minimum(rates, rates.T)
        np.fill_diagonal(rates, inside_rate(first))
    return rates


def _stages(pool: Pool) -> int:
    return next(layout.pipeline for task, layout in pool.layouts if task in TRAINING)
