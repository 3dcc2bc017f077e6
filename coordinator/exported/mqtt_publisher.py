"""Publishes a coordinator's states and events to an MQTT broker, and never reads from it.

A broker that is lost, slow or refuses changes nothing of the runtime. States are not queued: a connection begins with
all of them, and then gets the difference between the last state that it was told and the present one. So a slow broker
gets fewer states, and the newest. Events are read from the store at each look, into a queue of `MAX_EVENTS` that drops
the oldest. This module is the only one that knows aiomqtt (extra `mqtt`), and imports it only where a broker is named.

Every coordinator of a fleet has the same client id. So the broker ends the connection of an earlier one, and publishes
its last will, before the next one says that it is there.
"""

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.exported.mqtt_messages import MqttMessage, event_message, presence, state_messages, step_message
from coordinator.state import State
from coordinator.store import StoredEvent
from coordinator.writer import Writer
from periplus import errors
from periplus.errors import ConfigError, WireError
from periplus.process.backoff import Backoff
from periplus.process.telemetry import event as log_event
from periplus.values.record import Record, RecordKind

if TYPE_CHECKING:
    import aiomqtt

log = logging.getLogger(__name__)

MAX_EVENTS = 1024
"""Events that a broker is told of those that it missed, the newest. Chosen by hand: some hundred kilobytes."""

AT_ONCE = 8
"""Messages that may wait for the broker's acknowledgement together; aiomqtt warns of more than 10."""

LOOK_S = 0.25
"""Seconds between two looks at the state. Chosen by hand: a person does not notice the delay."""

LOOKS_PER_STEP = 4
"""Looks for each at which steps are published: one message a second for a job."""

RECONNECT = Backoff(first_s=0.5, longest_s=30.0)
"""Pauses before another attempt to connect. Chosen by hand: a fleet has one coordinator, which need not draw them."""

ANSWER_S = 5.0
"""Seconds in which the broker must acknowledge a message. Chosen by hand."""

KEEPALIVE_S = 15
"""Seconds between two signs of life. The broker publishes the last will after 1.5 times as long. Chosen by hand."""

STOP_S = 1.0
"""Seconds that a stopping coordinator waits for the broker to take its last messages. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttBroker:
    """A broker and what it wants of its clients. `user` may be empty; `prefix` begins every topic."""

    address: str
    prefix: str
    user: str = ""
    password: str = ""
    uses_tls: bool = False


class MqttPublisher:
    """Tells one broker the state of a writer, and the events above the number `after`.

    `started_s` is the Unix time of the coordinator's start.
    """

    def __init__(self, broker: MqttBroker, writer: Writer, *, after: int, version: str, started_s: float) -> None:
        self._broker, self._writer, self._after = broker, writer, after
        self._events: deque[StoredEvent] = deque(maxlen=MAX_EVENTS)
        self._online = presence(broker.prefix, online=True, version=version, started_s=started_s)
        self._offline = presence(broker.prefix, online=False, version=version, started_s=started_s)
        self._told: State | None = None
        self._sequences: dict[str, int] = {}  # of the last event of each job that was looked at for a step
        self._connected = False
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let `run` return once the broker knows the present state, and that this coordinator is gone."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep a connection to the broker until stopped."""
        failures = 0
        while not self._stopping.is_set():
            self._connected = False
            try:
                await self._connection()
            except* Exception as group:  # whatever a broker or its library does, the coordinator goes on
                why = errors.explained_error(errors.leaves(group)[0])
                log_event(log, logging.WARNING, "mqtt_lost", broker=self._broker.address, why=why)
            failures = 0 if self._connected else failures + 1
            await self._stopped_within(RECONNECT.pause_s(failures))

    async def _connection(self) -> None:
        import aiomqtt

        broker, will = self._broker, self._offline
        host, _, port = broker.address.rpartition(":")
        async with (
            aiomqtt.Client(
                host.removeprefix("[").removesuffix("]"),
                int(port),
                identifier=f"{broker.prefix}/coordinator",
                username=broker.user or None,
                password=broker.password or None,
                tls_context=ssl.create_default_context() if broker.uses_tls else None,
                will=aiomqtt.Will(will.topic, will.text, will.qos, will.retain),
                timeout=ANSWER_S,
                keepalive=KEEPALIVE_S,
                max_queued_incoming_messages=1,
            ) as client,
            asyncio.TaskGroup() as tasks,
        ):
            self._connected = True
            log_event(log, logging.INFO, "mqtt_connected", broker=broker.address)
            losing = tasks.create_task(_until_lost(client))
            try:
                await self._tell(client)
            finally:
                client.timeout = STOP_S  # for the end of the connection
            losing.cancel()

    async def _tell(self, client: "aiomqtt.Client") -> None:
        prefix, num_looks, messages = self._broker.prefix, 0, [self._online]
        while True:
            is_last, state = self._stopping.is_set(), self._writer.state
            changes = list(state_messages(self._told, state, prefix))
            if num_looks == 0:  # all states, and what was forgotten while there was no connection
                messages += state_messages(None, state, prefix)
                changes = [message for message in changes if not message.text]
            await self._publish(client, [*messages, *changes])
            self._told, messages = state, []
            await self._publish_events(client)
            if is_last or num_looks % LOOKS_PER_STEP == 0:
                await self._publish(client, [step_message(*found, prefix) for found in await self._steps(state)])
            num_looks += 1
            if is_last:
                return await self._publish(client, [self._offline])
            await self._stopped_within(LOOK_S)

    async def _publish_events(self, client: "aiomqtt.Client") -> None:
        """Publish the events since the last look, of which the newest few wait if the broker has missed many."""
        async for stored in self._writer.follow_events(self._after, job_id="", region="", past_only=True):
            self._events.append(stored)
            self._after = stored.number
        while first := list(self._events)[:AT_ONCE]:
            prefix = self._broker.prefix
            await self._publish(client, [event_message(e.number, e.time_s, e.event, prefix) for e in first])
            for _ in first:  # they stay until the broker has acknowledged them
                self._events.popleft()

    async def _steps(self, state: State) -> list[tuple[str, Record]]:
        """Return the newest step of each job that has one since the last look."""
        found: dict[str, Record] = {}
        self._sequences = {job_id: last for job_id, last in self._sequences.items() if job_id in state.jobs}
        for job_id in (id_ for id_, job in state.jobs.items() if not job.ended or id_ in self._sequences):
            async for event in self._writer.follow(job_id, self._sequences.get(job_id, 0), past_only=True):
                self._sequences[job_id] = event.sequence
                if isinstance(event.news, Record) and event.news.kind is RecordKind.STEP:
                    found[job_id] = event.news
        return list(found.items())

    async def _publish(self, client: "aiomqtt.Client", messages: Sequence[MqttMessage]) -> None:
        """Publish messages in order, a few at once: each waits for the broker's acknowledgement."""
        for start in range(0, len(messages), AT_ONCE):
            async with asyncio.TaskGroup() as tasks:
                for message in messages[start : start + AT_ONCE]:
                    tasks.create_task(client.publish(message.topic, message.text, message.qos, message.retain))

    async def _stopped_within(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()


async def _until_lost(client: "aiomqtt.Client") -> None:
    """Wait until the connection is lost, which raises the library's error.

    Nothing is subscribed. A broker that sends messages all the same is left: it would fill the log. Raises: WireError.
    """
    async for _ in client.messages:
        raise WireError("the broker sends messages, although the coordinator subscribes to nothing")


@asynccontextmanager
async def publishing(publisher: MqttPublisher | None) -> AsyncIterator[None]:
    """Publish while the context lasts, if there is a publisher. Raises: ConfigError if the library is missing."""
    if publisher is None:
        yield
        return
    try:
        import aiomqtt  # noqa: F401
    except ImportError as error:
        raise ConfigError("--mqtt needs the extra `mqtt`: pip install 'periplus[mqtt]'") from error
    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(publisher.run())
        try:
            yield
        finally:
            publisher.stop()
            await asyncio.wait({telling}, timeout=STOP_S)
            telling.cancel()
