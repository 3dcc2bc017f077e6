"""The order of a mesh's units where links differ: pipelines x stages, ring neighbours one below the other.

Stage s of pipeline d talks to stages s - 1 and s + 1 of d, and to stage s of the next pipeline of the ring. A step
waits for the slowest hop and the slowest ring link, each weighted by its bytes. First orders are those of `seeds`. Then
swaps: a unit at a worst link changes places with another unit, or a free slot; all are priced at once, by the sum of
high powers of all links' seconds, and the first of the best that helps is taken. In between, bottleneck matching says
anew which unit of a stage follows which.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.ranks import matching, seeds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_POWER = 6.0
"""Of a link's seconds: high enough that the worst link decides, low enough that the others have a say."""
_MAX_SWAPS = 1000
_PATIENCE = 8
"""Worst units that found no better place, after which stages are matched anew, and as many more that end a search."""
_MAX_TRIED = 200_000
"""Units that all swaps of one search look at, beyond a hundred swaps."""
_PARTNERS = 6
"""Places that are tried for one unit."""
_MAX_STARTS, _STARTS = 16, 400
"""Random starts, and units of all of them together: small meshes have many, large ones none."""
_SMALL = 128
"""Slots up to which every start is improved; of larger meshes the best two are."""
_MAX_MATCHED = 128
"""Pipelines up to which stages are matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Bytes a step of one device, over one pipeline hop and over one ring link."""

    hop_bytes: float
    ring_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Slots of a mesh, and what the slowest links take."""

    slots: Ints
    """Pipeline x stage."""
    seconds: float


def arrange(machine_of: Ints, rates: Floats, shape: tuple[int, int], demand: Demand, rng: np.random.Generator) -> Order:
    """The best order found for a mesh of `shape` (pipelines, stages) on slots whose machines are given.

    *Shapes* `machine_of`: slots, at least as many as the mesh has units; `rates`: machine x machine, its diagonal that
    inside a machine.
    """
    num, used = len(machine_of), shape[0] * shape[1]
    chance = [rng.permutation(num) for _ in range(min(_MAX_STARTS, _STARTS // num))]
    starts = [*seeds.orders(machine_of, rates, shape), *chance]
    starts.sort(key=lambda slots: seconds_of(machine_of[slots[:used]].reshape(shape), rates, demand))
    most = len(starts) if num <= _SMALL else 2
    found = [_improved(start, machine_of, rates, shape, demand, rng) for start in starts[:most]]
    return min(found, key=lambda order: order.seconds)


def seconds_of(machines: Ints, rates: Floats, demand: Demand) -> float:
    """Of the slowest hop and the slowest ring link. *Shapes* `machines`: pipeline x stage."""
    total = 0.0
    if machines.shape[1] > 1:
        total += demand.hop_bytes / max(float(rates[machines[:, :-1], machines[:, 1:]].min()), 1e-30)
    if machines.shape[0] > 1:
        total += demand.ring_bytes / max(float(rates[machines, np.roll(machines, -1, axis=0)].min()), 1e-30)
    return total


def _improved(
    seed: Ints, machine_of: Ints, rates: Floats, shape: tuple[int, int], demand: Demand, rng: np.random.Generator
) -> Order:
    data, stages = shape
    used = data * stages
    slots = seed.copy()
    costs = _link_costs(rates, demand)
    neighbours = _neighbours(shape)

    def state() -> tuple[float, float]:
        machines = machine_of[slots]
        seconds = seconds_of(machines[:used].reshape(shape), rates, demand)
        return round(seconds, 12), _total(machines, neighbours, costs)

    now, stuck = state(), 0
    for _ in range(min(_MAX_SWAPS, 100 + _MAX_TRIED // used)):
        x = _worst_unit(machine_of[slots[:used]].reshape(shape), costs, rng)
        for y in _partners(x, machine_of[slots], used, neighbours, costs):
            slots[[x, y]] = slots[[y, x]]
            if state() < now:
                now, stuck = state(), 0
                break
            slots[[x, y]] = slots[[y, x]]
        else:
            stuck += 1
        if stuck == _PATIENCE and stages > 1 and data <= _MAX_MATCHED:
            slots = _matched(slots, machine_of, rates, shape, demand)
            now = min(now, state())
        if stuck >= 2 * _PATIENCE:
            break
    return Order(slots=slots[:used].reshape(shape), seconds=now[0])


def _total(machines: Ints, neighbours: list[tuple[int, Ints]], costs: tuple[Floats, Floats]) -> float:
    """Of all links, each counted from both ends."""
    total = 0.0
    for kind, at in neighbours:
        here = np.flatnonzero(at >= 0)
        total += float(costs[kind][machines[here], machines[at[here]]].sum())
    return total


def _link_costs(rates: Floats, demand: Demand) -> tuple[Floats, Floats]:
    """Machine x machine: a hop's and a ring link's seconds, to a high power; the slowest of all is 1."""
    hop, ring = (size / np.maximum(rates, 1e-30) for size in (demand.hop_bytes, demand.ring_bytes))
    most = max(float(hop.max()), float(ring.max()), 1e-30)
    return (hop / most) ** _POWER, (ring / most) ** _POWER


def _worst_unit(machines: Ints, costs: tuple[Floats, Floats], rng: np.random.Generator) -> int:
    """An end of one of the costliest hops, or of one of the costliest ring links."""
    hop, ring = costs
    data, stages = machines.shape
    cost = np.zeros(machines.shape)
    if stages > 1 and (data == 1 or rng.random() < 0.5):
        hops = hop[machines[:, :-1], machines[:, 1:]]
        cost[:, :-1] = np.maximum(cost[:, :-1], hops)
        cost[:, 1:] = np.maximum(cost[:, 1:], hops)
    elif data > 1:
        links = ring[machines, np.roll(machines, -1, axis=0)]
        cost = np.maximum(links, np.roll(links, 1, axis=0))
    worst = np.flatnonzero(cost.ravel() >= cost.max() * (1 - 1e-9))
    return int(worst[rng.integers(len(worst))])


def _partners(
    x: int, machines: Ints, used: int, neighbours: list[tuple[int, Ints]], costs: tuple[Floats, Floats]
) -> list[int]:
    """Places that the unit at place `x` might change with, best first; neighbours are priced as if they stood still."""
    gain = np.zeros(len(machines))
    mine, others = machines[x], machines
    for kind, at in neighbours:
        cost = costs[kind]
        if at[x] >= 0:
            n = machines[at[x]]
            gain += cost[mine, n] - cost[others, n]
        theirs = np.flatnonzero(at >= 0)
        n = machines[at[theirs]]
        gain[theirs] += cost[machines[theirs], n] - cost[mine, n]
    gain[:used][machines[:used] == mine] = -np.inf
    few = min(_PARTNERS, len(gain))
    best = np.argpartition(-gain, few - 1)[:few]
    return [int(y) for y in best[np.argsort(-gain[best], kind="stable")] if np.isfinite(gain[y])]


def _neighbours(shape: tuple[int, int]) -> list[tuple[int, Ints]]:
    """Of each place: the one before and after in its pipeline (kind 0) and in the ring (kind 1); -1 for none."""
    data, stages = shape
    places = np.arange(data * stages).reshape(shape)
    found = []
    if stages > 1:
        none = np.full((data, 1), -1)
        found += [(0, np.hstack([none, places[:, :-1]])), (0, np.hstack([places[:, 1:], none]))]
    if data > 1:
        found.append((1, np.roll(places, -1, axis=0)))
    if data > 2:
        found.append((1, np.roll(places, 1, axis=0)))
    return [(kind, each.ravel()) for kind, each in found]


def _matched(slots: Ints, machine_of: Ints, rates: Floats, shape: tuple[int, int], demand: Demand) -> Ints:
    """Stage by stage, who follows whom: a bottleneck matching from each stage's units to the next one's."""
    data, stages = shape
    used = data * stages
    trial = slots[:used].reshape(shape).copy()
    for s in range(1, stages):
        here, there = machine_of[trial[:, s - 1]], machine_of[trial[:, s]]
        trial[:, s] = trial[matching.bottleneck(rates[np.ix_(here, there)]), s]
    before = seconds_of(machine_of[slots[:used]].reshape(shape), rates, demand)
    if seconds_of(machine_of[trial], rates, demand) >= before:
        return slots
    return np.concatenate([trial.ravel(), slots[used:]])
