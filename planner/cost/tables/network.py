"""Network between regions: routes, and the time that weights and trajectories take on them.

A route between two regions is direct if at least one of their gateways can be dialled (is public). Otherwise it goes
through the public region that leaves the highest bandwidth. A link that was not measured does not exist. Versions of
the weights leave the trainer's region for all generating regions at the same time (a star), so they share its uplink.
"""

from dataclasses import dataclass

from planner.cost.tasks.memory import trained_fraction, whole_params
from planner.problem.fleet import Fleet, Link, Region
from planner.problem.workload import Task, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Path from one region's gateway to another's, in one direction."""

    hops: tuple[str, ...]
    """Names of the regions on the path, source and destination included."""
    bytes_per_s: float
    """Least rate of the links and gateway caps on the path."""
    rtt_s: float
    """Sum of the links' round-trip times."""
    usd_per_gbyte: float
    """Sum of the links' egress prices."""


class Network:
    """Routes between all pairs of regions of a fleet. Routes are found when first asked for and kept."""

    def __init__(self, fleet: Fleet) -> None:
        self._regions = {region.name: region for region in fleet.regions}
        self._links = {(link.src_region, link.dst_region): link for link in fleet.links}
        self._routes: dict[tuple[str, str], Route | None] = {}

    def route(self, src: str, dst: str) -> Route | None:
        """Return the route from `src` to `dst`, or None if there is none. Within a region it is the fabric."""
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def joins(self, a: str, b: str) -> bool:
        """Return whether there are routes in both directions."""
        return self.route(a, b) is not None and self.route(b, a) is not None

    def down_bytes_per_s(self, region: str) -> float | None:
        """Return the cap on everything that enters the region, None if it has none."""
        return self._regions[region].wan_down_bytes_per_s

    def up_bytes_per_s(self, region: str) -> float | None:
        """Return the cap on everything that leaves the region, None if it has none."""
        return self._regions[region].wan_up_bytes_per_s

    def _find(self, src: str, dst: str) -> Route | None:
        if src == dst:
            region = self._regions[src]
            return Route(
                hops=(src,), bytes_per_s=region.fabric_bytes_per_s, rtt_s=2 * region.fabric_latency_s, usd_per_gbyte=0.0
            )
        a, b = self._regions[src], self._regions[dst]
        if a.is_public or b.is_public:
            link = self._links.get((src, dst))
            return self._over((a, b), (link,)) if link else None
        # Neither end can be dialled: use the public relay with the highest rate, at equal rates the shortest round
        # trip.
        relays = []
        for name in sorted(self._regions):
            first, second = self._links.get((src, name)), self._links.get((name, dst))
            if self._regions[name].is_public and first and second:
                relays.append(self._over((a, self._regions[name], b), (first, second)))
        return max(relays, key=lambda route: (route.bytes_per_s, -route.rtt_s), default=None)

    @staticmethod
    def _over(hops: tuple[Region, ...], links: tuple[Link, ...]) -> Route:
        # The slowest of all links and of the gateways that send or receive on the route.
        rates = [link.bytes_per_s for link in links]
        rates += [hop.wan_up_bytes_per_s for hop in hops[:-1] if hop.wan_up_bytes_per_s]
        rates += [hop.wan_down_bytes_per_s for hop in hops[1:] if hop.wan_down_bytes_per_s]
        return Route(
            hops=tuple(hop.name for hop in hops),
            bytes_per_s=min(rates),
            rtt_s=sum(link.rtt_s for link in links),
            usd_per_gbyte=sum(link.usd_per_gbyte for link in links),
        )


def payload_bytes(workload: Workload) -> float:
    """Return the bytes of one version of the actor on a link between regions. With LoRA only the adapters are sent."""
    return version_bytes(workload, Task.ACTOR_TRAINING)


def version_bytes(workload: Workload, task: Task) -> float:
    """Return the bytes of one version of a trained model (the actor's or the critic's) on a link between regions."""
    arch = workload.models[task]
    return whole_params(arch, task) * trained_fraction(workload, arch) * workload.weights.bytes_per_param


def local_payload_bytes(workload: Workload) -> float:
    """Return the bytes of one version of the actor inside a region, at most two per trained parameter."""
    arch = workload.models[Task.GENERATION]
    return arch.num_params * trained_fraction(workload, arch) * min(workload.weights.bytes_per_param, 2.0)


def weights_s(workload: Workload, route: Route) -> float:
    """Return the seconds of one version on a route that carries nothing else: transfer and half a round trip."""
    return arrival_s(payload_bytes(workload), route)


def arrival_s(num_bytes: float, route: Route) -> float:
    """Return the seconds until the last of some bytes arrives on a route that carries nothing else."""
    return num_bytes / route.bytes_per_s + route.rtt_s / 2


def trajectory_bytes(workload: Workload) -> float:
    """Return the mean bytes of one sample."""
    return workload.trajectory_bytes_per_token * workload.tokens_per_sample


def trajectories_s(workload: Workload, route: Route) -> float:
    """Return the seconds that the last group of a step takes on a route; earlier groups travelled during generation."""
    return arrival_s(workload.group_size * trajectory_bytes(workload), route)
