"""Configuration of one agent, as its operator sets it.

The command resolves it once and prints it; app.py passes its values on.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from periplus.config.loading import Config, Words
from periplus.errors import ConfigError
from periplus.net.tokens import check_identified
from periplus.values.replica_url import check_replica_url
from periplus.values.task import REGION_NAME

WILDCARDS = ("0.0.0.0", "[::]", "")
"""Hosts that mean "all interfaces": a gateway can listen there, but nobody can dial them."""
HOST_PORT = r"^\S+:\d{1,5}$"
"""Regular expression of HOST:PORT."""
NOT_DIALLED = "none"
"""What stands in place of an advertised address where no other region can dial the gateway."""


class LauncherName(StrEnum):
    """What starts the processes of jobs: the agent itself on its own machine, or a cluster on its nodes."""

    LOCAL = "local"
    SLURM = "slurm"
    RAY = "ray"


class AgentConfig(Config):
    """Settings of one region agent."""

    region: Annotated[str, Words("of up to 63 letters, digits and :._-, beginning with a letter or digit")] = Field(
        pattern=f"^{REGION_NAME}$"
    )
    """Name of this region, unique in the fleet, e.g. aws:us-east-1."""

    coordinator: str = Field(pattern=HOST_PORT)
    """host:port of the coordinator."""

    listen: str = Field(pattern=HOST_PORT)
    """host:port at which the gateway listens; with port 0 the system chooses the port."""

    metrics_listen: str = Field(default="", pattern=f"^$|{HOST_PORT}")
    """host:port of the HTTP endpoint for Prometheus; empty for none, and with port 0 the system chooses the port."""

    health_listen: str = Field(default="", pattern=f"^$|{HOST_PORT}")
    """host:port of the health service of gRPC, in plain text; empty for none, and with port 0 the system chooses the
    port.
    """

    advertise: str = Field(pattern=f"^$|^{NOT_DIALLED}$|{HOST_PORT}")
    """host:port at which other regions reach the gateway; empty if that is the address at which it listens, and `none`
    if they cannot dial it.
    """

    relay: bool = False
    """Whether the gateway passes bytes on to regions whose gateways cannot be dialled."""

    work_dir: Path
    """Directory below which the output directories of jobs lie."""

    state_dir: Path
    """Directory where the gateway keeps uncommitted frames and its cache of weights. Only one agent may use it at a
    time.
    """

    identity_dir: Path | None = None
    """Directory of the agent's identity; None for one in `state_dir`."""

    plaintext: bool = False
    """Whether connections are plain TCP without identities, which only loopback addresses allow."""

    token_file: Path | None = None
    """File of the token that a coordinator without identities and a WAN emulator want of their callers."""

    allow_dirs: tuple[Path, ...] = ()
    """Directories, beside `work_dir`, below which the runs of jobs may lie."""

    replica_store: str = ""
    """URL at which jobs that name this region keep replicas of their checkpoints; empty if it has no place for them."""

    wan: str
    """host:port of the WAN emulator's control socket; empty on real networks."""

    launcher: LauncherName = LauncherName.LOCAL
    """What starts the processes of jobs (launchers/cluster.py)."""

    num_cores: int = Field(ge=1)
    """Number of CPU cores that this region offers."""

    memory_bytes: int = Field(ge=1)
    """Bytes of main memory that this region offers."""

    devices_file: Path | None = None
    """File that declares the region's devices (declared_devices.py); None to take those that are found."""

    shared_cores: bool = False
    """Whether others compute on these cores too, so that no process is bound to some of them."""

    worker_threads: int = Field(ge=1)
    """Number of compute threads of each worker process."""

    trainer_threads: int | None = Field(default=None, ge=1)
    """Number of compute threads of each trainer process; None for what `inventory.trainer_threads` chooses."""

    engines: dict[str, str] = Field(default_factory=dict)
    """Interpreter of each engine that has an environment of its own, by the engine's name."""

    fork_server: Path | None = None
    """Socket of the process that forks the tasks of a local fleet (periplus/process/fork_server.py); None to start each
    afresh.
    """

    allow_code: bool = False
    """Whether jobs may run reward functions of their users' own in this region, each in a process of its own."""

    allow_unsandboxed: bool = False
    """Whether programs that a model wrote may run where the kernel refuses them a sandbox without network."""

    policy_file: Path | None = None
    """File of the region's owner that says what may happen here (docs/owners.md); None if all may."""

    ties_tasks: bool = False
    """Whether the processes of tasks end with the agent, however it ends. Otherwise the next agent adopts them."""

    stop_grace_s: float = Field(gt=0)
    """Seconds between asking a worker to stop (SIGTERM) and killing it (SIGKILL)."""

    restart_backoff_s: float = Field(default=1.0, gt=0)
    """Seconds before the first restart of a worker that died; the pause doubles each time."""


def resolve(config: AgentConfig) -> AgentConfig:
    """Return the configuration after checking that its keys agree. Raises: ConfigError."""
    if not config.advertise and config.listen.rpartition(":")[0] in WILDCARDS:
        raise ConfigError(
            f"--listen {config.listen} is a wildcard address, which other regions cannot dial; "
            "give the address at which they reach this gateway with --advertise HOST:PORT, or --advertise none if they "
            "cannot"
        )
    if config.relay and config.advertise == NOT_DIALLED:
        raise ConfigError("--relay is for an agent whose gateway others can dial, and --advertise none says no")
    emulates = bool(config.wan)
    check_identified(
        "an agent", config.listen, plaintext=config.plaintext, token_file=None if emulates else config.token_file
    )
    if config.replica_store:
        check_replica_url(config.replica_store)
    return config
