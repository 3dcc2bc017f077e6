"""Between regions: routes, the time of weights and of trajectories, and what links carry.

A route is direct if one of its ends can be dialled; else it goes through the public region that leaves the most
bandwidth. Weights leave the trainer's region for every region that generates at once (a star), so its uplink is shared.
"""

from dataclasses import dataclass

from planner.cost.memory import trained_fraction, whole_params
from planner.question.fleet import Fleet, Link, Region
from planner.question.workload import Task, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What two regions' gateways can carry in one direction."""

    hops: tuple[str, ...]
    """Regions from source to destination."""
    bytes_per_s: float
    rtt_s: float
    usd_per_gbyte: float


class Network:
    """Routes between all pairs of a fleet's regions. Built once, read only."""

    def __init__(self, fleet: Fleet) -> None:
        self._regions = {region.name: region for region in fleet.regions}
        self._links = {(link.src_region, link.dst_region): link for link in fleet.links}
        self._routes: dict[tuple[str, str], Route | None] = {}

    def route(self, src: str, dst: str) -> Route | None:
        """None where there is no way. Within a region: its fabric."""
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def joins(self, a: str, b: str) -> bool:
        """Whether there are ways in both directions."""
        return self.route(a, b) is not None and self.route(b, a) is not None

    def down_bytes_per_s(self, region: str) -> float | None:
        """Cap of what enters the region."""
        return self._regions[region].wan_down_bytes_per_s

    def up_bytes_per_s(self, region: str) -> float | None:
        """Cap of what leaves the region."""
        return self._regions[region].wan_up_bytes_per_s

    def _find(self, src: str, dst: str) -> Route | None:
        if src == dst:
            home = self._regions[src]
            return Route(
                hops=(src,), bytes_per_s=home.fabric_bytes_per_s, rtt_s=2 * home.fabric_latency_s, usd_per_gbyte=0.0
            )
        a, b = self._regions[src], self._regions[dst]
        if a.is_public or b.is_public:
            link = self._links.get((src, dst))
            return self._over((a, b), (link,)) if link else None
        relays = []
        for name in sorted(self._regions):
            first, second = self._links.get((src, name)), self._links.get((name, dst))
            if self._regions[name].is_public and first and second:
                relays.append(self._over((a, self._regions[name], b), (first, second)))
        return max(relays, key=lambda route: (route.bytes_per_s, -route.rtt_s), default=None)

    @staticmethod
    def _over(hops: tuple[Region, ...], links: tuple[Link, ...]) -> Route:
        rates = [link.bytes_per_s for link in links]
        rates += [hop.wan_up_bytes_per_s for hop in hops[:-1] if hop.wan_up_bytes_per_s]
        rates += [hop.wan_down_bytes_per_s for hop in hops[1:] if hop.wan_down_bytes_per_s]
        return Route(
            hops=tuple(hop.name for hop in hops), bytes_per_s=min(rates), rtt_s=sum(link.rtt_s for link in links),
            usd_per_gbyte=sum(link.usd_per_gbyte for link in links),
        )  # fmt: skip


def payload_bytes(workload: Workload) -> float:
    """Of one of the actor's versions on a WAN link; with LoRA only the adapters change."""
    return version_bytes(workload, Task.ACTOR_TRAINING)


def version_bytes(workload: Workload, task: Task) -> float:
    """Of one version of a model that is trained, the actor's or the critic's."""
    arch = workload.models[task]
    return whole_params(arch, task) * trained_fraction(workload, arch) * workload.weights.bytes_per_param


def local_payload_bytes(workload: Workload) -> float:
    """Of one of the actor's versions inside a region."""
    arch = workload.models[Task.GENERATION]
    return arch.num_params * trained_fraction(workload, arch) * min(workload.weights.bytes_per_param, 2.0)


def weights_s(workload: Workload, route: Route) -> float:
    """Of one version over a route between regions that nothing else uses."""
    return arrival_s(payload_bytes(workload), route)


def arrival_s(num_bytes: float, route: Route) -> float:
    """Until the last byte of so many is there, over a route that nothing else uses."""
    return num_bytes / route.bytes_per_s + route.rtt_s / 2


def trajectory_bytes(workload: Workload) -> float:
    """Of one sample."""
    return workload.trajectory_bytes_per_token * workload.tokens_per_sample


def trajectories_s(workload: Workload, route: Route) -> float:
    """Of the last group of a step: earlier ones went while others were generated."""
    return arrival_s(workload.group_size * trajectory_bytes(workload), route)
