"""Wide-area network of a run: routes, publications that share links fairly, and trajectories that queue.

A publication is a flow. All flows get max-min fair rates within the links that they cross and the caps of the regions
that they leave and enter. Rates are computed again whenever a flow starts or ends or a link's rate changes.
Trajectories between a pair of regions are sent one after the other at the full rate of the route: they are small, and
most go in the direction opposite to publications. Within a region the fabric carries everything.

A link whose rate becomes 0 carries nothing until it changes again; flows on it wait. Two regions reach each other
directly if one of them can be dialled, otherwise through the public region that leaves the highest bandwidth.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from planner.problem.fleet import Fleet
from planner.simulate.event_queue import EventQueue
from planner.simulate.faults import Faults

Hop = tuple[str, str]
"""Pair of neighbouring regions on a path, in the direction of travel."""


class NoRoute(ValueError):
    """Raised if two regions that must reach each other have no route."""


@dataclass(slots=True, eq=False)
class _Flow:
    """One publication on its path, with the bytes that are left to send."""

    path: tuple[Hop, ...]
    left_bytes: float
    on_done: Callable[[], None]
    is_urgent: bool
    rate: float = 0.0


class Links:
    """State of all links in one run: what flows and waits on them, and the bytes and busy seconds of each so far."""

    def __init__(self, fleet: Fleet, events: EventQueue, faults: Faults) -> None:
        self._events = events
        self._regions = {region.name: region for region in fleet.regions}
        self._links = {(link.src_region, link.dst_region): link for link in fleet.links}
        self._factors: dict[Hop, float] = {}
        """Current factor of each link whose rate has changed."""
        self._flows: list[_Flow] = []
        self._advanced_s = 0.0
        """Time up to which the bytes of all flows have been counted."""
        self._epoch = 0
        """Number of times that rates were computed. An end of a flow that was scheduled before the last one is void."""
        self._free_s: dict[Hop, float] = defaultdict(float)
        """Time at which the trajectories queued so far between a pair of regions have been sent."""
        self._paths: dict[Hop, tuple[Hop, ...]] = {}
        self.sent_bytes: dict[Hop, float] = defaultdict(float)
        self.busy_s: dict[Hop, float] = defaultdict(float)
        self._changes: dict[Hop, list[tuple[float, float]]] = defaultdict(list)
        """Pairs of time and factor of each link, in the order of time."""
        self._change_times_s: dict[Hop, list[float]] = {}
        """Times of all changes on a route's links."""
        for change in sorted(faults.rates, key=lambda each: each.time_s):
            pair = (change.src_region, change.dst_region)
            self._changes[pair].append((change.time_s, change.factor))
            events.at(change.time_s, partial(self._change, pair, change.factor))

    def path(self, src: str, dst: str) -> tuple[Hop, ...]:
        """Return the hops of a route. Raises: NoRoute."""
        if (src, dst) not in self._paths:
            self._paths[src, dst] = self._find_path(src, dst)
        return self._paths[src, dst]

    def one_way_s(self, src: str, dst: str) -> float:
        """Return the seconds of an empty message."""
        if src == dst:
            return self._regions[src].fabric_latency_s
        return sum(self._links[hop].rtt_s for hop in self.path(src, dst)) / 2

    def up_bytes_per_s(self, region: str) -> float | None:
        """Return the cap on what leaves a region. None if there is none."""
        return self._regions[region].wan_up_bytes_per_s

    def rate(self, src: str, dst: str) -> float:
        """Return the bytes per second that a route carries now if nothing else uses it."""
        if src == dst:
            return self._regions[src].fabric_bytes_per_s
        hops = self.path(src, dst)
        return min(*map(self._capacity, hops), self._region_cap(hops))

    @property
    def down(self) -> tuple[Hop, ...]:
        """Links that carry nothing now."""
        return tuple(sorted(hop for hop, factor in self._factors.items() if not factor))

    def publish(
        self, src: str, dst: str, num_bytes: float, on_done: Callable[[], None], *, is_urgent: bool = True
    ) -> None:
        """Start a flow and call `on_done` when its last byte has arrived.

        Urgent flows share the links fairly. The others get what these leave.
        """
        one_way_s = self.one_way_s(src, dst)
        if src == dst:
            self._events.at(self._events.now_s + num_bytes / self.rate(src, dst) + one_way_s, on_done)
            return
        # Flows so far are advanced at their old rates before the new flow changes these.
        self._advance_flows()
        arrived = lambda: self._events.at(self._events.now_s + one_way_s, on_done)  # noqa: E731
        self._flows.append(_Flow(path=self.path(src, dst), left_bytes=num_bytes, on_done=arrived, is_urgent=is_urgent))
        self._reschedule()

    def send_s(self, src: str, dst: str, num_bytes: float) -> float:
        """Queue a message behind earlier ones of the pair and return the seconds until it has arrived.

        The result is inf if it never arrives.
        """
        now_s = self._events.now_s
        if src == dst:
            return num_bytes / self.rate(src, dst) + self.one_way_s(src, dst)
        # A message waits for the earlier ones of its pair. An outage without end makes the pair busy forever.
        begin_s = max(self._free_s[src, dst], now_s)
        end_s = self._end_s(src, dst, num_bytes, begin_s)
        self._free_s[src, dst] = end_s
        if end_s == math.inf:
            return math.inf
        self._count(self.path(src, dst), num_bytes, end_s - begin_s)
        return end_s - now_s + self.one_way_s(src, dst)

    def _end_s(self, src: str, dst: str, num_bytes: float, begin_s: float) -> float:
        """Return the time at which a route used by nothing else has carried these bytes; inf if it never does.

        The rate follows all changes of the route's links.
        """
        hops = self.path(src, dst)
        if (src, dst) not in self._change_times_s:
            # All changes of rates are known in advance, since they are faults of the input.
            self._change_times_s[src, dst] = sorted(
                {time_s for hop in hops for time_s, _ in self._changes.get(hop, ())}
            )
        times_s, cap = self._change_times_s[src, dst], self._region_cap(hops)
        # Go from change to change. The rate is constant in between, and the last interval has no end.
        at_s, left = begin_s, num_bytes
        for i in range(bisect_right(times_s, begin_s), len(times_s) + 1):
            until_s = times_s[i] if i < len(times_s) else math.inf
            rate = min(cap, *(self._links[hop].bytes_per_s * self._factor_at(hop, at_s) for hop in hops))
            if rate and at_s + left / rate <= until_s:
                return at_s + left / rate
            left -= rate * (until_s - at_s) if rate else 0.0
            at_s = until_s
        return math.inf

    def _factor_at(self, hop: Hop, time_s: float) -> float:
        changes = self._changes.get(hop, [])
        at = bisect_right(changes, time_s, key=lambda change: change[0])
        return changes[at - 1][1] if at else 1.0

    def _region_cap(self, hops: tuple[Hop, ...]) -> float:
        """Return the least cap of the regions that a route leaves and enters."""
        ups = (self._regions[a].wan_up_bytes_per_s or math.inf for a, _ in hops)
        return min(*ups, *(self._regions[b].wan_down_bytes_per_s or math.inf for _, b in hops))

    def _find_path(self, src: str, dst: str) -> tuple[Hop, ...]:
        paths: list[tuple[Hop, ...]] = []
        # Two regions that nobody can dial from outside meet at a public region between them.
        if self._regions[src].is_public or self._regions[dst].is_public:
            paths = [((src, dst),)]
        else:
            paths = [((src, via), (via, dst)) for via in sorted(self._regions) if self._regions[via].is_public]
        known = [path for path in paths if all(hop in self._links for hop in path)]
        if not known:
            raise NoRoute(
                f"there is no route from {src} to {dst}: no link was measured, directly or through a public region"
            )
        return max(known, key=self._quality)

    def _quality(self, path: tuple[Hop, ...]) -> tuple[float, float]:
        """Return the sort key of a relayed or direct path: bandwidth first, then short round trips."""
        caps = [self._links[hop].bytes_per_s for hop in path]
        # A relay passes on what it receives: the caps of its own up- and downlink count. Those of the two ends are the
        # same for all paths.
        caps += [self._regions[b].wan_down_bytes_per_s or math.inf for _, b in path[:-1]]
        caps += [self._regions[a].wan_up_bytes_per_s or math.inf for a, _ in path[1:]]
        return min(caps), -sum(self._links[hop].rtt_s for hop in path)

    def _capacity(self, hop: Hop) -> float:
        return self._links[hop].bytes_per_s * self._factors.get(hop, 1.0)

    def _change(self, pair: Hop, factor: float) -> None:
        self._advance_flows()
        self._factors[pair] = factor
        self._reschedule()

    def _advance_flows(self) -> None:
        """Advance every flow to the current time."""
        elapsed_s = self._events.now_s - self._advanced_s
        self._advanced_s = self._events.now_s
        for flow in self._flows:
            moved = min(flow.left_bytes, flow.rate * elapsed_s)
            flow.left_bytes -= moved
            self._count(flow.path, moved, 0.0)
        # A link counts once as busy, however many flows cross it.
        for hop in {hop for flow in self._flows for hop in flow.path}:
            self.busy_s[hop] += elapsed_s

    def _count(self, path: tuple[Hop, ...], num_bytes: float, seconds: float) -> None:
        for hop in path:
            self.sent_bytes[hop] += num_bytes
            self.busy_s[hop] += seconds

    def _reschedule(self) -> None:
        """Compute fair rates and schedule the next end of a flow."""
        # The event of the earlier rates is void from now on.
        self._epoch += 1
        if not self._flows:
            return
        self._set_fair_rates()
        # Flows with rate 0 have no end: they wait for a change of their link.
        ends_s = (self._events.now_s + flow.left_bytes / flow.rate for flow in self._flows if flow.rate)
        end_s = min(ends_s, default=math.inf)
        epoch = self._epoch
        self._events.at(end_s, lambda: self._ended(epoch))

    def _set_fair_rates(self) -> None:
        """Set max-min fair rates by progressive filling: urgent flows first, then the others in the remaining room.

        Constraints are the links and the up and down caps of regions.
        """
        room: dict[Hop, float] = {}
        users: dict[Hop, list[_Flow]] = defaultdict(list)
        for flow in self._flows:
            for hop in flow.path:
                # A hop uses up to three constraints: the link itself, the uplink of its source, and the downlink of its
                # destination.
                up, down = self._regions[hop[0]].wan_up_bytes_per_s, self._regions[hop[1]].wan_down_bytes_per_s
                for key, cap in ((hop, self._capacity(hop)), (("up", hop[0]), up), (("down", hop[1]), down)):
                    if cap is not None:
                        room[key] = cap
                        users[key].append(flow)
        for flow in self._flows:
            flow.rate = 0.0
        # `room` keeps what the urgent flows have left for the others.
        for is_urgent in (True, False):
            self._raise_rates([flow for flow in self._flows if flow.is_urgent is is_urgent], room, users)

    @staticmethod
    def _raise_rates(rising: list[_Flow], room: dict[Hop, float], users: dict[Hop, list[_Flow]]) -> None:
        """Raise the rates of some flows together until each reaches a constraint that is used up; `room` shrinks."""
        # A constraint counts as used up when a billionth of it is left, so that rounding does not keep it open.
        least = {key: 1e-9 * cap for key, cap in room.items()}
        while rising:
            # All rising flows get the same increase, as much as the constraint with the least room per flow allows.
            loads = {key: sum(flow in rising for flow in users[key]) for key in room}
            step = min(room[key] / load for key, load in loads.items() if load)
            for flow in rising:
                flow.rate += step
            # Flows that cross a constraint that is now used up keep their rates; the others rise further.
            full: list[_Flow] = []
            for key, load in loads.items():
                room[key] = max(0.0, room[key] - step * load)
                if load and room[key] <= least[key]:
                    room[key] = 0.0
                    full += users[key]
            rising = [flow for flow in rising if flow not in full]

    def _ended(self, epoch: int) -> None:
        # Rates have changed since this end was scheduled.
        if epoch != self._epoch:
            return
        self._advance_flows()
        # What a flow carries in a microsecond is taken as rounding. Flows that end together are removed together.
        done = [flow for flow in self._flows if flow.left_bytes <= 1e-6 * max(1.0, flow.rate)]
        self._flows = [flow for flow in self._flows if flow not in done]
        # The callbacks only schedule arrivals, so they do not change the list of flows.
        for flow in done:
            flow.on_done()
        self._reschedule()
