"""Factor between two grids of phase tables: by how much longer windows compensate for a coarser grid.

A phase table is linear between the knots of its problem's grid. The grid has knots for each kind of machine in the
fleet, so knots disappear when a kind is gone, and chords replace what was between. The factor f is such that whatever a
table on the coarser grid claims within a window y, the same replica's table on the finer grid claims within f y.
"""

from collections.abc import Iterator

import numpy as np

from planner.cost.tables import network
from planner.cost.tables.cost_tables import CostTables
from planner.cost.tasks import layer_cuts
from planner.cost.tasks.layer_cuts import FloatArray
from planner.cost.tasks.version_overlap import NONE, Overlap, overlaps_of
from planner.problem.device_classes import DeviceClass
from planner.problem.goal import Problem
from planner.replan.settings import SETTINGS


def stretch(was: CostTables, now: CostTables) -> float:
    """Return the factor, at least 1.

    It is inf if `now`'s grid is not a subset of `was`'s knots with the same ends, or if nothing can be said.
    """
    old, new = was.phase_seconds, now.phase_seconds
    if np.array_equal(old, new):
        return 1.0
    if new[-1] != old[-1] or new[0] != old[0] or not np.isin(new, old).all():
        return np.inf
    gone, cap_per_s = np.setdiff1d(old, new), _least_cap(now.problem)
    distinct: dict[int, tuple[FloatArray, Overlap]] = {}  # classes may share one table
    for at in now.classes.values():
        for samples, overlap in tables(was, at):
            # A cap on samples cuts tables at their knots, so nothing is known about the samples between knots.
            if float((samples / old).max()) * at.num_gpus > cap_per_s:
                return np.inf
            distinct[id(samples)] = samples, overlap
    return max((_factor(old, *each, new, gone) for each in distinct.values()), default=1.0)


def tables(cost_tables: CostTables, at: DeviceClass) -> Iterator[tuple[FloatArray, Overlap]]:
    """Yield (table `[num_slot_counts, num_knots]`, overlap) for everything that one device of a class may count as."""
    for tensor in (size for size in layer_cuts.TENSOR if size <= at.gpus_per_machine):
        meshes = (None, at.gpus_per_machine, at.gpus_per_machine + 1)
        for load_s in sorted({cost_tables.load_s(at, tensor, num_gpus=num) for num in meshes}):
            overlap = cost_tables.overlap(at.gpu, tensor, load_s) if cost_tables.problem.workload.eta else NONE
            yield cost_tables.shares(at.gpu, tensor, load_s), overlap


def _factor(old: FloatArray, samples: FloatArray, overlap: Overlap, new: FloatArray, gone: FloatArray) -> float:
    """Return the factor that compensates for chords over the knots that are gone.

    Overlapping windows delay what a knot stands for, in proportion to the overlap. The factor is then a ratio of two
    such sums, so it is largest where one of them begins to overlap, or where no step is shorter. Where more than two
    versions count it is not such a ratio; it is then bounded on `span_intervals` intervals by the values at their ends.
    """
    after = np.searchsorted(new, gone)
    low, high = new[after - 1], new[after]
    made = samples[:, np.searchsorted(old, gone)]
    made_low = samples[:, np.searchsorted(old, low, side="right") - 1]
    rise = samples[:, np.searchsorted(old, high)] - made_low
    # Where each lost knot lies between its neighbours, as a share of the samples: `[num_slot_counts, num_lost]`.
    share = np.where(rise > 0, (made - made_low) / np.where(rise > 0, rise, 1.0), 1.0)
    overlaps = overlaps_of([overlap])
    # Steps (spans) at which the ratio is looked at: intervals, or only the points where it can be largest.
    if overlaps.has_many and len(gone):
        spans_s = np.append(0.0, np.geomspace(1e-3 * low[0], high[-1], SETTINGS.span_intervals))[:, None]
        pairs = [(spans_s[:-1], spans_s[1:]), (high - overlap.load_s, high - overlap.load_s)]
    else:
        pairs = [(at, at) for at in (np.zeros(len(gone)), *(at - overlap.load_s for at in (low, gone, high)))]
    worst, rises = 1.0, (rise > 0).any(axis=0)
    for from_s, to_s in pairs:
        # True end of a phase at the lost knot, relative to the chord between its neighbours.
        late = overlaps.end_s(gone, np.maximum(from_s, 0.0))
        first, last = (overlaps.end_s(at, np.maximum(to_s, 0.0)) for at in (low, high))
        for part in share:
            worst = max(worst, float((late / (first + part * (last - first)))[..., rises].max(initial=1.0)))
    return worst


def _least_cap(problem: Problem) -> float:
    """Return the samples per second of the slowest route between regions; inf if no mesh spans two regions."""
    fleet = problem.fleet
    if problem.limits.max_train_blocks == 1 or len(fleet.regions) == 1:
        return np.inf
    rates = [link.bytes_per_s for link in fleet.links]
    caps = [cap for region in fleet.regions for cap in (region.wan_up_bytes_per_s, region.wan_down_bytes_per_s)]
    return min([*rates, *filter(None, caps)], default=np.inf) / network.trajectory_bytes(problem.workload)
