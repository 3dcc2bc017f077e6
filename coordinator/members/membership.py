"""Membership: who belongs to the fleet, by certificates of its authority, and what each party may call.

The authority's key, the tokens that were used and the revocations lie in the coordinator's database, so that a restored
coordinator knows its fleet again. A revocation names a party and a time: certificates that were issued to the party
until then are refused, by the coordinator and by every gateway that it has told. Later ones, of a new token, are not.
A certificate is renewed only for the holder of one that is not revoked, which is checked again at that moment: the call
or session that asks may have been admitted before the revocation.
"""

import threading
from collections.abc import Callable, Mapping

from coordinator.store import Store
from periplus.errors import Denied
from periplus.net import parties
from periplus.net.certificates import LIFETIME_S, Identity, certified_party, expires_at_s, issued_at_s, serial_of
from periplus.net.parties import COORDINATOR, Party, PartyKind, Rights, check_not_revoked, revocation_names
from periplus.net.rpc import Call, OpenCalls

FLEET_NAME = "periplus fleet"

OF_AGENTS = frozenset({"Session"})
OF_JOINING = frozenset({"Join"})
OF_VIEWERS = frozenset({"GetJob", "ListJobs", "WatchJob", "GetFleet", "WatchEvents", "Renew"})
"""Calls of an agent, of a holder of a join token, and of an operator who may only look. Other operators may make all
calls but the first two."""


class Membership:
    """The members of one coordinator's fleet. `now_s` is the Unix time. Methods may block for the disk.

    `calls` are those that are open at the coordinator's server.
    """

    def __init__(self, store: Store, now_s: Callable[[], float]) -> None:
        self._store, self._now_s = store, now_s
        self.calls = OpenCalls()
        self._revoking = threading.Lock()  # certificates are made in several threads
        self._authority = store.fleet_authority(FLEET_NAME, now_s())
        self._revocations = dict(store.revocations())
        self._own = self._authority.identity(COORDINATOR, now_s())

    @property
    def revocations(self) -> Mapping[str, float]:
        """Unix time until which certificates are revoked, by the party's URI."""
        return dict(self._revocations)

    def own_identity(self) -> Identity:
        """Return the coordinator's own identity, renewed in time."""
        if self._now_s() >= self._own.renew_at_s:
            self._own = self._authority.identity(COORDINATOR, self._now_s())
        return self._own

    def token_certificate(self, party: Party, shown: bytes, request: bytes, lifetime_s: float) -> bytes:
        """Return the certificate (PEM) of a join token for a party, for the key of a signing request.

        Whoever shows this certificate makes the token. Raises: Denied if it is revoked.
        """
        return self._certified(parties.joining(party, certified_party(shown)), request, lifetime_s, shown)

    def join(self, token: bytes, request: bytes) -> bytes:
        """Return the certificate of a new member, for the certificate of a token that was not used. Raises: Denied."""
        party = parties.party_of(certified_party(token).name)
        certificate = self._certified(party, request, LIFETIME_S, token)
        if not self._store.use_token(serial_of(token), expires_at_s(token)):
            raise Denied(f"the join token of {party} was used already; make another with `periplus token create`")
        return certificate

    def renew(self, shown: bytes, request: bytes) -> bytes:
        """Return a new certificate of the member who shows this one (PEM). Raises: Denied if it is revoked."""
        return self._certified(certified_party(shown), request, LIFETIME_S, shown)

    def _certified(self, party: Party, request: bytes, lifetime_s: float, shown: bytes) -> bytes:
        with self._revoking:
            check_not_revoked(certified_party(shown), issued_at_s(shown), self._revocations)
            # Not within the second of a revocation, which certificates are too coarse to tell.
            revoked_s = max(self._revocations.get(name, 0.0) for name in revocation_names(party))
            issued_s = max(self._now_s(), revoked_s + 1.0)
            return self._authority.certify(request, party, issued_s, lifetime_s)

    def revoke(self, party: Party) -> None:
        """Refuse all certificates that a party has until now, those of tokens for it or that it has made among them."""
        revoked = (party.uri, revocation_names(parties.joining(party))[0])
        with self._revoking:
            # Certificates after an earlier revocation in this second were issued in the next one.
            earlier_s = max(self._revocations.get(each, -1.0) for each in revoked)
            before_s = max(float(int(self._now_s())), earlier_s + 1.0)
            self._revocations.update((each, before_s) for each in revoked)
        for each in revoked:
            self._store.revoke(each, before_s, forget_before_s=before_s - LIFETIME_S)

    def admit(self, call: Call) -> None:
        """Check that a caller may make a call. Raises: Denied."""
        party = call.party
        if party is None:
            raise Denied("this coordinator answers only callers with a certificate of its fleet")
        check_not_revoked(party, call.issued_at_s, self._revocations)
        if not may_call(party, call.method):
            raise Denied(f"{party} may not call {call.method}")


def may_call(party: Party, method: str) -> bool:
    """Return whether a party may make a call of the coordinator."""
    match party.kind:
        case PartyKind.REGION:
            return method in OF_AGENTS
        case PartyKind.JOIN:
            return method in OF_JOINING
        case PartyKind.OPERATOR:
            return method in OF_VIEWERS or (party.parts[1] == Rights.OPERATOR and method not in OF_AGENTS | OF_JOINING)
        case _:
            return False
