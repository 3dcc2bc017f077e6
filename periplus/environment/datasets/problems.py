"""Makes problems of the rows of a job's data sets: which column is what, which rows count, and in which order.

Problems keep the order of their data sets in the job, of the files in a data set, and of the rows in a file. So the
same job has the same problems on each machine and after each restore.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from periplus.environment.columns import value_at
from periplus.environment.datasets.locate import data_files
from periplus.environment.datasets.rows import BinaryValue, WrongRow, number_text, raise_refusals, rows_of
from periplus.environment.environment import Item, Message
from periplus.errors import ConfigError, shortened
from periplus.job.data_section import DEFAULT_ANSWER_COLUMN, DataSection, DatasetKeys, RowFilter

PROMPT_COLUMNS = ("prompt", "question", "problem", "messages")
"""Columns that may hold the prompt if the job names none; the first one that a row has is taken."""

ROLES = ("system", "user", "assistant", "tool")
"""Roles that a message of a prompt may have."""

MAX_KEPT_REFUSALS = 1000
"""Number of wrong rows after which a data set is not read further. Chosen by hand."""


MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*['"](role|content)['"]\s*:""")
"""How a text begins that is a list of messages, as a CSV file or a column of JSON texts has them."""

MISSING = object()
"""What a row has in a column that it lacks."""

ANSWER_GUESSES = ("reward_model.ground_truth", "ground_truth", "final_answer", "solution", "target", "label")
"""Columns that hold the answer in data sets of other trainers, which an error suggests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDataset:
    """What was read of one data set: a text for a person that says which columns and how many rows were taken.

    `num_filtered` counts the rows that the filters left out.
    """

    summary: str
    items: tuple[Item, ...]
    num_filtered: int = 0


def read_problems(data: DataSection, *, needs_answers: bool = True) -> tuple[ReadDataset, ...]:
    """Return the problems of each data set of a job, numbered through.

    Without `needs_answers` a row may lack its answer, which is then empty, unless `answer_column` names a column.
    Raises: ConfigError with the wrong rows.
    """
    read: list[ReadDataset] = []
    first_index = 0
    for number, source in enumerate(data.datasets):
        key = "data.path" if data.path is not None else f"data.sources.{number}.path"
        reader = _Reader(source, number, data.system_prompt, needs_answers)
        read.append(reader.read(key, first_index))
        first_index += len(read[-1].items)
    return tuple(read)


def read_set(source: DatasetKeys, key: str, system_prompt: str | None, *, needs_answers: bool = True) -> ReadDataset:
    """Return the problems of one data set, which `key` of the job names. Raises: ConfigError with the wrong rows."""
    return _Reader(source, 0, system_prompt, needs_answers).read(key, 0)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Makes problems of the rows of one data set, the job's `number`-th."""

    source: DatasetKeys
    number: int
    system_prompt: str | None
    needs_answers: bool

    def read(self, key: str, first_index: int) -> ReadDataset:
        source = self.source
        refusals: list[str] = []
        num_rows = num_filtered = 0

        def problems() -> Iterable[Item]:
            nonlocal num_rows, num_filtered
            for row in (row for file in data_files(source, key) for row in rows_of(file)):
                num_rows += 1
                try:
                    if isinstance(row, WrongRow):
                        raise ValueError(row.why)
                    if all(_meets(row.values, row_filter) for row_filter in source.filters):
                        yield self._item(row.values)
                    else:
                        num_filtered += 1
                except ValueError as error:
                    refusals.append(f"{row.where} {error}")
                    if len(refusals) >= MAX_KEPT_REFUSALS:
                        return

        taken = tuple(islice(problems(), source.limit))
        raise_refusals(refusals)
        if not taken:
            why = f"none of its {num_rows} rows meets the filters" if num_rows else "it has no rows"
            raise ConfigError(f"{key} {source.path!r} has no problem: {why}; give a data set with at least one")
        items = tuple(replace(item, index=first_index + place) for place, item in enumerate(taken))
        summary = _summary(source, items, num_rows, num_filtered)
        return ReadDataset(summary=summary, items=items, num_filtered=num_filtered)

    def _item(self, values: Mapping[str, Any]) -> Item:
        source = self.source
        column = source.prompt_column or next((name for name in PROMPT_COLUMNS if name in values), None)
        is_optional = not self.needs_answers and source.answer_column == DEFAULT_ANSWER_COLUMN
        needed = [column, None if is_optional else source.answer_column, source.solution_column]
        if column is None or any(value_at(values, name, MISSING) is MISSING for name in needed if name):
            raise ValueError(_lacking(values, needed))
        prompt = value_at(values, column)
        messages = _messages(prompt, column)
        if self.system_prompt is not None and messages[0].role != "system":
            messages = (Message(role="system", content=self.system_prompt), *messages)
        answer = value_at(values, source.answer_column)
        return Item(
            index=0,
            prompt="\n\n".join(filter(None, map(_spoken, messages))),
            answer=_answer(answer, source) if self.needs_answers or not _is_blank(answer) else "",
            # A text alone is left to the template of the model, or to none.
            messages=messages if len(messages) > 1 or not isinstance(prompt, str) else (),
            columns={
                name: value
                for name, value in values.items()
                if name not in (column, source.answer_column, source.solution_column)
            },
            solution=_text(value_at(values, source.solution_column), source.solution_column)
            if source.solution_column
            else "",
            source=self.number,
        )


def _lacking(values: Mapping[str, Any], needed: Sequence[str | None]) -> str:
    column, answer, solution = needed
    prompt = column or f"one of {', '.join(PROMPT_COLUMNS)} (or data.prompt_column names another)"
    said = f"has the columns {sorted(values)}; needed: {', and '.join([prompt, *filter(None, (answer, solution))])}"
    guess = next((name for name in ANSWER_GUESSES if value_at(values, name) is not None), None)
    is_lacking = answer is not None and value_at(values, answer, MISSING) is MISSING
    return f"{said}; is data.answer_column={guess} meant?" if is_lacking and guess else said


def _messages(prompt: Any, column: str) -> tuple[Message, ...]:
    if isinstance(prompt, str) and not isinstance(prompt, BinaryValue):
        if not prompt.strip():
            raise ValueError(f"has an empty {column}")
        if MESSAGES_AS_TEXT.match(prompt):
            raise ValueError(
                f"has a {column} that is a list of messages written as text, {shortened(prompt)}; write the list "
                "itself, as JSON Lines and Parquet hold it"
            )
        return (Message(role="user", content=prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"has a {column} that is {_shown(prompt)}, but must be text or a list of messages")
    messages = tuple(_message(each, column) for each in prompt)
    if messages[-1].role == "assistant":
        raise ValueError(
            f"has a {column} that ends with a message of the assistant, which the model is to write; leave it out of "
            f"{column}. If it is a solution to imitate or to compare with, put its text into a column of its own, and "
            "name that in data.solution_column or data.answer_column"
        )
    return messages


def _message(message: Any, column: str) -> Message:
    match message:
        case {"role": str(role), **rest} if role in ROLES:
            extra = {str(key): value for key, value in rest.items() if key != "content" and value is not None}
            content = _content(rest.get("content"), column)
            # A call of a tool may say nothing beside the call, and a tool may answer nothing.
            if content.strip() or role == "tool" or (role == "assistant" and extra.get("tool_calls")):
                return Message(role=role, content=content, extra=extra)
    raise ValueError(
        f"has a message in {column} that is {_shown(message)}, but must have a role ({', '.join(ROLES)}) and "
        "text as content"
    )


def _content(content: Any, column: str) -> str:
    """Return the text of a message's content: a text, None for nothing, or a list of parts of the type `text`."""
    match content:
        case None:
            return ""
        case str() if not isinstance(content, BinaryValue):
            return content
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)}:
            raise ValueError(f"has a message in {column} with a part of the type {kind!r}, but only text is supported")
        case list() if all(isinstance(part, Mapping) for part in content):
            return "".join(_content(part, column) for part in content)
    raise ValueError(f"has a message in {column} whose content is {_shown(content)}, but must be text")


def _spoken(message: Message) -> str:
    """Return a message as plain text, for models without a chat template and for comparing prompts."""
    calls = message.extra.get("tool_calls")
    return "\n".join(filter(None, (message.content, calls and json.dumps(calls, ensure_ascii=False))))


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _answer(value: Any, source: DatasetKeys) -> str:
    column = source.answer_column
    if _is_blank(value):
        raise ValueError(
            f"has an {column} that is {value!r}, so a reward has nothing to compare with; leave such rows out with "
            f"data.filters=[{{column: {column}, matches: '\\S'}}], or set data.answer_column to another column"
        )
    # In Python a bool is an int, but `true` as an answer is more likely a mistake.
    if isinstance(value, bool | BinaryValue) or not isinstance(value, str | int | float):
        raise ValueError(f"has an {column} that is {_shown(value)}, but must be text or a number")
    text = _value_text(value)
    if source.answer_pattern is None:
        return text
    found = re.search(source.answer_pattern, text)
    if found is None:
        raise ValueError(f"has an {column} in which {source.answer_pattern!r} finds nothing")
    answer = found[1] if found.re.groups else found[0]
    if _is_blank(answer):
        raise ValueError(f"has an {column} in which {source.answer_pattern!r} finds only {answer!r}")
    return str(answer)


def _value_text(value: str | float) -> str:
    """Return an answer as text. Pandas writes whole numbers as floats where a column lacks values: 2.0 is `2`."""
    return number_text(value) if isinstance(value, float) else str(value)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, BinaryValue) else shortened(repr(value))


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str) or isinstance(value, BinaryValue) or not value.strip():
        raise ValueError(f"has a {column} that is {_shown(value)}, but must be text")
    return value


def _meets(values: Mapping[str, Any], condition: RowFilter) -> bool:
    value = value_at(values, condition.column)
    if value is None:
        return False
    # Pandas writes whole numbers as floats where a column lacks values. True is no 1, as in JSON.
    if condition.one_of is not None and not any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in condition.one_of
    ):
        return False
    is_scalar = isinstance(value, str | int | float) and not isinstance(value, bool | BinaryValue)
    if condition.matches is not None and not (is_scalar and re.search(condition.matches, _value_text(value))):
        return False
    low, high = condition.at_least, condition.at_most
    if low is None and high is None:
        return True
    try:
        # A CSV file, or a decimal of Parquet, has the number as text.
        number = float(value) if is_scalar else math.nan
    except (ValueError, OverflowError):
        return False
    return (low is None or number >= low) and (high is None or number <= high) and not math.isnan(number)


def _summary(source: DatasetKeys, items: Sequence[Item], num_rows: int, num_filtered: int) -> str:
    column = source.prompt_column or "the first of " + ", ".join(PROMPT_COLUMNS)
    answer = f"answer from {source.answer_column}" + (f" by {source.answer_pattern!r}" if source.answer_pattern else "")
    answer = answer if any(item.answer for item in items) else "no answers"
    left_out = f", {num_filtered} left out by filters" if source.filters else ""
    left_out += f", and no more because of limit={source.limit}" if len(items) == source.limit else ""
    return (
        f"{source.path}: {num_rows} rows read{left_out}, prompt from {column}, {answer}, other columns "
        f"{', '.join(items[0].columns) or 'none'}"
    )
