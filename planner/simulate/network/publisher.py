"""Publisher: send versions from the region that trains to every region that generates or infers with them.

Between two regions one version is sent after the other. If the devices that train also generate, they have a version at
once. A region that has leased nothing with the version it got receives the next one with low priority, when more urgent
flows leave room.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from planner.answer.placement import Placement
from planner.problem.workload import Task
from planner.simulate.build import Builder
from planner.simulate.event_queue import EventQueue
from planner.simulate.generation.rollouts import GenPool, Rollouts
from planner.simulate.network.links import Links

Arrival = Callable[[int], None]
"""Function that is called with a version when it has arrived."""


class SimulatedPublisher:
    """Queues of versions to all regions.

    `critic_arrived(version)` is called when every device that infers with the critic has the version.
    """

    def __init__(
        self,
        events: EventQueue,
        builder: Builder,
        placement: Placement,
        pools: Sequence[GenPool],
        links: Links,
        rollouts: Rollouts,
        critic_arrived: Arrival,
    ) -> None:
        self.took_s: dict[str, list[float]] = {pool.region: [] for pool in pools}
        """Seconds from publication to arrival of each version, by region."""
        self._events = events
        self._builder = builder
        self._placement = placement
        self._pools = tuple(pools)
        self._links = links
        self._rollouts = rollouts
        self._critic_arrived = critic_arrived
        self._waiting: dict[tuple[str, str, Task], deque[tuple[int, Arrival]]] = {}
        """Versions to send by (source, destination, task), each with what to call when it has arrived. The first one of
        each queue is on its way."""

    def publish(self, version: int) -> None:
        """Send a version whose training step has just ended."""
        self._publish_critic(version)
        began_s = self._events.now_s
        # The devices that train are those that generate: they already hold the new weights.
        if Task.ACTOR_TRAINING in self._builder.generating.tasks:
            self._rollouts.arrive(self._pools, version)
            return
        for region in sorted(self.took_s):
            # The fabric of the trainer's region is not a flow on links. The time to load the version is in
            # `GenPool.load_s`.
            if region == self._builder.trainer_region:
                self._arrived(region, began_s, version)
                continue
            self._queue(
                Task.GENERATION, self._builder.trainer_region, region, version, partial(self._arrived, region, began_s)
            )

    def _arrived(self, region: str, began_s: float, version: int) -> None:
        self.took_s[region].append(self._events.now_s - began_s)
        self._rollouts.arrive([pool for pool in self._pools if pool.region == region], version)

    def _publish_critic(self, version: int) -> None:
        """Send the critic's weights, if one group trains it and another infers with it."""
        tasks = (Task.CRITIC_INFERENCE, Task.CRITIC_TRAINING)
        known = [group for task in tasks for group in self._placement.groups if task in group.tasks]
        # Without a critic there is nothing to send, and a group that does both tasks has the weights.
        if len(known) < len(tasks) or known[0] is known[1]:
            return
        trainer_region = self._builder.region(known[1].pools[0])
        regions = sorted({self._builder.region(pool) for pool in known[0].pools})
        # Each version has its own set of regions that it has not reached: inference may use a version once all have it.
        left = set(regions)

        def arrived(region: str, version: int) -> None:
            left.discard(region)
            if not left:
                self._critic_arrived(version)

        for region in regions:
            self._queue(Task.CRITIC_INFERENCE, trainer_region, region, version, partial(arrived, region))

    def _queue(self, task: Task, src: str, dst: str, version: int, on_arrival: Arrival) -> None:
        waiting = self._waiting.setdefault((src, dst, task), deque())
        waiting.append((version, on_arrival))
        # If others wait, a version is already on its way, and its arrival starts the next one.
        if len(waiting) == 1:
            self._send_next(task, src, dst)

    def _send_next(self, task: Task, src: str, dst: str) -> None:
        """Send the first waiting version, and the next one when it has arrived."""
        waiting = self._waiting[src, dst, task]
        # The version stays in the queue while it travels, which marks the pair of regions as busy.
        version, on_arrival = waiting[0]

        def arrived() -> None:
            waiting.popleft()
            if waiting:
                self._send_next(task, src, dst)
            on_arrival(version)

        # A region that leased nothing with its last version does not need the next one urgently. The critic's weights
        # are always urgent, because scoring waits for them.
        size = self._builder.payload_bytes(task, src, dst)
        is_urgent = task is not Task.GENERATION or self._rollouts.uses(dst)
        self._links.publish(src, dst, size, arrived, is_urgent=is_urgent)
