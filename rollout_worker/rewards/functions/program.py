"""Finds the Python program in a completion, which may hold thoughts, prose and several blocks of code.

Blocks are the fenced ones of CommonMark: of backticks or tildes, in lists and quotes too, and one that is not closed
runs to the end. Of the answer section, then of what follows the thoughts (final_answer.py), then of the whole
completion, the first that has a program counts. Its program is

1. its last block that names Python as its language,
2. else its last block that names none and holds Python that does something,
3. else all of it, if that is Python that does something.

So neither a shell command nor a program's output is taken for a program. A last block that only calls functions of an
earlier one is an example of their use, and the earlier one counts. Any other block that lacks names which earlier ones
define is put together with those.
"""

import ast
import builtins
import re
import warnings
from collections.abc import Iterator, Sequence, Set

from markdown_it import MarkdownIt

from periplus.environment.final_answer import after_thoughts, answer_section

PYTHON = re.compile(r"[{.]*(i?python|py)[\d.]*([\s:,}].*)?", re.IGNORECASE | re.DOTALL)
"""What stands behind the opening fence of a block of Python, such as `python`, `Py3` or `{.python .numbered}`."""

INNER_FENCE = re.compile(r"(?<=[^\s`>])[ \t]*(```+[ \t]*(?:python|py)[\d.]*[ \t]*\r?\n)", re.IGNORECASE)
"""An opening fence of Python behind other text in its line, where CommonMark has none."""

LATE_CLOSING = re.compile(r"(?<=[^\s`])[ \t]*```\s*\Z")
"""A closing fence behind other text in its line, where CommonMark has none."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

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
    whole = TAG.sub("\n", completion)  # a fence may stand behind a tag
    yield whole
    if INNER_FENCE.search(whole):
        yield INNER_FENCE.sub(r"\n\1", whole)


def _program_in(text: str) -> str | None:
    # Only the structure of blocks is parsed. A line with a tag would begin a block of HTML, in which no fence counts.
    parser = MarkdownIt("commonmark").disable(["html_block", "inline"])
    blocks = [(token.info.strip(), token.content) for token in parser.parse(text) if token.type == "fence"]
    blocks = [(info, _closed(content)) for info, content in blocks if content.strip()]
    named = [content for info, content in blocks if PYTHON.fullmatch(info)]
    if named:
        return _joined(named)
    unnamed = [content for info, content in blocks if not info and _does_something(content)]
    if unnamed:
        return _joined(unnamed)
    return text if _does_something(text) else None


def _closed(content: str) -> str:
    """Return a block without a closing fence that stands behind its last line."""
    return LATE_CLOSING.sub("", content)


def _joined(blocks: Sequence[str]) -> str:
    """Return the last block, with the earlier ones that define what it lacks; without it, if it is but an example."""
    program = blocks[-1]
    for at in reversed(range(len(blocks) - 1)):
        lacking, (functions, others) = _lacking(program), _defined(blocks[at])
        if lacking & functions and _is_example(program):
            return _joined(blocks[: at + 1])
        if lacking & (functions | others):
            program = f"{blocks[at]}\n{program}"
    return program


def _is_example(text: str) -> bool:
    """Return whether Python code defines no function and reads no input, as an example of the use of functions."""
    tree = _parsed(text)
    return tree is not None and not any(
        isinstance(node, FUNCTIONS)
        or (isinstance(node, ast.Name) and node.id == "input")
        or (isinstance(node, ast.Attribute) and node.attr == "stdin")
        for node in ast.walk(tree)
    )


def _lacking(text: str) -> Set[str]:
    """Return the names that Python code reads and does not bind anywhere."""
    tree = _parsed(text)
    if tree is None:
        return frozenset()
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
            case ast.alias(name="*"):
                return frozenset()
            case ast.alias():
                bound.add(node.asname or node.name.partition(".")[0])
    return read - bound - set(dir(builtins))


def _defined(text: str) -> tuple[Set[str], Set[str]]:
    """Return the functions and classes, and the other names, that Python code binds outside of functions."""
    tree = _parsed(text)
    functions: set[str] = set()
    others: set[str] = set()
    for statement in () if tree is None else tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                functions.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                others.update(each.asname or each.name.partition(".")[0] for each in names)
            case ast.Assign() | ast.AnnAssign():
                stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
                others.update(node.id for node in stored if isinstance(node.ctx, ast.Store))
    return functions, others


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a backslash in a text of the model's
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _does_something(text: str) -> bool:
    """Return whether a text is Python with more than names and literals, which a program's output may look like."""
    tree = _parsed(text)
    return tree is not None and any(
        not isinstance(statement, ast.Expr) or any(isinstance(node, ast.Call) for node in ast.walk(statement))
        for statement in tree.body
    )
