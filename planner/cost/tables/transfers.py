"""Constants of the transfers between the trainer's region and each other region: seconds, rates and dollars.

The trainer's region is where versions are published. A `RegionTransfer` is the pair of routes
between it and one region. The oracle, its batched form and the solvers all take their network constants from here, so
that they agree. Samples travel to the trainer's region to be trained on, and to other regions that score or train.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost.tables import network
from planner.cost.tables.cost_tables import CostTables
from planner.problem.workload import Task, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTransfer:
    """Constants of the routes from the trainer's region to one region and back."""

    region: str
    weights_s: float
    """Seconds of one version if nothing else leaves the trainer's region: bytes over the link's rate, plus half a round
    trip."""
    link_s: float
    """The part of `weights_s` that occupies the link, so versions cannot follow each other faster."""
    trajectories_s: float
    """Seconds of a step's last group from the region to the trainer's region."""
    samples_per_s: float
    """Samples per second that the route to the trainer's region carries; inf within it."""
    scoring_s: float
    """Seconds of a step's last group to the region and back, if samples are scored there."""
    training_s: float
    """Seconds of a step's last group to the region, if another group trains there."""
    usd_per_version: float
    """Egress dollars of one version to the region."""
    usd_per_step_to_trainer: float
    """Egress dollars of all samples of a step from the region to the trainer's region."""
    usd_per_step_from_trainer: float
    """Egress dollars of all samples of a step from the trainer's region to the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRegion:
    """A region in which versions may be published, with its transfers to all regions that it can reach."""

    name: str
    transfers: dict[str, RegionTransfer]
    """Transfers by region name; a region without a route in both directions is absent."""
    uplink_s: float
    """Seconds of one version through the region's uplink. n receiving regions take n times as long. 0 without a cap."""
    samples_per_s: float
    """Samples per second that may enter the region from all others together; inf without a cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticTransfer:
    """Constants of sending the critic's weights from the region that trains it to one that infers with it."""

    weights_s: float
    """Seconds of one version of the critic, half a round trip included."""
    link_s: float
    """The part of `weights_s` that occupies a link between regions; 0 within a region."""
    usd_per_version: float
    """Egress dollars of one version of the critic."""


def trainer_transfers(cost_tables: CostTables, name: str) -> TrainerRegion:
    """Return the transfers from and to a region in which versions may be published."""
    return cost_tables.known(("trainer transfers", name), lambda: _trainer_transfers(cost_tables, name))


def critic_transfer(cost_tables: CostTables, src: str, dst: str) -> CriticTransfer | None:
    """Return the transfer of the critic's weights from `src` to `dst`, or None without a route."""
    return cost_tables.known(("critic", src, dst), lambda: _critic_transfer(cost_tables, src, dst))


def _trainer_transfers(cost_tables: CostTables, name: str) -> TrainerRegion:
    workload, routes = cost_tables.problem.workload, cost_tables.network
    payload, sample = network.payload_bytes(workload), network.trajectory_bytes(workload)
    transfers = {}
    # Regions without a route in both directions are left out, so a missing entry means unreachable.
    for region in sorted({at.region.name for at in cost_tables.classes.values()} | {name}):
        there, back = routes.route(name, region), routes.route(region, name)
        if there is not None and back is not None:
            transfers[region] = _region_transfer(workload, there, back, payload, sample)
    down, up = routes.down_bytes_per_s(name), routes.up_bytes_per_s(name)
    return TrainerRegion(
        name=name,
        transfers=transfers,
        uplink_s=payload / up if up else 0.0,
        samples_per_s=down / sample if down else np.inf,
    )


def _region_transfer(
    workload: Workload, there: network.Route, back: network.Route, payload: float, sample: float
) -> RegionTransfer:
    """Return the transfers over two routes. `payload` and `sample` are the bytes of one version and of one sample."""
    # A route of one hop has not left the trainer's region: nothing is sent, and no link limits it.
    is_trainer_region = len(there.hops) == 1
    samples_gb = workload.samples_per_step * sample / 1e9
    # The samples of a group travel together.
    to_s, from_s = (network.arrival_s(workload.group_size * sample, route) for route in (there, back))
    return RegionTransfer(
        region=there.hops[-1],
        weights_s=0.0 if is_trainer_region else network.arrival_s(payload, there),
        link_s=0.0 if is_trainer_region else payload / there.bytes_per_s,
        trajectories_s=from_s,
        samples_per_s=np.inf if is_trainer_region else back.bytes_per_s / sample,
        scoring_s=0.0 if is_trainer_region else to_s + from_s,
        training_s=0.0 if is_trainer_region else to_s,
        usd_per_version=there.usd_per_gbyte * payload / 1e9,
        usd_per_step_to_trainer=back.usd_per_gbyte * samples_gb,
        usd_per_step_from_trainer=there.usd_per_gbyte * samples_gb,
    )


def _critic_transfer(cost_tables: CostTables, src: str, dst: str) -> CriticTransfer | None:
    route = cost_tables.network.route(src, dst)
    if route is None:
        return None
    size = network.version_bytes(cost_tables.problem.workload, Task.CRITIC_TRAINING)
    link_s = size / route.bytes_per_s
    return CriticTransfer(
        weights_s=link_s + route.rtt_s / 2,
        link_s=0.0 if src == dst else link_s,
        usd_per_version=route.usd_per_gbyte * size / 1e9,
    )
