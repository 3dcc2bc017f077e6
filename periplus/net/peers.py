"""Finds addresses that nobody on the other side of a connection could dial: loopback and wildcard addresses."""

import ipaddress
import socket
from urllib.parse import unquote


def peer_host(peer: str) -> str:
    """Return the host of what gRPC says of a call's peer, such as `ipv4:10.0.0.7:4711`; empty if it is no network's."""
    kind, _, rest = unquote(peer).partition(":")
    return _host(rest) if kind in ("ipv4", "ipv6") else ""


def is_other_machine(peer: str) -> bool:
    """Return whether the peer of a call is on another machine than this process."""
    host = peer_host(peer)
    if not host or ipaddress.ip_address(host).is_loopback:
        return False
    # Only an address of this machine can be bound.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return True
    return False


def is_loopback(address: str) -> bool:
    """Return whether host:port is an address that only this machine's own processes reach."""
    host = _host(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def leads_nowhere_else(address: str) -> bool:
    """Return whether host:port is a loopback or wildcard address, at which no other machine reaches its server."""
    host = _host(address)
    if host in ("", "localhost"):
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:  # a name, which only the machine that dials it can resolve
        return False
    return found.is_loopback or found.is_unspecified


def _host(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")
