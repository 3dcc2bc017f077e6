"""What a service tells systemd, heard by a socket in systemd's place."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from periplus.process.lifecycle import ShutdownReason, wait_for_stop


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


async def stopped_after(seconds: float) -> ShutdownReason:
    asyncio.get_running_loop().call_later(seconds, os.kill, os.getpid(), signal.SIGTERM)
    return await wait_for_stop(stop_on_stdin_eof=False)


def all_of(listening: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(listening.recv(100).decode())
        except BlockingIOError:
            return found


def test_a_service_says_that_it_is_ready_turns_and_stops(heard: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert asyncio.run(stopped_after(0.1)) is ShutdownReason.SIGTERM
    first, *said = all_of(heard)
    # It still turns while it stops.
    assert (first, set(said), said.count("STOPPING=1")) == ("READY=1", {"WATCHDOG=1", "STOPPING=1"}, 1)
    assert said.index("STOPPING=1") >= 3
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ), "children must not speak for it"


def test_nobody_is_told_of_turns_whose_watchdog_is_another_processs(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    asyncio.run(stopped_after(0.02))
    assert all_of(heard) == ["READY=1", "STOPPING=1"]


def test_a_service_manager_that_does_not_listen_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert asyncio.run(stopped_after(0.01)) is ShutdownReason.SIGTERM
