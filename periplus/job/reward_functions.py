"""The entries of `reward.functions`: one class for each kind of reward function, with the keys of that kind alone.

An entry names a function of the runtime (`name: math`), or a function of the user's own (`path: my_rewards:score`).
`kind_of` tells which class an entry is of. The functions themselves are in `rollout_worker/rewards/`; this module
knows only their settings.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from periplus.config.loading import UNKNOWN_KIND, Config, Words

OWN = "path"
"""Kind of an entry that names a function of the user's own by its import path."""

MAX_LABEL = 64
"""Most characters of a label, since names of metrics are no longer."""

_LABEL = Annotated[str, Words("of up to 64 letters, digits and :._-, beginning with a letter")]
_LABEL_PATTERN = r"^[A-Za-z][A-Za-z0-9:._-]{0,63}$"


class WeightedFunction(Config):
    """What all reward functions have."""

    bounds: ClassVar[tuple[float, float] | None] = (0.0, 1.0)
    """Least and largest value of the function; None if nobody knows."""

    weight: float = Field(default=1.0, ge=-1000, le=1000)
    """The function's value is multiplied by this before the values are summed. No unit."""

    label: _LABEL | None = Field(default=None, pattern=_LABEL_PATTERN)
    """Name under which the function's values are recorded. Default: its name or path."""


class VerifierReward(WeightedFunction):
    """The environment's own rule; for problems of a data file it is that of `exact`."""

    name: Literal["verifier"]
    """The kind of the function."""


class MathReward(WeightedFunction):
    """1 if the completion's final answer is mathematically equal to the problem's, as math-verify judges it, else 0."""

    name: Literal["math"]
    """The kind of the function."""


class ExactReward(WeightedFunction):
    """1 if the completion's final answer equals the problem's answer, up to white space around it, else 0. The final
    answer is the last section `<answer>`, else what follows the thoughts (`</think>`), else the whole completion."""

    name: Literal["exact"]
    """The kind of the function."""

    ignore_case: bool = False
    """Whether capital and small letters count as equal."""


class RegexReward(WeightedFunction):
    """1 if a regular expression matches, or if what it captures is the problem's answer, else 0."""

    name: Literal["regex"]
    """The kind of the function."""

    pattern: str = Field(min_length=1, max_length=4096)
    """Python regular expression, in which a dot matches line ends too."""

    where: Literal["anywhere", "whole", "last"] = "anywhere"
    """`anywhere`: the first match in the completion. `last`: the last one. `whole`: the whole completion must match."""

    group: int | None = Field(default=None, ge=0, le=99)
    """Number of the captured group that must equal the problem's answer, up to white space around it; 0 is the whole
    match. With null the match itself is enough."""


class FormatReward(WeightedFunction):
    """1 if the completion has the demanded form, else 0."""

    name: Literal["format"]
    """The kind of the function."""

    tags: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")], ...] = Field(
        default=("think", "answer"), min_length=1, max_length=16
    )
    """The completion must be `<tag>...</tag>` for each of these in turn, each once, with only white space around."""

    pattern: str | None = Field(default=None, min_length=1, max_length=4096)
    """Python regular expression that the whole completion must match, in place of `tags`; a dot matches line ends
    too."""


class LengthReward(WeightedFunction):
    """A penalty for long completions: 0 up to the target, then falling along a line to -1 at the maximum."""

    bounds: ClassVar[tuple[float, float] | None] = (-1.0, 0.0)

    name: Literal["length"]
    """The kind of the function."""

    unit: Literal["tokens", "characters"] = "tokens"
    """What is counted. The end token counts."""

    target: int = Field(ge=0, le=10_000_000)
    """Largest length that costs nothing."""

    max: int = Field(ge=1, le=10_000_000)
    """Length from which on the value is -1. It must be above the target."""


class CodeReward(WeightedFunction):
    """The share of tests that the program in the completion passes, in a sandbox without network."""

    name: Literal["code"]
    """The kind of the function."""

    language: Literal["python"] = "python"
    """Language of the programs: the worker's own Python, with its standard library alone."""

    tests_column: str = Field(default="tests", min_length=1, max_length=256)
    """Column of the data with a problem's tests: a list whose entries are statements such as `assert f(1) == 2`, or
    mappings with the texts `input` and `output` of standard input and output. A text is one statement, or a list as
    JSON."""

    partial: bool = True
    """Whether a part of the tests gives a part of the reward; otherwise only all of them give 1."""

    time_limit_s: float = Field(default=5.0, gt=0, le=600)
    """Seconds of processor time, and of waiting, that each run of a program may take. Statements share one run; each
    input is a run of its own."""

    memory_mib: int = Field(default=256, ge=64, le=1_048_576)
    """MiB of address space that each process of a program may take."""


class ModelReward(WeightedFunction):
    """The score that a reward model gives a prompt with its completion: one output of a sequence classifier."""

    bounds: ClassVar[tuple[float, float] | None] = None

    name: Literal["model"]
    """The kind of the function."""

    path: str = Field(min_length=1)
    """Local directory with the checkpoint and tokenizer of an AutoModelForSequenceClassification. It must exist on
    every machine with a rollout worker, since reward models are not sent there."""

    digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """BLAKE3 digest of the checkpoint's files, filled in where the job is submitted; a worker refuses other files."""

    template: str | None = Field(default=None, min_length=1, max_length=65_536)
    """Text that the model reads, with {prompt} and {completion} in it. Default: the chat template of its tokenizer, or
    {prompt}{completion} if it has none."""

    output: int = Field(default=0, ge=0, le=1023)
    """Which of the model's outputs is the value."""

    max_tokens: int = Field(default=1024, ge=1, le=1_048_576)
    """Largest number of tokens that the model reads; longer texts are cut off at their beginning."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Device that the model is on. On a GPU it shares the memory with the worker's engine."""


class OwnReward(WeightedFunction):
    """A function of the user's own, called as TRL calls its reward functions."""

    bounds: ClassVar[tuple[float, float] | None] = None

    path: Annotated[str, Words("MODULE:FUNCTION, such as my_rewards:score")] = Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=256
    )
    """Import path of the function, such as my_rewards:score. It is called as `score(prompts, completions, **columns)`
    with lists of equal length, and gets `completion_ids` and `trainer_state` too if it names them or has `**`. It
    returns a list with a number or None for each completion."""


def kind_of(entry: Any) -> str | None:
    """Return the kind of an entry: its `name`, or OWN for one that has only a `path`; None if it has neither."""
    tree = entry if isinstance(entry, dict) else vars(entry) if isinstance(entry, Config) else {}
    if name := tree.get("name"):
        return str(name)
    return OWN if tree.get("path") is not None else None


RewardFunction = Annotated[
    Annotated[VerifierReward, Tag("verifier")]
    | Annotated[MathReward, Tag("math")]
    | Annotated[ExactReward, Tag("exact")]
    | Annotated[RegexReward, Tag("regex")]
    | Annotated[FormatReward, Tag("format")]
    | Annotated[LengthReward, Tag("length")]
    | Annotated[CodeReward, Tag("code")]
    | Annotated[ModelReward, Tag("model")]
    | Annotated[OwnReward, Tag(OWN)],
    Discriminator(
        kind_of,
        custom_error_type=UNKNOWN_KIND,
        custom_error_message=(
            "a mapping with path: MODULE:FUNCTION, or with name: one of verifier, math, exact, regex, format, length, "
            "code, model"
        ),
    ),
]
"""One entry of `reward.functions`."""


def label_of(function: WeightedFunction) -> str:
    """Return the name under which a function's values are recorded."""
    kind = kind_of(function)
    assert kind is not None, "every class has a name or a path"
    return function.label or (function.path if isinstance(function, OwnReward) else kind)
