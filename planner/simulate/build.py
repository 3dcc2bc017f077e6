"""Builder: turn a placement into the objects that the simulator runs.

It makes the engines of each pool that generates, and for each group the functions that give the seconds of its scoring
and training passes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from planner.answer.placement import Group, Placement, Pool
from planner.problem.device_classes import DeviceClass
from planner.problem.workload import SCORING, TRAINING, Task, Workload
from planner.simulate.generation.engine import SimulatedEngine
from planner.simulate.generation.group_shares import Curve, curve
from planner.simulate.generation.replica_speed import Speed, cache_tokens, running_tokens
from planner.simulate.generation.resident_memory import resident_bytes, trained_fraction, whole_params
from planner.simulate.generation.rollouts import GenPool, PlacedEngine
from planner.simulate.generation.time_sharing import DeviceQueue
from planner.simulate.learning.learner import DeviceGroup
from planner.simulate.learning.scoring import ScoringSpeed, split_samples
from planner.simulate.learning.training import PoolPipelines, SimulatedMesh
from planner.simulate.network.links import Links
from planner.simulate.settings import SETTINGS


class Builder:
    """Factory of the parts of one placement.

    `trainer_region` is the name of the region that trains the actor.
    """

    def __init__(
        self, workload: Workload, placement: Placement, classes: Mapping[str, DeviceClass], links: Links
    ) -> None:
        self.trainer_region = classes[placement.group_of(Task.ACTOR_TRAINING).pools[0].device_class].region.name
        self.generating = placement.group_of(Task.GENERATION)
        self.is_continuous = workload.eta > 0 and not self.generating.trains
        """Whether generation runs all the time. Otherwise the samples of a whole step are generated at once, in a
        phase."""
        self._workload = workload
        self._placement = placement
        self._classes = classes
        self._links = links
        self._speeds: dict[object, tuple[Speed, Curve | None]] = {}
        """Speed and phase curve of equal engines, which are costly to compute."""

    def region(self, pool: Pool) -> str:
        """Return the name of a pool's region."""
        return self._classes[pool.device_class].region.name

    def gen_pools(self, idle: frozenset[int], at_most: Mapping[int, float]) -> list[GenPool]:
        """Return the pools that generate, in the placement's order, without those whose index is in `idle`.

        `at_most` is the planned samples per step of pools that their window limits, by index.
        """
        used = {i: pool for i, pool in enumerate(self.generating.pools) if i not in idle}
        # Weights go once to each remote region, however many pools it has.
        remote = {self.region(pool) for pool in used.values()} - {self.trainer_region}
        # From samples per step to groups per version.
        quotas = {i: SETTINGS.quota_slack * made / self._workload.group_size for i, made in at_most.items()}
        return [self._gen_pool(pool, len(remote), quotas.get(i, math.inf)) for i, pool in used.items()]

    def device_group(self, group: Group, queue: DeviceQueue) -> DeviceGroup:
        """Return a group of devices with its scoring and training passes."""
        scoring = tuple(task for task in group.tasks if task in SCORING)
        training = tuple(task for task in group.tasks if task in TRAINING)
        passes: dict[Task, Callable[[Sequence[int]], float]] = {task: self._scorer(group, task) for task in scoring}
        # Training passes are functions of the same form as scoring passes: sample lengths in, seconds out.
        passes |= {task: self._mesh(group, task).seconds for task in training}
        return DeviceGroup(
            scoring=scoring,
            training=training,
            queue=queue,
            seconds=lambda task, tokens: passes[task](tokens),
            transfer_s=partial(self._transfer_s, [self.region(pool) for pool in group.pools]),
            needs_critic=Task.CRITIC_INFERENCE in scoring and Task.CRITIC_TRAINING not in training,
        )

    def payload_bytes(self, task: Task, src: str, dst: str) -> float:
        """Return the bytes of one version of a task's model between two regions, or within one.

        Within a region versions are never larger than full bf16 copies.
        """
        per_param = self._workload.weights.bytes_per_param
        changed = whole_params(self._workload, task) * trained_fraction(self._workload, task)
        return changed * (min(per_param, 2.0) if src == dst else per_param)

    def _gen_pool(self, pool: Pool, num_remote: int, quota: float) -> GenPool:
        """Return one pool that generates, with an engine for each replica."""
        workload, at, layout = self._workload, self._classes[pool.device_class], pool.layout(Task.GENERATION)
        tokens = cache_tokens(workload, at.gpu, layout.tensor, resident_bytes(workload, pool))
        # Engines without a batch run as many sequences as their caches hold of mean context.
        most = layout.batch or max(1, min(SETTINGS.max_running, int(tokens / running_tokens(workload))))
        # Pools with equal engines share one speed and one phase curve.
        key = (at.gpu.name, layout.tensor, most, tokens)
        if key not in self._speeds:
            speed = Speed(workload, at.gpu, layout.tensor)
            phase = None if self.is_continuous else curve(workload, speed, max_running=most, cache_tokens=tokens)
            self._speeds[key] = (speed, phase)
        speed, phase = self._speeds[key]
        replicas = pool.unit_gpus // layout.tensor
        made = GenPool(
            key=pool.device_class,
            region=at.region.name,
            lag_s=self._lag_s(at.region.name, num_remote),
            curve=phase,
            max_running=pool.num_units * replicas * most,
            load_s=self._load_s(pool),
            quota=quota,
            # Before the first new version arrives, the window is open for the groups of eta + 1 steps.
            credit=quota * (self._workload.eta + 1),
        )
        for i in range(pool.num_units * replicas):
            engine = SimulatedEngine(speed, max_running=most, cache_tokens=tokens)
            unit, replica = divmod(i, replicas)
            made.workers.append(PlacedEngine(engine=engine, pool=made, unit=unit, is_first_replica=replica == 0))
        return made

    def _load_s(self, pool: Pool) -> float:
        """Return the seconds from a version's arrival in the region until the pool's engines have it.

        The version travels over the fabric, or over the links inside the machine if a mesh that also trains fits into
        one. Deltas are then applied, which reads and writes the held weights.
        """
        at, tensor = self._classes[pool.device_class], pool.layout(Task.GENERATION).tensor
        fit = at.gpu.efficiency
        is_near = self.generating.trains and pool.num_gpus <= at.gpus_per_machine
        rate = at.gpu.link_bytes_per_s * fit.link_fraction if is_near else at.fabric_bytes_per_s
        seconds = self.payload_bytes(Task.GENERATION, at.region.name, at.region.name) / tensor / rate
        if self._workload.weights.is_delta:
            # Each device holds its shard of the weights in bf16, two bytes for a parameter.
            held = 2.0 * self._workload.models[Task.GENERATION].num_params / tensor
            seconds += 2 * held / (at.gpu.memory_bytes_per_s * fit.memory_fraction)
        # A version that is published is encoded and proved too.
        return seconds if self.generating.trains else seconds + fit.version_overhead_s

    def _lag_s(self, region: str, num_remote: int) -> float:
        """Return the delay of a region as the split of a synchronous step counts it: weights out and samples back."""
        if region == self.trainer_region:
            return 0.0
        payload = self.payload_bytes(Task.GENERATION, self.trainer_region, region)
        # Either the route itself is the limit, or the uplink of the trainer's region, which all remote regions share.
        alone_s = payload / self._links.rate(self.trainer_region, region)
        up = self._links.up_bytes_per_s(self.trainer_region)
        shared_s = payload * num_remote / up if up else 0.0
        delays_s = self._links.one_way_s(self.trainer_region, region) + self._links.one_way_s(
            region, self.trainer_region
        )
        return max(alone_s, shared_s) + delays_s

    def _scorer(self, group: Group, task: Task) -> Callable[[Sequence[int]], float]:
        # One entry for each replica of each unit, in the order of the pools.
        speeds: list[ScoringSpeed] = []
        for pool in group.pools:
            speed = ScoringSpeed(self._workload, task, self._classes[pool.device_class], pool)
            speeds += [speed] * (pool.num_units * speed.replicas_per_unit)
        rates = [speed.tokens_per_s for speed in speeds]

        def seconds(tokens: Sequence[int]) -> float:
            # A pass ends when the slowest replica has scored its samples.
            lengths_by_worker = split_samples(tokens, rates)
            return max(speed.seconds(part) for speed, part in zip(speeds, lengths_by_worker, strict=True))

        return seconds

    def _mesh(self, group: Group, task: Task) -> SimulatedMesh:
        blocks = [PoolPipelines(self._workload, task, self._classes[pool.device_class], pool) for pool in group.pools]
        # Each shard of the model (one per tensor and pipeline rank) is all-reduced in a ring of its own. The rings run
        # at the same time.
        rings = max(block.layout.tensor * block.layout.pipeline for block in blocks)
        # The ring goes from each pool to the next and from the last to the first. A single pool has no links to others.
        ring = list(zip(blocks, [*blocks[1:], blocks[0]], strict=True)) if len(blocks) > 1 else []
        # The links are looked up again for each training step, because faults change their rates.
        return SimulatedMesh(self._workload, blocks, lambda: [self._between(a.at, b.at, rings) for a, b in ring])

    def _between(self, a: DeviceClass, b: DeviceClass, rings: int) -> tuple[float, float]:
        """Return (bytes per second, latency) of each of so many rings between two pools."""
        if a.region.name != b.region.name:
            # The rings of all shards share one wide-area link, while fabric rates below are those of each device.
            rate = self._links.rate(a.region.name, b.region.name)
            return rate / rings, self._links.one_way_s(a.region.name, b.region.name)
        slowest = min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
        crossing = a.region.cross_fabric_bytes_per_s if a.fabric != b.fabric else None
        return min(slowest, crossing or slowest), a.region.fabric_latency_s

    def _transfer_s(self, regions: Sequence[str], num_bytes: int) -> tuple[float, float]:
        """Return (seconds of a batch's samples to the regions of a group, seconds of the answer back).

        Each region receives its part of the batch; the slowest transfer counts. Regions are those of the group's pools.
        """
        remote = sorted({region for region in regions if region != self.trainer_region})
        # `regions` has one entry per pool, and pools are taken to get equal parts of the batch.
        part = num_bytes / len(regions)
        there = [self._links.send_s(self.trainer_region, region, part * regions.count(region)) for region in remote]
        # Scores are a few bytes for each token: their return costs the delay only.
        back = [self._links.one_way_s(region, self.trainer_region) for region in remote]
        return max(there, default=0.0), max(back, default=0.0)
