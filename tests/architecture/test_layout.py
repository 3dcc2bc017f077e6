"""The layout that a newcomer relies on: rooms of a size that can be seen at once, and one meaning for each name."""

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("periplus", "planner", "coordinator", "region_agent", "rollout_worker", "trainer")
AROUND = ("tests", "bench", "tools")
"""Folders of code that is not part of the product."""

MAX_ENTRIES = 20
"""Entries of a folder, `__init__.py` included. A folder with more of them is divided into rooms.

Folders around the product have the same bound. A test folder has no more modules to test than its room has entries, and
where the tests of one module fill several files, a folder that outgrows the bound stands for a room that does too.
"""

ACROSS_ROOMS = ("planner/properties",)
"""Folders of tests of what several rooms must keep together."""

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80
MIN_ROOM_WORDS = 12
"""Words of the docstring of a package that says what the package is for, what goes in and out, and what it must not
know."""


def modules(roots: Sequence[str] = PACKAGES) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in sorted((ROOT / root).rglob("*.py")) if "pb" not in path.parts)


def folders(roots: Sequence[str] = PACKAGES) -> Iterator[Path]:
    yield from sorted({path.parent for path in modules(roots)})


def entries_of(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name != "__pycache__"]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def classes_and_fragments() -> tuple[Sequence[tuple[str, str]], Sequence[str]]:
    """Return the product's public classes with their modules, and the docstrings that begin with "Of"."""
    classes, fragments = [], []
    for path in modules():
        tree = parsed(path)
        classes += [
            (node.name, name_of(path))
            for node in tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        fragments += [
            f"{name_of(path)}:{node.lineno}: {node.value.value[:60]!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            if node.value.value.startswith("Of ")
        ]
    return classes, fragments


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_public_class_name_is_defined_once_in_the_product() -> None:
    found = defaultdict(list)
    for name, place in classes_and_fragments()[0]:
        found[name].append(place)
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("folder", list(folders()), ids=name_of)
def test_a_folder_shows_few_entries_and_says_what_it_is_for(folder: Path) -> None:
    assert len(entries_of(folder)) <= MAX_ENTRIES, "divide it into rooms"
    said = ast.get_docstring(parsed(folder / "__init__.py")) or ""
    is_top = folder.parent == ROOT
    assert is_top or len(said.split()) >= MIN_ROOM_WORDS, f"{folder}/__init__.py says too little: {said!r}"


def test_a_folder_around_the_product_shows_few_entries() -> None:
    sizes = {name_of(folder): len(entries_of(folder)) for folder in folders(AROUND)}
    assert {name: size for name, size in sizes.items() if size > MAX_ENTRIES} == {}


def test_a_folder_of_tests_has_the_name_of_what_it_tests() -> None:
    """`tests/trainer/ledger` holds the tests of `trainer/ledger`."""
    tested = {path.parent.relative_to(ROOT / "tests") for path in modules(["tests"]) if path.name.startswith("test_")}
    mirrored = {folder for folder in tested if folder.parts[:1] and folder.parts[0] in (*PACKAGES, *AROUND)}
    assert len(mirrored) > 50
    assert {str(folder) for folder in mirrored if not (ROOT / folder).is_dir()} <= set(ACROSS_ROOMS)


def test_modules_and_functions_are_short_enough_to_read() -> None:
    found = []
    for path in modules((*PACKAGES, *AROUND)):
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        if num_lines > MAX_MODULE_LINES:
            found.append(f"{name_of(path)} has {num_lines} lines")
        if num_lines <= MAX_FUNCTION_LINES:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    found.append(f"{name_of(path)}: {node.name} has {num_lines} lines")
    assert found == []


def test_no_docstring_is_a_fragment_that_begins_with_of() -> None:
    assert list(classes_and_fragments()[1]) == []
