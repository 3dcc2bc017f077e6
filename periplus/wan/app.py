"""Composition root of the emulator: a relay and its control service in one event loop, until asked to stop."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from periplus.net import rpc
from periplus.net.tokens import TokenGuard
from periplus.pb.v1 import wan_pb2_grpc
from periplus.process import lifecycle
from periplus.process.lifecycle import ShutdownReason
from periplus.wan.grid import EmulatedNetwork
from periplus.wan.relay import Relay
from periplus.wan.service import WanService

log = logging.getLogger(__name__)

_STOP_GRACE_S = 1.0
"""Seconds that running control calls get at the end. They are answered from memory, so a longer one has lost its
caller."""


async def run(
    network: EmulatedNetwork,
    control: str,
    *,
    stop_on_stdin_eof: bool,
    on_ready: Callable[[str], None],
    token_file: Path | None = None,
) -> ShutdownReason:
    """Emulate `network` until SIGTERM, SIGINT or, with `stop_on_stdin_eof`, the end of stdin.

    `on_ready` gets the bound control address. Calls need the token of `token_file`, if there is one.
    Raises: Conflict if `control` cannot be bound; what reading the token raises.
    """
    guard = TokenGuard(token_file, "emulator") if token_file else None
    relay = Relay(network, asyncio.get_running_loop())
    server = rpc.server((lambda call: guard.check(call.metadata)) if guard else None)
    wan_pb2_grpc.add_WanEmulatorServicer_to_server(WanService(relay), server)
    # The port is bound before anybody is told of it.
    bound = rpc.bind(server, control)
    try:
        await server.start()
        log.info("wan emulator ready", extra={"control": bound, "regions": network.regions, "factor": network.factor})
        reason = await lifecycle.wait_for_stop(stop_on_stdin_eof, lambda: on_ready(bound))
        log.info("wan emulator stopping", extra={"reason": reason.value})
        return reason
    finally:
        # No call may change the relay while it closes.
        await server.stop(_STOP_GRACE_S)
        relay.close()
