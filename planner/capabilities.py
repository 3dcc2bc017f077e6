"""What the runtime executes today, read from `capabilities.json` (`periplus.capabilities/1`).

The file is `docs/capabilities.json`, of which a wheel holds a copy beside this module. Every change that widens the
runtime edits it, with a test that runs what it claims. `max_staleness` 0 is synchronous; all roles but those listed are
absent; a parallelism of 1 is none.
"""

from pathlib import Path
from typing import Literal

from periplus import config
from periplus.config import Config
from planner.problem import Capabilities

SCHEMA = "periplus.capabilities/1"


class Parallelism(Config):
    """Largest degree of each kind within one task."""

    tensor: int
    pipeline: int
    data: int


class Engine(Config):
    """An inference engine and where it runs."""

    name: str
    devices: tuple[str, ...]


class CapabilitiesFile(Config):
    """The whole document; the planner's value has what the planner asks about."""

    algorithms: tuple[str, ...]
    roles: dict[str, Literal["rollout_worker", "trainer"]]
    max_trainers: int
    parallelism: Parallelism
    max_staleness: int
    topologies: tuple[str, ...]
    engines: tuple[Engine, ...]
    weight_codecs: tuple[str, ...]


def load_capabilities() -> Capabilities:
    """What this installation can execute. Raises: ConfigError if the installation is damaged."""
    file = read_file(_path())
    return Capabilities(
        algorithms=frozenset(file.algorithms),
        topologies=frozenset(file.topologies),
        max_trainers=file.max_trainers,
        max_staleness=file.max_staleness,
    )


def read_file(path: Path) -> CapabilitiesFile:
    """The document at `path`. Raises: ConfigError."""
    return config.validate(CapabilitiesFile, config.check_schema(config.read_yaml(path), SCHEMA, str(path)), str(path))


def _path() -> Path:
    packaged = Path(__file__).with_name("capabilities.json")
    return packaged if packaged.exists() else Path(__file__).parent.parent / "docs" / "capabilities.json"
