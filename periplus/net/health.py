"""The standard health service of gRPC (`grpc.health.v1`), for probes of Kubernetes and load balancers.

Probes have no certificate, so the service has a port of its own in plain text, which answers nothing else. What it
answers is read from the process at each call: names of services, and whether each serves. A name that the process does
not know is NOT_FOUND to `Check`, and SERVICE_UNKNOWN to `Watch`, as the standard wants. The servicer is not that of
grpcio-health-checking, which must be told of each change.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from periplus.errors import NotFound
from periplus.net import rpc
from periplus.process.telemetry import event as log_event

log = logging.getLogger(__name__)

OVERALL = ""
"""Name under which the standard has the health of the whole server."""

WATCH_S = 0.2
"""Seconds between two looks for those who watch. Chosen by hand: load balancers need no faster answer."""

STOP_S = 1.0
"""Seconds in which watchers may take their last answer. Chosen by hand."""

_Status = health_pb2.HealthCheckResponse


class HealthAnswers(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the package has no types
    """Answers probes with what `read` returns: whether each service serves, by its name."""

    def __init__(self, read: Callable[[], Mapping[str, bool]]) -> None:
        self._read = read
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Tell those who watch that nothing serves any more, and end their calls."""
        self._stopping.set()

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status of a service now. Raises: NotFound."""
        status = self._status(request.service)
        if status == _Status.SERVICE_UNKNOWN:
            raise NotFound(f"no service {request.service!r}; known are {', '.join(map(repr, self._read()))}")
        return _Status(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        """Write the status of a service now, and whenever it has changed."""
        last = None
        while True:
            is_over, status = self._stopping.is_set(), self._status(request.service)
            if status != last:
                await context.write(_Status(status=status))
                last = status
            if is_over:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await self._stopping.wait()

    def _status(self, service: str) -> int:
        serves = self._read().get(service)
        if serves is None:
            return int(_Status.SERVICE_UNKNOWN)
        return int(_Status.SERVING if serves and not self._stopping.is_set() else _Status.NOT_SERVING)


@asynccontextmanager
async def answering_probes(address: str, read: Callable[[], Mapping[str, bool]]) -> AsyncIterator[str]:
    """Answer probes at `host:port` while the context lasts, and yield the address; with port 0 the system chooses one.

    If the address is empty, answer none and yield an empty text. `read` is called on the event loop. Raises: Conflict
    if the address cannot be bound.
    """
    if not address:
        yield ""
        return
    server, answers = rpc.server(), HealthAnswers(read)
    health_pb2_grpc.add_HealthServicer_to_server(answers, server)
    bound = rpc.bind(server, address)
    await server.start()
    log_event(log, logging.INFO, "health_served", address=bound)
    try:
        yield bound
    finally:
        answers.stop()
        await server.stop(STOP_S)
