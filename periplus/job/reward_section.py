"""The section `reward` of a job file: how a sample is scored."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field

from periplus.config.loading import Config
from periplus.job.reward_functions import (
    MAX_LABEL,
    CodeReward,
    ExactReward,
    FormatReward,
    LengthReward,
    MathReward,
    ModelReward,
    OwnReward,
    RegexReward,
    RewardFunction,
    VerifierReward,
    label_of,
)

MAX_FUNCTIONS = 32
"""Largest number of reward functions of a job. Chosen by hand: each is a message to a process for each sample."""

_Name = Literal["verifier", "shuffled", "math", "exact", "format", "code"]


def _with_shorthand(schema: dict[str, Any]) -> None:
    """Let the schema accept a function's name in place of the section."""
    section = {key: schema.pop(key) for key in list(schema) if key not in ("description", "title")}
    schema["anyOf"] = [section, {"type": "string", "enum": list(get_args(_Name))}]


class RewardSection(Config, json_schema_extra=_with_shorthand):
    """How a sample is scored. `reward: math` is short for `reward: {name: math}`."""

    shorthand: ClassVar[str | None] = "name"

    name: _Name | None = None
    """The one reward function, with its defaults: `verifier` (the environment's own rule; that of `exact` for a data
    file), `math`, `exact`, `format` or `code`. `shuffled` permutes the rewards of a batch at random among its samples;
    it is a control run, in which nothing can be learnt. Default: verifier, or what `functions` says."""

    functions: tuple[RewardFunction, ...] = Field(default=(), max_length=MAX_FUNCTIONS)
    """Reward functions, by name or by import path. The reward is the sum of their values, each times its weight."""

    timeout_s: float = Field(default=10.0, ge=0.1, le=3600)
    """Seconds that a function may take for one completion. Then its process is killed, and the function has failed for
    this completion. A reward model, which scores several at once, has this time for each batch."""

    processes: int = Field(default=2, ge=1, le=64)
    """Number of processes in which each worker runs reward functions; as many again run the user's own functions, and
    as many again the sandboxes of programs."""

    on_failure: Literal["value", "fail"] = "value"
    """What becomes of a sample for which a function crashed, hung or raised an error. `value` counts failure_value as
    the function's value and trains on the sample. `fail` draws the sample anew, up to failure.max_sample_attempts
    times, and then drops its whole group. Both are counted as reward_failures. A function that has never given a value
    ends the job."""

    failure_value: float = Field(default=0.0, ge=-1000, le=1000)
    """Value of a function that failed, with on_failure: value."""

    correct: Annotated[float, Field(ge=-1000, le=1000)] | Annotated[str, Field(min_length=1, max_length=64)] | None = (
        None
    )
    """What counts as right in accuracies, and by what filter_groups compares samples: the label of a function, which is
    right with its best possible value (1 for the user's own functions and for reward models), or the least reward that
    is right. Default: the first function, if its best possible value is known, as that of each function by name is."""

    recheck_share: float = Field(default=0.01, ge=0, le=1)
    """Share of the samples whose rewards the trainer computes again before it trains on them, with the verifier and the
    functions math, exact, regex, format and length. A worker whose rewards are others is stopped."""

    code: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = Field(default=(), max_length=64)
    """Files and folders of Python code that travel with the job, for functions that are given by path. Default: the
    modules of these functions, beside the job file or where the command runs."""

    code_digests: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """BLAKE3 digest of each file of `code`, by the path under which it travels. Filled in where the job is submitted; a
    trainer refuses other files."""

    @property
    def is_shuffled(self) -> bool:
        """Whether the rewards of a batch are permuted among its samples."""
        return self.name == "shuffled"

    @property
    def entries(self) -> tuple[RewardFunction, ...]:
        """The functions that score a sample, in order; never empty."""
        if self.functions:
            return self.functions
        match self.name:
            case "math":
                return (MathReward(name="math"),)
            case "exact":
                return (ExactReward(name="exact"),)
            case "format":
                return (FormatReward(name="format"),)
            case "code":
                return (CodeReward(name="code"),)
            case _:
                return (VerifierReward(name="verifier"),)

    @property
    def is_verifier_alone(self) -> bool:
        """Whether the environment's own rule gives the whole reward, so that a sample's reward has no parts."""
        return self.entries == (VerifierReward(name="verifier"),)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Least and largest reward that the functions can give together; None if nobody knows."""
        lowest = highest = 0.0
        for entry in self.entries:
            if entry.bounds is None:
                return None
            # A function may leave a completion unjudged, or fail.
            failed = (self.failure_value,) if self.on_failure == "value" and not self.is_verifier_alone else ()
            values = [0.0, *(entry.weight * value for value in (*entry.bounds, *failed))]
            lowest, highest = lowest + min(values), highest + max(values)
        return lowest, highest

    @property
    def reads_answers(self) -> bool:
        """Whether a function cannot score without the problem's answer; a function of the user's own may do so."""
        return any(
            isinstance(entry, VerifierReward | ExactReward | MathReward)
            or (isinstance(entry, RegexReward) and entry.group is not None)
            for entry in self.entries
        )

    @property
    def has_own_code(self) -> bool:
        """Whether a function of the user's own scores samples, so that the user's code runs on workers."""
        return any(isinstance(entry, OwnReward) for entry in self.entries)

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The top-level modules of the user's own functions, each once."""
        paths = [entry.path for entry in self.entries if isinstance(entry, OwnReward)]
        return tuple(dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in paths))


def disagreements(reward: RewardSection) -> list[str]:
    """Return what keys of the section contradict each other, one sentence each."""
    refusals = []
    if reward.functions and reward.name not in (None, "shuffled"):
        refusals.append(
            f"reward.name is {reward.name} and reward.functions is given too; put name: {reward.name} into the list"
        )
    labels = [label_of(entry) for entry in reward.entries]
    refusals += [
        f"reward.functions has two entries that are recorded as {label!r}; give one of them another label"
        for label in sorted({label for label in labels if labels.count(label) > 1})
    ]
    refusals += [
        f"reward.functions has a path of {len(label)} characters, too many for a name under which values are recorded; "
        "give the entry a label"
        for label in labels
        if len(label) > MAX_LABEL
    ]
    if isinstance(reward.correct, str) and reward.correct not in labels:
        refusals.append(
            f"reward.correct is {reward.correct!r}, but the reward functions are recorded as {', '.join(labels)}; name "
            "one of them, or give the least reward that is right"
        )
    for index, entry in enumerate(reward.entries):
        if isinstance(entry, LengthReward) and entry.max <= entry.target:
            refusals.append(
                f"reward.functions.{index} has max {entry.max}, which is not above its target {entry.target}; raise max"
            )
    if (reward.code or reward.code_digests) and not reward.has_own_code:
        refusals.append("reward.code is given, but no entry of reward.functions has a path; leave it out")
    return refusals


def patterns(reward: RewardSection) -> Iterable[tuple[str, str]]:
    """Yield the dotted key and the text of each regular expression of the section."""
    for index, entry in enumerate(reward.functions):
        if isinstance(entry, RegexReward | FormatReward) and entry.pattern is not None:
            yield f"reward.functions.{index}.pattern", entry.pattern


def models(reward: RewardSection) -> tuple[ModelReward, ...]:
    """Return the reward models of the section."""
    return tuple(entry for entry in reward.functions if isinstance(entry, ModelReward))
