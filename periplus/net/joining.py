"""Joining a fleet with a token, for agents and operators."""

import asyncio
import contextlib
import socket
import ssl

from periplus import clock
from periplus.errors import Denied, Unreachable
from periplus.net import rpc
from periplus.net.certificates import (
    Identity,
    authority_within,
    certificate_digest,
    expires_at_s,
    new_key,
    signing_request,
)
from periplus.net.join_token import JoinToken, member_of
from periplus.net.parties import COORDINATOR
from periplus.net.rpc import Secured
from periplus.pb.v1 import control_pb2, control_pb2_grpc

LOOK_S = 10.0
"""Seconds for a look at a server's certificate; chosen by hand: three intercontinental round trips, and slack."""


async def join(token: JoinToken) -> Identity:
    """Return the identity of a new member. The key is made here, and never leaves this process.

    Raises: Denied if the server is not of the token's fleet, or the token was used or is too old; Unreachable.
    """
    authority = authority_within(await asyncio.to_thread(server_certificate, token.address))
    if certificate_digest(authority) != token.authority_digest:
        raise Denied(
            f"the coordinator at {token.address} is of another fleet than the token: somebody may be in between, or "
            "the fleet was made anew; ask its operator for a new token"
        )
    holder = Identity(key=token.key, certificate=token.certificate, authority=authority)
    key = new_key()
    if clock.unix_s() >= expires_at_s(token.certificate):
        raise Denied(f"the join token of {member_of(token)} is too old; make another with `periplus token create`")
    request = control_pb2.JoinRequest(request=signing_request(key))
    async with rpc.channel(token.address, Secured(identity=holder, peer=COORDINATOR)) as channel:
        with rpc.remote_errors(token.address):
            answer = await control_pb2_grpc.CoordinatorStub(channel).Join(request, timeout=rpc.CALL_DEADLINE_S)
    return Identity(key=key, certificate=answer.certificate, authority=authority)


def server_certificate(address: str) -> bytes:
    """Return the certificate (DER) of the server at host:port, which is checked by nobody yet. Raises: Unreachable."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            contextlib.closing(socket.create_connection((host.strip("[]"), int(port)), LOOK_S)) as opened,
            context.wrap_socket(opened) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
    except OSError as error:
        raise Unreachable(f"no coordinator with certificates answers at {address}: {error}") from error
    assert found is not None, "a server of TLS has a certificate"
    return found
