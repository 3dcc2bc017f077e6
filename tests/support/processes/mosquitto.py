"""A real MQTT broker, mosquitto, on a loopback port, and what a subscriber gets of it."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

START_S = 100.0


def program(name: str) -> str:
    """Return the path of a program of mosquitto. Skips the test where there is none."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


class Mosquitto(AbstractContextManager["Mosquitto"]):
    """A broker that forgets everything when it is killed. With `settings` its configuration has further lines."""

    def __init__(self, folder: Path, *settings: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._file = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "persistence false", "user root"]
        self._file.write_text("\n".join([*lines, *(settings or ["allow_anonymous true"])]) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker, or start it again, and wait until it listens."""
        self._process = subprocess.Popen([program("mosquitto"), "-c", self._file], stderr=subprocess.DEVNULL)
        for _ in range(int(START_S / 0.02)):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=START_S).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, "mosquitto ended"
                time.sleep(0.02)
        raise AssertionError("mosquitto does not listen")

    def freeze(self, frozen: bool) -> None:
        """Let the broker answer nothing, or let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def kill(self) -> None:
        """Kill the broker, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Mosquitto":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Subscriber:
    """What came to a subscriber: the newest text of each topic, and all messages in order."""

    def __init__(self) -> None:
        self.newest: dict[str, str] = {}
        self.came: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    async def read(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            payload = message.payload
            text = payload.decode() if isinstance(payload, bytes) else ""
            self.newest[str(message.topic)] = text
            self.came.append((str(message.topic), text))
            self._news.set()

    def json(self, topic: str) -> Any:
        """The newest message of a topic, or an empty object."""
        return json.loads(self.newest.get(topic) or "{}")

    def all(self, topic: str) -> list[Any]:
        return [json.loads(text) for at, text in self.came if at == topic]

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def subscribed(broker: Mosquitto, topics: str = "periplus/#", **options: Any) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber()
    async with aiomqtt.Client("127.0.0.1", broker.port, **options) as client:
        await client.subscribe(topics, qos=1)
        reading = asyncio.create_task(subscriber.read(client))
        try:
            yield subscriber
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
