"""A coordinator and a real mosquitto: what subscribers get, and that a broker changes nothing of the runtime."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import serving
from coordinator.client.connection import connect
from coordinator.config import CoordinatorConfig
from coordinator.exported import mqtt_publisher
from periplus.__main__ import run as periplus
from periplus.net import rpc
from periplus.pb.v1 import control_pb2
from tests.support.coordinator.loopback import DEADLINE_S, FakeAgent, step_record, submission, wait_for
from tests.support.processes.demo import environment
from tests.support.processes.mosquitto import Mosquitto, Subscriber, program, subscribed


@asynccontextmanager
async def coordinator(broker: str, **settings: Any) -> AsyncIterator[str]:
    server = rpc.server()
    address = rpc.bind(server, "127.0.0.1:0")
    async with serving(CoordinatorConfig(listen=address, mqtt=broker, **settings), server):
        yield address


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def within_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scene()

    asyncio.run(within_time())


def test_a_late_subscriber_gets_presence_and_states_and_then_events_in_order(tmp_path: Path) -> None:
    async def scene(broker: Mosquitto) -> None:
        async with subscribed(broker) as early, coordinator(broker.address) as address:
            async with FakeAgent(address, "eu"), FakeAgent(address, "aws:us"):
                await early.until(lambda: len(early.all("periplus/events")) == 3)
                async with subscribed(broker) as late:
                    await late.until(lambda: len(late.newest) == 3)
                    assert late.json("periplus/coordinator")["online"] is True
                    assert late.json("periplus/regions/aws:us")["region"] == "aws:us"
                    region = late.json("periplus/regions/eu")
                    assert (region["connected"], region["epoch"], region["devices"][0]["count"]) == (True, 1, 2)
            await early.until(lambda: early.json("periplus/regions/eu")["connected"] is False)
        await early.until(lambda: early.json("periplus/coordinator")["online"] is False)
        events = early.all("periplus/events")
        assert [event["kind"] for event in events[:3]] == ["coordinator_started", "region_joined", "region_joined"]
        numbers = [event["number"] for event in events]
        assert numbers == sorted(set(numbers))

    async def all_of_it() -> None:
        with Mosquitto(tmp_path) as broker:
            await scene(broker)

    play(all_of_it)


def test_a_job_is_told_with_its_newest_step_and_goes_on_without_the_broker(tmp_path: Path) -> None:
    async def scene() -> None:
        with Mosquitto(tmp_path) as broker:
            async with (
                coordinator(broker.address) as address,
                connect(address) as remote,
                FakeAgent(address, "eu") as eu,
            ):
                job = await remote.submit(submission(regions={"min": 1, "trainer": "eu"}))
                topic, trainer = f"periplus/jobs/{job.job_id}", f"{job.job_id}/trainer"
                async with subscribed(broker) as before:
                    await eu.until(lambda: trainer in eu.desired)
                    await eu.report(trainer, control_pb2.TASK_STATE_RUNNING)
                    for version in range(1, 6):
                        await eu.send(step=step_record(job.job_id, version))
                    await before.until(lambda: before.json(topic).get("policy") == "0.5")
                    await before.until(lambda: before.json(f"{topic}/step").get("version") == 5)
                    assert before.json(topic)["state"] == "running"
                    assert len(before.all(f"{topic}/step")) <= 2
                    assert before.json(f"{topic}/step")["reward_mean"] == 0.5
                broker.kill()
                # The session and the job go on meanwhile.
                await eu.send(step=step_record(job.job_id, 6))
                await remote.cancel(job.job_id)
                await eu.until(lambda: eu.desired[trainer].stopping)
                await eu.report(trainer, control_pb2.TASK_STATE_STOPPED)
                for task_id in list(eu.desired):
                    await eu.report(task_id, control_pb2.TASK_STATE_STOPPED)
                await wait_for(remote, job.job_id, "cancelled")
                broker.start()
                async with subscribed(broker) as after:
                    await after.until(lambda: after.json(topic).get("state") == "cancelled")
                    await after.until(lambda: after.json("periplus/regions/eu").get("connected") is True)
                    assert after.json("periplus/regions/eu")["epoch"] == 1, "the session is the same"
                    await after.until(lambda: "cancelled" in str(after.all("periplus/events")))

    play(scene)


def test_without_any_broker_a_coordinator_serves_and_stops(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Mosquitto(tmp_path)
        async with coordinator(broker.address) as address, FakeAgent(address, "eu"):
            with broker:  # it comes later
                async with subscribed(broker) as late:
                    await late.until(lambda: late.json("periplus/regions/eu").get("connected") is True)
        async with coordinator(broker.address) as address, FakeAgent(address, "eu"):
            pass

    play(scene)


def test_a_broker_that_accepts_and_says_nothing_holds_up_nobody() -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts, and nobody reads
            host, port = mute.getsockname()
            async with coordinator(f"{host}:{port}") as address, FakeAgent(address, "eu"):
                pass

    began_s = time.monotonic()
    play(scene)
    assert time.monotonic() - began_s < 20


def test_a_broker_that_sends_messages_is_left(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        # It takes the connection, sends a message `x` of the topic `a`, and then reads until it is left.
        writer.write(b"\x20\x02\x00\x00" + b"\x30\x04\x00\x01ax")
        while await reader.read(1000):
            pass
        writer.close()
        left.set()

    async def scene() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server, coordinator(f"{host}:{port}"):
            await left.wait()

    left = asyncio.Event()
    play(scene)
    lost = next(each for each in caplog.records if each.message == "mqtt_lost")
    assert "subscribes to nothing" in str(vars(lost))


def test_a_broker_may_want_a_user_and_a_password(tmp_path: Path) -> None:
    passwords, own = tmp_path / "passwords", tmp_path / "own"
    subprocess.run(
        [program("mosquitto_passwd"), "-b", "-c", passwords, "ann", "secret"], check=True, capture_output=True
    )
    own.write_text("secret\n")

    async def scene() -> None:
        with Mosquitto(tmp_path, "allow_anonymous false", f"password_file {passwords}") as broker:
            settings = {"mqtt_user": "ann", "mqtt_password_file": own, "mqtt_topic": "site/a"}
            async with (
                coordinator(broker.address, **settings),
                subscribed(broker, "site/#", username="ann", password="secret") as found,
            ):
                await found.until(lambda: found.json("site/a/coordinator").get("online") is True)

    play(scene)


def test_a_broker_of_an_own_authority_is_reached_by_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=b"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # the system's authorities

    async def scene() -> None:
        with Mosquitto(tmp_path, "allow_anonymous true", f"certfile {certificate}", f"keyfile {key}") as broker:
            async with (
                coordinator(broker.address, mqtt_tls=True),
                subscribed(broker, tls_context=ssl.create_default_context()) as found,
            ):
                await found.until(lambda: found.json("periplus/coordinator").get("online") is True)

    play(scene)


def test_a_frozen_broker_holds_up_no_session_and_is_told_the_state_once_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_publisher, "ANSWER_S", 0.3)

    async def scene() -> None:
        with Mosquitto(tmp_path) as broker:
            async with coordinator(broker.address) as address:
                async with subscribed(broker) as before:
                    await before.until(lambda: before.json("periplus/coordinator").get("online") is True)
                broker.freeze(True)
                async with FakeAgent(address, "eu"):
                    await asyncio.sleep(0.5)  # longer than the broker may take for an answer
                    broker.freeze(False)
                    async with subscribed(broker) as after:
                        await after.until(lambda: after.json("periplus/regions/eu").get("connected") is True)
                        await after.until(lambda: after.json("periplus/coordinator").get("online") is True)
                broker.freeze(True)
                began_s = time.monotonic()
            assert time.monotonic() - began_s < 10, "a broker that answers nothing holds up no stop"

    play(scene)


def test_only_the_newest_events_wait_for_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt_publisher, "MAX_EVENTS", 2)
    monkeypatch.setattr(mqtt_publisher, "ANSWER_S", 0.3)

    async def scene() -> None:
        with Mosquitto(tmp_path) as broker:
            async with (
                coordinator(broker.address) as address,
                connect(address) as remote,
                subscribed(broker) as found,
            ):
                await found.until(lambda: found.json("periplus/coordinator").get("online") is True)
                broker.freeze(True)
                for region in ("ap", "eu", "in", "us"):
                    async with FakeAgent(address, region):
                        pass
                    # The next one joins after it has left, so that the last events are of the last one.
                    async for event in remote.events("", region, follow=True):
                        if event.kind == "region_left":
                            break
                broker.freeze(False)
                last = [("region_joined", "us"), ("region_left", "us")]
                await found.until(lambda: [event[:2] for event in told(found)][-2:] == last)
                # Some may have been under way when the broker froze.
                numbers = [number for *_, number in told(found)]
                assert len(set(numbers)) < 9
                assert numbers == sorted(numbers)

    play(scene)


def told(found: Subscriber) -> list[tuple[str, str, int]]:
    return [(event["kind"], event["region"], event["number"]) for event in found.all("periplus/events")]


def test_a_region_that_was_removed_while_the_broker_was_away_is_cleared(tmp_path: Path) -> None:
    async def scene() -> None:
        with Mosquitto(tmp_path, "allow_anonymous true") as broker:
            async with coordinator(broker.address) as address, connect(address) as remote:
                async with FakeAgent(address, "eu"), subscribed(broker) as before:
                    await before.until(lambda: before.json("periplus/regions/eu").get("connected") is True)
                async with subscribed(broker) as found:
                    await found.until(lambda: found.json("periplus/regions/eu").get("connected") is False)
                    await remote.order_region("eu", "remove")
                    await found.until(lambda: found.newest["periplus/regions/eu"] == "")
                async with subscribed(broker) as late:
                    await late.until(lambda: "periplus/coordinator" in late.newest)
                    assert "periplus/regions/eu" not in late.newest

    play(scene)


def started(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "periplus", "coordinator", "run", *words]
    return subprocess.Popen(command, env=environment(home))


@pytest.mark.slow
@pytest.mark.processes
def test_the_last_will_of_a_killed_coordinator_is_published(tmp_path: Path) -> None:
    async def scene() -> None:
        with Mosquitto(tmp_path) as broker:
            words = ["--plaintext", "--listen", "127.0.0.1:0", "--mqtt", broker.address, "--log-level", "error"]
            process = started(tmp_path, *words)
            try:
                async with subscribed(broker, "periplus/coordinator") as found:
                    await found.until(lambda: found.json("periplus/coordinator").get("online") is True)
                    os.kill(process.pid, signal.SIGKILL)
                    await found.until(lambda: found.json("periplus/coordinator")["online"] is False)
                    online, offline = found.all("periplus/coordinator")
                    assert (online["version"], online["started_s"]) == (offline["version"], offline["started_s"])
            finally:
                process.kill()
                process.wait()

    play(scene)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--mqtt-tls"], "are for the broker of --mqtt"),
        (["--mqtt", "127.0.0.1:1883", "--mqtt-password-file", "f"], "without --mqtt-user"),
        (["--mqtt", "127.0.0.1:1883", "--mqtt-topic", "a/#"], "cannot begin a topic"),
        (["--mqtt", "127.0.0.1:1883", "--mqtt-user", "a", "--mqtt-password-file", "/nowhere"], "cannot read"),
    ],
)
def test_settings_that_cannot_work_are_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["coordinator", "--plaintext", "--listen", "127.0.0.1:0", *words, "--log-level", "error"]) == 2
    assert why in capsys.readouterr().err


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "aiomqtt", None)
    words = ["--plaintext", "--listen", "127.0.0.1:0", "--mqtt", "127.0.0.1:1883", "--log-level", "error"]
    assert periplus(["coordinator", *words]) == 2
    assert "periplus[mqtt]" in capsys.readouterr().err
