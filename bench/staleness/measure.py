"""From a simulation's record to figures, and the best rate that they are held against.

Everything is about a *cohort*: the groups whose first sample began while the versions from `warmup` to `warmup + steps`
were trained. The simulation goes on until the cohort's fate is known, so no group counts for being quick or for having
been begun late.

- *discarded*: of what the cohort's groups produced, wholly or partly, the share that was not trained on; counted in
  attempts and in tokens, and the larger of the two is taken. What is open at the end counts as discarded.
- *length bias*: mean length of what was trained, over the mean of what was sampled, minus one. Sampled are the lengths
  that attempts have, or would have had if they had not been cut. Once over the first attempt at each sample of the
  cohort (draws that nothing has selected), once over all attempts that began; the larger deviation of the two is taken.
- *violations*: trained samples that were begun more than `bound` versions before the version that their step starts
  from, over the whole run.
- *rate*: steps of the window a second. *busy*: the share of its time in which the trainer trained.
- *best rate*: the largest lambda that the rule of the design and the capacity allow: lambda * T <= 1, no more than the
  workers can produce, and lambda * (T + W + wait + G_p99 + D + Q) <= bound + 1. W and D are those of the slowest
  region, Q is 0. `wait + G` is what a group takes from when its version's weights are there until its last sample is
  done, in an ideal queue: one line of samples for all slots, no round trips, no deaths, a step's groups in line
  whenever a version comes; its 99th percentile over many steps at this very lambda enters the rule.
- *best rate without wait*: the same with wait = 0, G of groups whose samples all begin at once. Where a step has more
  samples than there are slots, nobody can reach it; it is stated beside the other.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.staleness.simulator import Attempt, Fate, Simulator
from bench.staleness.world import World

IDEAL_STEPS, IDEAL_WARMUP = 72, 8
"""Steps of the ideal queue, and how many of them fill it."""

PRECISION = 1e-3
"""Of the best rate, relative."""

MAX_EXTRA_STEPS = 80
"""Steps after the window within which the cohort's fate must be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """In steps."""

    warmup: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The most steps a second that the rule of the design and the capacity allow."""

    steps_per_s: float
    without_wait_steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of one run; see the module's docstring."""

    steps_per_s: float
    busy: float
    best: Best
    violations: int
    violation_fraction: float
    discarded_samples: float
    discarded_tokens: float
    length_bias_first: float
    length_bias_all: float
    staleness_mean: float
    staleness_max: int
    num_groups: int
    num_open: int
    num_deaths: int

    @property
    def discarded(self) -> float:
        return max(self.discarded_samples, self.discarded_tokens)

    @property
    def length_bias(self) -> float:
        return max(abs(self.length_bias_first), abs(self.length_bias_all))

    @property
    def busy_vs_best(self) -> float:
        return self.steps_per_s / self.best.steps_per_s

    @property
    def busy_vs_best_without_wait(self) -> float:
        return self.steps_per_s / self.best.without_wait_steps_per_s


def best_rate(world: World, lengths: npt.NDArray[np.int64]) -> Best:
    """`lengths`: tokens of samples, [groups, samples of each], of at least `IDEAL_STEPS` steps."""
    took_s = lengths / world.tokens_per_s
    fixed_s = world.step_s + max(world.weights_s(region) for region in world.links)
    fixed_s += max(world.result_s(region, round(float(lengths.sum(axis=1).mean()))) for region in world.links)
    shortest_s = max(world.step_s, took_s.mean() * world.groups_per_step * world.group_size / sum(world.slots))
    without_wait_s = (fixed_s + float(np.percentile(took_s.max(axis=1), 99))) / (world.bound + 1)

    def is_allowed(period_s: float) -> bool:
        group_s = float(np.percentile(ideal_group_times_s(world, took_s, period_s), 99))
        return fixed_s + group_s <= (world.bound + 1) * period_s

    low_s, high_s = shortest_s, max(shortest_s, 4.0 * without_wait_s)
    if is_allowed(low_s):
        high_s = low_s
    while high_s > low_s * (1.0 + PRECISION):
        middle_s = (low_s + high_s) / 2.0
        low_s, high_s = (low_s, middle_s) if is_allowed(middle_s) else (middle_s, high_s)
    return Best(steps_per_s=1.0 / low_s, without_wait_steps_per_s=1.0 / max(shortest_s, without_wait_s))


def ideal_group_times_s(world: World, took_s: npt.NDArray[np.float64], period_s: float) -> npt.NDArray[np.float64]:
    """From the coming of a version until each of its groups is whole, if one comes every `period_s`.

    All slots serve one line, in the order of the groups. Shape: [groups], of the steps after the warm-up.
    """
    free_at_s = [0.0] * sum(world.slots)
    times_s: list[float] = []
    for step in range(IDEAL_STEPS):
        comes_s = step * period_s
        first = step * world.groups_per_step
        for group in took_s[first : first + world.groups_per_step].tolist():
            whole_s = 0.0
            for sample_s in group:
                done_s = max(comes_s, free_at_s[0]) + sample_s
                heapq.heapreplace(free_at_s, done_s)
                whole_s = max(whole_s, done_s)
            if step >= IDEAL_WARMUP:
                times_s.append(whole_s - comes_s)
    return np.array(times_s)


def simulate(simulator: Simulator, window: Window, best: Best) -> Outcome:
    """Run to the end of the window and on until its cohort is known; the figures."""
    last = window.warmup + window.steps
    simulator.run(last + 1)  # step `last` has begun
    begin_s, end_s = (simulator.steps[step].begin_s for step in (window.warmup, last))
    groups = [
        attempts
        for attempts in simulator.attempts.values()
        if (first := _first_s(attempts)) is not None and begin_s <= first < end_s
    ]
    extra = 0
    while extra < MAX_EXTRA_STEPS and (extra <= simulator.world.bound + 1 or _num_open(groups)):
        extra += 1
        simulator.run(last + 1 + extra)
    return _figures(simulator, window, best, groups, end_s - begin_s)


def _first_s(attempts: Sequence[Attempt]) -> float | None:
    """When the group's first sample began."""
    return min((attempt.begin_s for attempt in attempts if attempt.version >= 0), default=None)


def _num_open(groups: Iterable[Sequence[Attempt]]) -> int:
    return sum(attempt.fate is Fate.OPEN for attempts in groups for attempt in attempts)


def _figures(
    simulator: Simulator, window: Window, best: Best, groups: Sequence[Sequence[Attempt]], length_s: float
) -> Outcome:
    begun = [attempt for attempts in groups for attempt in attempts if attempt.version >= 0]
    first = [attempt for attempts in groups for attempt in attempts if attempt.number == 0]
    trained = [attempt for attempt in begun if attempt.fate is Fate.TRAINED]
    tokens = {attempt: _tokens(attempt, simulator) for attempt in begun}
    mean_trained = _mean_length(trained)
    ages: Counter[int] = Counter()
    for step in simulator.steps[window.warmup : window.warmup + window.steps]:
        ages.update(step.samples_by_age)
    bound = simulator.world.bound
    violations = sum(number for step in simulator.steps for age, number in step.samples_by_age.items() if age > bound)
    late = sum(number for age, number in ages.items() if age > bound)
    return Outcome(
        steps_per_s=window.steps / length_s,
        busy=window.steps * simulator.world.step_s / length_s,
        best=best,
        violations=violations,
        violation_fraction=late / ages.total(),
        discarded_samples=1.0 - len(trained) / len(begun),
        discarded_tokens=1.0 - sum(tokens[attempt] for attempt in trained) / sum(tokens.values()),
        length_bias_first=mean_trained / _mean_length(first) - 1.0,
        length_bias_all=mean_trained / _mean_length(begun) - 1.0,
        staleness_mean=sum(age * number for age, number in ages.items()) / ages.total(),
        staleness_max=max(ages),
        num_groups=len(groups),
        num_open=_num_open(groups),
        num_deaths=simulator.num_deaths,
    )


def _tokens(attempt: Attempt, simulator: Simulator) -> float:
    if attempt.end_s >= 0.0:
        return attempt.tokens
    return (simulator.now_s - attempt.begin_s) * simulator.world.tokens_per_s


def _mean_length(attempts: Sequence[Attempt]) -> float:
    return sum(attempt.length for attempt in attempts) / max(1, len(attempts))
