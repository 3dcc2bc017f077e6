"""The single writer of the coordinator's state: it applies events to the state machine one by one.

A caller that has an event awaits `Writer.apply` and gets the new state, or the machine's error. This wait is the
back-pressure. The writer then performs the machine's effects: orders for agents go into the queue of their session,
news goes into the job's log, and planning requests go to the planner's task, which answers with an event like any
other caller. Nothing is decided here. What a step has decided is stored before its effects are performed (store.py); if
it cannot be stored, the event is refused and the state stays as it was.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager

from coordinator.events import (
    Effect,
    Event,
    FenceSession,
    FleetEvent,
    Order,
    PlanFinished,
    Publish,
    RefuseCertificate,
    RegionJoined,
    RegionLeft,
    RunPlanner,
    SendCertificate,
    SendDesired,
    SendListen,
    SendProbe,
    SendProfile,
    SendRenewed,
    SendRevocations,
    Ticked,
)
from coordinator.joblog import JobEvent, JobLog
from coordinator.machine.step import step
from coordinator.state import Job, State
from coordinator.store import Store, StoredEvent, changes_between
from periplus.errors import Fenced, PeriplusError, StorageError, TimedOut, Unreachable
from periplus.process.telemetry import event as log_event
from periplus.values.record import Record

log = logging.getLogger(__name__)

MAX_WAITING_EVENTS = 1024
"""Events that may wait to be applied; a caller that finds the queue full waits. Chosen by hand: several a session."""

MAX_OUTBOX = 64
"""Orders that may wait for one agent; an agent that leaves more unread is considered gone. Chosen by hand."""

STORE_RETRY_S = 1.0
"""Seconds until a plan that could not be stored is made again. Chosen by hand."""

EVENTS_AT_ONCE = 256
"""Events of the fleet that are read from the store at a time. Chosen by hand: some tens of kilobytes."""

TICK_S = 1.0
"""Seconds between two ticks, by which the machine notices timeouts and watchers get a new picture of the fleet.

Chosen by hand: the shortest timeout is about ten seconds.
"""


class AgentSession:
    """The queue of orders for one agent. `epoch` is 0 until the agent's session has joined, and `over` is set when its
    stream has ended.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.over = asyncio.Event()
        self._orders: deque[Order] = deque()
        self._ended: PeriplusError | None = None
        self._changed = asyncio.Event()

    def put(self, order: Order) -> None:
        """Queue an order. If MAX_OUTBOX orders already wait, end the session."""
        if len(self._orders) >= MAX_OUTBOX:
            # The agent joins again and is then sent its whole set of tasks, so that no order is lost with the queue.
            self.end(TimedOut(f"region {order.region} left {MAX_OUTBOX} orders unread; join again"))
        self._orders.append(order)
        self._changed.set()

    def end(self, error: PeriplusError) -> None:
        """Make `get` raise this error; if the session has ended already, the first error stays."""
        self._ended = self._ended or error
        self._changed.set()

    async def get(self) -> Order:
        """Wait for the next order and return it. Raises: the error with which the session ended."""
        # Once the session has ended, orders that still wait are not sent: they belong to a fenced or broken session.
        while not self._orders or self._ended:
            if self._ended:
                raise self._ended
            self._changed.clear()
            await self._changed.wait()
        return self._orders.popleft()


class Writer:
    """Owns the coordinator's state, the open sessions and the jobs' logs.

    `now_s` must never go back. `plan` may take seconds, because it runs in a thread. `state` is what `store` holds.
    """

    def __init__(
        self,
        state: State,
        store: Store,
        now_s: Callable[[], float],
        plan: Callable[[State, RunPlanner], PlanFinished],
    ) -> None:
        self.state = state
        self.now_s = now_s
        self._store = store
        self._plan = plan
        # Sequence numbers of events rise over restarts of the coordinator: no job has a thousand events a second.
        self._first_sequence = int(now_s() * 1000)
        self._events: asyncio.Queue[tuple[Event, AgentSession | None, asyncio.Future[State]]] = asyncio.Queue(
            MAX_WAITING_EVENTS
        )
        # Needs no bound: the machine orders one plan at a time, and the next only after `PlanFinished`.
        self._plans: asyncio.Queue[RunPlanner] = asyncio.Queue()
        self._sessions: dict[tuple[str, int], AgentSession] = {}
        self._logs: dict[str, JobLog] = {}
        self._watchers: dict[str, int] = {}
        self._news = asyncio.Event()
        self._closed: PeriplusError | None = None
        self._leaving: set[asyncio.Future[State]] = set()
        for job in state.jobs.values():
            self._publish(job.job_id, job)

    async def apply(self, event: Event, session: AgentSession | None = None) -> State:
        """Apply an event to the machine and return the state after it.

        A RegionJoined event comes with the session that it opens. Raises: the machine's error, StorageError.
        """
        done: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        await self._events.put((event, session, done))
        return await done

    async def leave(self, region: str, session: AgentSession) -> None:
        """Remove a session that has ended for any reason, and tell the machine if it had joined."""
        # A fenced session was removed already, and its epoch's place must not be cleared twice.
        if self._sessions.get((region, session.epoch)) is session:
            del self._sessions[(region, session.epoch)]
            log_event(log, logging.INFO, "session_over", region=region, epoch=session.epoch)
        if session.epoch:
            # The waiter may be cancelled, as its call has ended, and the event of a waiter who is gone is not applied.
            leaving = asyncio.ensure_future(self.apply(RegionLeft(region, session.epoch)))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            await asyncio.shield(leaving)

    async def follow(
        self, job_id: str, after_sequence: int, *, past_only: bool = False
    ) -> AsyncGenerator[JobEvent, None]:
        """Yield the job's events after a sequence number, past and future ones, until the job has ended.

        With `past_only`, end after those that there are.

        Raises: Unreachable when the coordinator stops.
        """
        with self._watching(job_id):
            events = self._log(job_id)  # which outlives a job that is forgotten meanwhile
            while True:
                # Both are read before the log: an event that is added while this loop yields wakes the wait below, and
                # the last events are still sent when the job ends meanwhile.
                job = self.state.jobs.get(job_id)
                news, ended = self._news, job is None or job.ended
                for event in events.after(after_sequence):
                    after_sequence = event.sequence
                    yield event
                if ended or past_only:
                    return
                if self._closed:
                    raise self._closed
                await news.wait()

    async def follow_events(
        self, after: int, *, job_id: str, region: str, past_only: bool
    ) -> AsyncGenerator[StoredEvent, None]:
        """Yield the fleet's events above a number: all, or those of one job or region. Raises: as `follow` does."""
        while True:
            news = self._news  # read before the store, as in `follow`
            found = await asyncio.to_thread(self._store.events, after, EVENTS_AT_ONCE, job_id=job_id, region=region)
            for event in found:
                after = event.number
                yield event
            if len(found) == EVENTS_AT_ONCE:
                continue
            if past_only:
                return
            if self._closed:
                raise self._closed
            await news.wait()

    async def run(self) -> None:
        """Apply the queued events one by one, until this task is cancelled."""
        while True:
            event, session, done = await self._events.get()
            # The caller gave up before its turn came, for example because its call's deadline passed.
            if done.cancelled():
                continue
            try:
                state, effects = step(self.state, event, self.now_s())
                await self._store_step(state, effects)
            except PeriplusError as error:
                done.set_exception(error)
                continue
            self.state = state
            # The session must be known before the effects, which may hold orders for it.
            if isinstance(event, RegionJoined) and session:
                self._open(event, session)
            for effect in effects:
                self._perform(effect)
            for job_id in self._logs.keys() - self.state.jobs.keys():  # of jobs that the machine has forgotten
                del self._logs[job_id]
            # The caller goes on only when all effects are performed, such as the news of its job being in the log.
            if not done.cancelled():  # by a caller that gave up while the disk was written
                done.set_result(self.state)

    async def run_planner(self) -> None:
        """Run the planner for each RunPlanner effect and apply its answer, until this task is cancelled."""
        while True:
            order = await self._plans.get()
            # The search runs in a thread on a state that never changes, while the writer goes on to newer ones.
            found = await asyncio.to_thread(self._plan, self.state, order)
            if not await self._is_applied(found):
                await asyncio.sleep(STORE_RETRY_S)
                self._plans.put_nowait(order)

    async def run_ticks(self) -> None:
        """Apply a tick every TICK_S seconds and publish the fleet to jobs that are watched, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            if not await self._is_applied(Ticked()):
                continue
            state = self.state
            for job_id in self._watchers:
                if job_id in state.jobs and not state.jobs[job_id].ended:
                    self._publish(job_id, state)

    async def _is_applied(self, event: Event) -> bool:
        """Apply an event that no caller waits for. Return False if it could not be stored."""
        try:
            await self.apply(event)
        except StorageError as error:
            log_event(log, logging.ERROR, "not_stored", what=type(event).__name__, why=error)
            return False
        return True

    async def _store_step(self, state: State, effects: Sequence[Effect]) -> None:
        changes = changes_between(self.state, state)
        told = [effect for effect in effects if isinstance(effect, FleetEvent)]
        if changes or told:
            # In a thread, since the disk may be slow and sessions must be served meanwhile.
            await asyncio.to_thread(self._store.write, changes, told, self.now_s())
            if told:
                self._wake()

    def close(self) -> None:
        """End all sessions and watches with Unreachable; agents and watchers may then reach the next coordinator."""
        self._closed = Unreachable("the coordinator is stopping; running jobs go on without it")
        for session in self._sessions.values():
            session.end(self._closed)
        self._wake()

    def _open(self, event: RegionJoined, session: AgentSession) -> None:
        hello = event.hello
        session.epoch = self.state.regions[hello.region].epoch
        self._sessions[(hello.region, session.epoch)] = session
        log_event(
            log,
            logging.INFO,
            "region_joined",
            region=hello.region,
            epoch=session.epoch,
            gateway=hello.gateway_address or "none",
            host=hello.inventory.own.name,
            num_tasks=len(hello.tasks),
        )

    def _perform(self, effect: Effect) -> None:
        match effect:
            case (
                SendDesired()
                | SendProbe()
                | SendListen()
                | SendProfile()
                | SendRenewed()
                | SendRevocations()
                | SendCertificate()
                | RefuseCertificate()
            ):
                _log_answer(effect)
                if session := self._sessions.get((effect.region, effect.epoch)):
                    session.put(effect)
            case FenceSession(region, epoch):
                if session := self._sessions.pop((region, epoch), None):
                    session.end(Fenced(f"a newer session of region {region} took over from epoch {epoch}"))
                    log_event(log, logging.WARNING, "session_fenced", region=region, epoch=epoch)
            case Publish(job_id, news):
                self._publish(job_id, news)
                if isinstance(news, Job):
                    log_event(log, logging.INFO, "job_changed", job=job_id, state=news.state, reason=news.reason)
            case RunPlanner():
                self._plans.put_nowait(effect)
            case FleetEvent(kind, text, job_id=job_id, region=region, actor=actor):
                fields = {"job": job_id, "region": region, "actor": actor}
                given = {name: value for name, value in fields.items() if value}
                log_event(log, logging.INFO, "fleet_event", kind=kind, text=text, **given)

    def _log(self, job_id: str) -> JobLog:
        return self._logs.setdefault(job_id, JobLog(self._first_sequence))

    def _publish(self, job_id: str, news: Job | Record | State) -> None:
        self._log(job_id).append(self.now_s(), news)
        self._wake()

    def _wake(self) -> None:
        # Those who wait hold the old object; those who come later wait for the new one.
        self._news.set()
        self._news = asyncio.Event()

    @contextmanager
    def _watching(self, job_id: str) -> Iterator[None]:
        self._watchers[job_id] = self._watchers.get(job_id, 0) + 1
        try:
            yield
        finally:
            self._watchers[job_id] -= 1
            if not self._watchers[job_id]:
                del self._watchers[job_id]


def _log_answer(order: Order) -> None:
    match order:
        case SendCertificate():
            log_event(
                log,
                logging.INFO,
                "trainer_certified",
                job=order.job_id,
                fork=order.fork,
                region=order.region,
                public_key=order.public_key.hex(),
            )
        case RefuseCertificate():
            log_event(
                log,
                logging.WARNING,
                "certificate_refused",
                job=order.job_id,
                fork=order.fork,
                region=order.region,
                why=order.reason,
            )
