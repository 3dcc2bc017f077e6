"""A whole trainer on a real small file system that fills up, and a trainer that dies within each kind of write."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from periplus.audit.journal import read_lines
from periplus.audit.records import LeaseEntry, from_line
from periplus.process.backoff import Backoff
from periplus.values.task import TaskState
from tests.support.audit.files import audited
from tests.support.processes.dying import GONE, OS_CALLS, Call, before_each_call, die_at, in_a_child, num_calls
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.trainer.fake_link import FakeLink
from tests.support.trainer.whole_run import Trainers
from trainer import disk_wait
from trainer.checkpointing import checkpoint
from trainer.intake.messages import DownMessage
from trainer.ledger.values import Granted

SETTINGS: dict[str, Any] = {
    "steps": 3,
    "staleness": 1,
    "checkpoint": {"every_steps": 1, "keep": 2},
    "eval": {"num_prompts": 4},
}
AMPLE_KIB = 64 << 10
STEP_KIB = 200
ROOM_AFTER_S = 0.05


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_wait, "RETRY", Backoff(first_s=0.005, longest_s=0.02))


class OnRecord(FakeLink):
    """A link that fails if a lease is sent before its line is in the journal's file."""

    run_dir: Path

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.num_leases = 0

    def send(self, message: DownMessage) -> None:
        if isinstance(message, Granted):
            records = [
                from_line(line.rstrip(b"\n"), "audit").record for line in read_lines(self.run_dir / "audit.jsonl")
            ]
            written = {record.lease_id for record in records if isinstance(record, LeaseEntry)}
            assert {lease.lease_id for lease in message.leases} <= written
            self.num_leases += len(message.leases)
        super().send(message)


class Filling:
    """Fills the disk when the trainer sends its `message`-th message, and makes room once the trainer waits for it."""

    def __init__(self, disk: SmallDisk, message: int, leaving_bytes: int) -> None:
        self._disk = disk
        self._message = message
        self._leaving_bytes = leaving_bytes
        self._calls = count(1)
        self._filler = Path()
        self.num_waits = 0

    def before_each(self) -> None:
        if next(self._calls) == self._message:
            self._filler = self._disk.fill(leaving_bytes=self._leaving_bytes)

    def say(self, phase: str) -> None:
        if phase.startswith("waiting for disk"):
            self.num_waits += 1
            asyncio.get_running_loop().call_later(ROOM_AFTER_S, self._filler.unlink)


# One case is in `make test-slow`, the others in `make test-faults`.
@pytest.mark.slow
@pytest.mark.parametrize(
    "leaving_bytes", [20_000, *(pytest.param(number, marks=pytest.mark.faults) for number in (0, 200_000, 2_000_000))]
)
def test_a_disk_that_is_full_at_any_moment_costs_nothing_but_time(
    tmp_path: Path, trainers: Trainers, leaving_bytes: int
) -> None:
    num_waits = 0
    num_messages, _ = trainers.messages_of(tmp_path / "whole", **SETTINGS)
    for message in range(2, num_messages, max(1, num_messages // 4)):
        folder = tmp_path / str(message)
        folder.mkdir()
        with small_disk(folder / "run", num_kib=AMPLE_KIB) as disk:
            filling = Filling(disk, message, leaving_bytes)
            run = trainers.start(folder, link_class=OnRecord, say=filling.say, **SETTINGS)
            assert isinstance(run.link, OnRecord)
            run.link.run_dir = disk.root
            run.link.before_each = filling.before_each
            run.finish()
            assert run.state is TaskState.SUCCEEDED
            assert run.link.num_leases > 0
            assert run.summary["staleness_violations"] == 0
            assert run.summary["steps"] == 3
            assert audited(disk.root).findings == ()
            num_waits += filling.num_waits
    assert num_waits, "the disk was never full when something was to be written"


def test_a_run_whose_disk_grows_little_by_little_ends_as_one_that_had_room(tmp_path: Path, trainers: Trainers) -> None:
    """The run is synchronous, so that both runs end with the same bits."""
    settings = SETTINGS | {"staleness": 0}
    _, whole = trainers.messages_of(tmp_path / "whole", **settings)
    folder = tmp_path / "grown"
    folder.mkdir()
    with small_disk(folder / "run", num_kib=STEP_KIB) as disk:
        growing = Growing(disk)
        run = trainers.start(folder, say=growing.say, **settings).finish()
        assert run.state is TaskState.SUCCEEDED
        assert audited(disk.root).findings == ()
    assert run.digest == whole.digest
    assert growing.num_kib > 10 * STEP_KIB
    assert growing.phases[0].startswith(f"waiting for disk: {folder / 'run'}")


class Growing:
    """Makes a little room on the disk, again and again, while the trainer says that it waits for room."""

    def __init__(self, disk: SmallDisk) -> None:
        self._disk = disk
        self.num_kib = STEP_KIB
        self.phases: list[str] = []

    def say(self, phase: str) -> None:
        self.phases.append(phase)
        self._later()

    def _later(self) -> None:
        asyncio.get_running_loop().call_later(0.02, self._grow)

    def _grow(self) -> None:
        if self.phases[-1].startswith("waiting"):
            self.num_kib += STEP_KIB
            self._disk.resize(self.num_kib)
            self._later()


# ---- death within a write --------------------------------------------------------------------------------------------

PART = (checkpoint, "write_part")
CALLS = (*OS_CALLS, PART)


def dies(folder: Path, cache_dir: Path, settings: dict[str, Any], call: int, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, CALLS[call], die_at(number))
        Trainers(cache_dir).start(folder, **settings).finish()


# The death at `replace`, by which files get their names, is in `make test-slow`, the others in `make test-faults`.
@pytest.mark.slow
@pytest.mark.parametrize(
    "call", [pytest.param(call, id=call[1], marks=[] if call[1] == "replace" else pytest.mark.faults) for call in CALLS]
)
def test_a_trainer_that_dies_within_a_write_resumes_to_the_same_bits_and_a_clean_audit(
    tmp_path: Path, trainers: Trainers, call: Call
) -> None:
    settings = SETTINGS | {"staleness": 0, "network": {"durability": "machine"}}
    # The first run is not counted, because it also writes the model that all of them start from.
    whole = trainers.start(tmp_path / "whole", **settings).finish()
    total = num_calls(call, lambda: trainers.start(tmp_path / "counted", **settings).finish())
    assert total, "the trainer makes no such call: the test would prove nothing"
    num_audited = 0
    # How many frames are committed at once depends on the clock, so two runs differ by a few calls.
    for number in sorted({max(1, round(total * share)) for share in (0.3, 0.5, 0.75, 0.93)}):
        folder = tmp_path / str(number)
        code = in_a_child(dies, folder, trainers.cache_dir, settings, CALLS.index(call), number)
        assert code == GONE, f"{call} {number}: it ended before it could be killed"
        run_dir = folder / "run"
        if not (run_dir / "audit.jsonl").exists():
            assert list((run_dir / "checkpoints").glob("*")) == [], "it kept a checkpoint without an audit journal"
            continue
        num_audited += 1
        if not list((run_dir / "checkpoints").glob("*/manifest.json")):
            assert audited(run_dir).findings == ()
            continue
        resumed = trainers.start(folder, fork=1, resume_from=run_dir, **settings).finish()
        assert (resumed.state, resumed.digest) == (TaskState.SUCCEEDED, whole.digest), (call, number)
        assert audited(run_dir).findings == (), (call, number)
        left = [path.name for path in (run_dir / "checkpoints").iterdir() if not (path / "manifest.json").is_file()]
        left += [path.name for path in run_dir.rglob("*.partial")]
        assert left == [], (call, number)
    assert num_audited >= 2, "most deaths came before the run had begun"
