"""Parties: who may be at the other end of a connection, by name.

A party is named in its certificate, as a URI, and never by a message:

    periplus:coordinator
    periplus:region/NAME
    periplus:task/REGION/JOB/ROLE       a process of a job, to the gateway of its own region
    periplus:operator/NAME/RIGHTS       RIGHTS are viewer or operator
    periplus:join/URI                   the holder of a join token, who becomes the party of the URI

Parts are percent-encoded. A party that serves also has a host name (`server_name`), against which its callers check the
certificate, whatever address they dial.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote, unquote

from periplus.errors import Denied

SCHEME = "periplus:"


class PartyKind(StrEnum):
    """What a party is."""

    COORDINATOR = "coordinator"
    REGION = "region"
    TASK = "task"
    OPERATOR = "operator"
    JOIN = "join"


_NUM_PARTS = {
    PartyKind.COORDINATOR: 0,
    PartyKind.REGION: 1,
    PartyKind.TASK: 3,
    PartyKind.OPERATOR: 2,
    PartyKind.JOIN: 2,
}


class Rights(StrEnum):
    """What an operator may do: look, or change jobs and regions too."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Party:
    """A party and the parts of its name."""

    kind: PartyKind
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The first part of the name: of a region or operator its own. Empty for the coordinator."""
        return self.parts[0] if self.parts else ""

    @property
    def uri(self) -> str:
        """The party as its certificates have it."""
        return SCHEME + "/".join((self.kind.value, *(quote(part, safe="") for part in self.parts)))

    @property
    def server_name(self) -> str:
        """The host name of the party's server: a label of DNS, whatever characters the party's name has."""
        return f"{sha256(self.uri.encode()).hexdigest()[:32]}.periplus"

    def __str__(self) -> str:
        return " ".join((self.kind.value, *self.parts[:1]))


COORDINATOR = Party(PartyKind.COORDINATOR)


def region(name: str) -> Party:
    """Return the party of a region's agent."""
    return Party(PartyKind.REGION, (name,))


def operator(name: str, rights: Rights) -> Party:
    """Return the party of a person."""
    return Party(PartyKind.OPERATOR, (name, rights.value))


def task(region_name: str, job_id: str, role: str) -> Party:
    """Return the party of a process of a job."""
    return Party(PartyKind.TASK, (region_name, job_id, role))


def joining(party: Party, by: Party = COORDINATOR) -> Party:
    """Return the party of somebody who has a token with which to become `party`, and that `by` has made."""
    return Party(PartyKind.JOIN, (party.uri, by.uri))


def revocation_names(party: Party) -> tuple[str, ...]:
    """Return the names under which certificates of a party are revoked.

    Those of a token are revoked with its own member, and with whoever made it.
    """
    if party.kind is not PartyKind.JOIN:
        return (party.uri,)
    member, maker = party.parts
    return f"{SCHEME}{PartyKind.JOIN}/{quote(member, safe='')}", maker


def party_of(uri: str) -> Party:
    """Return the party of a URI. Raises: ValueError if it names none."""
    kind, *parts = uri.removeprefix(SCHEME).split("/")
    if not uri.startswith(SCHEME) or kind not in set(PartyKind) or len(parts) != _NUM_PARTS[PartyKind(kind)]:
        raise ValueError(f"{uri[:200]!r} names no party")
    return Party(PartyKind(kind), tuple(map(unquote, parts)))


def check_not_revoked(party: Party, issued_at_s: float, revocations: Mapping[str, float]) -> None:
    """Check a certificate that was issued to a party, against the Unix time until which those of each name are revoked.

    Raises: Denied.
    """
    if any(issued_at_s <= revocations.get(name, 0.0) for name in revocation_names(party)):
        raise Denied(f"the certificate of {party} was revoked; join again with a new token of `periplus token create`")
