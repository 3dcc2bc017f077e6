"""Rows of the operator's rules on regions: which must generate, and how many are in use at least and at most."""

import numpy as np

from planner.methods.exact.relaxation.relaxation import Relaxation
from planner.methods.exact.relaxation.variables import Terms, chosen_regions
from planner.problem.workload import Task


def add_region_rules(built: Relaxation) -> None:
    """Add the rules; v is a mesh's binary x or a unit's count n, and a binary b_r says whether region r is in use.

        sum over generating v in r of weight_v v >= 1           for each region r that must generate
        sum over v in r of (weight_v / gpus_r) v <= b_r,  x <= b_r for binaries x in r
        b_r <= sum over v in r of weight_v v
        min_regions <= sum over r of b_r <= max_regions

    The weight is 1 for a mesh and the devices of a unit for a count. So b_r is 1 if and only if something in the region
    is chosen, and the rows say exactly what the rules say.
    """
    rules, model, data = built.data.cost_tables.problem.rules, built.model, built.data
    for name in sorted(rules.generating):
        at = data.region_at.get(name, -1)
        generating = chosen_regions(built.meshes, built.units, Task.GENERATION)
        model.row([(x, weight) for x, region, weight in generating if region == at], low=1.0)
    # Without limits on their number, regions need no binaries.
    if rules.max_regions is None and rules.min_regions <= 1:
        return
    used: Terms = []
    here: dict[int, Terms] = {}
    for x, region, weight in chosen_regions(built.meshes, built.units, None):
        here.setdefault(region, []).append((x, weight))
    for region in sorted(here):
        binary = model.variable(0.0, 1.0, whole=True)
        used.append((binary, 1.0))
        gpus = sum(data.classes[c].num_gpus for c in np.flatnonzero(data.class_region == region))
        terms = here[region]
        model.row([*((x, weight / gpus) for x, weight in terms), (binary, -1.0)], high=0.0)
        # For a binary of its own, x <= b_r is tighter than its share of the region's devices.
        for x, _ in terms:
            if model.high[x] == 1.0:
                model.row([(x, 1.0), (binary, -1.0)], high=0.0)
        model.row([*terms, (binary, -1.0)], low=0.0)
    model.row(used, low=float(rules.min_regions), high=float(rules.max_regions or len(used)))
