"""Dollars of a plan as far as prices are known. Devices without a price are counted and never taken as free."""

import math

from planner.answer.evaluation import Evaluation
from planner.answer.placement import Placement
from planner.problem.device_classes import classes_of
from planner.problem.fleet import Fleet


def num_unpriced(fleet: Fleet, placement: Placement) -> int:
    """Return the number of a placement's devices without a price."""
    known = {each.key: each.usd_per_gpu_hour for each in classes_of(fleet)}
    return sum(p.num_gpus for group in placement.groups for p in group.pools if known.get(p.device_class) is None)


def known_usd(fleet: Fleet, placement: Placement, evaluation: Evaluation) -> float | None:
    """Return the dollars per hour of everything with a price, egress included. None if nothing has a price."""
    # Dollars of 0 are unknown only if no device has a price. Machines that cost nothing have a price of 0.
    if evaluation.usd_per_hour <= 0 and num_unpriced(fleet, placement) == placement.num_gpus:
        return None
    return evaluation.usd_per_hour


def usd_words(fleet: Fleet, placement: Placement, evaluation: Evaluation) -> str:
    """Format the dollars as `12.34 + 8 devices without a price`; empty if nothing has a price."""
    usd, num = known_usd(fleet, placement, evaluation), num_unpriced(fleet, placement)
    if usd is None:
        return ""
    rest = f" + {num:,} device{'s' if num != 1 else ''} without a price" if num else ""
    return f"{usd:,.2f}{rest}"


def has_prices(fleet: Fleet) -> bool:
    """Return whether any machines of the fleet have a price."""
    return any(machines.usd_per_gpu_hour is not None for region in fleet.regions for machines in region.machines)


def rounded_up(value: float) -> str:
    """Format a limit in three digits that the value just satisfies: 283.61 becomes 284."""
    # The unit of the third digit. The small subtrahend keeps a value that is exact in three digits from being rounded
    # up by noise.
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.12g}"
