"""A local JSON Lines file as an environment: one object per line, with a prompt and the key `answer`.

The prompt is under the first key present of `prompt`, `question` and `problem`, which are the names in common data
sets. A completion scores 1 if it equals the answer after white space is stripped from both ends, else 0.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from periplus.environment.environment import EXACT, Environment, Item
from periplus.errors import ConfigError, shortened

PROMPT_COLUMNS = ("prompt", "question", "problem")
"""Keys that may hold the prompt; the first one present is taken."""

ANSWER_COLUMN = "answer"
"""Key that holds the answer."""

MAX_REFUSALS = 5
"""Number of wrong lines that one error names. Chosen by hand: a file of the wrong kind is wrong in every line."""

_NOT_UTF_8 = re.compile("[\udc80-\udcff]")
"""What Python's `surrogateescape` makes of a byte that is not UTF-8: U+DC00 plus the byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlEnvironment:
    """An environment whose prompts and answers are held in memory."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    def item(self, index: int) -> Item:
        """Return the item at `index`. Raises: ValueError if there is no such item."""
        if not 0 <= index < len(self.items):
            raise ValueError(f"item {index} of an environment with {len(self.items)} items")
        return self.items[index]

    def score(self, index: int, completion: str) -> float:
        """Return EXACT if the completion equals the answer up to surrounding white space, else 0."""
        return EXACT if completion.strip() == self.item(index).answer.strip() else 0.0


def load(path: Path) -> Environment:
    """Return the environment of the file at `path`; blank lines are skipped.

    Raises: ConfigError with the file, the wrong lines and the reasons.
    """
    items: list[Item] = []
    refusals: list[str] = []
    try:
        # Iterate over the file's own lines: str.splitlines would also cut at separators inside a JSON text. A byte that
        # is not UTF-8 becomes half of a surrogate pair, which `_item` refuses with its line.
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    items.append(_item(len(items), line))
                except ValueError as error:
                    refusals.append(f"{path}:{number} {error}")
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"cannot read the data file {str(path)!r}: {why}; give a file that you may read") from error
    if refusals:
        more = f"\nand {len(refusals) - MAX_REFUSALS} lines more" if len(refusals) > MAX_REFUSALS else ""
        raise ConfigError("\n".join(refusals[:MAX_REFUSALS]) + more)
    if not items:
        raise ConfigError(f"the data file {str(path)!r} has no rows; give one JSON object a line")
    return JsonlEnvironment(items=tuple(items))


def _item(index: int, line: str) -> Item:
    # Bytes that are not UTF-8 came through decoding as single surrogates (surrogateescape).
    if escaped := _NOT_UTF_8.search(line):
        raise ValueError(f"has the byte 0x{ord(escaped[0]) - 0xDC00:02x}, which is not UTF-8; save the file as UTF-8")
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
    # In Python a bool is an int, but `true` as an answer is more likely a mistake.
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ValueError(f"has an {ANSWER_COLUMN} that is {_shown(answer)}, but must be text or a number")
    if not prompt.strip():
        raise ValueError(f"has an empty {column}")
    for text in (prompt, str(answer)):
        text.encode()  # raises ValueError for half a surrogate pair, which JSON allows but tokenizers do not
    return Item(index=index, prompt=prompt, answer=str(answer))


def _shown(value: object) -> str:
    return shortened(json.dumps(value))
