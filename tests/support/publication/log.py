"""A publication log, and readers that check what they get as workers do: nothing old, nothing that does not fit."""

from dataclasses import dataclass, field

from periplus.publication import (
    Admission,
    Assembler,
    Cursor,
    Derive,
    Publication,
    PublicationKind,
    PublicationLog,
    PublicationRecord,
    Send,
    admit,
)
from periplus.values.policy import Policy
from tests.support.publication.signed import Signer, digest_of, trust

ZERO = Signer()
ONE = Signer(fork=1)


def records(*publications: Publication) -> list[PublicationRecord]:
    return [record for publication in publications for record in publication.records()]


def new_log(max_bytes: int = 1000) -> PublicationLog:
    return PublicationLog(trust(), max_bytes=max_bytes, max_content_bytes=1000)


def feed(log: PublicationLog, *publications: Publication) -> list[Publication]:
    """Feed publications to a log, and return those that it handed out as complete."""
    done = [log.append(record) for record in records(*publications)]
    return [publication for publication in done if publication is not None]


def log_of(*publications: Publication, max_bytes: int = 1000) -> PublicationLog:
    log = new_log(max_bytes)
    feed(log, *publications)
    return log


def deltas(first: int, last: int, num_bytes: int = 6) -> list[Publication]:
    """Return the deltas from version `first` to version `last`, one by one."""
    return [ZERO.delta(version, version + 1, num_bytes) for version in range(first, last)]


@dataclass
class Reader:
    """A worker or gateway that follows a log. Where it may choose, it takes what the trainer signed."""

    cursor: Cursor
    have: Policy | None = None
    has_bundle: bool = False
    highest_fork: int = 0
    assembler: Assembler = field(default_factory=lambda: Assembler(trust(), max_content_bytes=1000))
    applied: list[str] = field(default_factory=list)

    def step(self, log: PublicationLog) -> bool:
        """Take one record, and return whether there was something to do."""
        match log.next(self.cursor):
            case Send(record, cursor):
                self.cursor = cursor
                self.take(record)
                return True
            case Derive(have, chain_bytes):
                assert have == self.have
                if chain_bytes is None:
                    return False
                self.cursor = log.along(self.cursor)
                return True
            case _:
                return False

    def follow(self, log: PublicationLog) -> list[str]:
        while self.step(log):
            pass
        return self.applied

    def take(self, record: PublicationRecord) -> None:
        done = self.assembler.feed(record)
        if done is not None:
            self._apply(done)

    def _apply(self, done: Publication) -> None:
        opening = done.opening
        self.applied.append(f"{'derived ' * opening.is_derived}{opening.kind} {opening.policy}")
        held_digest = b"" if self.have is None else digest_of(self.have)
        admission = admit(opening, newest=self.have, newest_digest=held_digest, highest_fork=self.highest_fork)
        assert admission is Admission.NEW, "a reader is never sent what it has"
        self.highest_fork = opening.policy.fork
        if opening.kind is PublicationKind.BUNDLE:
            assert not self.has_bundle
            self.has_bundle = True
            return
        assert self.has_bundle, "states come after the bundle"
        assert done.closing.state_digest == digest_of(opening.policy)
        self.have = opening.policy


def reader_of(
    log: PublicationLog, have: Policy | None = None, has_bundle: bool = False, *, distrust: bool = False
) -> Reader:
    return Reader(log.open(have, has_bundle, distrust=distrust), have, has_bundle, have.fork if have else 0)


def read(
    log: PublicationLog, have: Policy | None = None, has_bundle: bool = True, *, distrust: bool = False
) -> list[str]:
    return reader_of(log, have, has_bundle, distrust=distrust).follow(log)
