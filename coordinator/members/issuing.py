"""Makes tokens and identities with the authority's key in a coordinator's state directory, beside the coordinator.

Whoever can read the directory may do this: its owner, for the first operator, and a local fleet, for all members.
"""

from pathlib import Path

from coordinator.store import stored_fleet_authority
from periplus import clock
from periplus.net import certificates, join_token, parties
from periplus.net.certificates import Identity, certificate_digest
from periplus.net.join_token import JoinToken
from periplus.net.parties import Party


def issued_identity(state_dir: Path, party: Party, lifetime_s: float = certificates.LIFETIME_S) -> Identity:
    """Return a new identity of a party. Raises: NotFound if no coordinator was started with the directory."""
    return stored_fleet_authority(state_dir).identity(party, clock.unix_s(), lifetime_s)


def issued_token(state_dir: Path, address: str, party: Party) -> str:
    """Return a new join token for a party, which dials the coordinator at `address`. Raises: NotFound."""
    return token_text(address, issued_identity(state_dir, parties.joining(party), join_token.LIFETIME_S))


def token_text(address: str, holder: Identity) -> str:
    """Return the token that has the identity of its holder."""
    digest = certificate_digest(holder.authority)
    return JoinToken(address=address, authority_digest=digest, key=holder.key, certificate=holder.certificate).to_text()
