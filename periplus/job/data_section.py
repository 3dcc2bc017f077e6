"""The sections `data` and `environment` of a job file: where the problems come from, and what answers the model."""

import re
from typing import Annotated

from pydantic import Field, JsonValue

from periplus.config.loading import Config, Words

DEFAULT_SIZE = 16_384
"""Default of data.size. Chosen by hand: enough for thousands of steps on a small task, and generated in seconds."""

MAX_TEXT_CHARACTERS = 65_536
"""Longest system prompt or pattern, in characters. Chosen by hand: pages of text."""

MAX_VALUE = 1e300
"""Largest magnitude of a bound on a column. Chosen by hand: a little less than the largest float64."""

TURN_ENVIRONMENTS = ("calculator", "number_game")
"""Names of the runtime's own environments of several turns. A test checks that each of them can be built."""

MAX_TURNS = 64
"""Largest number of turns of an episode. Each turn's reward is recorded by name in the sample's metadata, which has 64
KiB. Chosen by hand."""

DEFAULT_ANSWER_COLUMN = "answer"
"""Column with the answers if the job names none."""

ColumnName = Annotated[str, Field(min_length=1, max_length=256)]


class RowFilter(Config):
    """A condition on one column of a data set. Rows that do not meet it are left out."""

    column: ColumnName
    """Name of the column, or a dotted path into it. A row without a value there is left out."""

    one_of: tuple[JsonValue, ...] | None = Field(default=None, min_length=1, max_length=1000)
    """The value is one of these."""

    at_least: float | None = Field(default=None, ge=-MAX_VALUE, le=MAX_VALUE)
    """The value is a number, or the text of one, that is not smaller."""

    at_most: float | None = Field(default=None, ge=-MAX_VALUE, le=MAX_VALUE)
    """The value is a number, or the text of one, that is not larger."""

    matches: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT_CHARACTERS)
    """This regular expression is found in the value, which is text or a number. `\\S` leaves out rows without a
    value."""


class DatasetKeys(Config):
    """Where one data set is, which of its rows are problems, and which columns they have."""

    path: str | None = Field(default=None, min_length=1)
    """A file (`.jsonl`, `.json`, `.csv`, these with `.gz`, `.parquet`, `.arrow`), a directory with such files, or a
    data set of the Hugging Face Hub as ORGANISATION/NAME or hf://datasets/ORGANISATION/NAME[@REVISION][/FILE], which is
    taken from the local cache and never downloaded; null when `environment` makes the problems. A relative path starts
    at the directory where the command runs."""

    revision: str | None = Field(default=None, min_length=1, max_length=256)
    """Branch, tag or commit of a data set of the Hub; null means main. A submitted job records the commit."""

    subset: str | None = Field(default=None, min_length=1, max_length=256)
    """Name of the configuration of a data set that has several, such as `main` of openai/gsm8k."""

    split: str = Field(default="train", min_length=1, max_length=256)
    """Split of the data set, for a directory or a data set of the Hub. A single file has no splits."""

    prompt_column: ColumnName | None = None
    """Column with the prompt, or a dotted path: text, or a list of messages with `role` and `content`. null takes the
    first of prompt, question, problem and messages that a row has."""

    answer_column: ColumnName = DEFAULT_ANSWER_COLUMN
    """Column with the answer that rewards compare with: text or a number. A dotted path names a value inside a column,
    such as reward_model.ground_truth. Rows may lack the column `answer` if no reward function reads answers."""

    answer_pattern: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT_CHARACTERS)
    """Regular expression that finds the answer in the column's text: its first group is the answer, or the whole match
    if it has no group. A row without a match is refused. `#### (.+)` takes the final answer of a row of GSM8K."""

    solution_column: ColumnName | None = None
    """Column, or dotted path, with the text that the supervised warm-up (train.warmup) imitates; null takes the
    answer."""

    filters: tuple[RowFilter, ...] = Field(default=(), max_length=64)
    """Conditions that a row must meet, all of them."""

    limit: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of rows that are taken from the start, after the filters; null takes all."""


class MixtureSource(DatasetKeys):
    """One of several data sets that a job trains on."""

    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Share of the training groups that come from this data set, relative to the weights of the others."""


class DataSection(DatasetKeys):
    """The problems that the model is trained and evaluated on."""

    sources: tuple[MixtureSource, ...] = Field(default=(), max_length=64)
    """Several data sets in place of one; then the keys of a single data set are left out."""

    system_prompt: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT_CHARACTERS)
    """System message that is put before each prompt that has none."""

    drop_long_prompts: bool = False
    """Leave out problems whose prompt is longer than sampling.prompt_tokens. Without it such a problem refuses the
    job."""

    size: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of problems that the environment makes; null means 16384. Equal prompts count once. The held-out and the
    warm-up problems are taken from these first. Only allowed with `environment`: a data set has one problem per row."""

    @property
    def datasets(self) -> tuple[MixtureSource, ...]:
        """The data sets of the job, in order, each with its weight; empty if an environment makes the problems."""
        if self.path is None:
            return self.sources
        keys = {name: getattr(self, name) for name in DatasetKeys.model_fields}
        return (MixtureSource.model_construct(**keys, weight=1.0),)


def data_disagreements(data: DataSection, *, has_environment: bool) -> list[str]:
    """Return what is wrong with the section, beside what each key's own bounds say; empty if nothing is."""
    given = [
        name
        for name, is_given in (
            ("environment", has_environment),
            ("data.path", data.path is not None),
            ("data.sources", bool(data.sources)),
        )
        if is_given
    ]
    refusals = []
    if len(given) != 1:
        what = f"{' and '.join(given)} are" if given else "none is"
        refusals.append(f"exactly one of environment, data.path and data.sources must be given, but {what}")
    if not has_environment and data.size is not None:
        refusals.append(f"data.size is {data.size}, but a data set has one problem per row; set data.limit instead")
    if data.path is None:
        fields = DatasetKeys.model_fields
        stray = [name for name in fields if getattr(data, name) != fields[name].default]
        refusals += [f"data.{name} is set, but data.path is not; set it in each of data.sources" for name in stray]
    refusals += [f"data.sources.{i} has no path; give one" for i, each in enumerate(data.sources) if each.path is None]
    for source in data.datasets:
        refusals += source_disagreements(source)
    return refusals


def source_disagreements(source: DatasetKeys) -> list[str]:
    """Return what is wrong with the patterns and filters of one data set; empty if nothing is."""
    refusals: list[str] = []
    patterns = [source.answer_pattern, *(row_filter.matches for row_filter in source.filters)]
    refusals += [refusal for pattern in patterns if pattern is not None for refusal in _wrong_pattern(pattern)]
    refusals += [
        f"a filter of the column {row_filter.column!r} has no condition; give one_of, at_least, at_most or matches"
        for row_filter in source.filters
        if row_filter == RowFilter(column=row_filter.column)
    ]
    return refusals


def _wrong_pattern(pattern: str) -> list[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        return [f"{pattern!r} is not a regular expression: {error}"]
    return []


class EnvironmentSection(Config):
    """What makes the problems and scores the completions, or answers the model in an episode of several turns."""

    name: str | None = Field(default=None, min_length=1)
    """Name of a reasoning-gym data set, such as chain_sum, or of an environment of several turns: calculator or
    number_game. It makes the problems."""

    path: Annotated[str, Words("MODULE:CLASS, such as my_env:Game")] | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$", max_length=256
    )
    """Import path of an environment of the user's own, such as my_env:Game, whose class has the methods `reset` and
    `step` (docs/environments.md). The problems come from `data`."""

    config: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the data set or environment, passed to it unchanged, by name. `seed` and `size` are not allowed with
    `name`: the job's own keys `seed` and `data.size` set them."""

    max_turns: int = Field(default=8, ge=1, le=MAX_TURNS)
    """Largest number of turns of the model in one episode. For environments of several turns; the tokens of all turns
    and answers together are at most sampling.max_new_tokens."""

    timeout_s: float = Field(default=10.0, ge=0.1, le=3600)
    """Seconds that an environment of the user's own may take for one call of `reset` or `step`. Then its process is
    killed, and the episode has failed."""

    processes: int = Field(default=64, ge=1, le=1024)
    """Largest number of processes in which each worker runs an environment of the user's own. Each has one episode at a
    time, and is started when it is needed."""

    code: tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...] = Field(default=(), max_length=64)
    """Files and folders of Python code that travel with the job, for an environment that is given by path. Default: its
    module, beside the job file or where the command runs."""

    code_digests: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """BLAKE3 digest of each file of `code`, by the path under which it travels. Filled in where the job is submitted; a
    trainer refuses other files."""

    @property
    def has_turns(self) -> bool:
        """Whether an episode may have several turns."""
        return self.path is not None or self.name in TURN_ENVIRONMENTS

    @property
    def has_own_code(self) -> bool:
        """Whether the user's own code runs on workers."""
        return self.path is not None

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The top-level modules of the user's own environment."""
        return () if self.path is None else (self.path.partition(":")[0].partition(".")[0],)


def makes_problems(section: EnvironmentSection | None) -> bool:
    """Return whether the problems come from the environment and not from a data set."""
    return section is not None and section.name is not None


def environment_disagreements(section: EnvironmentSection, *, scores_alone: bool) -> list[str]:
    """Return what keys of the section contradict each other, one sentence each.

    `scores_alone`: no reward function of the job scores samples beside the environment.
    """
    refusals = []
    if (section.name is None) == (section.path is None):
        what = "neither is" if section.name is None else "both are"
        refusals.append(f"exactly one of environment.name and environment.path must be given, but {what}")
    if section.has_turns and not scores_alone:
        refusals.append(
            "environment has several turns, whose rewards it gives itself, but reward names other functions; set "
            "reward: verifier, and have the environment call what else is to be scored"
        )
    fields = EnvironmentSection.model_fields
    of_turns, of_path = ("max_turns",), ("timeout_s", "processes", "code", "code_digests")
    for key, applies, where in (
        *((key, section.has_turns, "an environment of several turns") for key in of_turns),
        *((key, section.path is not None, "environment.path") for key in of_path),
    ):
        if not applies and getattr(section, key) != fields[key].get_default(call_default_factory=True):
            refusals.append(f"environment.{key} is set, but it is only for {where}; leave it out")
    return refusals
