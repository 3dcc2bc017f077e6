"""From a placement to the parts that are played: engines by pool, and what each group does in a batch."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from planner.answer.placement import Group, Placement, Pool
from planner.classes import DeviceClass
from planner.question.workload import SCORING, TRAINING, Task, Workload
from planner.simulate.engine import Engine
from planner.simulate.learner import Crew
from planner.simulate.links import Links
from planner.simulate.resident import resident_bytes, trained_fraction, whole_params
from planner.simulate.rollouts import GenPool, Worker
from planner.simulate.scoring import ScoringSpeed, deal
from planner.simulate.shares import Curve, curve
from planner.simulate.speed import Speed, cache_tokens, running_tokens
from planner.simulate.training import Block, Mesh
from planner.simulate.turns import Turns

MAX_RUNNING = 256
"""Sequences of one engine where neither layout nor caches say less. Source: vLLM's default `max_num_seqs`."""
QUOTA_SLACK = 1.1
"""Of what a pool is meant to make of a step, what it is given at most: so that others can be late."""


class Builder:
    """Of one placement."""

    def __init__(
        self, workload: Workload, placement: Placement, classes: Mapping[str, DeviceClass], links: Links
    ) -> None:
        self.home = classes[placement.group_of(Task.ACTOR_TRAINING).pools[0].device_class].region.name
        self.generating = placement.group_of(Task.GENERATION)
        self.is_continuous = workload.eta > 0 and not self.generating.trains
        """Else a whole step is generated at once."""
        self._workload = workload
        self._placement = placement
        self._classes = classes
        self._links = links
        self._speeds: dict[object, tuple[Speed, Curve | None]] = {}

    def region(self, pool: Pool) -> str:
        return self._classes[pool.device_class].region.name

    def gen_pools(self, idle: frozenset[int], at_most: Mapping[int, float]) -> list[GenPool]:
        """In the placement's order, without the idle ones; `at_most`: samples a step."""
        used = {i: pool for i, pool in enumerate(self.generating.pools) if i not in idle}
        remote = {self.region(pool) for pool in used.values()} - {self.home}
        quotas = {i: QUOTA_SLACK * made / self._workload.group_size for i, made in at_most.items()}
        return [self._gen_pool(pool, len(remote), quotas.get(i, math.inf)) for i, pool in used.items()]

    def crew(self, group: Group, turns: Turns) -> Crew:
        """What a group does in each batch."""
        scoring = tuple(task for task in group.tasks if task in SCORING)
        training = tuple(task for task in group.tasks if task in TRAINING)
        passes: dict[Task, Callable[[Sequence[int]], float]] = {task: self._scorer(group, task) for task in scoring}
        passes |= {task: self._mesh(group, task).seconds for task in training}
        return Crew(
            scoring=scoring, training=training, turns=turns, seconds=lambda task, tokens: passes[task](tokens),
            way_s=partial(self._way_s, [self.region(pool) for pool in group.pools]),
            needs_critic=Task.CRITIC_INFERENCE in scoring and Task.CRITIC_TRAINING not in training,
            places=tuple((self.region(pool), pool.device_class) for pool in group.pools),
        )  # fmt: skip

    def payload_bytes(self, task: Task, src: str, dst: str) -> float:
        """Of one version of a task's model on the way between two regions, or within one."""
        per_param = self._workload.weights.bytes_per_param
        changed = whole_params(self._workload, task) * trained_fraction(self._workload, task)
        return changed * (min(per_param, 2.0) if src == dst else per_param)

    def _gen_pool(self, pool: Pool, num_remote: int, quota: float) -> GenPool:
        workload, at, layout = self._workload, self._classes[pool.device_class], pool.layout(Task.GENERATION)
        tokens = cache_tokens(workload, at.gpu, layout.tensor, resident_bytes(workload, pool))
        most = layout.batch or max(1, min(MAX_RUNNING, int(tokens / running_tokens(workload))))
        key = (at.gpu.name, layout.tensor, most, tokens)
        if key not in self._speeds:
            speed = Speed(workload, at.gpu, layout.tensor)
            phase = None if self.is_continuous else curve(workload, speed, max_running=most, cache_tokens=tokens)
            self._speeds[key] = (speed, phase)
        speed, phase = self._speeds[key]
        replicas = pool.unit_gpus // layout.tensor
        made = GenPool(
            key=pool.device_class, region=at.region.name, lag_s=self._lag_s(at.region.name, num_remote), curve=phase,
            max_running=pool.num_units * replicas * most, load_s=self._load_s(pool), quota=quota,
            credit=quota * (self._workload.eta + 1),
        )  # fmt: skip
        for i in range(pool.num_units * replicas):
            engine = Engine(speed, max_running=most, cache_tokens=tokens)
            made.workers.append(Worker(engine=engine, pool=made, unit=i // replicas, is_shown=i % replicas == 0))
        return made

    def _load_s(self, pool: Pool) -> float:
        """From a version's arrival in the region until the pool's engines have it: over the fabric, and applied."""
        at, tensor = self._classes[pool.device_class], pool.layout(Task.GENERATION).tensor
        fit = at.gpu.efficiency
        is_near = self.generating.trains and pool.num_gpus <= at.gpus_per_machine
        rate = at.gpu.link_bytes_per_s * fit.link_fraction if is_near else at.fabric_bytes_per_s
        seconds = self.payload_bytes(Task.GENERATION, at.region.name, at.region.name) / tensor / rate
        if self._workload.weights.is_delta:
            held = 2.0 * self._workload.models[Task.GENERATION].num_params / tensor
            seconds += 2 * held / (at.gpu.memory_bytes_per_s * fit.memory_fraction)
        return seconds

    def _lag_s(self, region: str, num_remote: int) -> float:
        """What a synchronous step's deal takes into account: weights out, and the way back."""
        if region == self.home:
            return 0.0
        payload = self.payload_bytes(Task.GENERATION, self.home, region)
        alone_s = payload / self._links.rate(self.home, region)
        up = self._links.up_bytes_per_s(self.home)
        shared_s = payload * num_remote / up if up else 0.0
        ways_s = self._links.one_way_s(self.home, region) + self._links.one_way_s(region, self.home)
        return max(alone_s, shared_s) + ways_s

    def _scorer(self, group: Group, task: Task) -> Callable[[Sequence[int]], float]:
        speeds: list[ScoringSpeed] = []
        for pool in group.pools:
            speed = ScoringSpeed(self._workload, task, self._classes[pool.device_class], pool)
            speeds += [speed] * (pool.num_units * speed.replicas_per_unit)
        rates = [speed.tokens_per_s for speed in speeds]

        def seconds(tokens: Sequence[int]) -> float:
            dealt = deal(tokens, rates)
            return max(speed.seconds(part) for speed, part in zip(speeds, dealt, strict=True))

        return seconds

    def _mesh(self, group: Group, task: Task) -> Mesh:
        blocks = [Block(self._workload, task, self._classes[pool.device_class], pool) for pool in group.pools]
        rings = max(block.layout.tensor * block.layout.pipeline for block in blocks)
        around = list(zip(blocks, [*blocks[1:], blocks[0]], strict=True)) if len(blocks) > 1 else []
        return Mesh(self._workload, blocks, lambda: [self._between(a.at, b.at, rings) for a, b in around])

    def _between(self, a: DeviceClass, b: DeviceClass, rings: int) -> tuple[float, float]:
        """Bytes a second and latency for each of so many rings that pass from one pool to another."""
        if a.region.name != b.region.name:
            rate = self._links.rate(a.region.name, b.region.name)
            return rate / rings, self._links.one_way_s(a.region.name, b.region.name)
        slowest = min(a.fabric_bytes_per_s, b.fabric_bytes_per_s)
        crossing = a.region.cross_fabric_bytes_per_s if a.fabric != b.fabric else None
        return min(slowest, crossing or slowest), a.region.fabric_latency_s

    def _way_s(self, regions: Sequence[str], num_bytes: int) -> tuple[float, float]:
        """A batch's samples to the regions of a group, each its part, and an answer back."""
        remote = sorted({region for region in regions if region != self.home})
        part = num_bytes / len(regions)
        there = [self._links.send_s(self.home, region, part * regions.count(region)) for region in remote]
        back = [self._links.one_way_s(region, self.home) for region in remote]
        return max(there, default=0.0), max(back, default=0.0)
