"""Which addresses lead to this machine alone, and which peers are on it."""

import pytest

from periplus.net.peers import is_other_machine, leads_nowhere_else, peer_host


@pytest.mark.parametrize("address", ["127.0.0.1:7", "127.8.0.1:7", "localhost:7", "[::1]:7", "0.0.0.0:7", "[::]:7"])
def test_loopback_and_wildcard_addresses_lead_nowhere_else(address: str) -> None:
    assert leads_nowhere_else(address)


@pytest.mark.parametrize("address", ["10.0.0.1:7", "[2001:db8::1]:7", "gateway.example:7", "us:7"])
def test_other_addresses_and_names_may_lead_elsewhere(address: str) -> None:
    assert not leads_nowhere_else(address)


@pytest.mark.parametrize(
    ("peer", "host", "is_other"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1", False),
        ("ipv6:%5B::1%5D:4711", "::1", False),
        ("ipv4:192.0.2.7:4711", "192.0.2.7", True),
        ("ipv6:%5B2001:db8::7%5D:4711", "2001:db8::7", True),
        ("unix:/tmp/socket", "", False),
    ],
)
def test_a_peer_is_on_another_machine_unless_its_address_is_one_of_this(peer: str, host: str, is_other: bool) -> None:
    assert (peer_host(peer), is_other_machine(peer)) == (host, is_other)
