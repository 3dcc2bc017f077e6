"""Notes: small files that list the retired records of a spool, so that fewer of them come back after a restart.

    note    for each run of sequences: epoch u64, first sequence u64, end sequence u64, little-endian;
            then the first 8 bytes of BLAKE3 of these

A note is advisory and never synced; without it, retired records are merely read again. An old note is still true,
because a retired record stays retired and a position is never used twice: each opening takes an epoch above those of
its segments and its note. A damaged note is ignored. Files are named `<number>.retired`; the highest undamaged one
counts.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from blake3 import blake3

from periplus.spool.files import FileLayer, explained

Run = tuple[int, int, int]
"""A run of consecutive records: epoch, first sequence, and the sequence after the last."""

_RUN = struct.Struct("<QQQ")
_CHECKSUM_BYTES = 8
_NAME = re.compile(r"(\d{10})\.retired")


def runs_of(epoch: int, sequences: Iterable[int]) -> list[Run]:
    """Return the sequences of one epoch as runs, in order."""
    runs: list[Run] = []
    for sequence in sorted(sequences):
        if runs and runs[-1][2] == sequence:
            runs[-1] = (epoch, runs[-1][1], sequence + 1)
        else:
            runs.append((epoch, sequence, sequence + 1))
    return runs


def note_name(number: int) -> str:
    """Return the file name of a note."""
    return f"{number:010d}.retired"


def pack_note(runs: Sequence[Run]) -> bytes:
    """Return the bytes of a note that lists these runs."""
    data = b"".join(_RUN.pack(*run) for run in runs)
    return data + blake3(data).digest(length=_CHECKSUM_BYTES)


def unpack_note(note: bytes) -> list[Run]:
    """Return the runs that a note lists; none for a damaged note."""
    data = note[:-_CHECKSUM_BYTES]
    if len(data) % _RUN.size or note[-_CHECKSUM_BYTES:] != blake3(data).digest(length=_CHECKSUM_BYTES):
        return []
    return [(epoch, first, end) for epoch, first, end in _RUN.iter_unpack(data) if first < end]


def read_notes(layer: FileLayer, folder: Path) -> tuple[list[Run], list[int]]:
    """Return the runs of the newest undamaged note, and the numbers of all notes. Raises: StorageError."""
    with explained(folder):
        numbers = sorted(int(found[1]) for name in layer.names(folder) if (found := _NAME.fullmatch(name)))
        # A crash may have left the newest note torn; the one before it may still be there.
        for number in reversed(numbers):
            if runs := unpack_note(layer.read(folder / note_name(number))):
                return runs, numbers
    return [], numbers
