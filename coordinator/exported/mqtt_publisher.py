"""Publishes a coordinator's states and events to an MQTT broker, and never reads from it.

A broker that is lost, slow or refuses changes nothing of the runtime. States are not queued: a connection begins with
all of them, and then gets the difference between the last state that it was told and the present one. Events wait in a
queue of `MAX_EVENTS`, which drops the oldest. So a slow broker gets fewer states, and the newest. This module is the
only one that knows aiomqtt (extra `mqtt`), and imports it only where a broker is named.

Every coordinator of a fleet has the same client id. So the broker ends the connection of an earlier one, and publishes
its last will, before the next one says that it is there.
"""

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.exported.mqtt_messages import MqttMessage, event_message, presence, state_messages, step_message
from coordinator.store import StoredEvent
from coordinator.writer import Writer
from periplus import errors
from periplus.errors import ConfigError, Unreachable
from periplus.process.backoff import Backoff
from periplus.process.telemetry import event as log_event
from periplus.values.record import Record, RecordKind

if TYPE_CHECKING:
    import aiomqtt

log = logging.getLogger(__name__)

MAX_EVENTS = 1024
"""Events that wait for the broker, and the older ones are dropped. Chosen by hand: some hundred kilobytes."""

AT_ONCE = 8
"""Messages that may wait for the broker's acknowledgement together; aiomqtt warns of more than 10."""

LOOK_S = 0.25
"""Seconds between two looks at the state. Chosen by hand: a person does not notice the delay."""

LOOKS_PER_STEP = 4
"""Looks for each at which steps are published: one message a second for a job."""

RECONNECT = Backoff(first_s=0.5, longest_s=30.0)
"""Upper limits of the pauses before another attempt to connect; each pause is random below its limit. Chosen by hand.
"""

SHORTEST_PAUSE_S = 0.1
"""Seconds that are added to each random pause, so that a broker is never dialled again at once. Chosen by hand."""

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
    """Tells one broker the state of a writer. Its events begin above the number `after`.

    `started_s` is the Unix time of the coordinator's start, and `jitter()` is uniform in [0, 1).
    """

    def __init__(
        self,
        broker: MqttBroker,
        writer: Writer,
        *,
        after: int,
        version: str,
        started_s: float,
        jitter: Callable[[], float],
    ) -> None:
        self._broker, self._writer, self._jitter = broker, writer, jitter
        self._events: deque[StoredEvent] = deque(maxlen=MAX_EVENTS)
        self._after, self._num_dropped = after, 0
        self._online = presence(broker.prefix, online=True, version=version, started_s=started_s)
        self._offline = presence(broker.prefix, online=False, version=version, started_s=started_s)
        self._retained: set[str] = set()  # topics that may have a message of this process
        self._sequences: dict[str, int] = {}  # of the last event of each job that was looked at for a step
        self._connected = False
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let `run` return once the broker knows the present state, and that this coordinator is gone."""
        self._stopping.set()

    async def collect(self) -> None:
        """Queue the events of the fleet until the writer is closed."""
        while not self._stopping.is_set():
            try:
                async for stored in self._writer.follow_events(self._after, job_id="", region="", past_only=False):
                    self._num_dropped += len(self._events) == MAX_EVENTS
                    self._events.append(stored)
                    self._after = stored.number
            except Unreachable:
                return
            except errors.StorageError as error:
                log_event(log, logging.ERROR, "events_not_read", why=error)
                await asyncio.sleep(RECONNECT.longest_s)

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
            pause_s = SHORTEST_PAUSE_S + self._jitter() * RECONNECT.pause_s(failures)
            await self._stopped_within(pause_s)

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
        prefix, told, num_looks = self._broker.prefix, None, 0
        await self._publish(client, [self._online])
        while True:
            is_last, state = self._stopping.is_set(), self._writer.state
            messages = list(state_messages(told, state, prefix))
            if told is None:  # what was forgotten while there was no connection
                gone = self._retained - {message.topic for message in (self._online, *messages)}
                messages += [MqttMessage(topic=topic, text="", retain=True) for topic in gone]
            await self._publish(client, messages)
            told = state
            await self._publish_events(client)
            if num_looks % LOOKS_PER_STEP == 0:
                await self._publish(client, [step_message(*found, prefix) for found in await self._steps()])
            num_looks += 1
            if is_last:
                return await self._publish(client, [self._offline])
            await self._stopped_within(LOOK_S)

    async def _publish_events(self, client: "aiomqtt.Client") -> None:
        if self._num_dropped:
            log_event(log, logging.WARNING, "mqtt_events_dropped", num_events=self._num_dropped)
            self._num_dropped = 0
        while first := list(self._events)[:AT_ONCE]:
            messages = [event_message(each.number, each.time_s, each.event, self._broker.prefix) for each in first]
            await self._publish(client, messages)
            # Later ones may have pushed some of these out meanwhile.
            while self._events and self._events[0].number <= first[-1].number:
                self._events.popleft()

    async def _steps(self) -> list[tuple[str, Record]]:
        """Return the newest step of each job that has one since the last look."""
        jobs, found = self._writer.state.jobs, []
        self._sequences = {job_id: last for job_id, last in self._sequences.items() if job_id in jobs}
        for job in jobs.values():
            if job.ended and job.job_id not in self._sequences:
                continue
            newest = None
            async for event in self._writer.follow(job.job_id, self._sequences.get(job.job_id, 0), past_only=True):
                self._sequences[job.job_id] = event.sequence
                if isinstance(event.news, Record) and event.news.kind is RecordKind.STEP:
                    newest = event.news
            if newest is not None:
                found.append((job.job_id, newest))
            if job.ended:
                self._sequences.pop(job.job_id, None)
        return found

    async def _publish(self, client: "aiomqtt.Client", messages: Iterable[MqttMessage]) -> None:
        """Publish messages in order, a few at once: each waits for the broker's acknowledgement."""
        left = list(messages)
        while left:
            self._retained |= {message.topic for message in left[:AT_ONCE] if message.retain and message.text}
            async with asyncio.TaskGroup() as tasks:
                for message in left[:AT_ONCE]:
                    tasks.create_task(client.publish(message.topic, message.text, message.qos, message.retain))
            self._retained -= {message.topic for message in left[:AT_ONCE] if not message.text}
            del left[:AT_ONCE]

    async def _stopped_within(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._stopping.wait()


async def _until_lost(client: "aiomqtt.Client") -> None:
    """Wait until the connection is lost, which raises the library's error. Nothing is subscribed, so nothing comes."""
    async for _ in client.messages:
        pass


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
        telling, collecting = tasks.create_task(publisher.run()), tasks.create_task(publisher.collect())
        try:
            yield
        finally:
            publisher.stop()
            await asyncio.wait({telling}, timeout=STOP_S)
            telling.cancel()
            collecting.cancel()
