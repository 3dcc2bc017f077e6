"""One spool, its owner dying in every way: what was reported durable is there, in order, and nothing was invented."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from periplus.errors import DiskFull, SpoolFull, StorageError
from periplus.spool import spool as spool_module
from periplus.spool.format import Durability, Position
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import Spool
from tests.support.cases.examples import examples
from tests.support.faulty_files import FaultyFiles, Killed, is_durable

FOLDER = Path("spool")
MAX_BYTES = 1200


class Crashes(RuleBasedStateMachine):
    """A spool on a disk that lies, and what is known of its records.

    `appended` has all that were ever appended, by position; `durable` were reported so. `retired` may come back with a
    crash, `lost` may not.
    """

    @initialize(durability=st.sampled_from(Durability), segment_bytes=st.sampled_from([1, 150, 400]))
    def begin(self, durability: Durability, segment_bytes: int) -> None:
        self.disk = FaultyFiles()
        self.durability, self.segment_bytes = durability, segment_bytes
        self.appended: dict[Position, bytes] = {}
        self.durable: set[Position] = set()
        self.retired: set[Position] = set()
        self.lost: set[Position] = set()
        self.number = 0
        self.open()

    def open(self) -> None:
        read = [(record.position, record.data) for record in SpoolReader.open(FOLDER, self.disk).records()]
        self.spool = Spool.open(
            FOLDER, durability=self.durability, max_bytes=MAX_BYTES, segment_bytes=self.segment_bytes, layer=self.disk
        )
        found = [(record.position, record.data) for record in self.spool.records()]
        assert set(found) <= set(read), "a reader sees what the next owner finds"
        assert {position for position, _ in set(read) - set(found)} <= self.retired
        positions = [position for position, _ in found]
        assert positions == sorted(set(positions))
        assert all(self.appended.get(position) == data for position, data in found), "something was invented"
        assert self.durable - self.retired <= set(positions), "something durable was lost"
        assert not self.lost & set(positions), "what was lost came back"
        absent = self.appended.keys() - set(positions)
        self.lost |= absent - self.retired
        self.retired &= absent  # others have come back
        self.durable = set(positions)

    def live(self) -> list[Position]:
        return sorted(self.appended.keys() - self.retired - self.lost)

    def _append(self, size: int) -> None:
        data = self.number.to_bytes(4, "big") + bytes(size)
        expected = Position(self.spool.epoch, len([p for p in self.appended if p.epoch == self.spool.epoch]))
        self.number += 1
        try:
            position = self.spool.append(data[:3], data[3:])
        except Killed:
            self.appended[expected] = data  # whole on the disk or not
            self.open()
            if expected in self.lost:  # nobody was told of it
                self.lost.remove(expected)
                self.retired.discard(expected)
                del self.appended[expected]
            return
        assert position == expected
        assert self.spool.num_bytes <= MAX_BYTES
        self.appended[position] = data

    @rule(sizes=st.lists(st.sampled_from([0, 1, 40, 150]), min_size=1, max_size=4), syncs=st.integers(0, 15))
    def append(self, sizes: list[int], syncs: int) -> None:
        """Append records, with a sync after each whose bit in `syncs` is set."""
        for index, size in enumerate(sizes):
            before = self.spool.num_bytes
            try:
                self._append(size)
            except (SpoolFull, DiskFull):
                assert before + size + 200 > MAX_BYTES or self.disk.room_bytes is not None
            if syncs >> index & 1:
                self.spool.sync()
                assert all(is_durable(self.spool, position) for position in self.live())
                self.durable |= set(self.live())

    @precondition(lambda self: self.live())
    @rule(data=st.data(), trims=st.booleans())
    def retire(self, data: st.DataObject, trims: bool) -> None:
        position = data.draw(st.sampled_from(self.live()))
        if trims:
            self.spool.trim(position)
            self.retired |= {each for each in self.appended if each < position}
        else:
            self.spool.retire(position)
            self.retired.add(position)

    @rule(room=st.one_of(st.none(), st.integers(0, 1500)))
    def change_the_room_on_the_disk(self, room: int | None) -> None:
        self.disk.room_bytes = room

    @rule(how=st.sampled_from(["kill", "power", "power", "die within", "close", "failed sync"]), data=st.data())
    def end(self, how: str, data: st.DataObject) -> None:
        match how:
            case "die within":
                self.disk.bytes_until_killed = data.draw(st.integers(1, 400))
                with suppress(SpoolFull, DiskFull):
                    self._append(data.draw(st.integers(0, 150)))
                self.disk.bytes_until_killed = None
                return
            case "close":
                self.spool.close()
                self.durable |= set(self.live())
            case "failed sync":
                self.disk.failing_syncs = True
                with suppress(StorageError):
                    self.spool.sync()
                self.disk.failing_syncs = False
        self.disk.kill()
        if how == "power" and self.durability is Durability.MACHINE:
            self.disk.cut_power(lambda most: data.draw(st.integers(0, most)))
            self.disk.room_bytes = None
        self.open()

    @invariant()
    def everything_live_is_read_in_order(self) -> None:
        if not hasattr(self, "spool"):
            return
        self.durable |= {position for position in self.live() if is_durable(self.spool, position)}
        found = [(record.position, record.data) for record in self.spool.records()]
        assert found == [(position, self.appended[position]) for position in self.live()]
        on_disk = sum(len(self.disk.content(path)) for path in self.disk.paths() if path.suffix == ".spool")
        assert on_disk == self.spool.num_bytes


@pytest.mark.slow
def test_whatever_happens_what_was_durable_is_there_and_nothing_was_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "NOTE_EVERY", 2)
    run_state_machine_as_test(
        Crashes, settings=settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
    )
