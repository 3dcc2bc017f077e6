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

    Raises: ConfigError naming the file and line of what cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the data file {str(path)!r}: {error}; give a readable UTF-8 file") from error
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise ConfigError(f"the data file {str(path)!r} has no rows; give one JSON object a line")
    return JsonlEnvironment(
        items=tuple(_item(index, line, f"{path}:{number}") for index, (number, line) in enumerate(rows))
    )


def _item(index: int, line: str, where: str) -> Item:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON: {error}; write one object a line") from error
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where} holds {type(row).__name__}, not an object; write one object a line")
    column = next((name for name in PROMPT_COLUMNS if name in row), None)
    if column is None or ANSWER_COLUMN not in row:
        raise ConfigError(
            f"{where} has the columns {sorted(row)}; needed: one of {', '.join(PROMPT_COLUMNS)}, and {ANSWER_COLUMN}"
        )
    return Item(index=index, prompt=str(row[column]), answer=str(row[ANSWER_COLUMN]))
