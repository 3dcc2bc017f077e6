"""Which calls a gateway answers to whom."""

import pytest

from periplus.errors import Denied
from periplus.net import parties
from periplus.net.parties import Party, Rights
from periplus.net.rpc import Call
from region_agent.gateway.admission import GatewayAdmission

CALLS = ("Rollout", "Subscribe", "Train", "Publish", "Traffic", "Probe", "Listen", "Relay")


def admitted(party: Party | None, revoked_at_s: float | None = None) -> set[str]:
    admission, found = GatewayAdmission("eu"), set()
    if revoked_at_s is not None and party is not None:
        admission.revocations = {party.uri: revoked_at_s}
    for method in CALLS:
        try:
            admission.admit(Call(method, (), party, 10.0))
        except Denied:
            continue
        found.add(method)
    return found


@pytest.mark.parametrize(
    ("party", "expected"),
    [
        (None, set()),
        (parties.COORDINATOR, set()),
        (parties.operator("ann", Rights.OPERATOR), set()),
        (parties.region("us"), {"Rollout", "Subscribe", "Probe", "Listen", "Relay"}),
        (parties.task("eu", "j", "trainer"), {"Train", "Publish", "Traffic"}),
        (parties.task("eu", "j", "rollout"), {"Rollout", "Subscribe"}),
        (parties.task("eu", "j", "other"), set()),
        (parties.task("us", "j", "trainer"), set()),
    ],
)
def test_each_party_may_call_what_its_work_needs(party: Party | None, expected: set[str]) -> None:
    assert admitted(party) == expected


def test_a_certificate_from_before_a_revocation_is_refused() -> None:
    assert admitted(parties.region("us"), revoked_at_s=11.0) == set()
    assert admitted(parties.region("us"), revoked_at_s=9.0) != set()
