"""The values of a spool: how durable its records are, and what they are called."""

from dataclasses import dataclass
from enum import StrEnum

Buffer = bytes | bytearray | memoryview

MAX_RECORD_BYTES = 512 << 20
"""Largest data of a record, in bytes. Chosen by hand, far above any frame and below SQLite's limit of 10^9."""


class Durability(StrEnum):
    """What a durable record survives: the death of the process (kill -9), or also that of the machine (power cut)."""

    PROCESS = "process"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The permanent name of one record in a spool.

    The epoch rises with each opening of the spool that writes. The sequence starts at 0 in each epoch and rises by one
    with each record.
    """

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sequence}"


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """A record and its position."""

    position: Position
    data: bytes
