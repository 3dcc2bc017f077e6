"""What an operator sets for one agent. Resolved once in the command, printed at start, taken apart in app.py."""

from pathlib import Path

from pydantic import Field

from periplus.config.loading import Config
from periplus.errors import ConfigError
from periplus.values.task import REGION_NAME

WILDCARDS = ("0.0.0.0", "[::]", "")
HOST_PORT = r"^\S+:\d{1,5}$"


class AgentConfig(Config):
    """One region agent."""

    region: str = Field(pattern=f"^{REGION_NAME}$")
    """Name of this region, unique in the fleet, e.g. aws:us-east-1."""

    coordinator: str = Field(pattern=HOST_PORT)
    """host:port of the coordinator."""

    listen: str = Field(pattern=HOST_PORT)
    """host:port at which the gateway listens; port 0: the system chooses."""

    advertise: str = Field(pattern=f"^$|{HOST_PORT}")
    """host:port at which other regions reach the gateway; empty: as it listens."""

    work_dir: Path
    """Where the output directories of jobs lie."""

    state_dir: Path
    """Where the gateway keeps frames that no ledger has committed; for one agent at a time."""

    wan: str
    """Control address of the WAN emulator; empty: real networks."""

    num_cores: int = Field(ge=1)
    """Cores that this region offers."""

    memory_bytes: int = Field(ge=1)
    """Memory that this region offers, bytes."""

    worker_threads: int = Field(ge=1)
    """Compute threads of each worker process."""

    stop_grace_s: float = Field(gt=0)
    """Seconds from asking a worker to stop to killing it."""

    restart_backoff_s: float = Field(gt=0)
    """Pause before the first restart, seconds; doubled each time."""


def resolve(config: AgentConfig) -> AgentConfig:
    """The configuration, once its keys agree. Raises: ConfigError."""
    if not config.advertise and config.listen.rpartition(":")[0] in WILDCARDS:
        raise ConfigError(
            f"--listen {config.listen} accepts from everywhere but names no place: other regions cannot dial it; "
            "say with --advertise HOST:PORT how they reach this gateway"
        )
    return config
