"""Nothing is sent before its lines are in the journal's file, however long the disk is full."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from periplus.audit.journal import AuditJournal, read_lines
from periplus.audit.records import EndEntry, SealEntry, from_line
from periplus.audit.seals import Sealer
from periplus.errors import DiskFull
from periplus.process.backoff import Backoff
from periplus.publication import PublisherKey
from tests.support.keys import AUTHORITY
from trainer import disk_wait
from trainer.disk_wait import DiskWait
from trainer.intake.messages import DownMessage, JobFinished
from trainer.intake.write_ahead import WriteAheadJournal

END, MESSAGE = EndEntry(how="stopped"), JobFinished("a", "the job is done")


@dataclass
class Scene:
    """A journal on disk, and what was sent, with the number of lines in the file at that time."""

    path: Path
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    sent: list[tuple[DownMessage, int]] = field(default_factory=list)

    def opened(self, journal: Any) -> WriteAheadJournal:
        disk = DiskWait(self.stop, lambda phase: None)
        return WriteAheadJournal(journal, self._send, disk, lambda: 1.0)

    def _send(self, message: DownMessage) -> None:
        self.sent.append((message, len(self.lines())))

    def lines(self) -> list[Any]:
        return [from_line(line.rstrip(b"\n"), "audit").record for line in read_lines(self.path)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "audit.jsonl")


@pytest.fixture
def file(scene: Scene) -> Iterator[AuditJournal]:
    with AuditJournal.open(scene.path) as journal:
        yield journal


def test_a_message_waits_until_the_lines_before_it_are_flushed(scene: Scene, file: AuditJournal) -> None:
    journal = scene.opened(file)
    journal.write(END)
    journal.send_once_recorded(MESSAGE)
    assert (scene.sent, scene.lines()) == ([], [])
    asyncio.run(journal.flush())
    assert scene.sent == [(MESSAGE, 1)]
    asyncio.run(journal.flush())
    assert len(scene.sent) == 1, "it is sent once"


def test_a_milestone_is_on_disk_when_it_returns_and_lets_messages_go(scene: Scene, file: AuditJournal) -> None:
    journal = scene.opened(file)
    journal.send_once_recorded(MESSAGE)
    asyncio.run(journal.write_milestone(END))
    assert scene.lines() == [END]
    assert scene.sent == [(MESSAGE, 1)]
    assert journal.position.n == 1


def test_milestones_are_sealed_once_the_key_is_certified_and_the_lines_before_are_signed_too(
    scene: Scene, file: AuditJournal
) -> None:
    journal, key = scene.opened(file), PublisherKey.generate()
    asyncio.run(journal.write_milestone(END))
    asyncio.run(journal.begin_sealing(Sealer(key, AUTHORITY.certify("job-1", 0, key.public_key))))
    journal.write(END)
    asyncio.run(journal.write_milestone(END))
    kinds = [type(line) for line in scene.lines()]
    assert kinds == [EndEntry, SealEntry, EndEntry, EndEntry, SealEntry]


def test_a_full_disk_keeps_messages_back_and_a_stop_ends_the_wait_of_those_who_are_not_patient(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_wait, "RETRY", Backoff(first_s=0.0))
    refusals = [DiskFull("no room", path=scene.path)] * 2

    def flush() -> None:
        if refusals:
            raise refusals.pop()

    async def act() -> None:
        journal = scene.opened(SimpleNamespace(flush=flush))
        scene.path.touch()
        journal.send_once_recorded(MESSAGE)
        scene.stop.set()
        with pytest.raises(DiskFull):
            await journal.flush()
        assert scene.sent == []
        await journal.flush_patiently()
        assert [message for message, _ in scene.sent] == [MESSAGE]

    asyncio.run(act())
