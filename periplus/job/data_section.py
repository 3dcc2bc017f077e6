"""The section `data` of a job file: where the problems come from."""

import re
from typing import Annotated

from pydantic import Field, JsonValue

from periplus.config.loading import Config

DEFAULT_SIZE = 16_384
"""Default of data.size. Chosen by hand: enough for thousands of steps on a small task, and generated in seconds."""

MAX_TEXT_CHARACTERS = 65_536
"""Longest system prompt or pattern, in characters. Chosen by hand: pages of text."""

MAX_VALUE = 1e300
"""Largest magnitude of a bound on a column. Chosen by hand: a little less than the largest float64."""

ColumnName = Annotated[str, Field(min_length=1, max_length=256)]


class RowFilter(Config):
    """A condition on one column of a data set. Rows that do not meet it are left out."""

    column: ColumnName
    """Name of the column. A row without it is left out."""

    one_of: tuple[JsonValue, ...] | None = Field(default=None, min_length=1, max_length=1000)
    """The value is one of these."""

    at_least: float | None = Field(default=None, ge=-MAX_VALUE, le=MAX_VALUE)
    """The value is a number that is not smaller."""

    at_most: float | None = Field(default=None, ge=-MAX_VALUE, le=MAX_VALUE)
    """The value is a number that is not larger."""

    matches: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT_CHARACTERS)
    """This regular expression is found in the value, which is text."""


class DatasetKeys(Config):
    """Where one data set is, which of its rows are problems, and which columns they have."""

    path: str | None = Field(default=None, min_length=1)
    """A file (`.jsonl`, `.parquet`, `.arrow`), a directory with such files, or a data set of the Hugging Face Hub as
    ORGANISATION/NAME or hf://datasets/ORGANISATION/NAME[@REVISION][/FILE], which is taken from the local cache and
    never downloaded; null when `environment` makes the problems. A relative path starts at the directory where the
    command runs."""

    revision: str | None = Field(default=None, min_length=1, max_length=256)
    """Branch, tag or commit of a data set of the Hub; null means main. A submitted job records the commit."""

    subset: str | None = Field(default=None, min_length=1, max_length=256)
    """Name of the configuration of a data set that has several, such as `main` of openai/gsm8k."""

    split: str = Field(default="train", min_length=1, max_length=256)
    """Split of the data set, for a directory or a data set of the Hub. A single file has no splits."""

    prompt_column: ColumnName | None = None
    """Column with the prompt: text, or a list of messages with `role` and `content`. null takes the first of prompt,
    question and problem that a row has."""

    answer_column: ColumnName = "answer"
    """Column with the answer that rewards compare with: text or a number."""

    answer_pattern: str | None = Field(default=None, min_length=1, max_length=MAX_TEXT_CHARACTERS)
    """Regular expression that finds the answer in the column's text: its first group is the answer, or the whole match
    if it has no group. A row without a match is refused. `#### (.+)` takes the final answer of a row of GSM8K."""

    solution_column: ColumnName | None = None
    """Column with the text that the supervised warm-up (train.warmup) imitates; null takes the answer."""

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
