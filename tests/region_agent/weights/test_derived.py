"""What is made for readers: read while it is made, by several, from memory and from disk."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from periplus.codec.weights.encoder import encode
from periplus.errors import CorruptSpool, StateError, StorageError, Unreachable
from periplus.publication import Assembler, DerivedWriter, Publication, PublicationKind
from region_agent.weights import derived
from region_agent.weights.derived import DerivedPublication
from tests.support.gateway.faulty_weights import FaultyWeightFiles
from tests.support.gateway.loopback import play
from tests.support.publication.signed import payload_parts
from tests.support.publication.versions import Versions, small_states

PATH = Path("weights/0000000001.derived")
VERSIONS = Versions(small_states(1, num_elements=3000))
PARTS = encode(None, VERSIONS.states[0], span_bytes=1 << 10)


def writer() -> DerivedWriter:
    return DerivedWriter(VERSIONS.anchor(0).attestation, kind=PublicationKind.ANCHOR, max_chunks=len(PARTS))


async def read(made: DerivedPublication) -> Publication:
    assembler = Assembler(VERSIONS.trust, max_content_bytes=1 << 30)
    async for record in made.records():
        if (done := assembler.feed(record)) is not None:
            return done
    raise AssertionError("it never ended")


@pytest.mark.parametrize("memory_bytes", [0, 3000, 1 << 20])
def test_readers_that_come_before_during_and_after_get_the_same(
    memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "MEMORY_BYTES", memory_bytes)

    async def scene() -> None:
        made = DerivedPublication(writer(), FaultyWeightFiles(), PATH)
        early = asyncio.create_task(read(made))
        await asyncio.to_thread(made.make, PARTS)
        late = await read(made)
        assert payload_parts(await early) == payload_parts(late) == tuple(PARTS)
        assert made.num_bytes == sum(map(len, PARTS))
        made.remove()

    play(scene)


def test_a_failure_in_the_middle_ends_its_readers_with_a_reason() -> None:
    def broken() -> Iterator[bytes]:
        yield PARTS[0]
        raise CorruptSpool("the disk has forgotten something")

    async def scene() -> None:
        made = DerivedPublication(writer(), FaultyWeightFiles(), PATH)
        reading = asyncio.create_task(read(made))
        await asyncio.to_thread(made.make, broken())
        with pytest.raises(Unreachable, match="forgotten"):
            await reading

    play(scene)


def test_more_than_readers_would_take_is_not_made() -> None:
    async def scene() -> None:
        made = DerivedPublication(writer(), FaultyWeightFiles(), PATH)
        await asyncio.to_thread(made.make, [*PARTS, b"more"])
        assert isinstance(made.failure, StateError)

    play(scene)


def test_a_full_disk_and_a_damaged_file_are_told_to_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "MEMORY_BYTES", 0)

    async def scene() -> None:
        disk = FaultyWeightFiles()
        disk.room_bytes = 1000
        made = DerivedPublication(writer(), disk, PATH)
        await asyncio.to_thread(made.make, PARTS)
        assert isinstance(made.failure, StorageError)
        disk = FaultyWeightFiles()
        made = DerivedPublication(writer(), disk, PATH)
        await asyncio.to_thread(made.make, PARTS)
        disk.content(PATH)[100] ^= 1
        with pytest.raises(CorruptSpool):
            await read(made)

    play(scene)
