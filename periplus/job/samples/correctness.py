"""What a job calls a right answer: by this, accuracy is counted and groups are filtered.

One reward function decides, the first of the job unless `reward.correct` names another; or the whole reward does, where
the environment gives it or `reward.correct` is a number. What else shapes the reward, such as a penalty on length, does
not make an answer right or wrong. Which values of the user's own functions and of reward models are right is not known
unless the job says it. Then no accuracy is reported, and groups are compared by the values themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from periplus.job.job_file import JobFile
from periplus.job.reward_functions import OWN, kind_of, label_of
from periplus.job.samples.reward_parts import reward_parts_of
from periplus.values.trajectory import Trajectory

BEST: Mapping[str, float] = MappingProxyType(
    {"verifier": 1.0, "math": 1.0, "exact": 1.0, "regex": 1.0, "format": 1.0, "code": 1.0, "length": 0.0}
)
"""The best possible value of each function by name. A reward model has none."""

ROUNDING = 1e-9
"""How far below the least right value a value still counts as right: sums of rewards are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """The function that decides, by its label, or None for the whole reward; and the least right value, if known.

    `is_threshold`: the job gave the value, so that samples are either right or wrong, and nothing between.
    """

    label: str | None
    at_least: float | None
    is_threshold: bool = False

    def value(self, reward: float | None, parts: Mapping[str, float]) -> float | None:
        """Return the value of a sample that decides; None if no function judged the sample."""
        return reward if self.label is None else parts.get(self.label)

    def is_right(self, trajectory: Trajectory) -> bool | None:
        """Return whether a sample is right; None if that is not known, or if what decides has not judged it."""
        value = self.value(trajectory.reward, reward_parts_of(trajectory.metadata) if self.label else {})
        return None if value is None or self.at_least is None else value >= self.at_least - ROUNDING

    def outcome(self, trajectory: Trajectory) -> float | None:
        """Return by what samples of a group are compared: a group of equal outcomes teaches nothing.

        None if no function judged the sample.
        """
        if self.is_threshold:
            is_right = self.is_right(trajectory)
            return None if is_right is None else float(is_right)
        return self.value(trajectory.reward, reward_parts_of(trajectory.metadata) if self.label else {})

    @property
    def description(self) -> str:
        """A sentence for a person."""
        what = "the reward" if self.label is None else f"the value of {self.label}"
        if self.at_least is None:
            best = f"the best value of {self.label or what}"
            return f"right: not known, since {best} is not; set reward.correct to report accuracy"
        return f"right: {what} is {self.at_least:g} or more"


def correctness_of(job: JobFile) -> Correctness:
    """Return what a resolved job calls right."""
    reward, correct = job.reward, job.reward.correct
    if isinstance(correct, float):
        return Correctness(label=None, at_least=correct, is_threshold=True)
    entry = next((each for each in reward.entries if label_of(each) == correct), reward.entries[0])
    kind = kind_of(entry) or OWN
    is_own = job.environment is not None and job.environment.path is not None
    best = None if kind == "verifier" and is_own else BEST.get(kind)
    if correct is not None and best is None:
        best = 1.0
    return Correctness(label=None if reward.is_verifier_alone else label_of(entry), at_least=best)
