"""Finds the Python program in a completion, which may hold thoughts, prose and several blocks of code.

Blocks are the fenced ones of CommonMark: of backticks or tildes, in lists and quotes too, and one that is not closed
runs to the end. Of the answer section, then of what follows the thoughts (final_answer.py), then of the whole
completion, the first that has a program counts. Its program is

1. its last block that names Python as its language,
2. else its last block that names none and holds Python that does something,
3. else all of it, if that is Python that does something.

So neither a shell command nor a program's output is taken for a program.
"""

import ast
import re
import warnings
from collections.abc import Iterator

from markdown_it import MarkdownIt

from periplus.environment.final_answer import after_thoughts, answer_section

PYTHON = re.compile(r"[{.]*(python|py)[\d.]*([\s:,}].*)?", re.IGNORECASE | re.DOTALL)
"""What stands behind the opening fence of a block of Python, such as `python`, `Py3` or `{.python .numbered}`."""


TAG = re.compile(r"<\s*/?\s*(think|answer)\s*>", re.IGNORECASE)
"""The tags of thoughts and answers."""


def program_of(completion: str) -> str:
    """Return the program in a completion; the completion itself if it has none."""
    for text in _parts(completion):
        program = _program_in(text)
        if program is not None:
            return program
    return completion


def _parts(completion: str) -> Iterator[str]:
    rest = after_thoughts(completion)
    if rest is not None:
        section = answer_section(rest)
        if section is not None:
            yield section
        yield rest
    yield TAG.sub("\n", completion)  # a fence may stand behind a tag


def _program_in(text: str) -> str | None:
    # Only the structure of blocks is parsed. A line with a tag would begin a block of HTML, in which no fence counts.
    parser = MarkdownIt("commonmark").disable(["html_block", "inline"])
    blocks = [(token.info.strip(), token.content) for token in parser.parse(text) if token.type == "fence"]
    blocks = [(info, content) for info, content in blocks if content.strip()]
    named = [content for info, content in blocks if PYTHON.fullmatch(info)]
    if named:
        return named[-1]
    unnamed = [content for info, content in blocks if not info and _does_something(content)]
    if unnamed:
        return unnamed[-1]
    return text if _does_something(text) else None


def _does_something(text: str) -> bool:
    """Return whether a text is Python with more than names and literals, which a program's output may look like."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a backslash in a text of the model's
            tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return any(
        not isinstance(statement, ast.Expr) or any(isinstance(node, ast.Call) for node in ast.walk(statement))
        for statement in tree.body
    )
