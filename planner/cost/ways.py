"""Between the trainer's region and the others: every constant of a pair of regions that the oracle, the batched oracle
and the solvers use."""

from dataclasses import dataclass

import numpy as np

from planner.cost import network
from planner.cost.pools import Prices
from planner.question.workload import Task, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """From where versions are published to one region, and back."""

    region: str
    is_home: bool
    weights_s: float
    """Of one version, if nothing else leaves the trainer's region: bytes at the link's rate, and half a round trip."""
    link_s: float
    """The part of it that occupies the link: one version each so many seconds at most."""
    trajectories_s: float
    """Of a step's last group, from the region."""
    samples_per_s: float
    """That the way home carries."""
    scoring_s: float
    """Of a step's last group, to the region and back."""
    training_s: float
    """Of a step's last group, to the region."""
    usd_per_version: float
    usd_per_step_home: float
    """All of a step's samples, from the region."""
    usd_per_step_there: float
    """All of a step's samples, to the region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A region where versions may be published."""

    name: str
    ways: dict[str, Way]
    """By region; those that cannot be reached are absent."""
    uplink_s: float
    """Of one version through the region's own uplink: with n remote regions n times as long; 0 without a cap."""
    samples_per_s: float
    """That may enter the region, from all others together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticWay:
    """From where the critic is trained to where it scores."""

    weights_s: float
    link_s: float
    usd_per_version: float


def home(prices: Prices, name: str) -> Home:
    """All ways from and to that region."""
    return prices.known(("home", name), lambda: _home(prices, name))


def critic_way(prices: Prices, src: str, dst: str) -> CriticWay | None:
    """None without a route."""
    return prices.known(("critic", src, dst), lambda: _critic_way(prices, src, dst))


def _home(prices: Prices, name: str) -> Home:
    workload, routes = prices.problem.workload, prices.network
    payload, sample = network.payload_bytes(workload), network.trajectory_bytes(workload)
    ways = {}
    for region in sorted({at.region.name for at in prices.classes.values()} | {name}):
        there, back = routes.route(name, region), routes.route(region, name)
        if there is not None and back is not None:
            ways[region] = _way(workload, there, back, payload, sample)
    down, up = routes.down_bytes_per_s(name), routes.up_bytes_per_s(name)
    return Home(
        name=name, ways=ways, uplink_s=payload / up if up else 0.0,
        samples_per_s=down / sample if down else np.inf,
    )  # fmt: skip


def _way(workload: Workload, there: network.Route, back: network.Route, payload: float, sample: float) -> Way:
    """`payload`, `sample`: bytes of one version and of one sample."""
    is_home = len(there.hops) == 1
    samples_gb = workload.samples_per_step * sample / 1e9
    to_s, from_s = (network.arrival_s(workload.group_size * sample, route) for route in (there, back))
    return Way(
        region=there.hops[-1], is_home=is_home, weights_s=0.0 if is_home else network.arrival_s(payload, there),
        link_s=0.0 if is_home else payload / there.bytes_per_s, trajectories_s=from_s,
        samples_per_s=np.inf if is_home else back.bytes_per_s / sample,
        scoring_s=0.0 if is_home else to_s + from_s, training_s=0.0 if is_home else to_s,
        usd_per_version=there.usd_per_gbyte * payload / 1e9, usd_per_step_home=back.usd_per_gbyte * samples_gb,
        usd_per_step_there=there.usd_per_gbyte * samples_gb,
    )  # fmt: skip


def _critic_way(prices: Prices, src: str, dst: str) -> CriticWay | None:
    route = prices.network.route(src, dst)
    if route is None:
        return None
    size = network.version_bytes(prices.problem.workload, Task.CRITIC_TRAINING)
    link_s = size / route.bytes_per_s
    return CriticWay(
        weights_s=link_s + route.rtt_s / 2, link_s=0.0 if src == dst else link_s,
        usd_per_version=route.usd_per_gbyte * size / 1e9,
    )  # fmt: skip
