"""How a command or a script calls a coordinator: with the identity of its user, or with a token.

Identities lie in `$XDG_CONFIG_HOME/periplus/members`, or `~/.config/periplus/members`, in a folder for each coordinator
address, where `periplus login` puts them; PERIPLUS_IDENTITY names another folder. The identity of a local fleet's user
lies beside the fleet's note.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from coordinator.client.address import fleet_at, token_of
from periplus.config.local_paths import home_folder
from periplus.errors import NotFound
from periplus.net.certificates import Identity
from periplus.net.parties import COORDINATOR
from periplus.net.rpc import Secured

VARIABLE = "PERIPLUS_IDENTITY"
"""Environment variable with the folder of an operator's identity."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller shows to a coordinator: the token of one without identities, which may be empty, or an identity,
    which lies in `folder`."""

    token: str = ""
    secured: Secured | None = None
    folder: Path | None = None


NO_ACCESS = Access()
"""Access to a coordinator that asks for nothing."""


def access_of(address: str) -> Access:
    """Return what to show to the coordinator at `address`.

    Raises: NotFound, Denied, ConfigError if a file cannot be read.
    """
    if (fleet := fleet_at(address)) is not None and fleet.identity:
        return _with(Path(fleet.identity))
    folder = identity_folder(address)
    try:
        return _with(folder)
    except NotFound:
        if VARIABLE in os.environ:
            raise
        return Access(token=token_of(address))


def identity_folder(address: str, variables: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the user's identity for the coordinator at `address`, which need not exist."""
    if given := variables.get(VARIABLE, ""):
        return Path(given)
    config = variables.get("XDG_CONFIG_HOME", "")
    root = Path(config) if Path(config).is_absolute() else home_folder() / ".config"
    return root / "periplus" / "members" / quote(address, safe="")


def _with(folder: Path) -> Access:
    return Access(secured=Secured(identity=Identity.load(folder), peer=COORDINATOR), folder=folder)
