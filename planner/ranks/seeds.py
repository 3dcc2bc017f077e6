"""Start orders of a mesh's slots, pipeline after pipeline and stage after stage, from the links between machines.

The orders are: by machine number; by METIS parts (as many as pipelines, stages, or two); along a walk that follows the
fastest links; and by pipelines that are grown one at a time where most neighbours are near. Each of these except the
last is also transposed, so that it fills stage after stage.
"""

from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from planner.ranks import metis

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MAX_PARTS = 32
"""Number of pipelines or stages up to which the graph is cut into as many parts. Chosen by hand."""
_MAX_GROWN = 4096
"""Number of slots up to which pipelines are grown. Chosen by hand."""


def orders(machine_of: Ints, rates: Floats, shape: tuple[int, int]) -> list[Ints]:
    """Return permutations of the slots, `[num_slots]` each. The slots that the mesh uses come first."""
    num, (data, stages) = len(machine_of), shape
    used = data * stages
    # Partitions and walks are over machines; `place` maps each slot to its machine's row in `links`.
    machines, place = np.unique(machine_of, return_inverse=True)
    links = rates[np.ix_(machines, machines)].copy()
    np.fill_diagonal(links, 0.0)
    found = [np.arange(num)]
    # With one or two machines every order by machine is as good.
    if len(machines) > 2:
        if num > used:
            # If slots are left over, prefer the better connected part: False sorts before True.
            found.append(np.argsort(_worse_part(links, used / num)[place], kind="stable"))
        # A part of the graph is meant to hold a pipeline, a stage, or half of the mesh.
        numbers = {2, *(n for n in (stages, data) if 1 < n <= min(_MAX_PARTS, len(machines)))}
        cuts = [metis.partition(links, [1 / parts] * parts) for parts in sorted(numbers)]
        found += [np.argsort(parts[place], kind="stable") for parts in cuts]
        found.append(np.argsort(walk(links)[place], kind="stable"))
    if data > 1 and stages > 1:
        # The same slots in the same order, but stage after stage instead of pipeline after pipeline. The free slots
        # stay at the end.
        found += [np.concatenate([each[:used].reshape(stages, data).T.ravel(), each[used:]]) for each in found]
    if len(machines) > 2 and stages > 1 and num <= _MAX_GROWN:
        found.append(_grown(machine_of, rates, shape))
    return found


def walk(links: Floats) -> Ints:
    """Return each node's position in a walk that always takes the fastest link to a new node."""
    num = len(links)
    place = np.full(num, -1, dtype=np.int64)
    # Start at the machine with the most bandwidth in all.
    at = int(np.argmax(links.sum(axis=0)))
    for step in range(num):
        place[at] = step
        if step + 1 < num:
            # Machines that were visited get -1, below any rate.
            at = int(np.argmax(np.where(place < 0, links[at], -1.0)))
    return place


def _worse_part(links: Floats, share: float) -> npt.NDArray[np.bool_]:
    """Return for each machine whether it is outside the better connected of two METIS parts.

    The parts have the shares `share` and 1 - `share`.
    """
    parts = metis.partition(links, [share, 1 - share])
    inside = [float(links[np.ix_(parts == p, parts == p)].mean()) if (parts == p).any() else 0.0 for p in (0, 1)]
    worse: npt.NDArray[np.bool_] = parts != int(np.argmax(inside))
    return worse


def _grown(machine_of: Ints, rates: Floats, shape: tuple[int, int]) -> Ints:
    """Return an order of pipelines, each grown around the slot whose farthest needed neighbour is nearest.

    A walk over the pipelines gives the order of the ring.
    """
    data, stages = shape
    free = np.ones(len(machine_of), dtype=bool)

    def nearest(slot: int) -> Ints:
        # Slots that are taken are out of reach, and the slot itself always comes first.
        reach = np.where(free, rates[machine_of[slot], machine_of], -1.0)
        reach[slot] = np.inf
        # The `stages` nearest slots, the nearest first.
        best = np.argpartition(-reach, stages - 1)[:stages]
        return best[np.argsort(-reach[best], kind="stable")]

    def tightness(slot: int) -> float:
        return float(rates[machine_of[slot], machine_of[nearest(slot)[-1]]])

    # The heap holds the tightness at the time of entry, negated for the largest first.
    heap = [(-tightness(slot), slot) for slot in range(len(machine_of))]
    heapify(heap)
    pipelines: list[Ints] = []
    while len(pipelines) < data:
        stale, slot = heappop(heap)
        if not free[slot]:
            continue
        fresh = -tightness(slot)
        if fresh > stale:  # neighbours were taken since; tightness only falls, so an unchanged first is best
            heappush(heap, (fresh, slot))
            continue
        pipelines.append(nearest(slot))
        free[pipelines[-1]] = False
    table = np.array(pipelines)
    machines = machine_of[table]
    # A ring link between two pipelines is as slow as the slowest of their stages, `[data, data]`.
    links = np.min([rates[np.ix_(machines[:, s], machines[:, s])] for s in range(stages)], axis=0)
    np.fill_diagonal(links, 0.0)
    ordered = table[np.argsort(walk(links), kind="stable")]
    return np.concatenate([ordered.ravel(), np.flatnonzero(free)])
