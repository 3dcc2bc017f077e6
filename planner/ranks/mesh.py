"""Order of a mesh's units where links differ, as a table of pipelines x stages.

Stage s of pipeline d exchanges data with stages s - 1 and s + 1 of d, and with stage s of the next pipeline in the
ring. A step waits for the slowest hop and the slowest ring link, each weighted by its bytes.

Local search: start from the orders of `seeds` and random ones. Swap a unit at a worst link with another unit or a free
slot. All swaps of that unit are scored at once by the sum of high powers of the links' seconds, and the first of the
best that helps is taken. In between, bottleneck matching decides again which unit of a stage follows which.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.ranks import matching, seeds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_POWER = 6.0
"""Power of a link's seconds in the score: high enough that the worst link decides, low enough that others matter.
Chosen by hand, as are the limits below."""
_MAX_SWAPS = 1000
"""Largest number of rounds of one local search."""
_PATIENCE = 8
"""Failed units after which stages are matched again; after as many more the search ends."""
_MAX_TRIED = 200_000
"""Limit on rounds x units of one search, beyond a hundred rounds."""
_PARTNERS = 6
"""Number of partners that are tried for one unit."""
_MAX_STARTS, _STARTS = 16, 400
"""Number of random starts, and (`_STARTS`) limit on random starts x slots: small meshes have many, large ones none."""
_SMALL = 128
"""Number of slots up to which every start is improved. In larger meshes the best two are."""
_MAX_MATCHED = 128
"""Number of pipelines up to which stages are matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Bytes per step of one device, over one pipeline hop and over one ring link."""

    hop_bytes: float
    ring_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order of a mesh, and the seconds of its slowest links."""

    slots: Ints
    """Slot of each unit, `[num_pipelines, num_stages]`."""
    seconds: float


def arrange(machine_of: Ints, rates: Floats, shape: tuple[int, int], demand: Demand, rng: np.random.Generator) -> Order:
    """Return the best order found for a mesh of `shape` (pipelines, stages).

    *Shapes*: `machine_of` `[num_slots]` is the machine of each slot; there are at least as many slots as units. `rates`
    `[num_machines, num_machines]` has the rate inside a machine on its diagonal.
    """
    num, used = len(machine_of), shape[0] * shape[1]
    # Random starts leave the neighbourhood of the seeds. Large meshes have none, because each start is costly there.
    random_starts = [rng.permutation(num) for _ in range(min(_MAX_STARTS, _STARTS // num))]
    starts = [*seeds.orders(machine_of, rates, shape), *random_starts]
    # Local search is spent on the starts that are best before any improvement.
    starts.sort(key=lambda slots: seconds_of(machine_of[slots[:used]].reshape(shape), rates, demand))
    most = len(starts) if num <= _SMALL else 2
    found = [_improved(start, machine_of, rates, shape, demand, rng) for start in starts[:most]]
    return min(found, key=lambda order: order.seconds)


def seconds_of(machines: Ints, rates: Floats, demand: Demand) -> float:
    """Return the seconds of the slowest hop plus those of the slowest ring link.

    *Shapes*: `machines` `[num_pipelines, num_stages]`.
    """
    total = 0.0
    if machines.shape[1] > 1:
        total += demand.hop_bytes / max(float(rates[machines[:, :-1], machines[:, 1:]].min()), 1e-30)
    if machines.shape[0] > 1:
        total += demand.ring_bytes / max(float(rates[machines, np.roll(machines, -1, axis=0)].min()), 1e-30)
    return total


def _improved(
    seed: Ints, machine_of: Ints, rates: Floats, shape: tuple[int, int], demand: Demand, rng: np.random.Generator
) -> Order:
    """Return the order that local search reaches from one start; states (seconds, score) are compared in order."""
    data, stages = shape
    used = data * stages
    # The first `used` slots are those of the units, pipeline after pipeline; the rest are free.
    slots = seed.copy()
    costs = _link_costs(rates, demand)
    neighbours = _neighbours(shape)

    def state() -> tuple[float, float]:
        machines = machine_of[slots]
        seconds = seconds_of(machines[:used].reshape(shape), rates, demand)
        # Rounding keeps noise from counting as an improvement. Among equal seconds the score of all links decides,
        # which leads across plateaus.
        return round(seconds, 12), _total(machines, neighbours, costs)

    now, stuck = state(), 0
    for _ in range(min(_MAX_SWAPS, 100 + _MAX_TRIED // used)):
        worst = _worst_unit(machine_of[slots[:used]].reshape(shape), costs, rng)
        for partner in _partners(worst, machine_of[slots], used, neighbours, costs):
            # Try the swap in place, and undo it if it does not help.
            slots[[worst, partner]] = slots[[partner, worst]]
            if state() < now:
                now, stuck = state(), 0
                break
            slots[[worst, partner]] = slots[[partner, worst]]
        else:
            stuck += 1
        # Swaps of two units no longer help. A matching permutes a whole stage at once; afterwards swaps are
        # tried again.
        if stuck == _PATIENCE and stages > 1 and data <= _MAX_MATCHED:
            slots = _matched(slots, machine_of, rates, shape, demand)
            now = min(now, state())
        if stuck >= 2 * _PATIENCE:
            break
    return Order(slots=slots[:used].reshape(shape), seconds=now[0])


def _total(machines: Ints, neighbours: list[tuple[int, Ints]], costs: tuple[Floats, Floats]) -> float:
    """Return the score of all links, each counted from both ends."""
    total = 0.0
    for kind, at in neighbours:
        # Places that have a neighbour of this kind.
        here = np.flatnonzero(at >= 0)
        total += float(costs[kind][machines[here], machines[at[here]]].sum())
    return total


def _link_costs(rates: Floats, demand: Demand) -> tuple[Floats, Floats]:
    """Return the scores of hops and of ring links, `[num_machines, num_machines]` each.

    A score is a power of the link's seconds; that of the slowest link is 1.
    """
    hop, ring = (size / np.maximum(rates, 1e-30) for size in (demand.hop_bytes, demand.ring_bytes))
    # One scale for both kinds, so that their scores compare; powers of large ratios stay finite.
    most = max(float(hop.max()), float(ring.max()), 1e-30)
    return (hop / most) ** _POWER, (ring / most) ** _POWER


def _worst_unit(machines: Ints, costs: tuple[Floats, Floats], rng: np.random.Generator) -> int:
    """Return an end of one of the costliest hops, or of one of the costliest ring links."""
    hop, ring = costs
    data, stages = machines.shape
    cost = np.zeros(machines.shape)
    # Hops and ring links add up in the objective, so both have to become faster: choose one kind at random.
    if stages > 1 and (data == 1 or rng.random() < 0.5):
        hops = hop[machines[:, :-1], machines[:, 1:]]
        # A hop counts for the units at both of its ends.
        cost[:, :-1] = np.maximum(cost[:, :-1], hops)
        cost[:, 1:] = np.maximum(cost[:, 1:], hops)
    elif data > 1:
        links = ring[machines, np.roll(machines, -1, axis=0)]
        # Link d goes from pipeline d to d + 1. A unit has the one that leaves it and the one that reaches it.
        cost = np.maximum(links, np.roll(links, 1, axis=0))
    # Ties are broken at random, so that a unit that cannot be helped does not block the search.
    worst = np.flatnonzero(cost.ravel() >= cost.max() * (1 - 1e-9))
    return int(worst[rng.integers(len(worst))])


def _partners(
    place: int, machines: Ints, used: int, neighbours: list[tuple[int, Ints]], costs: tuple[Floats, Floats]
) -> list[int]:
    """Return places with which the unit at `place` may change, best first. Its neighbours count as fixed."""
    # By how much the score falls if the two change places, `[num_slots]`. Free slots beyond the units have no
    # neighbours.
    gain = np.zeros(len(machines))
    mine, others = machines[place], machines
    for kind, at in neighbours:
        cost = costs[kind]
        if at[place] >= 0:
            neighbour = machines[at[place]]
            # The unit at `place` moves to each other machine; its neighbours stay.
            gain += cost[mine, neighbour] - cost[others, neighbour]
        theirs = np.flatnonzero(at >= 0)
        neighbour = machines[at[theirs]]
        # The other unit moves to this machine; its neighbours stay.
        gain[theirs] += cost[machines[theirs], neighbour] - cost[mine, neighbour]
    # Units on the same machine would change nothing.
    gain[:used][machines[:used] == mine] = -np.inf
    few = min(_PARTNERS, len(gain))
    # Only the few best are sorted.
    best = np.argpartition(-gain, few - 1)[:few]
    return [
        int(other_place)
        for other_place in best[np.argsort(-gain[best], kind="stable")]
        if np.isfinite(gain[other_place])
    ]


def _neighbours(shape: tuple[int, int]) -> list[tuple[int, Ints]]:
    """Return pairs (kind, neighbour of each place): in the pipeline (kind 0) and in the ring (kind 1); -1 for none."""
    data, stages = shape
    places = np.arange(data * stages).reshape(shape)
    found = []
    if stages > 1:
        none = np.full((data, 1), -1)
        found += [(0, np.hstack([none, places[:, :-1]])), (0, np.hstack([places[:, 1:], none]))]
    if data > 1:
        found.append((1, np.roll(places, -1, axis=0)))
    # With two pipelines the next one is also the previous one.
    if data > 2:
        found.append((1, np.roll(places, 1, axis=0)))
    return [(kind, each.ravel()) for kind, each in found]


def _matched(slots: Ints, machine_of: Ints, rates: Floats, shape: tuple[int, int], demand: Demand) -> Ints:
    """Return the slots with each stage matched to the one before; unchanged if that is no faster."""
    data, stages = shape
    used = data * stages
    trial = slots[:used].reshape(shape).copy()
    # From the first stage on: the rows of stage s are permuted so that its slowest hop from stage s - 1 is as fast as
    # possible.
    for s in range(1, stages):
        here, there = machine_of[trial[:, s - 1]], machine_of[trial[:, s]]
        trial[:, s] = trial[matching.bottleneck(rates[np.ix_(here, there)]), s]
    # The matchings ignore the ring, which may have become slower.
    before = seconds_of(machine_of[slots[:used]].reshape(shape), rates, demand)
    if seconds_of(machine_of[trial], rates, demand) >= before:
        return slots
    return np.concatenate([trial.ravel(), slots[used:]])
