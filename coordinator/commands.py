"""The command `periplus coordinator`: it runs the coordinator, and looks after its database."""

import asyncio
import sys
from pathlib import Path

import click

from coordinator import app
from coordinator.config import CoordinatorConfig, resolve
from coordinator.members.issuing import issued_token
from coordinator.store import authority_key, back_up
from coordinator.store import restore as restore_backup
from periplus import errors
from periplus.cli.command_groups import DefaultGroup
from periplus.cli.option_types import DIALLED, HOST_PORT
from periplus.net import parties
from periplus.net.parties import Rights
from periplus.net.tokens import FILE_VARIABLE
from periplus.process import telemetry
from periplus.process.lifecycle import ShutdownReason

_DIRECTORY = click.option(
    "--state-dir",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the coordinator.",
)


@click.group(cls=DefaultGroup, default="run")
def coordinator() -> None:
    """Run the control plane, which knows the regions and places jobs. Weights and samples never pass through it."""


@coordinator.command()
@_DIRECTORY
def authority(state_dir: Path) -> int:
    """Print the public key of a coordinator's job authority.

    `periplus job audit RUN --authority KEY` verifies a run's signatures with this key. The public key is no secret.
    """
    click.echo(authority_key(state_dir))
    return errors.EXIT_OK


@coordinator.command()
@_DIRECTORY
@click.argument("region", metavar="[REGION]", default="")
@click.option("--operator", default="", metavar="NAME", help="Make a token for a person in place of a region.")
@click.option(
    "--rights",
    type=click.Choice([each.value for each in Rights]),
    default=Rights.OPERATOR.value,
    show_default=True,
    help="With --operator: whether the person may only look, or change jobs and regions too.",
)
@click.option(
    "--address",
    required=True,
    metavar="HOST:PORT",
    type=DIALLED,
    help="Where the new member reaches the coordinator.",
)
def token(state_dir: Path, region: str, operator: str, rights: str, address: str) -> int:
    """Print a join token, on the coordinator's own machine: for the first operator, who then makes the others.

    It can be used once, within an hour. See `periplus token create`.
    """
    if bool(region) == bool(operator):
        raise errors.ConfigError("give REGION or --operator NAME: a token is for one of them")
    party = parties.region(region) if region else parties.operator(operator, Rights(rights))
    click.echo(issued_token(state_dir, address, party))
    return errors.EXIT_OK


@coordinator.command()
@_DIRECTORY
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
def backup(state_dir: Path, file: Path) -> int:
    """Copy a coordinator's database to the new FILE, also while it runs. The copy holds its private key."""
    back_up(state_dir, file)
    click.echo(f"wrote {file}")
    return errors.EXIT_OK


@coordinator.command()
@_DIRECTORY
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
def restore(state_dir: Path, file: Path) -> int:
    """Make a state directory from a FILE that `backup` wrote. Then start the coordinator with that directory."""
    restore_backup(file, state_dir)
    click.echo(f"restored {state_dir}; start it with `periplus coordinator run --state-dir {state_dir}`")
    return errors.EXIT_OK


@coordinator.command()
@click.option(
    "--listen",
    default="127.0.0.1:7070",
    show_default=True,
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Address to listen on; with port 0 the system chooses a free port.",
)
@click.option(
    "--metrics",
    "metrics_listen",
    default="",
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Where Prometheus scrapes the coordinator's metrics (docs/exported-metrics.md)  [default: nowhere]",
)
@click.option(
    "--health",
    "health_listen",
    default="",
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Where probes reach the health service of gRPC, in plain text  [default: nowhere]",
)
@click.option(
    "--mqtt",
    default="",
    metavar="HOST:PORT",
    type=DIALLED,
    help="MQTT broker that is told the state of the fleet (docs/mqtt.md)  [default: none]",
)
@click.option("--mqtt-user", default="", metavar="NAME", help="Name of the coordinator at the broker.")
@click.option(
    "--mqtt-password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File of its password.",
)
@click.option("--mqtt-tls", is_flag=True, help="Use TLS to the broker, with the certificate authorities of the system.")
@click.option("--mqtt-topic", default="periplus", show_default=True, metavar="PREFIX", help="Beginning of all topics.")
@click.option("--region", default="", metavar="NAME", help="Region of the coordinator; only with --wan.")
@click.option(
    "--wan",
    default="",
    metavar="HOST:PORT",
    type=DIALLED,
    help="Control address of the WAN emulator, `periplus wan run`.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the database with jobs, regions, events and the keys that certify members and trainers; made if "
    "it does not exist. With --plaintext it may be left out, and all of it ends with the process.",
)
@click.option(
    "--plaintext",
    is_flag=True,
    help="Use plain TCP without certificates, on a loopback address alone.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=FILE_VARIABLE,
    help="With --plaintext: file of mode 0600 with the token that every call must carry.",
)
@click.option(
    "--ready-file", type=click.Path(path_type=Path, dir_okay=False), help="File to write the address to once it serves."
)
@click.option(
    "--jobs-per-region",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Jobs that may share a group of cores. Accelerators are never shared.",
)
@click.option("--stop-on-stdin-eof", is_flag=True, help="Stop when standard input closes, as when the parent ends.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def run(
    listen: str,
    metrics_listen: str,
    health_listen: str,
    mqtt: str,
    mqtt_user: str,
    mqtt_password_file: Path | None,
    mqtt_tls: bool,
    mqtt_topic: str,
    region: str,
    wan: str,
    state_dir: Path | None,
    plaintext: bool,
    token_file: Path | None,
    ready_file: Path | None,
    jobs_per_region: int,
    stop_on_stdin_eof: bool,
    log_level: str,
) -> int:
    """Run a coordinator in the foreground. Logs go to standard error."""
    telemetry.configure(log_level, sys.stderr)
    config = resolve(
        CoordinatorConfig(
            listen=listen,
            metrics_listen=metrics_listen,
            health_listen=health_listen,
            mqtt=mqtt,
            mqtt_user=mqtt_user,
            mqtt_password_file=mqtt_password_file,
            mqtt_tls=mqtt_tls,
            mqtt_topic=mqtt_topic,
            region=region,
            wan=wan,
            state_dir=state_dir,
            plaintext=plaintext,
            token_file=token_file,
            jobs_per_region=jobs_per_region,
        )
    )
    reason = asyncio.run(app.run(config, ready_file, stop_on_stdin_eof))
    return errors.EXIT_INTERRUPTED if reason is ShutdownReason.SIGINT else errors.EXIT_OK
