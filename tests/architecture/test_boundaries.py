"""Protobuf stops at the boundary: in each room only the modules that convert, serve or dial import its messages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOBUF = "periplus.pb"

BOUNDARY = {
    "region_agent/gateway": {"convert", "service", "upstream"},
}
"""By folder: exactly the modules in it, without its subfolders, that import protobuf messages."""


def imported(path: Path) -> Iterator[str]:
    """Names of imported modules, and of what is imported from them, since that may be a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", BOUNDARY)
def test_only_the_boundary_of_a_room_imports_protobuf(folder: str) -> None:
    modules = sorted((ROOT / folder).glob("*.py"))
    assert modules, "the folder has moved"
    found = {path.stem for path in modules if any(f"{name}.".startswith(f"{PROTOBUF}.") for name in imported(path))}
    assert found == BOUNDARY[folder]
