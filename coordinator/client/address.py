"""Finds the address of the coordinator that a command or a script asks when nobody names one.

A name that was given wins. Without one it is the local fleet of this user on this machine (`periplus up`), and without
a fleet the address at which `periplus coordinator` listens by default.
"""

import os
import socket
from pathlib import Path

from coordinator.local_fleet.records import FleetRecord, chosen_fleet, living_fleets, records_folder

DEFAULT_ADDRESS = "127.0.0.1:7070"
"""Where a coordinator listens that was started without options."""

VARIABLE = "PERIPLUS_COORDINATOR"
"""Environment variable that names the coordinator's address."""


def coordinator_address(given: str | None) -> str:
    """Return the address that was given, else that of the local fleet, else the default one.

    Raises: Conflict if several local fleets run and the working directory belongs to none of them.
    """
    if given is not None:
        return given
    found = local_fleet()
    return found.coordinator if found else DEFAULT_ADDRESS


def local_fleet() -> FleetRecord | None:
    """Return the local fleet of this user on this machine, or None. Raises: Conflict if several run."""
    fleets = living_fleets(records_folder(os.environ, Path.home()), socket.gethostname())
    return chosen_fleet(fleets, Path.cwd())
