"""The identity of an agent: its certificate in the fleet, which it renews, and the authority of its own processes.

    <state directory>/identity/          key, certificate and authority of the region's agent, and `coordinator`
    <state directory>/identity/tasks/    the authority that certifies the processes of jobs here

Processes show their certificates to this gateway alone, so that no other one has to know the authority. It outlives the
agent, as its processes do.
"""

import os
from collections.abc import Callable
from pathlib import Path

from periplus.errors import ConfigError, NotFound, Unreachable
from periplus.net import parties
from periplus.net.certificates import FleetAuthority, Identity, certificate_digest, new_key, signing_request
from periplus.net.join_token import JoinToken
from periplus.net.joining import join
from periplus.net.parties import Party, PartyKind
from periplus.net.rpc import Secured

_COORDINATOR, _TASKS = "coordinator", "tasks"


class AgentIdentity:
    """The identity in a folder. `now_s` is the Unix time. Raises: NotFound, ConfigError."""

    def __init__(self, folder: Path, now_s: Callable[[], float]) -> None:
        self._folder, self._now_s = folder, now_s
        self._identity = Identity.load(folder)
        if self._identity.party.kind is not PartyKind.REGION:
            raise ConfigError(f"the identity in {folder} is of {self._identity.party}, not of a region")
        self._tasks = _task_authority(folder / _TASKS, self._identity.party, now_s())
        self._new_key = b""

    @property
    def region(self) -> str:
        """Name of the region."""
        return self._identity.party.name

    @property
    def task_authority(self) -> FleetAuthority:
        """The authority of the processes that this agent starts."""
        return self._tasks

    def current(self) -> Identity:
        """Return the identity in the fleet."""
        return self._identity

    def secured(self, peer: Party) -> Secured:
        """Return how to call another party.

        Raises: Unreachable if the certificate has ended, and nobody has joined anew with a token meanwhile.
        """
        if self._now_s() >= self._identity.expires_at_s:
            self._identity = Identity.load(self._folder)
            if self._now_s() >= self._identity.expires_at_s:
                raise Unreachable(
                    f"the certificate of {self._identity.party} has ended, since it was away for too long; join again: "
                    "`periplus agent join` with a new token of `periplus token create`"
                )
        return Secured(identity=self._identity, peer=peer)

    def of_task(self, job_id: str, role: str) -> Identity:
        """Return a new identity for a process of a job."""
        party = parties.task(self.region, job_id, role)
        made = self._tasks.identity(party, self._now_s())
        # It trusts servers that the fleet's authority has certified, among which its own gateway is.
        return Identity(key=made.key, certificate=made.certificate, authority=self._identity.authority)

    def renewal_request(self) -> bytes | None:
        """Return the request for the next certificate if it is time for it, else None."""
        if self._now_s() < self._identity.renew_at_s:
            return None
        self._new_key = new_key()
        return signing_request(self._new_key)

    def renewed(self, certificate: bytes) -> None:
        """Take the certificate that was requested last. Raises: OSError."""
        if self._new_key:
            authority = self._identity.authority
            self._identity = Identity(key=self._new_key, certificate=certificate, authority=authority)
            self._identity.save(self._folder)
            self._new_key = b""


async def joined(text: str, folder: Path) -> tuple[str, str]:
    """Join a fleet with a token, write the identity into a folder, and return (region, coordinator's address).

    Raises: ConfigError if the token is none or is of an operator, Denied if it was used or is too old, Unreachable.
    """
    token = JoinToken.from_text(text)
    identity = await join(token)
    if identity.party.kind is not PartyKind.REGION:
        raise ConfigError(f"this token is for {identity.party}; `periplus login` takes it")
    identity.save(folder)
    file = folder / _COORDINATOR
    file.write_text(f"{token.address}\n", encoding="utf-8")
    return identity.party.name, token.address


def place_in(folder: Path) -> tuple[str, str]:
    """Return (region, coordinator's address) of an agent that has joined. Raises: NotFound, ConfigError."""
    identity, file = Identity.load(folder), folder / _COORDINATOR
    return identity.party.name, file.read_text(encoding="utf-8").strip() if file.exists() else ""


def is_of(folder: Path, text: str, now_s: float) -> bool:
    """Return whether the folder has an identity of a token's fleet that has not ended. Raises: ConfigError."""
    token = JoinToken.from_text(text)
    try:
        identity = Identity.load(folder)
    except NotFound:
        return False
    return certificate_digest(identity.authority) == token.authority_digest and now_s < identity.expires_at_s


def _task_authority(folder: Path, party: Party, now_s: float) -> FleetAuthority:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    if not certificate.exists():
        made = FleetAuthority.generate(f"tasks of {party.name}"[:64], now_s)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(made.key)
        certificate.write_bytes(made.certificate)
    try:
        return FleetAuthority(key.read_bytes(), certificate.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"{folder} lacks {key.name}; remove the folder, then it is made anew") from error
