"""The server of the gateway: where it listens, with which certificates, and whom it refuses."""

import contextlib
from collections.abc import Mapping

import grpc.aio

from periplus.errors import Conflict
from periplus.net import rpc
from region_agent.control.identity import AgentIdentity
from region_agent.gateway.admission import GatewayAdmission


def revoke(admission: GatewayAdmission, calls: rpc.OpenCalls, before_s: Mapping[str, float]) -> None:
    """Refuse revoked certificates from now on, and end the calls of their owners."""
    admission.revocations = before_s
    calls.end_refused(admission.admit)


def bound(server: grpc.aio.Server, listen: str, last: str, identity: AgentIdentity | None) -> str:
    """Bind the gateway, where it is free to choose to the port of the agent before, whose processes dial it there.

    Raises: Conflict, ConfigError.
    """
    secured = None
    if identity is not None:
        secured = rpc.ServerIdentity(current=identity.current, authorities=(identity.task_authority.certificate,))
    host, _, port = listen.rpartition(":")
    if int(port) == 0 and last.rpartition(":")[0] == host:
        with contextlib.suppress(Conflict):  # another process has it by now
            return rpc.bind(server, last, secured)
    return rpc.bind(server, listen, secured)
