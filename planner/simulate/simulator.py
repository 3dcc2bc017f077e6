"""Entry point of the simulator: `simulate` builds the parts of a placement, runs them, and summarises the run.

The first eta + 2 steps are warm-up and do not count. A run ends after the requested number of steps, when the caller
asks to stop, or when no event is left (a stall, for example because a link carries nothing).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from planner.answer.placement import Placement
from planner.problem.device_classes import classes_of
from planner.problem.goal import Problem
from planner.problem.workload import Task
from planner.simulate import faults as fault
from planner.simulate.build import Builder
from planner.simulate.event_queue import EventQueue
from planner.simulate.generation.draws import Draws
from planner.simulate.generation.rollouts import GenPool, LeasedGroup, Rollouts
from planner.simulate.generation.staleness_window import Window
from planner.simulate.generation.time_sharing import DeviceQueue
from planner.simulate.learning.learner import DeviceGroup, SimulatedLearner
from planner.simulate.network.links import Links
from planner.simulate.network.publisher import SimulatedPublisher
from planner.simulate.run_record import LinkUse, MeasuredRegion, Simulated

MAX_ENGINES, MAX_SAMPLES_PER_STEP = 100_000, 1_000_000
"""Largest placement that is simulated. An engine takes about a kilobyte, a sample about a tenth of a millisecond."""


class TooLarge(ValueError):
    """A placement has more engines or samples than the simulator takes."""


def check_size(problem: Problem, placement: Placement) -> None:
    """Refuse a placement that is too large to simulate. Raises: TooLarge."""
    pools = placement.group_of(Task.GENERATION).pools
    num = sum(pool.num_units * (pool.unit_gpus // pool.layout(Task.GENERATION).tensor) for pool in pools)
    if num > MAX_ENGINES:
        raise TooLarge(f"the plan has {num:,} engines, and at most {MAX_ENGINES:,} can be simulated")
    samples = problem.workload.samples_per_step
    if samples > MAX_SAMPLES_PER_STEP:
        raise TooLarge(f"a step has {samples:,} samples, and at most {MAX_SAMPLES_PER_STEP:,} can be simulated")


def simulate(
    problem: Problem,
    placement: Placement,
    *,
    seed: int,
    num_steps: int,
    faults: fault.Faults = fault.NONE,
    idle: frozenset[int] = frozenset(),
    at_most: Sequence[tuple[int, float]] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Simulated:
    """Run a placement that the oracle accepts for `num_steps` steps after the warm-up.

    `idle` are indices of pools of generation's group that do not generate. `at_most` gives, for pools that their window
    limits, index and planned samples per step: the run lets them lease hardly more. `should_stop` is called after each
    step; if it returns True, `Simulated.num_played` is below `num_steps`.

    Raises: TooLarge; NoRoute if regions that must reach each other have no route. Both are ValueErrors.
    """
    check_size(problem, placement)
    simulation = _Simulation(problem, placement, seed, num_steps, faults, idle, dict(at_most))
    simulation.run(should_stop)
    return simulation.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """Sums from the start of the run to one moment; differences of two snapshots give the measured means."""

    now_s: float
    num_trained: int
    busy_s: Mapping[Task, float]
    hold_s: float
    put_back: int
    sent_bytes: Mapping[tuple[str, str], float]
    link_busy_s: Mapping[tuple[str, str], float]
    ages: Mapping[int, int]
    num_groups: Mapping[str, int]
    num_arrivals: Mapping[str, int]
    generating_s: Mapping[str, float]


class _Simulation:
    """One run: it builds all parts, connects them, and keeps the sums at the end of the warm-up."""

    def __init__(
        self,
        problem: Problem,
        placement: Placement,
        seed: int,
        num_steps: int,
        faults: fault.Faults,
        idle: frozenset[int],
        at_most: Mapping[int, float],
    ) -> None:
        self._workload = workload = problem.workload
        self._faults = faults
        self._warmup = workload.eta + 2
        self._num_steps = num_steps
        self._warm: _Snapshot | None = None
        self._was_stopped = False
        self._events = EventQueue()
        self._links = Links(problem.fleet, self._events, faults)
        classes = {each.key: each for each in classes_of(problem.fleet)}
        self._builder = Builder(workload, placement, classes, self._links)
        # One window is shared: generation opens groups in it, and the learner takes them.
        window = Window(batch=workload.prompts_per_step, eta=workload.eta)
        self._pools = self._builder.gen_pools(idle, at_most)
        # The parts need each other. Those that are made later are reached through methods of this object (`_deliver`,
        # `_publish`), which are called only once the run has begun.
        self._rollouts = Rollouts(workload, self._events, Draws(workload, seed), window, self._pools, self._deliver)
        self._learner = SimulatedLearner(
            self._events,
            window,
            self._device_groups(placement),
            workload.trajectory_bytes_per_token,
            self._publish,
            self._rollouts.refill,
        )
        self._publisher = SimulatedPublisher(
            self._events,
            self._builder,
            placement,
            self._pools,
            self._links,
            self._rollouts,
            self._learner.critic_arrived,
        )
        # Units that may be present by the latest change of availability. Fewer are alive until returned units have
        # restarted.
        self._allowed = {pool: pool.num_alive_units for pool in self._pools}
        self._schedule_faults({key: at.region.name for key, at in classes.items() if at.is_spot})

    def _device_groups(self, placement: Placement) -> list[DeviceGroup]:
        groups = []
        for group in placement.groups:
            # Groups that do not generate have nothing in the background.
            queue = DeviceQueue(self._events, None, None)
            if group is self._builder.generating:
                # Continuous generation fills the gaps between the other tasks: they pause it. Generation in phases runs
                # when the devices are released, or requests them like any other task (`Rollouts.share_devices`).
                if self._builder.is_continuous:
                    queue = DeviceQueue(self._events, self._rollouts.pause, self._rollouts.resume)
                self._generation_queue = queue
            groups.append(self._builder.device_group(group, queue))
        return groups

    # ---- events ----

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Handle events until enough steps are done, no event is left, or `should_stop` returns True."""
        # With eta 0 generation needs no queue for its devices: training waits for its samples, and it waits for the new
        # version. With eta > 0 on devices that train, it has to request them.
        if self._workload.eta == 0:
            self._rollouts.split_step(0)
        elif not self._builder.is_continuous:
            self._rollouts.share_devices(self._generation_queue)
        self._rollouts.refill()
        wanted = self._warmup + self._num_steps
        # `ended_s` is the learner's own list, which grows while events are handled.
        ended_s, num = self._learner.totals.ended_s, 0
        while len(ended_s) < wanted and self._events.step():
            # All that follows is done once per completed training step.
            if len(ended_s) == num:
                continue
            num = len(ended_s)
            if num == self._warmup:
                self._warm = self._snapshot()
            if num < wanted and should_stop():
                self._was_stopped = True
                return

    def _deliver(self, group: LeasedGroup, region: str) -> None:
        """Send a finished group to the trainer's region."""
        num_bytes = sum(group.tokens) * self._workload.trajectory_bytes_per_token
        took_s = self._links.send_s(region, self._builder.trainer_region, num_bytes)
        self._events.at(self._events.now_s + took_s, lambda: self._learner.receive(group))

    def _publish(self, version: int) -> None:
        # The split has to be known before the version arrives: a pool leases its share as soon as it has the weights.
        if self._workload.eta == 0:
            self._rollouts.split_step(version)
        self._publisher.publish(version)

    # ---- availability of devices ----

    def _schedule_faults(self, spot_regions: Mapping[str, str]) -> None:
        """Schedule all changes of availability; fractions are rounded down to whole units."""
        for change in sorted(self._faults.availability, key=lambda each: each.time_s):
            for pool in self._pools:
                if change.subject in (pool.key, spot_regions.get(pool.key)):
                    # All units are alive when faults are scheduled, so this is a fraction of all. The small addend
                    # keeps a product such as 2.9999999996, which stands for 3, from being rounded down.
                    num = math.floor(change.fraction * pool.num_alive_units + 1e-9)
                    self._events.at(change.time_s, partial(self._available, pool, num))

    def _available(self, pool: GenPool, num: int) -> None:
        """Apply a change of availability.

        Units that vanish stop at once. Units that return start after `restart_s`, if they are still present then.
        """
        self._allowed[pool] = num
        # Never more than are alive: units that return come with `_restart`.
        self._set(pool, min(num, pool.num_alive_units))
        self._events.at(self._events.now_s + self._faults.restart_s, lambda: self._restart(pool, num))

    def _restart(self, pool: GenPool, num: int) -> None:
        # A later change may have taken units away again, so the number is limited by the latest change. A restart
        # itself never removes units.
        self._set(pool, max(pool.num_alive_units, min(num, self._allowed[pool])))

    def _set(self, pool: GenPool, num: int) -> None:
        if num != pool.num_alive_units:
            # Engines that return while another task uses the devices of the group have to wait for it.
            is_paused = self._builder.is_continuous and self._generation_queue.is_busy
            self._rollouts.set_available(pool, num, is_paused)

    # ---- results ----

    def _snapshot(self) -> _Snapshot:
        """Return the sums from the start of the run to now."""
        engines = [worker.engine for pool in self._pools for worker in pool.workers]
        busy_s: dict[str, list[float]] = {}
        for pool in self._pools:
            busy_s.setdefault(pool.region, []).extend(worker.engine.busy_s for worker in pool.workers)
        totals = self._learner.totals
        # Generation is counted as the mean over engines, the other tasks as the seconds of their passes.
        generating_s = sum(engine.busy_s for engine in engines) / len(engines)
        return _Snapshot(
            now_s=self._events.now_s,
            num_trained=len(totals.ended_s),
            busy_s={**totals.busy_s, Task.GENERATION: generating_s},
            hold_s=totals.hold_s,
            put_back=sum(engine.num_evicted for engine in engines),
            sent_bytes=dict(self._links.sent_bytes),
            link_busy_s=dict(self._links.busy_s),
            ages=dict(totals.tokens_by_age),
            num_groups={region: len(each) for region, each in self._rollouts.group_s.items()},
            num_arrivals={region: len(each) for region, each in self._publisher.took_s.items()},
            generating_s={region: sum(each) / max(1, len(each)) for region, each in busy_s.items()},
        )

    def result(self) -> Simulated:
        """Return the means over the steps after the warm-up."""
        # A run that ended within the warm-up has no measured step: both snapshots are then equal.
        before, after = self._warm or self._snapshot(), self._snapshot()
        num = after.num_trained - before.num_trained
        # A run with too few steps that nobody stopped has run out of events.
        stalled = "" if num == self._num_steps or self._was_stopped else self._why_stalled(after.num_trained)
        # Means of a run without a measured step are 0 instead of a division by zero.
        steps = max(num, 1)
        step_s = math.inf if stalled or not num else (after.now_s - before.now_s) / steps
        # The list begins with the end of the last warm-up step, so that its differences are the measured steps.
        ended_s = self._learner.totals.ended_s[max(0, before.num_trained - 1) :]
        ages = {age: after.ages[age] - before.ages.get(age, 0) for age in after.ages}
        # Ages that occurred only during the warm-up are left out.
        oldest = max((age for age, tokens in ages.items() if tokens), default=0)
        return Simulated(
            step_s=step_s,
            steps_s=tuple(b - a for a, b in pairwise(ended_s)),
            samples_per_s=self._workload.samples_per_step / step_s,
            task_busy_s=tuple(
                (task, (after.busy_s.get(task, 0.0) - before.busy_s.get(task, 0.0)) / steps)
                for task in self._workload.tasks
            ),
            links=tuple(_link_use(pair, before, after, steps) for pair in sorted(after.sent_bytes)),
            regions=tuple(
                self._measured_region(
                    region, before, (after.generating_s[region] - before.generating_s[region]) / steps
                )
                for region in sorted(self._rollouts.group_s)
            ),
            tokens_by_age=tuple(ages.get(age, 0) for age in range(oldest + 1)),
            hold_s=(after.hold_s - before.hold_s) / steps,
            units_lost=self._rollouts.units_lost,
            samples_lost=self._rollouts.samples_lost,
            samples_put_back=(after.put_back - before.put_back) / steps,
            num_played=num,
            stalled=stalled,
        )

    def _why_stalled(self, num_trained: int) -> str:
        down = ", ".join(f"{src} to {dst}" for src, dst in self._links.down)
        why = f", while no data flows from {down}" if down else ""
        return f"no event is left after {num_trained} steps{why}"

    def _measured_region(self, region: str, before: _Snapshot, generation_s: float) -> MeasuredRegion:
        # Only what was recorded after the snapshot. A region that received or finished nothing since then shows 0 s.
        arrivals = self._publisher.took_s[region][before.num_arrivals[region] :] or [0.0]
        groups = self._rollouts.group_s[region][before.num_groups[region] :] or [0.0]
        return MeasuredRegion(
            region=region,
            weights_s=sum(arrivals) / len(arrivals),
            group_p99_s=float(np.percentile(groups, 99)),
            group_mean_s=sum(groups) / len(groups),
            generation_s=generation_s,
        )


def _link_use(pair: tuple[str, str], before: _Snapshot, after: _Snapshot, steps: int) -> LinkUse:
    return LinkUse(
        src_region=pair[0],
        dst_region=pair[1],
        num_bytes=(after.sent_bytes[pair] - before.sent_bytes.get(pair, 0.0)) / steps,
        busy_s=(after.link_busy_s.get(pair, 0.0) - before.link_busy_s.get(pair, 0.0)) / steps,
    )
