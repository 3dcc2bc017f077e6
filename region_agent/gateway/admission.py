"""Who may call a gateway: other regions' agents, and the processes of jobs that its own agent has started."""

from collections.abc import Mapping

from periplus.errors import Denied
from periplus.net.parties import PartyKind, check_not_revoked
from periplus.net.rpc import Call
from periplus.values.task import Role

OF_REGIONS = frozenset({"Rollout", "Subscribe", "Probe", "Listen", "Relay"})
OF_TASKS = {
    Role.TRAINER.value: frozenset({"Train", "Publish", "Traffic"}),
    Role.ROLLOUT.value: frozenset({"Rollout", "Subscribe"}),
}
"""Calls of the processes of jobs, by their role. A worker that could call `Train` would have its own key certified."""


class GatewayAdmission:
    """Admits calls to the gateway of a region. `revocations` are those that the coordinator has told last."""

    def __init__(self, region: str) -> None:
        self._region = region
        self.revocations: Mapping[str, float] = {}

    def admit(self, call: Call) -> None:
        """Check that a caller may make a call. Raises: Denied."""
        party = call.party
        if party is None:
            raise Denied("this gateway answers only callers with a certificate of its fleet")
        check_not_revoked(party, call.issued_at_s, self.revocations)
        is_own_task = (
            party.kind is PartyKind.TASK
            and party.name == self._region
            and call.method in OF_TASKS.get(party.parts[2], frozenset())
        )
        if not is_own_task and not (party.kind is PartyKind.REGION and call.method in OF_REGIONS):
            raise Denied(f"{party} may not call {call.method} of the gateway of {self._region}")
