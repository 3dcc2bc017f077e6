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
- *best rate*: the rule of the design, lambda * (T + W + wait + G_p99 + D + Q) <= bound + 1, with Q = 0,
  lambda * T <= 1, and what the workers can produce. G is the time that a group takes when all its samples begin at
  once, W and D are those of the slowest region. *wait* is what the capacity imposes: the samples of a step are more
  than the slots, so with every slot free when new weights come, the first groups begin at once and the others as slots
  come free. What enters the rule is the 99th percentile of wait + G over the groups of a step. The figure with no wait
  at all, which no scheduler can reach that has fewer slots than samples a step, stands beside it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.staleness_sim.simulator import Attempt, Fate, Simulator
from bench.staleness_sim.world import World

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


def best_rate(world: World, group_maxima: npt.NDArray[np.int64], sample_tokens: float) -> Best:
    """`group_maxima`: longest samples of many groups, `sample_tokens`: mean of all samples."""
    groups_s = group_maxima / world.tokens_per_s
    waits_s = group_waits_s(world, sample_tokens / world.tokens_per_s)
    fixed_s = world.step_s + max(world.weights_s(region) for region in world.links)
    fixed_s += max(world.result_s(region, round(world.group_size * sample_tokens)) for region in world.links)
    batch = world.groups_per_step * world.group_size
    by_others = min(1.0 / world.step_s, sum(world.slots) * world.tokens_per_s / (batch * sample_tokens))
    by_rule, by_rule_without_wait = (
        (world.bound + 1) / (fixed_s + float(np.percentile(sums_s, 99)))
        for sums_s in ((waits_s[:, None] + groups_s[None, :]).ravel(), groups_s)
    )
    return Best(
        steps_per_s=min(by_others, by_rule), without_wait_steps_per_s=min(by_others, by_rule_without_wait)
    )  # fmt: skip


def group_waits_s(world: World, sample_s: float) -> npt.NDArray[np.float64]:
    """When the last sample of each group of a step begins, counted from when the weights are there and all slots free.

    Slots come free at the rate slots / sample_s.
    """
    slots = sum(world.slots)
    ranks = np.arange(1, world.groups_per_step + 1) * world.group_size
    return np.maximum(0.0, (ranks - slots) * sample_s / slots)


def simulate(simulator: Simulator, window: Window, best: Best) -> Outcome:
    """Run to the end of the window and on until its cohort is known; the figures."""
    last = window.warmup + window.steps
    simulator.run(last + 1)  # step `last` has begun
    begin_s, end_s = (simulator.steps[step].begin_s for step in (window.warmup, last))
    groups = [
        attempts for attempts in simulator.attempts.values()
        if (first := _first_s(attempts)) is not None and begin_s <= first < end_s
    ]  # fmt: skip
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
    violations = sum(
        number for step in simulator.steps for age, number in step.samples_by_age.items() if age > bound
    )  # fmt: skip
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
