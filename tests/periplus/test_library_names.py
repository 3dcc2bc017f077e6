"""The names that `import periplus` offers to scripts, and what they cost those who do not use them."""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import periplus

ROOT = Path(__file__).parents[2]


def points() -> dict[str, str]:
    return {point.name: point.value for point in importlib.metadata.entry_points(group=periplus.LIBRARY_ENTRY_POINTS)}


def names_for_type_checkers() -> dict[str, str]:
    """Return the imports of the package that never run, by name, as entry points are written."""
    tree = ast.parse((ROOT / "periplus" / "__init__.py").read_text(encoding="utf-8"))
    guard = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in guard.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}


def test_type_checkers_see_the_objects_that_scripts_get() -> None:
    assert names_for_type_checkers() == points()
    assert sorted(points()) == sorted(periplus.__all__)


def test_every_name_leads_to_an_object_of_that_name() -> None:
    for name in periplus.__all__:
        assert getattr(periplus, name).__name__ == name
        assert name in dir(periplus)


def test_a_wrong_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'periplus' has no attribute 'conect'"):
        periplus.conect  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_no_service() -> None:
    program = """
import sys, periplus
from periplus import errors
assert not {"coordinator", "planner"} & {name.partition(".")[0] for name in sys.modules}
from periplus import connect, up
print(connect.__module__)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "coordinator.client.library.client"), done.stderr
