"""A local JSON Lines file as an environment: one object a line, a prompt column and `answer`.

The prompt column is the first present of `prompt`, `question`, `problem` (the names used by common data sets). Scoring
is exact match after stripping white space, nothing else: a looser comparison belongs in a reward of one's own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from periplus.environment.environment import EXACT, Environment, Item
from periplus.errors import ConfigError

PROMPT_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMN = "answer"

MAX_REFUSALS = 5
"""Most lines of a file that one error names: a wrong file is wrong in each of its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlEnvironment:
    """Prompts and answers held in memory."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int) -> Item:
        if not 0 <= index < len(self.items):
            raise ValueError(f"item {index} of an environment with {len(self.items)} items")
        return self.items[index]

    def score(self, index: int, completion: str) -> float:
        return EXACT if completion.strip() == self.item(index).answer.strip() else 0.0


def load(path: Path) -> Environment:
    """The environment in the file at `path`; blank lines are skipped.

    Raises: ConfigError naming the file, and the lines and reasons of what cannot be used.
    """
    items: list[Item] = []
    refusals: list[str] = []
    try:
        # Lines end where a file's lines end: str.splitlines would also cut at separators inside a JSON text.
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    items.append(_item(len(items), line))
                except ValueError as error:
                    refusals.append(f"{path}:{number} {error}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the data file {str(path)!r}: {error}; give a readable UTF-8 file") from error
    if refusals:
        more = f"\nand {len(refusals) - MAX_REFUSALS} lines more" if len(refusals) > MAX_REFUSALS else ""
        raise ConfigError("\n".join(refusals[:MAX_REFUSALS]) + more)
    if not items:
        raise ConfigError(f"the data file {str(path)!r} has no rows; give one JSON object a line")
    return JsonlEnvironment(items=tuple(items))


def _item(index: int, line: str) -> Item:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}; write one object a line") from error
    if not isinstance(row, Mapping):
        raise ValueError(f"holds {type(row).__name__}, not an object; write one object a line")
    column = next((name for name in PROMPT_COLUMNS if name in row), None)
    if column is None or ANSWER_COLUMN not in row:
        raise ValueError(
            f"has the columns {sorted(row)}; needed: one of {', '.join(PROMPT_COLUMNS)}, and {ANSWER_COLUMN}"
        )
    prompt, answer = row[column], row[ANSWER_COLUMN]
    if not isinstance(prompt, str):
        raise ValueError(
            f"has a {column} that is {_shown(prompt)}, but must be text; lists of messages are not supported yet"
        )
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ValueError(f"has an {ANSWER_COLUMN} that is {_shown(answer)}, but must be text or a number")
    if not prompt.strip():
        raise ValueError(f"has an empty {column}")
    for text in (prompt, str(answer)):
        text.encode()  # half a surrogate pair is a JSON text, but none that a tokenizer takes
    return Item(index=index, prompt=prompt, answer=str(answer))


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
