"""Tells when the first steps of a job can teach nothing, with the likeliest cause, once.

A job whose rewards are all the same, whose completions are all cut off, or whose groups are all filtered runs to its
end without an error, and has learnt nothing. After FIRST_STEPS steps, or the job's last one, this module looks at what
all of them have in common. One sample that differs is enough to say nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from periplus.job.job_file import JobFile

FIRST_STEPS = 3
"""Steps that are looked at together. Chosen by hand: with one step of a few samples, chance is too likely a cause."""

LOOK = "`periplus job samples` shows what was sampled and how it was judged"


@dataclass(slots=True)
class SilenceWatch:
    """Collects the figures of a job's first steps."""

    job: JobFile
    _num_steps: int = 0
    _num_samples: float = 0.0
    _num_judged: int = 0
    _num_uniform: float = 0.0
    _num_truncated: float = 0.0
    _num_failures: float = 0.0
    _highest: float | None = None
    _lowest: float | None = None
    _advantages_differ: bool = False

    def seen(self, values: Mapping[str, float], rewards: Sequence[float], *, has_signal: bool) -> str | None:
        """Add a step, and return a text if the first steps taught nothing. It is returned once.

        `values` are those of the step's record, `rewards` those of its judged samples, and `has_signal` says whether
        an advantage of the step was not 0.
        """
        self._num_steps += 1
        if self._num_steps > self._num_looked_at:
            return None
        num_samples = values.get("num_samples", 0.0)
        self._num_samples += num_samples
        self._num_judged += len(rewards)
        self._num_uniform += values.get("uniform_samples", 0.0)
        self._num_truncated += values.get("truncated_fraction", 0.0) * num_samples
        self._num_failures += values.get("reward_failures", 0.0)
        if rewards:
            self._highest = max(rewards) if self._highest is None else max(self._highest, *rewards)
            self._lowest = min(rewards) if self._lowest is None else min(self._lowest, *rewards)
        self._advantages_differ |= has_signal
        return self._text() if self._num_steps == self._num_looked_at else None

    @property
    def _num_looked_at(self) -> int:
        return min(FIRST_STEPS, self.job.steps)

    def _text(self) -> str | None:
        first = f"the first {self._num_looked_at} steps" if self._num_looked_at > 1 else "the first step"
        if not self._num_samples:
            return f"every sample of {first} was dropped, so nothing was trained on; the log says why"
        is_cut, longest = self._num_truncated >= self._num_samples, self.job.sampling.max_new_tokens
        cut = (
            f"every completion of {first} was cut off at sampling.max_new_tokens={longest}: the model does not end its "
            "turns within it; raise it, or see in the dry run which end tokens and stop strings there are"
        )
        failure_value = self.job.reward.failure_value
        if not self._num_judged:
            return f"no reward function judged a sample of {first}, so nothing was trained on; {LOOK}"
        # Rewards may all be low and differ, as penalties and the scores of reward models do.
        is_low = self._highest is not None and self._highest <= failure_value
        is_low &= self._lowest == self._highest or not self._advantages_differ
        if is_low and self._num_failures >= self._num_samples:
            return f"no sample of {first} has a reward above {failure_value:g}: the reward functions fail; see the log"
        if is_low:
            why = cut if is_cut else f"are the answers in the form that the reward reads? {LOOK}"
            return f"no sample of {first} has a reward above {failure_value:g}; {why}"
        if is_cut:
            return cut
        if self._num_uniform >= self._num_samples or not self._advantages_differ:
            return (
                f"in every group of {first} all samples are judged alike, so nothing was learnt: the problems may be "
                f"too easy or too hard for the model, or the temperature too low; {LOOK}"
            )
        return None
