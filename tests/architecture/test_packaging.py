import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("periplus", "planner", "coordinator", "region_agent", "rollout_worker", "trainer")
PINS = re.compile(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def pins() -> Iterator[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return (line for line in lines if not line.startswith("#"))


def test_no_other_distribution_owns_one_of_our_package_names() -> None:
    owners = importlib.metadata.packages_distributions()
    foreign = {name: owners[name] for name in PACKAGES if set(owners.get(name, ())) - {"periplus"}}
    assert not foreign, f"uninstall what shadows our packages: {foreign}"


@pytest.mark.parametrize("folder", ["tests", "proto"])
def test_a_folder_that_is_no_package_has_no_init(folder: str) -> None:
    assert not list((ROOT / folder).rglob("__init__.py"))


def test_proto_holds_only_protocols() -> None:
    assert {path.suffix for path in (ROOT / "proto").rglob("*") if path.is_file()} == {".proto"}


def test_every_constraint_is_one_exact_public_version() -> None:
    assert [pin for pin in pins() if not PINS.fullmatch(pin)] == []
    names = [pin.partition("==")[0] for pin in pins()]
    assert names == sorted(set(names))


@pytest.mark.parametrize("extra", ["", "train", "rollout", "dev"])
def test_every_dependency_that_make_venv_installs_is_constrained(extra: str) -> None:
    requirements = project()["optional-dependencies"][extra] if extra else project()["dependencies"]
    wanted = {re.split(r"[^A-Za-z0-9_.-]", text)[0].lower().replace("_", "-") for text in requirements}
    assert wanted <= {pin.partition("==")[0] for pin in pins()}


def test_the_entry_points_name_modules_of_ours() -> None:
    for target in (*project()["entry-points"]["periplus.commands"].values(), *project()["scripts"].values()):
        assert target.partition(".")[0] in PACKAGES
