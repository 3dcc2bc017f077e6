"""Single records are read at their place, with or without a hint, and nothing damaged is returned."""

from pathlib import Path

import pytest

from periplus.errors import CorruptSpool, NotFound
from periplus.spool.format import Durability, Position
from periplus.spool.lookup import RecordLookup
from periplus.spool.spool import Spool

RECORDS = [bytes([number]) * (10 + number) for number in range(40)]


def written(folder: Path) -> tuple[list[Position], list[int | None]]:
    """Write the records in two epochs, over several files."""
    positions, offsets = [], []
    for part in (RECORDS[:25], RECORDS[25:]):
        spool = Spool.open(folder, durability=Durability.PROCESS, max_bytes=1 << 20, segment_bytes=300)
        for record in part:
            positions.append(spool.append(record))
            offsets.append(spool.offset(positions[-1]))
        spool.close()
    return positions, offsets


@pytest.mark.parametrize("wrong", [None, 0, 33, 10**6, 2**64 - 1])
def test_every_record_is_found_with_its_offset_and_with_a_wrong_one(tmp_path: Path, wrong: int | None) -> None:
    positions, offsets = written(tmp_path)
    assert len(list(tmp_path.glob("*.spool"))) > 4
    lookup = RecordLookup(tmp_path)
    for position, offset, record in zip(positions, offsets, RECORDS, strict=True):
        assert lookup.read(position, offset, max_bytes=1000) == record
        assert lookup.read(position, wrong, max_bytes=1000) == record


def test_a_record_that_was_never_written_or_is_too_long_is_refused(tmp_path: Path) -> None:
    positions, _ = written(tmp_path)
    lookup = RecordLookup(tmp_path)
    with pytest.raises(CorruptSpool):
        lookup.read(Position(positions[-1].epoch, 99), max_bytes=1000)
    for absent in (Position(9, 0), Position(0, 0)):
        with pytest.raises(NotFound):
            lookup.read(absent, max_bytes=1000)
    with pytest.raises(CorruptSpool):
        lookup.read(positions[-1], max_bytes=5)


def test_a_damaged_record_is_an_error_and_its_neighbours_are_read(tmp_path: Path) -> None:
    positions, offsets = written(tmp_path)
    file = sorted(tmp_path.glob("*.spool"))[0]
    data = bytearray(file.read_bytes())
    offset = offsets[2]
    assert offset is not None
    data[offset + 40] ^= 1
    file.write_bytes(data)
    lookup = RecordLookup(tmp_path)
    with pytest.raises(CorruptSpool):
        lookup.read(positions[2], offsets[2], max_bytes=1000)
    assert lookup.read(positions[3], None, max_bytes=1000) == RECORDS[3]


def test_files_that_go_meanwhile_are_records_that_are_not_there(tmp_path: Path) -> None:
    positions, offsets = written(tmp_path)
    lookup = RecordLookup(tmp_path)
    for file in tmp_path.glob("*.spool"):
        file.unlink()
    with pytest.raises(NotFound):
        lookup.read(positions[0], offsets[0], max_bytes=1000)
    with pytest.raises(NotFound):
        RecordLookup(tmp_path / "nowhere")


def test_the_offset_of_a_record_that_the_spool_does_not_have_is_unknown(tmp_path: Path) -> None:
    written(tmp_path)
    spool = Spool.open(tmp_path, durability=Durability.PROCESS, max_bytes=1 << 20)
    assert spool.offset(Position(7, 7)) is None
    spool.close()
