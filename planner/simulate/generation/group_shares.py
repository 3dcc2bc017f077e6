"""Split of a synchronous step's groups over pools such that the samples of all pools arrive at the same time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.problem.workload import Workload
from planner.simulate.generation.engine import SimulatedEngine, SimulatedSample
from planner.simulate.generation.replica_speed import Speed
from planner.simulate.settings import SETTINGS


@dataclass(frozen=True, slots=True)
class Curve:
    """Phase curve of one replica: the seconds in which it makes a number of samples. Both arrays ascend."""

    samples: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]

    def samples_within(self, seconds: float) -> float:
        """Return the samples made within `seconds`; 0 before the first sample is complete."""
        if seconds < self.seconds[0]:
            return 0.0
        return float(np.interp(seconds, self.seconds, self.samples))


def curve(workload: Workload, speed: Speed, *, max_running: int, cache_tokens: int) -> Curve:
    """Return the phase curve of one engine, by running it with quantiles of the length distribution.

    At each size the longest sample is the longest of the whole step. Sizes grow geometrically. The curve is
    extended linearly beyond the last size.
    """
    samples, seconds = [], []
    # One replica may have to make the samples of a whole step.
    most = workload.samples_per_step
    size = 1
    while True:
        engine = SimulatedEngine(speed, max_running=max_running, cache_tokens=cache_tokens)
        samples.append(float(size))
        seconds.append(_phase_s(engine, round(workload.prompt_tokens.mean), _spread(workload, size)))
        # Beyond this range the curve is nearly straight.
        if size >= most or seconds[-1] > SETTINGS.curve_range * seconds[0]:
            break
        size = min(most, max(size + 1, int(size * SETTINGS.curve_growth)))
    # The extension reaches at least the samples of a whole step, so the bisection in `split_groups` has a valid upper
    # end.
    slope = (seconds[-1] - seconds[-2]) / (samples[-1] - samples[-2]) if len(samples) > 1 else seconds[-1]
    samples.append(samples[-1] + most)
    seconds.append(seconds[-1] + slope * most)
    # A phase of more samples may come out a little shorter, because each size has lengths of its own. The inverse
    # needs an ascending curve.
    return Curve(samples=np.array(samples), seconds=np.maximum.accumulate(np.array(seconds)))


def split_groups(num_groups: int, group_size: int, pools: Sequence[tuple[int, float, Curve]]) -> list[int]:
    """Return the number of groups for each pool, which sum to `num_groups`.

    A pool is given as (number of replicas, seconds that it starts late, phase curve of one replica).
    """
    wanted = float(num_groups * group_size)
    low, high = 0.0, max(lag + float(each.seconds[-1]) for _, lag, each in pools)
    # Bisection over the time by which all samples have arrived.
    for _ in range(SETTINGS.split_bisections):
        middle = (low + high) / 2
        made = sum(num * each.samples_within(middle - lag) for num, lag, each in pools)
        low, high = (low, middle) if made >= wanted else (middle, high)
    # `high` is enough for all samples, so `total` is not 0.
    parts = [num * each.samples_within(high - lag) for num, lag, each in pools]
    total = sum(parts)
    exact = [part / total * num_groups for part in parts]
    # Round down, and give the remaining groups to the pools with the largest remainders.
    num_groups_by_pool = [int(part) for part in exact]
    by_rest = sorted(range(len(pools)), key=lambda i: (num_groups_by_pool[i] - exact[i], i))
    for i in by_rest[: num_groups - sum(num_groups_by_pool)]:
        num_groups_by_pool[i] += 1
    return num_groups_by_pool


def _spread(workload: Workload, size: int) -> list[int]:
    """Return `size` lengths at equally spaced quantiles, in an order that mixes long and short ones.

    A stride near the golden ratio of the size, coprime to it, gives that order.
    """
    levels = [(i + 0.5) / size for i in range(size)]
    # A replica that makes few samples may still get the longest one of the step.
    levels[-1] = max(levels[-1], 1 - 0.5 / workload.samples_per_step)
    lengths = [max(1, round(workload.completion_tokens.at(level))) for level in levels]
    stride = next(step for step in range(max(1, int(size * 0.618)), size + 1) if np.gcd(step, size) == 1)
    return [lengths[i * stride % size] for i in range(size)]


def _phase_s(engine: SimulatedEngine, prompt: int, lengths: list[int]) -> float:
    queue = deque(SimulatedSample(group=0, prompt=prompt, length=length) for length in lengths)
    engine.admit_from(queue, 0.0, len(lengths))
    # The same loop as in a run (`rollouts`), but for a single engine and a fixed list of samples.
    while engine.num_running:
        now_s = engine.due_s()
        _, put_back = engine.finish()
        if put_back:
            # Full caches put a sample back: it goes first again once one of the others has ended.
            queue.appendleft(put_back)
        else:
            engine.admit_from(queue, now_s, len(lengths))
    return engine.at_s
