"""The audit's journal as a write-ahead log: what the trainer decides is in its file before anybody acts on it.

Messages that follow from a decision are kept back until the lines before them are flushed, which takes as long as the
disk is full (disk_wait.py). A *milestone* is a line that the trainer waits for. Once the trainer's key is certified,
each milestone is sealed: a signature over the journal follows it (periplus/audit/seals.py).

Flushed lines survive this process. `sync_flushed` makes them survive the machine.
"""

from collections.abc import Callable

from periplus.audit.journal import AuditJournal, ChainEnd
from periplus.audit.records import Entry
from periplus.audit.seals import Sealer
from trainer.disk_wait import DiskWait
from trainer.intake.messages import DownMessage


class WriteAheadJournal:
    """The journal of one trainer, and the messages that wait for its lines.

    `send` passes a message on to the gateway. `wall` returns the seconds since 1970, for the lines.
    """

    def __init__(
        self, journal: AuditJournal, send: Callable[[DownMessage], None], disk: DiskWait, wall: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._send = send
        self._disk = disk
        self._wall = wall
        self._sealer: Sealer | None = None
        self._kept_back: list[DownMessage] = []

    @property
    def position(self) -> ChainEnd:
        """Number of the next line, and the hash of the line before it."""
        return self._journal.position

    def write(self, entry: Entry) -> int:
        """Append a line and return its number. It is flushed with the next milestone, or with `flush`."""
        return self._journal.append(entry, self._wall())

    def write_sealed(self, entry: Entry) -> None:
        """Append a line as `write` does, and its seal once the trainer's key is certified."""
        self._journal.append(entry, self._wall(), None if self._sealer is None else self._sealer.seal)

    def send_once_recorded(self, message: DownMessage) -> None:
        """Send a message after all lines that were written so far are flushed."""
        self._kept_back.append(message)

    def forget_messages(self) -> None:
        """Discard the messages that are kept back, because the connection that they belong to was lost."""
        self._kept_back.clear()

    async def write_milestone(self, entry: Entry) -> None:
        """Append a line as `write_sealed` does, and return once it would survive this process.

        Raises: DiskFull, as `flush`.
        """
        self.write_sealed(entry)
        await self.flush()

    async def begin_sealing(self, sealer: Sealer) -> None:
        """Sign the journal from its start, and from now on with each milestone.

        To be called when the trainer's key is certified. Raises: DiskFull, as `flush`.
        """
        await self.write_milestone(sealer.seal(*self._journal.position))
        self._sealer = sealer

    async def flush(self) -> None:
        """Flush all lines so far, and then send the messages that were kept back.

        Raises: DiskFull if the trainer is asked to stop while the disk is full.
        """
        await self._disk.write(self._flush)

    async def flush_patiently(self) -> None:
        """Flush as `flush` does, but keep waiting for a full disk after a stop, until the caller is cancelled."""
        await self._disk.write_patiently(self._flush)

    def sync_flushed(self) -> None:
        """Make the lines that were flushed survive the machine. It blocks for as long as the disk takes."""
        self._journal.sync_flushed()

    def _flush(self) -> None:
        self._journal.flush()
        # Not reached if the disk is full: the messages are then still kept back.
        kept_back, self._kept_back = self._kept_back, []
        for message in kept_back:
            self._send(message)
