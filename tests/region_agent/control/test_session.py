"""The agent's session against a coordinator played by hand, and against the real one."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coordinator.app import serving
from coordinator.config import CoordinatorConfig
from periplus.errors import ConfigError, Conflict, Fenced, PeriplusError
from periplus.net import rpc
from periplus.net.convert import inventory_to_pb
from periplus.net.resolver import DirectResolver
from periplus.pb.v1 import control_pb2
from region_agent.control import session as session_module
from region_agent.control.session import OUTBOX_MESSAGES, CoordinatorSession, SessionHandlers
from tests.support.coordinator.fake_coordinator import FakeCoordinator, Servicer, served
from tests.support.coordinator.machines import inventory, machine
from tests.support.gateway.loopback import play, until


class Agent:
    """What the session calls, and the session."""

    def __init__(self, address: str, region: str = "us", boot_id: str = "boot") -> None:
        self.desired: list[control_pb2.DesiredTasks] = []
        self.probes: list[control_pb2.ProbeOrder] = []
        self.relays: list[tuple[str, ...]] = []
        self.profiles: list[control_pb2.ProfileOrder] = []
        self.tasks: list[control_pb2.TaskReport] = []
        self.unanswered: list[control_pb2.AgentMessage] = []
        self.answers: list[control_pb2.CertificateAnswer] = []
        self.renewed: list[control_pb2.CertificateResponse] = []
        self.revocations: list[control_pb2.Revocations] = []
        self._region, self._boot_id = region, boot_id
        handlers = SessionHandlers(
            hello=self._hello,
            heartbeat=control_pb2.Heartbeat,
            unanswered=lambda: self.unanswered,
            desired=self.desired.append,
            probe=self.probes.append,
            listen=lambda *place: self.relays.append(place),
            profile=self.profiles.append,
            certificate=self.answers.append,
            renewed=self.renewed.append,
            revocations=self.revocations.append,
        )
        self.session = CoordinatorSession(address, DirectResolver(), handlers)

    def _hello(self) -> control_pb2.Hello:
        return control_pb2.Hello(
            region=self._region,
            boot_id=self._boot_id,
            gateway_address="us:1",
            tasks=self.tasks,
            inventory=inventory_to_pb(inventory(machine())),
        )

    def step(self, time_s: float) -> None:
        self.session.send(control_pb2.AgentMessage(step=control_pb2.StepRecord(job_id="j", kind="step", time_s=time_s)))

    def report(self, state: control_pb2.TaskState.ValueType) -> None:
        report = control_pb2.TaskReport(task_id="t", job_id="j", state=state)
        self.session.send(control_pb2.AgentMessage(task=report))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(self.session.run(lambda: 0.0))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


def test_a_session_greets_beats_and_hands_on_orders() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address:
            agent = Agent(address)
            async with agent.running():
                fake.orders.put_nowait(control_pb2.CoordinatorMessage(desired=control_pb2.DesiredTasks(revision=3)))
                fake.orders.put_nowait(control_pb2.CoordinatorMessage(probe=control_pb2.ProbeOrder(dst_region="eu")))
                answer = control_pb2.CertificateAnswer(job_id="j", refused="no")
                fake.orders.put_nowait(control_pb2.CoordinatorMessage(certificate=answer))
                await until(lambda: bool(agent.desired and agent.probes and agent.answers) and len(fake.came) >= 3)
                assert agent.answers == [answer]
            assert fake.hellos[0].region == "us"
            assert agent.desired[0].revision == 3
            assert agent.probes[0].dst_region == "eu"
            assert [message.sequence for message in fake.came] == list(range(2, 2 + len(fake.came)))
            assert {message.epoch for message in fake.came} == {1}

    play(scene)


def test_records_from_while_the_coordinator_was_away_arrive_later_in_order() -> None:
    async def scene() -> None:
        first, second = FakeCoordinator(), FakeCoordinator()
        async with served(first) as address:
            agent = Agent(address)
            running = agent.running()
            await running.__aenter__()
            agent.step(1)
            await until(lambda: first.steps() == [1])
        await until(lambda: not agent.session.connected.is_set())
        for time_s in (2, 3, 4):
            agent.step(time_s)
        async with served(second, address):
            await until(lambda: second.steps() == [2, 3, 4])
            assert [message.sequence for message in second.came] == list(range(2, 2 + len(second.came)))
            await running.__aexit__(None, None, None)

    play(scene)


def test_a_report_from_before_the_hello_is_not_repeated_after_it() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address:
            agent = Agent(address)
            agent.report(control_pb2.TASK_STATE_RUNNING)
            agent.step(1)
            agent.tasks = [control_pb2.TaskReport(task_id="t", job_id="j", state=control_pb2.TASK_STATE_SUCCEEDED)]
            async with agent.running():
                await until(lambda: fake.steps() == [1])
                assert fake.hellos[0].tasks[0].state == control_pb2.TASK_STATE_SUCCEEDED
                assert not any(message.HasField("task") for message in fake.came)
                agent.report(control_pb2.TASK_STATE_STOPPED)
                await until(lambda: any(message.HasField("task") for message in fake.came))

    play(scene)


def test_questions_without_an_answer_are_asked_once_in_each_session() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address:
            agent = Agent(address)
            agent.unanswered = [control_pb2.AgentMessage(certify=control_pb2.CertificateRequest(job_id="j", fork=1))]
            agent.session.send(agent.unanswered[0])
            async with agent.running():
                for num_sessions in (1, 2):
                    await until(lambda n=num_sessions: len(fake.asked()) == n)  # type: ignore[misc]
                    fake.orders.put_nowait(Fenced("a newer session took over"))
                agent.unanswered = []
                await until(lambda: len(fake.hellos) == 3)
                agent.step(1)
                await until(lambda: fake.steps() == [1])
            assert [(asked.job_id, asked.fork) for asked in fake.asked()] == [("j", 1)] * 2

    play(scene)


def test_the_outbox_is_bounded_and_gives_up_the_oldest_record_and_no_report() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address:
            agent = Agent(address)
            async with agent.running():
                await until(agent.session.connected.is_set)
                agent.report(control_pb2.TASK_STATE_RUNNING)
                for i in range(OUTBOX_MESSAGES + 50):  # the loop does not run meanwhile: nothing is sent
                    agent.step(i)
                await until(lambda: len(fake.steps()) >= OUTBOX_MESSAGES - 5)
                await until(lambda: fake.steps()[-1] == OUTBOX_MESSAGES + 49)
                assert any(message.HasField("task") for message in fake.came)
                assert len(fake.steps()) <= OUTBOX_MESSAGES
                assert all(a < b for a, b in itertools.pairwise(fake.steps()))

    play(scene)


@pytest.mark.parametrize("refusal", [Conflict("region us is already served"), ConfigError("no such name")])
def test_a_refusal_that_no_retry_can_mend_ends_the_session(refusal: PeriplusError) -> None:
    async def scene() -> None:
        fake = FakeCoordinator(refusal)
        async with served(fake) as address, Agent(address).running() as running:
            with pytest.raises(type(refusal), match=str(refusal)):
                await running
            assert len(fake.hellos) == 1

    play(scene)


def test_an_agent_that_took_over_processes_waits_until_the_one_before_it_counts_as_silent() -> None:
    async def scene() -> None:
        fake = FakeCoordinator(Conflict("region us is already served"))
        async with served(fake) as address:
            agent = Agent(address)
            agent.tasks.append(control_pb2.TaskReport(task_id="j/trainer", job_id="j"))
            async with agent.running() as running:
                await until(lambda: len(fake.hellos) == 2)
                fake.refusal = None
                await until(agent.session.connected.is_set)
                assert not running.done()

    play(scene)


def test_an_agent_that_took_over_processes_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "TAKEOVER_S", 0.2)

    async def scene() -> None:
        fake = FakeCoordinator(Conflict("region us is already served"))
        async with served(fake) as address:
            agent = Agent(address)
            agent.tasks.append(control_pb2.TaskReport(task_id="j/trainer", job_id="j"))
            async with agent.running() as running:
                with pytest.raises(Conflict, match="already served"):
                    await running

    play(scene)


def test_a_fenced_session_and_any_other_loss_are_dialled_again() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address, Agent(address).running():
            for num_hellos in (2, 3):
                await until(lambda: not fake.orders.qsize())
                fake.orders.put_nowait(Fenced("a newer session took over"))
                await until(lambda n=num_hellos: len(fake.hellos) == n)  # type: ignore[misc]

    play(scene)


def test_a_coordinator_that_accepts_and_says_nothing_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "WELCOME_DEADLINE_S", 0.05)

    async def scene() -> None:
        class Silent(Servicer):  # type: ignore[misc]
            num_sessions = 0

            async def Session(self, request_iterator: Any, context: Any) -> None:
                self.num_sessions += 1
                await asyncio.Event().wait()

        silent = Silent()
        async with served(silent) as address, Agent(address).running():
            await until(lambda: silent.num_sessions >= 2)

    play(scene)


def test_closing_sends_what_is_queued_first() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        async with served(fake) as address:
            agent = Agent(address)
            async with agent.running() as running:
                await until(agent.session.connected.is_set)
                for time_s in range(100):
                    agent.step(time_s)
                agent.session.close()
                await running
            assert fake.steps() == list(range(100))
            assert fake.ended == 1

    play(scene)


def test_cancelling_ends_the_session_whatever_it_is_doing() -> None:
    async def scene() -> None:
        fake = FakeCoordinator()
        for turns in range(40):
            async with served(fake) as address:
                running = asyncio.create_task(Agent(address).session.run(lambda: 0.0))
                await asyncio.sleep(turns * 0.001)
            running.cancel()
            await asyncio.wait({running}, timeout=60)
            assert running.cancelled()

    play(scene)


def test_the_real_coordinator_welcomes_and_refuses_a_second_agent_of_the_region() -> None:
    async def scene() -> None:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        async with serving(CoordinatorConfig(listen=address), server):
            first, second = Agent(address), Agent(address, boot_id="other")
            async with first.running() as going_on:
                await until(first.session.connected.is_set)
                async with second.running() as refused:
                    with pytest.raises(Conflict, match="already served"):
                        await refused
                assert not going_on.done()
                async with Agent(address, region="not a name").running() as misnamed:
                    with pytest.raises(ConfigError, match="not usable"):
                        await misnamed

    play(scene)
