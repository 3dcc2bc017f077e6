"""The command `periplus coordinator`: it runs the coordinator and prints the public key of its job authority."""

import asyncio
import sys
from pathlib import Path

import click

from coordinator import app
from coordinator.authority import open_authority
from coordinator.config import CoordinatorConfig, resolve
from periplus import errors
from periplus.cli.command_groups import DefaultGroup
from periplus.cli.option_types import HOST_PORT
from periplus.net.tokens import FILE_VARIABLE
from periplus.process import telemetry
from periplus.process.lifecycle import ShutdownReason


@click.group(cls=DefaultGroup, default="run")
def coordinator() -> None:
    """Run the control plane, which knows the regions and places jobs. Weights and samples never pass through it."""


@coordinator.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def authority(file: Path) -> int:
    """Print the public key of the job authority whose private key is in FILE (`coordinator run --authority-key`).

    `periplus job audit RUN --authority KEY` verifies a run's signatures with this key. The public key is no secret.
    """
    click.echo(open_authority(file).public_key.hex())
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
@click.option("--region", default="", metavar="NAME", help="Region of the coordinator; only with --wan.")
@click.option(
    "--wan",
    default="",
    metavar="HOST:PORT",
    type=HOST_PORT,
    help="Control address of the WAN emulator, `periplus wan run`.",
)
@click.option(
    "--authority-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the private key that certifies the trainers of jobs; made if it does not exist. "
    "Without this option each start makes a new key.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=FILE_VARIABLE,
    help="File of mode 0600 with the token that every call must carry; needed beyond a loopback address.",
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
    region: str,
    wan: str,
    authority_key: Path | None,
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
            region=region,
            wan=wan,
            authority_key=authority_key,
            token_file=token_file,
            jobs_per_region=jobs_per_region,
        )
    )
    reason = asyncio.run(app.run(config, ready_file, stop_on_stdin_eof))
    return errors.EXIT_INTERRUPTED if reason is ShutdownReason.SIGINT else errors.EXIT_OK
