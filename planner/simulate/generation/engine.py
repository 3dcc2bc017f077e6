"""One inference replica with continuous batching, advanced in jumps from one completion to the next.

The engine's clock counts decoding steps. Between two changes the running sequences stay the same and each step adds one
token to each, so the seconds of k steps are a quadratic in k. A change (admission, new weights, pause) takes effect at
the end of the step that is under way.

Caches are counted token by token. A sequence is admitted if it fits with some room to grow. When the caches overflow,
the newest sequence is put back; later its tokens are read again. Source: vLLM's preemption by recomputation.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from planner.simulate.generation.replica_speed import Speed
from planner.simulate.settings import SETTINGS


@dataclass(slots=True)
class SimulatedSample:
    """One completion, from its lease until it is complete. `length` is its final number of tokens."""

    group: int
    prompt: int
    length: int
    done: int = 0
    """Number of tokens that it had when it last stopped running."""
    ages: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of version and number of its tokens that this version sampled."""
    began: int = 0
    """Value of the engine's clock when it last started to run."""


class SimulatedEngine:
    """State of one replica.

    `at_s` is the simulated time that corresponds to the engine's clock: the end of its last whole step.
    """

    def __init__(self, speed: Speed, *, max_running: int, cache_tokens: int) -> None:
        self.max_running = max_running
        self.at_s = 0.0
        self.busy_s = 0.0
        self.is_paused = False
        self.is_alive = True
        self.epoch = 0
        """Number of changes so far. An event that was scheduled before the last change is void."""
        self.num_evicted = 0
        self._speed = speed
        self._cache_tokens = cache_tokens
        self._clock = 0
        """Number of decoding steps so far."""
        self._prefill_s = 0.0
        """Seconds of prefill that the next step still has to pay."""
        self._context = 0
        """Tokens in the caches: prompts and completions of all running sequences."""
        self._running: list[tuple[int, int, SimulatedSample]] = []
        """Heap of (clock value at which the sequence ends, order of admission, sequence)."""
        self._num_admitted = 0
        self._swaps: list[tuple[int, int]] = [(0, 0)]
        """Pairs of clock value and the version that the engine has from then on."""
        self._ahead: tuple[int, float] | None = None
        """(Steps until the next sequence ends or the caches are full, their seconds). None after a change."""

    @property
    def num_running(self) -> int:
        """Number of running sequences."""
        return len(self._running)

    def due_s(self) -> float:
        """Return the time at which the next sequence ends or the caches are full; inf while paused or idle."""
        if self.is_paused or not self._running:
            return math.inf
        # Prompts that were admitted last are read before the steps to the next event.
        return self.at_s + self._prefill_s + self._to_next()[1]

    def has_room(self, sample: SimulatedSample) -> bool:
        """Return whether there is a free slot and room in the caches; False while paused or without devices.

        An empty engine takes any sample.
        """
        num = len(self._running)
        if num >= self.max_running or self.is_paused or not self.is_alive:
            return False
        return (
            not num
            or self._context + sample.prompt + sample.done + (num + 1) * SETTINGS.growth_tokens <= self._cache_tokens
        )

    def admit_from(self, queue: deque[SimulatedSample], now_s: float, most: int) -> int:
        """Start samples of the queue in order, as long as they fit, with the next step. Return how many.

        At most `most` samples are started. Their prompts are read in chunks along with decoding steps.
        """
        if not queue or not self.has_room(queue[0]):
            return 0
        # New sequences start at the end of the step under way. The event that was scheduled for the old batch is void.
        self.halt(now_s)
        self.epoch += 1
        running, tokens, num = len(self._running), 0, 0
        clock, context = self._clock, self._context
        while queue and num < most and running + num < self.max_running:
            sample = queue[0]
            # Room is needed for its tokens so far, and for `growth_tokens` of each running sequence.
            there = sample.prompt + sample.done
            if running + num and context + there + (running + num + 1) * SETTINGS.growth_tokens > self._cache_tokens:
                break
            queue.popleft()
            # All of them end `length - done` steps from now, which is their key in the heap. The order of admission
            # says later which one is the newest.
            sample.began = clock
            num += 1
            context += there
            tokens += there
            heapq.heappush(self._running, (clock + sample.length - sample.done, self._num_admitted + num, sample))
        self._context = context
        self._num_admitted += num
        self._ahead = None
        if num:
            # One prefill for all of them: its cost depends on the running batch and the sum of tokens. A sample that
            # was put back also reads its own tokens again.
            self._prefill_s += self._speed.prefill_s(running, tokens)
        return num

    def halt(self, now_s: float) -> None:
        """Advance the clock to the end of the step that is under way at `now_s`."""
        if not self._running or self.is_paused:
            self.at_s = max(self.at_s, now_s)
            return
        if now_s <= self.at_s:
            return
        # If the prefill is still going on at `now_s`, it is finished and no step is made.
        left_s = now_s - self.at_s - self._prefill_s
        steps = 0
        if left_s > 0:
            linear, half = self._terms()
            # Smallest k with linear k + half k^2 >= left_s, by the quadratic formula in a form without cancellation. A
            # step that ends at `now_s` up to rounding is not followed by another one.
            root = math.sqrt(linear * linear + 4 * half * left_s)
            steps = math.ceil(2 * left_s / (linear + root) - 1e-6)
        # Rounding must not carry the clock beyond the next completion.
        self._advance(min(steps, self._to_next()[0]))

    def finish(self) -> tuple[list[SimulatedSample], SimulatedSample | None]:
        """Advance to `due_s`. Return the completed samples, or (no samples, sample that full caches put back)."""
        self._advance(self._to_next()[0])
        self.epoch += 1
        whole: list[SimulatedSample] = []
        running, clock = self._running, self._clock
        while running and running[0][0] <= clock:
            sample = heapq.heappop(running)[2]
            self._settle(sample)
            whole.append(sample)
        if whole:
            return whole, None
        # Nothing ended, so the caches are full: the sample that was admitted last goes.
        self.num_evicted += 1
        # Preempting the newest sequence loses the least work. The heap is ordered by ends, so the newest one is
        # searched for.
        newest = max(range(len(self._running)), key=lambda i: self._running[i][1])
        sample = self._running.pop(newest)[2]
        heapq.heapify(self._running)
        self._settle(sample)
        return [], sample

    def take_weights(self, version: int, now_s: float, pause_s: float) -> None:
        """Sample the tokens of later steps with that version, after a pause."""
        self.halt(now_s)
        # Tokens from this value of the clock on are sampled with the new version (`_settle`).
        self._swaps.append((self._clock, version))
        self.at_s += pause_s
        self.epoch += 1

    def pause(self, now_s: float) -> float:
        """Stop after the step that is under way. Return the time at which the devices are free."""
        self.halt(now_s)
        self.is_paused = True
        self.epoch += 1
        return self.at_s

    def resume(self, now_s: float) -> None:
        """Continue after a pause."""
        self.is_paused = False
        self.at_s = max(self.at_s, now_s)
        self.epoch += 1

    def vanish(self) -> list[SimulatedSample]:
        """Remove the devices and return the samples that ran. They lose all their tokens."""
        # In the order of admission, oldest first: they are queued again in this order.
        lost = [sample for _, _, sample in sorted(self._running, key=lambda entry: entry[1])]
        self._running.clear()
        self._context, self._prefill_s, self.is_alive, self._ahead = 0, 0.0, False, None
        self.epoch += 1
        for sample in lost:
            sample.done = 0
            # Tokens that were lost are not trained on, so their versions do not count.
            sample.ages.clear()
        return lost

    def return_at(self, version: int, now_s: float, is_paused: bool) -> None:
        """Bring the devices back with that version."""
        self.is_alive, self.is_paused, self.at_s = True, is_paused, max(self.at_s, now_s)
        self._swaps.append((self._clock, version))

    def _settle(self, sample: SimulatedSample) -> None:
        """Count the tokens of a sample that no longer runs, by version."""
        end = self._clock
        sample.done += end - sample.began
        self._context -= sample.prompt + sample.done
        self._ahead = None
        # Go back through the changes of version. Each covers the steps from its clock value, or from the start of the
        # sample if that is later, to the change after it. The search ends at the version with which the sample started
        # to run.
        for began, version in reversed(self._swaps):
            start = began if began > sample.began else sample.began
            if end > start:
                sample.ages.append((version, end - start))
                end = start
            if began <= sample.began:
                break

    def _to_next(self) -> tuple[int, float]:
        """Return (steps until the next sequence ends or the caches are full, their seconds without prefill)."""
        ahead = self._ahead
        if ahead is None:
            num = len(self._running)
            # Each step adds one token per sequence. A single sequence runs to its end even if the caches are too small
            # for it, because nothing could be put back for it.
            steps = self._running[0][0] - self._clock
            if num > 1 and num * steps > self._cache_tokens - self._context:
                steps = max((self._cache_tokens - self._context) // num, 0)
            ahead = self._ahead = steps, self._steps_s(steps)
        return ahead

    def _terms(self) -> tuple[float, float]:
        """Return (p, q) such that k steps take p k + q k^2 seconds."""
        num = len(self._running)
        fixed, slope = self._speed.known.get(num) or self._speed.decode(num)
        # Step i of k has mean context C/n + i, i = 0 .. k - 1. The sum of a + b (C/n + i) is (a + b (C/n - 1/2)) k +
        # b/2 k^2.
        return fixed + slope * (self._context / num - 0.5), slope / 2

    def _steps_s(self, steps: int) -> float:
        linear, half = self._terms()
        return linear * steps + half * steps * steps

    def _advance(self, steps: int) -> None:
        ahead, ahead_s = self._to_next()
        # `ahead_s` is the same number as `_steps_s(steps)`, already computed.
        took_s = self._prefill_s + (ahead_s if steps == ahead else self._steps_s(steps))
        self.at_s += took_s
        self.busy_s += took_s
        self._prefill_s = 0.0
        self._clock += steps
        self._context += steps * len(self._running)
        # The distance to the next event has changed. Without a step only the prefill was paid.
        if steps:
            self._ahead = None
