"""Tests of writes that wait for room: what is logged and shown, what ends the wait, and what does not."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import Denied, DiskFull
from periplus.process.backoff import Backoff
from trainer import disk_wait
from trainer.disk_wait import DiskWait

PATH = Path("runs/job-1/audit.jsonl")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_wait, "RETRY", Backoff(first_s=0.001, longest_s=0.002))


class Scene:
    """A disk that refuses the first `refusals` writes."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.attempts = 0
        self.said: list[str] = []
        self.stop = asyncio.Event()
        self.wait = DiskWait(self.stop, self.said.append)

    def attempt(self) -> int:
        self.attempts += 1
        if self.attempts <= self.refusals:
            raise DiskFull(f"the disk is full at {PATH}", PATH)
        return self.attempts


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="trainer.disk_wait"):
        yield caplog


@pytest.mark.parametrize("way", ["write", "write_patiently", "write_in_thread"])
def test_a_write_is_tried_again_until_there_is_room_and_it_is_said_once(
    logged: pytest.LogCaptureFixture, way: str
) -> None:
    scene = Scene(refusals=5)
    assert asyncio.run(getattr(scene.wait, way)(scene.attempt)) == 6
    assert messages(logged) == [("WARNING", "disk_full"), ("INFO", "disk_wait_over")]
    assert scene.said == [f"waiting for disk: {PATH}", "the disk has room again"]


def test_who_finds_room_at_once_says_nothing_and_lets_nobody_in_between(logged: pytest.LogCaptureFixture) -> None:
    scene = Scene(refusals=0)

    async def run() -> None:
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        await scene.wait.write(scene.attempt)
        assert others == []

    asyncio.run(run())
    assert (scene.said, messages(logged)) == ([], [])


def test_several_who_wait_for_one_file_are_one_warning(logged: pytest.LogCaptureFixture) -> None:
    scene = Scene(refusals=6)

    async def run() -> None:
        await asyncio.gather(*(scene.wait.write(scene.attempt) for _ in range(3)))

    asyncio.run(run())
    assert messages(logged) == [("WARNING", "disk_full"), ("INFO", "disk_wait_over")]
    assert len(scene.said) == 2


def test_who_is_asked_to_stop_gives_up_and_who_is_patient_waits_until_cancelled() -> None:
    scene = Scene(refusals=1 << 30)

    async def run() -> None:
        giving_up = asyncio.ensure_future(scene.wait.write(scene.attempt))
        in_thread = asyncio.ensure_future(scene.wait.write_in_thread(scene.attempt))
        patient = asyncio.ensure_future(scene.wait.write_patiently(scene.attempt))
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in (giving_up, in_thread, patient))
        scene.stop.set()
        for each in (giving_up, in_thread):
            with pytest.raises(DiskFull):
                await asyncio.wait_for(each, 10)
        await asyncio.sleep(0.01)
        assert not patient.done()
        patient.cancel()
        await asyncio.wait({patient})
        assert patient.cancelled()

    asyncio.run(run())
    assert scene.said[-1] == "stopping"


def test_another_error_ends_the_wait(logged: pytest.LogCaptureFixture) -> None:
    errors: list[Any] = [DiskFull("full", PATH), Denied("the file system became read-only")]

    def attempt() -> None:
        raise errors.pop(0)

    with pytest.raises(Denied, match="read-only"):
        asyncio.run(DiskWait(asyncio.Event(), lambda _: None).write(attempt))
    assert errors == []
