"""What was retired, written down now and then so that less of it comes back after a restart.

    note    (epoch u64, first sequence u64, end sequence u64) a run, little-endian, then the first 8 bytes of BLAKE3

Advisory: never synced, and without it only repeats come back. An old note is as true as a new one, since retiring is
for ever and positions are never used twice (an opening takes an epoch above those of its segments and of its note). A
note that is not whole is none. Files are named `<number>.retired`; the highest whole one counts.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from blake3 import blake3

from periplus.spool.files import FileLayer, explained

Run = tuple[int, int, int]
"""Epoch, first sequence, end sequence."""

_RUN = struct.Struct("<QQQ")
_CHECKSUM_BYTES = 8
_NAME = re.compile(r"(\d{10})\.retired")


def runs_of(epoch: int, sequences: Iterable[int]) -> list[Run]:
    """The sequences of one epoch as runs, in order."""
    runs: list[Run] = []
    for sequence in sorted(sequences):
        if runs and runs[-1][2] == sequence:
            runs[-1] = (epoch, runs[-1][1], sequence + 1)
        else:
            runs.append((epoch, sequence, sequence + 1))
    return runs


def note_name(number: int) -> str:
    return f"{number:010d}.retired"


def pack_note(runs: Sequence[Run]) -> bytes:
    data = b"".join(_RUN.pack(*run) for run in runs)
    return data + blake3(data).digest(length=_CHECKSUM_BYTES)


def unpack_note(note: bytes) -> list[Run]:
    """The inverse; nothing for a note that is not whole."""
    data = note[:-_CHECKSUM_BYTES]
    if len(data) % _RUN.size or note[-_CHECKSUM_BYTES:] != blake3(data).digest(length=_CHECKSUM_BYTES):
        return []
    return [(epoch, first, end) for epoch, first, end in _RUN.iter_unpack(data) if first < end]


def read_notes(layer: FileLayer, folder: Path) -> tuple[list[Run], list[int]]:
    """The newest whole note, and the numbers of all. Raises: StorageError."""
    with explained(folder):
        numbers = sorted(int(found[1]) for name in layer.names(folder) if (found := _NAME.fullmatch(name)))
        for number in reversed(numbers):
            if runs := unpack_note(layer.read(folder / note_name(number))):
                return runs, numbers
    return [], numbers
