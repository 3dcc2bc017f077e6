"""Messages and documents name only job keys, commands and options that exist."""

import ast
import functools
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from periplus.__main__ import ENTRY_POINT_GROUP
from periplus.job.job_file import JobFile
from tests.support.cases.job_keys import dotted_keys

ROOT = Path(__file__).parents[2]
PACKAGES = ("periplus", "planner", "coordinator", "region_agent", "rollout_worker", "trainer")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "pb" not in path.parts)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

KEYS = frozenset(dotted_keys(JobFile))
SECTIONS = sorted({key.partition(".")[0] for key in KEYS if "." in key})
DOTTED = re.compile(rf"(?<![\w./-])(?:{'|'.join(SECTIONS)})(?:\.[a-z_0-9]+)+(?![\w(/-])")
FREE = ("environment.config.", "eval.sets.")
"""The keys below are those of the environment's own configuration, and names of evaluation sets."""

NO_KEYS = re.compile(r"\.(json|jsonl|md|yaml|safetensors)$")
"""Ends of file names that begin as a key does, such as plan.json."""

COMMAND = re.compile(r"`periplus ([a-z]+)(?: ([a-z]+)\b)?")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN_OPTIONS = {
    "--local-dir",
    "--enable-scale-out",
    "--no-enable-chunked-prefill",
    "--logprobs-mode",
    "--max-model-len",
    "--weight-transfer-config",
}
"""Options of `hf download` and of `vllm serve`, which messages recommend."""

UNDOTTED = {key.rpartition(".")[2] for key in KEYS if "." in key and "_" in key.rpartition(".")[2]}
ENGINE = "rollout_worker/engines/torch_engine.py"
"""Names its own arguments, which are called as the job's keys are."""


def texts(node: ast.AST) -> Iterator[str]:
    """String literals, with {} where an f-string has a value."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in inner.values)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


@functools.cache
def source_texts() -> Sequence[tuple[str, str]]:
    return [(name, text) for name, tree in _trees() for text in texts(tree)]


@functools.cache
def raised_texts() -> Sequence[tuple[str, str]]:
    raised = (
        (name, node.exc)
        for name, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc is not None
    )
    return [(name, text) for name, error in raised for text in texts(error)]


@functools.cache
def _trees() -> Sequence[tuple[str, ast.Module]]:
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]


def document_texts() -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def unknown_keys(text: str) -> list[str]:
    found = [match[0] for match in DOTTED.finditer(text)]
    return [key for key in found if key not in KEYS and not key.startswith(FREE) and not NO_KEYS.search(key)]


def commands() -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        command = point.load()
        found[(point.name,)] = command
        if isinstance(command, click.Group):
            # Asked as a user's call asks, since a group may load its commands only then.
            context = click.Context(command)
            inner = ((name, command.get_command(context, name)) for name in command.list_commands(context))
            found |= {(point.name, name): each for name, each in inner if each is not None}
    return found


def test_a_key_that_does_not_exist_is_found() -> None:
    text = "change environment.task_config; see plan.json, environment.config.x and sampling.temperature"
    assert unknown_keys(text) == ["environment.task_config"]


def test_every_job_key_that_a_message_or_document_names_exists() -> None:
    no_key = {"sampling.top_p"}  # the example of what is not supported
    named = [(where, key) for where, text in (*source_texts(), *document_texts()) for key in unknown_keys(text)]
    assert [(where, key) for where, key in named if key not in no_key] == []


def test_a_message_names_a_job_key_with_its_section() -> None:
    bare = re.compile(rf"(?<![\w.{{])({'|'.join(sorted(UNDOTTED))})(?!\w)")
    assert [(where, text) for where, text in raised_texts() if where != ENGINE and bare.search(text)] == []


def test_every_command_and_option_that_is_named_exists() -> None:
    known = commands()
    options = {option for command in known.values() for each in command.params for option in each.opts}
    unknown = []
    for where, text in (*source_texts(), *document_texts()):
        for name, inner in COMMAND.findall(text):
            is_group = isinstance(known.get((name,)), click.Group)
            if (name,) not in known or (inner and is_group and (name, inner) not in known):
                unknown.append((where, f"periplus {name} {inner}"))
    for where, text in raised_texts():
        unknown += [(where, option) for option in OPTION.findall(text) if option not in options | FOREIGN_OPTIONS]
    assert unknown == []
