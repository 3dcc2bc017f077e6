"""The agent's session with the coordinator: one bidirectional stream, which the agent opens again whenever it ends.

Outgoing messages wait in a bounded outbox. When it is full, the oldest training record is dropped, because the run
directory has it too; only an outbox without training records drops its oldest message. The hello of each session lists
the present state of all tasks. Reports from before it are therefore dropped: the coordinator would take them for newer.
Requests without an answer are sent again in each session. While there is no coordinator, the region goes on with the
tasks that it was given last.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import grpc.aio

from periplus import clock
from periplus.errors import ConfigError, Conflict, Denied, Fenced, PeriplusError, StateError, TimedOut, Unreachable
from periplus.net import rpc
from periplus.net.attempt import failure_of
from periplus.net.resolver import AddressResolver
from periplus.net.tokens import metadata_of
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from periplus.process.backoff import Backoff
from periplus.process.telemetry import event

log = logging.getLogger(__name__)

OUTBOX_MESSAGES = 4096
"""Largest number of messages kept for an absent coordinator: about an hour of training records at one step per second.
"""

RECONNECT = Backoff(first_s=0.5, longest_s=15.0)
"""Upper limits of the pauses before another attempt to connect; each pause is random below its limit. Chosen by hand.
"""

SHORTEST_PAUSE_S = 0.1
"""Seconds that are added to each random pause, so that a lost session is never opened again at once. Chosen by hand."""

WELCOME_DEADLINE_S = 10.0
"""Seconds from the hello to the coordinator's welcome. It allows a few round trips around the world and a busy machine.
Chosen by hand.
"""

TAKEOVER_S = 30.0
"""Seconds for which an agent that has taken over processes is refused before it gives up: the coordinator may follow
the agent before it until that one counts as silent, after 10 s. Chosen by hand."""

VOID_IN_A_NEW_SESSION = frozenset({"task", "heartbeat", "certify"})
"""Kinds of queued messages that are dropped when a session begins, because its hello or a new message replaces them."""

STAMP_BYTES = 64
"""Room in a message for its epoch and sequence number, which are set when it is sent."""

Messages = AsyncIterator[control_pb2.CoordinatorMessage]
SessionCall = grpc.aio.StreamStreamCall[control_pb2.AgentMessage, control_pb2.CoordinatorMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHandlers:
    """Callbacks through which the session reads from and tells the agent.

    All are called on the event loop and must not block. `hello` and `heartbeat` return the message to send.
    `unanswered` returns the requests to send again when a session begins. `desired`, `probe`, `profile`,
    `certificate`, `renewed` and `revocations` receive a message of the coordinator, `listen` the relay's region and
    address.
    """

    hello: Callable[[], control_pb2.Hello]
    unanswered: Callable[[], Iterable[control_pb2.AgentMessage]]
    heartbeat: Callable[[], control_pb2.Heartbeat]
    desired: Callable[[control_pb2.DesiredTasks], None]
    probe: Callable[[control_pb2.ProbeOrder], None]
    listen: Callable[[str, str], None]
    profile: Callable[[control_pb2.ProfileOrder], None]
    certificate: Callable[[control_pb2.CertificateAnswer], None]
    renewed: Callable[[control_pb2.CertificateResponse], None]
    revocations: Callable[[control_pb2.Revocations], None]


class CoordinatorSession:
    """One agent's session, across reconnections.

    `send` may be called at any time; `connected` is set while a session is open. `epoch` is the number of the newest
    session, 0 before the first, and `opened_at_s` when it was opened, on the monotonic clock. `token` is what a
    coordinator without identities wants of its callers, or empty; `secured` returns how to call one with them.
    """

    def __init__(
        self,
        address: str,
        resolver: AddressResolver,
        handlers: SessionHandlers,
        token: str = "",
        secured: Callable[[], rpc.Secured | None] = lambda: None,
    ) -> None:
        self._address = address
        self._secured = secured
        self._resolver = resolver
        self._handlers = handlers
        self._metadata = metadata_of(token)
        self._outbox: deque[control_pb2.AgentMessage] = deque()
        self._filled = asyncio.Event()
        self._closing = False
        self.connected = asyncio.Event()
        self.epoch = 0
        self.opened_at_s = 0.0

    def send(self, message: control_pb2.AgentMessage) -> None:
        """Queue one message for the coordinator. If the outbox is full, an older one is dropped.

        A message that is too large to be sent is dropped, since it would end this session and each later one.
        """
        if message.ByteSize() > rpc.MAX_MESSAGE_BYTES - STAMP_BYTES:
            what = message.WhichOneof("body")
            event(log, logging.ERROR, "message_too_large", what=what, num_bytes=message.ByteSize())
            return
        if len(self._outbox) >= OUTBOX_MESSAGES:
            # Drop the oldest training record; without one, the oldest message.
            del self._outbox[next((i for i, old in enumerate(self._outbox) if old.HasField("step")), 0)]
        self._outbox.append(message)
        self._filled.set()

    def close(self) -> None:
        """Let `run` return: once the queue is sent if a session is open, else at the next failure."""
        self._closing = True
        self._filled.set()

    async def run(self, jitter: Callable[[], float]) -> None:
        """Keep a session open until closed. `jitter()` is uniform in [0, 1).

        Raises: Conflict when another agent serves this region, ConfigError when the coordinator refuses its settings,
        Denied when it refuses its token.
        """
        failures = 0
        takeover_until_s = clock.monotonic_s() + TAKEOVER_S if self._handlers.hello().tasks else 0.0
        while True:
            why = await failure_of(self._session())
            if self._closing:
                return
            takes_over = isinstance(why, Conflict) and clock.monotonic_s() < takeover_until_s
            if _is_final(why, welcomed=self.connected.is_set()) and not takes_over:
                raise why
            failures = 0 if self.connected.is_set() else failures + 1
            self.connected.clear()
            event(log, logging.WARNING, "coordinator_lost", address=self._address, why=why)
            await asyncio.sleep(SHORTEST_PAUSE_S + jitter() * RECONNECT.pause_s(failures))

    async def _session(self) -> None:
        address = await self._resolver.resolve(self._address)
        async with rpc.channel(address, self._secured()) as channel:
            with rpc.remote_errors(self._address):
                call = control_pb2_grpc.CoordinatorStub(channel).Session(metadata=self._metadata)
                messages = aiter(call)
                # Nothing is sent from the outbox before the coordinator has welcomed this agent and given the session
                # its epoch.
                epoch, heartbeat_s = await self._greet(call, messages)
                self.epoch, self.opened_at_s = epoch, clock.monotonic_s()
                self.connected.set()
                event(log, logging.INFO, "session_open", coordinator=self._address, epoch=epoch)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._write(call, epoch))
                    tasks.create_task(self._beat(heartbeat_s))
                    await self._read(messages)

    async def _greet(self, call: SessionCall, messages: Messages) -> tuple[int, float]:
        # Hello and clean-up without an await in between, so that no report is both in the hello and queued.
        hello = self._handlers.hello()
        self._outbox = deque(old for old in self._outbox if old.WhichOneof("body") not in VOID_IN_A_NEW_SESSION)
        self._outbox.extend(self._handlers.unanswered())
        try:
            async with asyncio.timeout(WELCOME_DEADLINE_S):
                await call.write(control_pb2.AgentMessage(sequence=1, hello=hello))
                return await self._welcome(messages)
        except TimeoutError as error:
            raise TimedOut(f"{self._address} sent no welcome within {WELCOME_DEADLINE_S:.0f} s") from error

    async def _welcome(self, messages: Messages) -> tuple[int, float]:
        async for message in messages:
            if message.HasField("welcome"):
                return message.epoch, message.welcome.heartbeat_s
            break
        raise StateError(f"{self._address} did not answer the hello with a welcome; is it a coordinator?")

    async def _read(self, messages: Messages) -> None:
        async for message in messages:
            if message.HasField("desired"):
                self._handlers.desired(message.desired)
            elif message.HasField("probe"):
                self._handlers.probe(message.probe)
            elif message.HasField("listen"):
                self._handlers.listen(message.listen.relay_region, message.listen.relay_address)
            elif message.HasField("profile"):
                self._handlers.profile(message.profile)
            elif message.HasField("certificate"):
                self._handlers.certificate(message.certificate)
            elif message.HasField("renewed"):
                self._handlers.renewed(message.renewed)
            elif message.HasField("revocations"):
                self._handlers.revocations(message.revocations)
        raise Unreachable(f"the coordinator at {self._address} ended the session")

    async def _write(self, call: SessionCall, epoch: int) -> None:
        sequence = 1
        while True:
            # A message stays in the outbox until it is written, so a session that breaks in between sends it again.
            while self._outbox:
                message = self._outbox[0]
                sequence += 1
                message.epoch, message.sequence = epoch, sequence
                await call.write(message)
                # A full outbox may have dropped the message meanwhile.
                if self._outbox and self._outbox[0] is message:
                    self._outbox.popleft()
            if self._closing:
                await call.done_writing()
                return
            self._filled.clear()
            await self._filled.wait()

    async def _beat(self, heartbeat_s: float) -> None:
        while True:
            self.send(control_pb2.AgentMessage(heartbeat=self._handlers.heartbeat()))
            await asyncio.sleep(heartbeat_s)


def _is_final(error: PeriplusError, *, welcomed: bool) -> bool:
    """Return whether no other attempt can help: the hello was refused, or another agent serves the region."""
    refused = isinstance(error, ConfigError | Denied) and not welcomed
    return refused or (isinstance(error, Conflict) and not isinstance(error, Fenced))
