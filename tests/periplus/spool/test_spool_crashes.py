"""A spool whose owner is killed at any moment: what was promised is there, in order, and nothing was invented."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from periplus.errors import Conflict, NotFound
from periplus.spool.database import DATABASE, LOG
from periplus.spool.format import Durability, Position
from periplus.spool.reader import SpoolReader
from periplus.spool.spool import DELETED_AT_ONCE, Spool

ROOT = Path(__file__).parents[3]
KILLS = 6

OWNER = """
import os, sys
from pathlib import Path
from periplus.spool import spool as spool_module
from periplus.spool.format import Durability
spool_module.LOG_BYTES = 1 << 17  # the log is copied often
folder, durability, seed, retires = sys.argv[1:]
spool = spool_module.Spool.open(Path(folder), durability=Durability(durability), max_bytes=1 << 30)
old = [record.position for record in spool.records()]
number = 0
while True:
    data = b"%d.%d." % (spool.epoch, number) * (1 + (number * int(seed)) % 3000)
    position = spool.append(data[:2], data[2:])
    assert position.sequence == number
    number += 1
    if number % 5 == 0:
        spool.sync()
        os.write(1, b"a %d %d\\n" % (position.epoch, position.sequence))
    if retires == "yes" and old:
        gone = old.pop(0)
        os.write(1, b"r %d %d\\n" % (gone.epoch, gone.sequence))
        spool.retire(gone)
"""


def killed(folder: Path, durability: Durability, rng: random.Random, retires: str) -> list[tuple[str, Position]]:
    """Run an owner, kill it at some moment, and return what it said: positions that it was promised or gave up."""
    command = [sys.executable, "-c", OWNER, str(folder), durability, str(rng.randrange(1, 1000)), retires]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}) as owner:
        assert owner.stdout is not None
        said = owner.stdout.readline()
        time.sleep(rng.random() * 0.05)
        owner.kill()
        said += owner.stdout.read()
    # A line that the kill tore is no promise.
    words = [line.split() for line in said.decode().split("\n")[:-1]]
    return [(what, Position(int(epoch), int(sequence))) for what, epoch, sequence in words]


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("retires", ["no", "yes"])
def test_an_owner_that_is_killed_loses_nothing_that_was_promised(
    tmp_path: Path, durability: Durability, retires: str
) -> None:
    rng = random.Random(f"{durability} {retires}")
    promised: dict[int, int] = {}  # the last sequence of each epoch
    retired: list[Position] = []
    for epoch in range(1, KILLS + 1):
        for what, position in killed(tmp_path, durability, rng, retires):
            if what == "a":
                promised[position.epoch] = position.sequence
            else:
                retired.append(position)
        found = list(SpoolReader.open(tmp_path).records())
        positions = [record.position for record in found]
        assert positions == sorted(set(positions))
        for record in found:
            text = b"%d.%d." % (record.position.epoch, record.position.sequence)
            assert record.data == text * (len(record.data) // len(text))
        expected = {Position(each, number) for each, end in promised.items() for number in range(end + 1)}
        assert expected - set(retired) <= set(positions)
        # The last retired ones of each owner came back, and were then the first that the next one retired.
        assert len(set(retired) & set(positions)) <= DELETED_AT_ONCE
        # One epoch for each owner, and no gap in what one appended.
        assert positions[-1].epoch == epoch
        newest = [position.sequence for position in positions if position.epoch == epoch]
        assert newest == list(range(len(newest)))
    with Opened(tmp_path) as spool:
        assert [record.position for record in spool.records()] == positions


def test_a_log_that_a_power_cut_tore_keeps_what_was_synced_and_invents_nothing(tmp_path: Path) -> None:
    rng = random.Random(7)
    spool = Spool.open(tmp_path / "spool", durability=Durability.MACHINE, max_bytes=1 << 30)
    expected = [rng.randbytes(rng.randrange(9000)) for _ in range(12)]
    for data in expected[:6]:
        spool.append(data)
    spool.sync()
    num_synced_bytes = (spool.folder / LOG).stat().st_size
    for data in expected[6:]:
        spool.append(data)
    database, log = ((spool.folder / name).read_bytes() for name in (DATABASE, LOG))
    for number in range(20):
        torn = bytearray(log[: rng.randrange(num_synced_bytes, len(log))])
        hole = rng.randrange(num_synced_bytes, len(log))  # a page that came later was written, this one was not
        torn[hole : hole + 512] = bytes(len(torn[hole : hole + 512]))
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / DATABASE).write_bytes(database)
        (folder / LOG).write_bytes(torn)
        read = [record.data for record in SpoolReader.open(folder).records()]
        with Opened(folder) as again:
            found = [record.data for record in again.records()]
        assert found == read == expected[: len(found)]
        assert len(found) >= 6
    spool.close()


class Opened:
    """A spool for the length of a block."""

    def __init__(self, folder: Path) -> None:
        self._spool = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 30)

    def __enter__(self) -> Spool:
        return self._spool

    def __exit__(self, *error: object) -> None:
        self._spool.close()


def test_a_second_process_is_a_conflict_and_a_reader_is_no_owner(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), Durability.PROCESS, "1", "no"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with pytest.raises(Conflict, match="locked"):
            Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20)
        reader = SpoolReader.open(tmp_path)  # while the other one writes
        assert len(list(zip(reader.records(), range(5), strict=False))) == 5
        owner.kill()
    reader.close()
    Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20).remove()
    assert not tmp_path.exists()
    with pytest.raises(NotFound):
        SpoolReader.open(tmp_path)


def test_a_file_that_cannot_grow_refuses_and_heals(tmp_path: Path) -> None:
    """The kernel refuses what goes beyond the limit on a file's size. Room on the disk does not mend it, so that it is
    no full disk."""
    program = f"""
import resource
from pathlib import Path
from periplus.errors import DiskFull, StorageError
from periplus.spool.format import Durability
from periplus.spool.spool import Spool

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
spool = Spool.open(Path({str(tmp_path)!r}), durability=Durability.MACHINE, max_bytes=1 << 30)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_200_000, hard))
taken = 0
try:
    while True:
        spool.append(bytes([taken]) * 300_000)
        taken += 1
except StorageError as error:
    assert taken == 3, taken
    assert not isinstance(error, DiskFull), error
    spool.sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
spool.append(b"after")
spool.sync()
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    found = [record.data for record in SpoolReader.open(tmp_path).records()]
    assert found == [bytes([number]) * 300_000 for number in range(3)] + [b"after"]
