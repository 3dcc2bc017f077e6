"""The command `periplus agent`, which serves one region. It turns arguments into an `AgentConfig` and runs the agent.

It imports app.py only when the agent runs, because that loads the weight codec's compiler.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from urllib.parse import quote

import click

from periplus import clock, errors
from periplus.cli.command_groups import DefaultGroup
from periplus.cli.option_types import DIALLED, HOST_PORT, DirectoryToWrite, HostPort, given_token
from periplus.config.loading import validate
from periplus.net.join_token import TOKEN_VARIABLE, JoinToken, member_of
from periplus.net.peers import is_loopback
from periplus.net.tokens import FILE_VARIABLE
from periplus.process import host_limits, telemetry
from periplus.process.fork_server import ADDRESS_VARIABLE
from periplus.process.lifecycle import ShutdownReason
from region_agent.config import NOT_DIALLED, AgentConfig, LauncherName, resolve
from region_agent.control.engines import configured
from region_agent.control.identity import is_of, joined, place_in
from region_agent.state_directory import SHARED, StateDirectory

log = logging.getLogger(__name__)

DEFAULT_COORDINATOR = "127.0.0.1:7070"
"""Where an agent looks for a coordinator that nobody names."""

MAX_MEMORY_GIB = 1 << 20
"""Upper limit of --memory-gib, in GiB (2^20 GiB = 1 PiB): more than any region has, and its bytes fit into a 64-bit
integer.
"""


_WORK_DIRECTORY = click.option(
    "--work-dir",
    type=DirectoryToWrite(),
    default=Path(),
    show_default=True,
    help="Where output directories of jobs lie.",
)
_STATE_DIRECTORY = click.option(
    "--state-dir",
    type=DirectoryToWrite(),
    default=None,
    help="Where the gateway keeps what is not committed  [default: .periplus/REGION in the work directory]",
)
_IDENTITY_DIRECTORY = click.option(
    "--identity-dir",
    type=DirectoryToWrite(),
    default=None,
    help="Where the agent keeps its identity  [default: identity in the state directory]",
)


@click.group(cls=DefaultGroup, default="run")
def agent() -> None:
    """Serve one region: its gateway, its workers, its links."""


@agent.command()
@click.argument("token", metavar="TOKEN")
@_WORK_DIRECTORY
@_STATE_DIRECTORY
@_IDENTITY_DIRECTORY
def join(token: str, work_dir: Path, state_dir: Path | None, identity_dir: Path | None) -> int:
    """Make this machine's agent a member of a fleet, with a TOKEN of `periplus token create REGION`.

    The agent's key is made here. Then start the agent with the same directories: `periplus agent`. With - in place of
    TOKEN it is read from standard input, where other users of the machine do not see it.
    """
    region, coordinator = _join(given_token(token), work_dir, state_dir, identity_dir)
    click.echo(
        f"joined the fleet of {coordinator} as region {region}; start the agent with `periplus agent run` and the same "
        "directories"
    )
    return errors.EXIT_OK


def _join(text: str, work_dir: Path, state_dir: Path | None, identity_dir: Path | None) -> tuple[str, str]:
    """Join a fleet, and return (region, coordinator's address)."""
    region = member_of(JoinToken.from_text(text)).name
    folder = identity_dir or StateDirectory(_state_dir(region, work_dir, state_dir)).identity
    return asyncio.run(joined(text, folder))


def _place(
    region: str, coordinator: str, work_dir: Path, state_dir: Path | None, identity_dir: Path | None, *, plaintext: bool
) -> tuple[str, str]:
    """Return (region, coordinator's address) of an agent, from its options and its identity.

    An agent without an identity joins with the token of the environment, if there is one. Raises: ConfigError, what
    `joined` raises.
    """
    if plaintext:
        if not region:
            raise errors.ConfigError("an agent with --plaintext has no identity that names its region; give --region")
        return region, coordinator or DEFAULT_COORDINATOR
    token = os.environ.get(TOKEN_VARIABLE, "")
    name = region or (member_of(JoinToken.from_text(token)).name if token else "")
    if not name and state_dir is None and identity_dir is None:
        raise errors.ConfigError("give --region or --state-dir: the identity of the agent lies in its state directory")
    folder = identity_dir or StateDirectory(_state_dir(name, work_dir, state_dir)).identity
    try:
        if token and not is_of(folder, token, clock.unix_s()):
            return asyncio.run(joined(token, folder))
        found = place_in(folder)
    except errors.NotFound as error:
        raise errors.ConfigError(
            f"{error}; join the fleet first, with `periplus agent join TOKEN` and the same --work-dir and --state-dir, "
            f"or {TOKEN_VARIABLE}, or give --plaintext for a fleet of this machine alone"
        ) from error
    return region or found[0], coordinator or found[1] or DEFAULT_COORDINATOR


def _state_dir(region: str, work_dir: Path, state_dir: Path | None) -> Path:
    return state_dir or work_dir / SHARED / quote(region, safe="")


@agent.command()
@click.option(
    "--region",
    default="",
    metavar="NAME",
    help="Name of this region, unique in the fleet.  [default: that of the identity in --state-dir]",
)
@click.option(
    "--coordinator",
    default="",
    metavar="HOST:PORT",
    type=DIALLED,
    envvar="PERIPLUS_COORDINATOR",
    help="Where the coordinator listens.  [default: where the agent joined, else 127.0.0.1:7070]",
)
@click.option("--plaintext", is_flag=True, help="Use plain TCP without certificates, on loopback addresses alone.")
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Where the gateway listens; port 0 lets the system choose.",
)
@click.option(
    "--advertise",
    default="",
    metavar="HOST:PORT|none",
    type=HostPort(NOT_DIALLED),
    help="Where other regions reach it; none: they cannot  [default: as it listens]",
)
@click.option(
    "--relay",
    is_flag=True,
    help="Let the gateway carry bytes to regions that nobody can dial, at your cost.",
)
@click.option(
    "--metrics",
    "metrics_listen",
    default="",
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Where Prometheus scrapes the agent's metrics (docs/exported-metrics.md)  [default: nowhere]",
)
@click.option(
    "--health",
    "health_listen",
    default="",
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Where probes reach the health service of gRPC, in plain text  [default: nowhere]",
)
@_WORK_DIRECTORY
@_STATE_DIRECTORY
@_IDENTITY_DIRECTORY
@click.option(
    "--allow-dir",
    "allow_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Another directory below which runs of jobs may lie, beside the work directory; repeatable.",
)
@click.option(
    "--replica-store",
    default="",
    metavar="URL",
    help="Where jobs with `checkpoint.replicate: REGION` keep copies of their checkpoints, such as s3://BUCKET/PREFIX.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=FILE_VARIABLE,
    help="With --plaintext or --wan: file of the token that coordinator and emulator want.",
)
@click.option(
    "--wan",
    default="",
    metavar="HOST:PORT",
    type=DIALLED,
    help="Control address of the WAN emulator, if there is one.",
)
@click.option(
    "--launcher",
    type=click.Choice([each.value for each in LauncherName]),
    default=LauncherName.LOCAL.value,
    show_default=True,
    help="What starts the processes of jobs: the agent on its own machine, steps of the Slurm allocation in which the "
    "agent runs, or actors of the Ray cluster at RAY_ADDRESS (docs/clusters.md).",
)
@click.option("--cores", type=int, default=None, help="Cores that this region offers  [default: all it may use]")
@click.option("--memory-gib", type=float, default=None, help="Memory that it offers  [default: all it may use]")
@click.option(
    "--devices",
    "devices_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Declare the devices (docs/devices.md)  [default: the accelerators, or else the cores]",
)
@click.option(
    "--shared-cores", is_flag=True, help="Others compute on these cores too: bind no process to some of them."
)
@click.option("--worker-threads", type=int, default=1, show_default=True, help="Compute threads of each worker.")
@click.option(
    "--trainer-threads",
    type=int,
    default=None,
    help="Compute threads of each trainer  [default: as --worker-threads; up to 8 where it trains on a GPU]",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="NAME=PYTHON",
    envvar="PERIPLUS_ENGINES",
    help="Interpreter of an engine with an environment of its own, such as vllm=/opt/vllm/bin/python; repeatable.",
)
@click.option(
    "--fork-server",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    envvar=ADDRESS_VARIABLE,
    help="A process of a local fleet that forks tasks  [default: start each afresh]",
)
@click.option("--allow-code", is_flag=True, help="Let jobs run reward functions of their users' own in this region.")
@click.option(
    "--allow-unsandboxed",
    is_flag=True,
    help="Run programs that a model wrote even where the kernel refuses a sandbox without network.",
)
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="What the owner of this region allows: operators, devices, egress, secrets (docs/owners.md)  [default: all]",
)
@click.option(
    "--stop-grace-s", type=float, default=30.0, show_default=True, help="From asking a worker to stop to killing it."
)
@click.option("--ready-file", type=click.Path(path_type=Path), default=None, help="Written when the gateway listens.")
@click.option(
    "--stop-on-stdin-eof", is_flag=True, help="Stop when standard input closes. Tasks end with the agent then."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
)
def run(
    region: str,
    coordinator: str,
    plaintext: bool,
    listen: str,
    advertise: str,
    relay: bool,
    metrics_listen: str,
    health_listen: str,
    work_dir: Path,
    state_dir: Path | None,
    identity_dir: Path | None,
    allow_dirs: tuple[Path, ...],
    replica_store: str,
    token_file: Path | None,
    wan: str,
    launcher: str,
    cores: int | None,
    memory_gib: float | None,
    devices_file: Path | None,
    shared_cores: bool,
    worker_threads: int,
    trainer_threads: int | None,
    engines: tuple[str, ...],
    fork_server: Path | None,
    allow_code: bool,
    allow_unsandboxed: bool,
    policy_file: Path | None,
    stop_grace_s: float,
    ready_file: Path | None,
    stop_on_stdin_eof: bool,
    log_level: str,
) -> int:
    """Run the agent until it is asked to stop.

    SIGTERM and Ctrl-C end its tasks too. After SIGHUP or a kill an agent with the same --state-dir takes them over.
    """
    from region_agent.app import run as run_agent  # the weight codec's compiler takes a second to load

    telemetry.configure(log_level, sys.stderr)
    region, coordinator = _place(region, coordinator, work_dir, state_dir, identity_dir, plaintext=plaintext)
    config = validate(
        AgentConfig,
        {
            "region": region,
            "coordinator": coordinator,
            "plaintext": plaintext,
            "listen": listen,
            "advertise": advertise,
            "relay": relay,
            "metrics_listen": metrics_listen,
            "health_listen": health_listen,
            "work_dir": str(work_dir),
            "state_dir": str(_state_dir(region, work_dir, state_dir)),
            "identity_dir": str(identity_dir) if identity_dir else None,
            "allow_dirs": [str(each) for each in allow_dirs],
            "replica_store": replica_store,
            "token_file": str(token_file) if token_file else None,
            "wan": wan,
            "launcher": launcher,
            "num_cores": host_limits.num_cores() if cores is None else cores,
            "memory_bytes": _memory_bytes(memory_gib),
            "devices_file": str(devices_file) if devices_file else None,
            "shared_cores": shared_cores,
            "worker_threads": worker_threads,
            "trainer_threads": trainer_threads,
            "engines": configured(engines),
            "fork_server": str(fork_server) if fork_server else None,
            "allow_code": allow_code,
            "allow_unsandboxed": allow_unsandboxed,
            "policy_file": str(policy_file) if policy_file else None,
            "ties_tasks": stop_on_stdin_eof,
            "stop_grace_s": stop_grace_s,
        },
        "periplus agent",
        {},
    )
    _log_config(config)
    reason = asyncio.run(run_agent(resolve(config), ready_file=ready_file, stop_on_stdin_eof=config.ties_tasks))
    return errors.EXIT_INTERRUPTED if reason is ShutdownReason.SIGINT else errors.EXIT_OK


def _log_config(config: AgentConfig) -> None:
    telemetry.event(log, logging.INFO, "config", **config.model_dump(mode="json"))  # to be seen after a failure
    if config.launcher is not LauncherName.LOCAL and is_loopback(config.listen):
        why = "processes on other machines cannot dial it; give --listen an address of the cluster's network"
        telemetry.event(log, logging.WARNING, "listens_on_loopback", address=config.listen, why=why)


def _memory_bytes(gib: float | None) -> int:
    if gib is not None:
        if not 0 < gib < MAX_MEMORY_GIB:
            raise click.BadParameter(f"{gib} must be above 0 and below {MAX_MEMORY_GIB}", param_hint="--memory-gib")
        return int(gib * (1 << 30))
    return host_limits.memory_bytes()
