"""Protobuf stays at the boundary of the trainer and the rollout worker: everything behind it works with values."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BOUNDARY: dict[str, set[str]] = {
    "rollout_worker": {
        "rollout_worker/convert.py",  # messages of both streams from and to values
        "rollout_worker/gateway.py",  # the streams
    },
    "trainer": {
        "trainer/intake/convert.py",  # messages of the stream from and to values
        "trainer/intake/gateway.py",  # the streams
    },
}
"""Modules of each package that may import `periplus.pb`."""


def imports_protobuf(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Import():
                names = [alias.name for alias in node.names]
            case _:
                continue
        if any(name == "periplus.pb" or name.startswith("periplus.pb.") for name in names):
            return True
    return False


@pytest.mark.parametrize("package", BOUNDARY)
def test_only_the_boundary_of_a_package_knows_protobuf(package: str) -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py") if imports_protobuf(path)}
    assert found == BOUNDARY[package]
