"""Finds the address of the coordinator that a command or a script asks when nobody names one.

A name that was given wins. Without one it is the local fleet of this user on this machine (`periplus up`), and without
a fleet the address at which `periplus coordinator` listens by default. The token that a local fleet wants lies
beside its note.
"""

import os
import socket
from pathlib import Path

import click

from coordinator.local_fleet.records import FleetRecord, chosen_fleet, living_fleets, records_folder
from periplus.cli.option_types import DIALLED
from periplus.config.local_paths import home_folder
from periplus.net.tokens import read_token, token_of_environment

DEFAULT_ADDRESS = "127.0.0.1:7070"
"""Where a coordinator listens that was started without options."""

VARIABLE = "PERIPLUS_COORDINATOR"
"""Environment variable that names the coordinator's address."""

coordinator_option = click.option(
    "--coordinator",
    metavar="HOST:PORT",
    type=DIALLED,
    envvar=VARIABLE,
    show_envvar=True,
    default=None,
    show_default=f"the local fleet of `periplus up`, else {DEFAULT_ADDRESS}",
    help="Address of the coordinator.",
)
"""Option of commands that ask a coordinator."""


def coordinator_address(given: str | None) -> str:
    """Return the address that was given, else that of the local fleet, else the default one.

    Raises: Conflict if several local fleets run and the working directory belongs to none of them.
    """
    if given is not None:
        return given
    found = local_fleet()
    return found.coordinator if found else DEFAULT_ADDRESS


def token_of(address: str) -> str:
    """Return the token for the coordinator at `address`.

    It is that of a local fleet of this user, or that of PERIPLUS_TOKEN, or that in the file of PERIPLUS_TOKEN_FILE, or
    empty. Raises: NotFound, Denied, ConfigError if a file cannot be read.
    """
    fleet = fleet_at(address)
    return token_of_environment() if fleet is None else read_token(Path(fleet.token_file))


def fleet_at(address: str) -> FleetRecord | None:
    """Return the local fleet of this user whose coordinator listens at `address`, or None."""
    known = address.replace("localhost:", "127.0.0.1:")
    return next((fleet for fleet in _living_fleets() if fleet.coordinator == known), None)


def local_fleet() -> FleetRecord | None:
    """Return the local fleet of this user on this machine, or None. Raises: Conflict if several run."""
    return chosen_fleet(_living_fleets(), Path.cwd())


def _living_fleets() -> tuple[FleetRecord, ...]:
    return living_fleets(records_folder(os.environ, home_folder()), socket.gethostname())
