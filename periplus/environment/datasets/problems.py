"""Makes problems of the rows of a job's data sets: which column is what, which rows count, and in which order.

Problems keep the order of their data sets in the job, of the files in a data set, and of the rows in a file. So the
same job has the same problems on each machine and after each restore.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from periplus.environment.datasets.locate import data_files
from periplus.environment.datasets.rows import WrongRow, raise_refusals, rows_of
from periplus.environment.environment import Item, Message
from periplus.errors import ConfigError, shortened
from periplus.job.data_section import DataSection, DatasetKeys, RowFilter

PROMPT_COLUMNS = ("prompt", "question", "problem")
"""Columns that may hold the prompt if the job names none; the first one that a row has is taken."""

ROLES = ("system", "user", "assistant", "tool")
"""Roles that a message of a prompt may have."""

MAX_KEPT_REFUSALS = 1000
"""Number of wrong rows after which a data set is not read further. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDataset:
    """What was read of one data set: a text for a person that says which columns and how many rows were taken."""

    summary: str
    items: tuple[Item, ...]


def read_problems(data: DataSection) -> tuple[ReadDataset, ...]:
    """Return the problems of each data set of a job, numbered through. Raises: ConfigError with the wrong rows."""
    read: list[ReadDataset] = []
    first_index = 0
    for number, source in enumerate(data.datasets):
        key = "data.path" if data.path is not None else f"data.sources.{number}.path"
        read.append(_read(source, key, number, first_index, data.system_prompt))
        first_index += len(read[-1].items)
    return tuple(read)


def read_set(source: DatasetKeys, key: str, system_prompt: str | None) -> ReadDataset:
    """Return the problems of one data set, which `key` of the job names. Raises: ConfigError with the wrong rows."""
    return _read(source, key, 0, 0, system_prompt)


def _read(source: DatasetKeys, key: str, number: int, first_index: int, system_prompt: str | None) -> ReadDataset:
    refusals: list[str] = []
    num_rows = 0

    def problems() -> Iterable[Item]:
        nonlocal num_rows
        for row in (row for file in data_files(source, key) for row in rows_of(file)):
            num_rows += 1
            try:
                if isinstance(row, WrongRow):
                    raise ValueError(row.why)
                if all(_meets(row.values, row_filter) for row_filter in source.filters):
                    yield _item(row.values, source, number, system_prompt)
            except ValueError as error:
                refusals.append(f"{row.where} {error}")
                if len(refusals) >= MAX_KEPT_REFUSALS:
                    return

    taken = tuple(islice(problems(), source.limit))
    raise_refusals(refusals)
    if not taken:
        why = f"none of its {num_rows} rows meets the filters" if num_rows else "it has no rows"
        raise ConfigError(f"{key} {source.path!r} has no problem: {why}; give a data set with at least one")
    items = tuple(
        Item(
            index=first_index + place,
            prompt=item.prompt,
            answer=item.answer,
            messages=item.messages,
            columns=item.columns,
            solution=item.solution,
            source=number,
        )
        for place, item in enumerate(taken)
    )
    return ReadDataset(summary=_summary(source, items[0], num_rows), items=items)


def _item(values: Mapping[str, Any], source: DatasetKeys, number: int, system_prompt: str | None) -> Item:
    column = source.prompt_column or next((name for name in PROMPT_COLUMNS if name in values), None)
    lacking = [name for name in (column, source.answer_column, source.solution_column) if name and name not in values]
    if column is None or lacking:
        needed = column or f"one of {', '.join(PROMPT_COLUMNS)} (or prompt_column names another)"
        also = [name for name in (source.answer_column, source.solution_column) if name]
        raise ValueError(f"has the columns {sorted(values)}; needed: {needed}, and {', '.join(also)}")
    messages = _messages(values[column], column)
    if system_prompt is not None and messages[0].role != "system":
        messages = (Message(role="system", content=system_prompt), *messages)
    used = {column, source.answer_column, source.solution_column}
    return Item(
        index=0,
        prompt="\n\n".join(message.content for message in messages),
        answer=_answer(values[source.answer_column], source),
        # A text alone is left to the template of the model, or to none.
        messages=messages if len(messages) > 1 or not isinstance(values[column], str) else (),
        columns={name: value for name, value in values.items() if name not in used},
        solution=_text(values[source.solution_column], source.solution_column) if source.solution_column else "",
        source=number,
    )


def _messages(prompt: Any, column: str) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ValueError(f"has an empty {column}")
        return (Message(role="user", content=prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"has a {column} that is {shortened(repr(prompt))}, but must be text or a list of messages")
    messages = tuple(_message(each, column) for each in prompt)
    if messages[-1].role == "assistant":
        raise ValueError(f"has a {column} that ends with an answer of the assistant; leave it out of the prompt")
    return messages


def _message(message: Any, column: str) -> Message:
    match message:
        case {"role": str(role), "content": str(content)} if role in ROLES and content.strip():
            return Message(role=role, content=content)
    raise ValueError(
        f"has a message in {column} that is {shortened(repr(message))}, but must have a role ({', '.join(ROLES)}) and "
        "text as content"
    )


def _answer(value: Any, source: DatasetKeys) -> str:
    # In Python a bool is an int, but `true` as an answer is more likely a mistake.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(
            f"has an {source.answer_column} that is {shortened(repr(value))}, but must be text or a number"
        )
    text = str(value)
    if source.answer_pattern is None:
        return text
    found = re.search(source.answer_pattern, text)
    if found is None:
        raise ValueError(f"has an {source.answer_column} in which {source.answer_pattern!r} finds nothing")
    return str(found[1] if found.re.groups else found[0])


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"has a {column} that is {shortened(repr(value))}, but must be text")
    return value


def _meets(values: Mapping[str, Any], condition: RowFilter) -> bool:
    value = values.get(condition.column)
    if value is None:
        return False
    if condition.one_of is not None and not any(
        value == each and type(value) is type(each) for each in condition.one_of
    ):
        return False
    if condition.matches is not None and not (isinstance(value, str) and re.search(condition.matches, value)):
        return False
    bounds = (condition.at_least, condition.at_most)
    if bounds == (None, None):
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = bounds
    return (low is None or value >= low) and (high is None or value <= high)


def _summary(source: DatasetKeys, first: Item, num_rows: int) -> str:
    column = source.prompt_column or "the first of " + ", ".join(PROMPT_COLUMNS)
    answer = source.answer_column + (f" by {source.answer_pattern!r}" if source.answer_pattern else "")
    return (
        f"{source.path}: {num_rows} rows read, prompt from {column}, answer from {answer}, other columns "
        f"{', '.join(first.columns) or 'none'}"
    )
