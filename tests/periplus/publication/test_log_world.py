"""Any interleaving of gateways, readers, deaths and forks: whoever follows the log ends with the newest state."""

from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from periplus.errors import CorruptFrame, Fenced, Forged, WrongBase
from periplus.publication import (
    Attestation,
    Derive,
    NeedsAnchor,
    Publication,
    PublicationKind,
    PublicationRecord,
    Send,
    Wait,
    derived_publication,
)
from periplus.values.policy import Policy
from tests.support.cases.examples import examples
from tests.support.publication.log import ONE, ZERO, Reader, new_log, reader_of, records
from tests.support.publication.signed import Signer, derived, digest_of


class Gateway:
    """A log with a copy that is always at the newest version: it can derive that, from nothing or from any version."""

    def __init__(self, max_bytes: int, max_chain: int) -> None:
        self.log = new_log(max_bytes)
        self.attestation: Attestation | None = None
        self.max_chain = max_chain
        self.anchor_is_wanted = False
        self.policies: list[Policy] = []

    def take(self, record: PublicationRecord) -> None:
        done = self.log.append(record)
        if done is not None and done.opening.kind is not PublicationKind.BUNDLE:
            self._advance(done)

    def take_derived(self, done: Publication) -> None:
        self.log.rebase(done.opening.policy, done.closing.state_digest)
        self._advance(done)

    def _advance(self, done: Publication) -> None:
        self.attestation = done.attestation
        self.policies.append(done.opening.policy)
        if len(self.policies) > self.max_chain:
            self.log.drop_before(self.policies[-self.max_chain])

    def made_for(self, have: Policy | None, fold: bool) -> Publication:
        assert self.attestation is not None
        base = have if fold and have is not None and have < self.attestation.opening.policy else None
        kind = PublicationKind.ANCHOR if base is None else PublicationKind.DELTA
        base_digest = b"" if base is None else digest_of(base)
        return derived_publication(self.attestation, kind=kind, base=base, base_digest=base_digest, parts=[b"made"])


@dataclass
class Follower:
    """A reader below a gateway; `choices` decides what it gets where there is a choice."""

    gateway: Gateway
    reader: Reader
    relay: Gateway | None = None
    num_choices: int = 0

    def step(self) -> bool:
        log, reader = self.gateway.log, self.reader
        match log.next(reader.cursor):
            case Send(record, cursor):
                reader.cursor = cursor
                self._take(record)
                return True
            case Derive(have, chain_bytes):
                self.num_choices += 1
                if chain_bytes is not None and self.num_choices % 3 == 0:
                    reader.cursor = log.along(reader.cursor)
                    return True
                made = self.gateway.made_for(have, fold=self.num_choices % 2 == 0)
                for record in made.records():
                    reader.take(record)
                if self.relay is not None:
                    self.relay.take_derived(made)
                reader.cursor = log.after(reader.cursor, made.opening.policy)
                return True
            case NeedsAnchor():
                self.gateway.anchor_is_wanted = True
                return False
            case Wait():
                return False

    def _take(self, record: PublicationRecord) -> None:
        self.reader.take(record)
        if self.relay is not None:
            self.relay.take(record)

    def reconnect(self, distrust: bool) -> None:
        old = self.reader
        if self.relay is not None:
            wants_anchor = self.relay.anchor_is_wanted
            cursor = self.gateway.log.open(
                self.relay.log.newest, self.relay.log.has_bundle, distrust=wants_anchor, wants_anchor=wants_anchor
            )
            self.reader = RelayReader(cursor)
            self.relay.anchor_is_wanted = False
            return
        have = None if distrust else old.have
        self.reader = reader_of(self.gateway.log, have, old.has_bundle, distrust=distrust)
        self.reader.highest_fork = old.highest_fork


class RelayReader(Reader):
    """A gateway as a reader: it takes what comes unchecked, since its own log checks it."""

    def _apply(self, done: Publication) -> None:
        self.have = done.opening.policy


class Publisher:
    """A trainer that follows the rules, dies at times, and publishes an anchor when it is asked to."""

    def __init__(self) -> None:
        self.signer, self.version, self.is_based = ZERO, 0, False
        self.queue: list[PublicationRecord] = records(ZERO.bundle())

    def publish(self, home: Gateway, action: str, number: int) -> None:
        if action == "die":
            self.send(home, number % (len(self.queue) + 1))
        else:
            self.send(home, len(self.queue))
        if action in ("die", "fork"):
            self.signer, self.version, self.is_based = Signer(self.signer.fork + 1), max(self.version - 1, 0), False
            self.queue = records(self.signer.bundle(self.version))
        if not self.is_based or action == "anchor" or home.anchor_is_wanted:
            self.version += action == "anchor" and number % 2
            self.queue += records(self.signer.anchor(self.version, number))
            home.anchor_is_wanted = False
        else:
            base, self.version = self.version, self.version + 1 + number % 2
            self.queue += records(self.signer.delta(base, self.version, number))
        self.is_based = True

    def send(self, home: Gateway, num_records: int) -> None:
        for record in self.queue[:num_records]:
            home.take(record)
        self.queue = self.queue[num_records:]


events = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["delta", "delta", "delta", "anchor", "fork", "die"]), st.integers(1, 30)),
        st.tuples(st.just("tick"), st.integers(1, 6)),
        st.tuples(st.just("join home"), st.booleans()),
        st.tuples(st.just("join relay"), st.booleans()),
        st.tuples(st.just("reconnect"), st.integers(0, 5)),
        st.tuples(st.just("distrust"), st.integers(1, 5)),
        st.tuples(st.just("read"), st.integers(1, 39)),
    ),
    max_size=50,
)


@settings(max_examples=examples(120), deadline=None)
@given(events, st.integers(5, 120), st.integers(1, 6))
def test_whoever_starts_at_any_time_and_follows_ends_with_the_newest_state(
    happened: list[tuple[str, int]], max_bytes: int, max_chain: int
) -> None:
    home, far, publisher = Gateway(max_bytes, max_chain), Gateway(max_bytes, max_chain), Publisher()
    followers = [Follower(home, RelayReader(home.log.open(None, False)), relay=far)]
    for what, number in happened:
        match what:
            case "tick":
                publisher.send(home, number)
            case "join home" | "join relay":
                gateway = home if what == "join home" else far
                followers.append(Follower(gateway, reader_of(gateway.log, distrust=bool(number))))
            case "reconnect" | "distrust":
                for follower in followers[number : number + 1]:
                    follower.reconnect(distrust=what == "distrust")
            case "read":
                for i, follower in enumerate(followers):
                    all(follower.step() for _ in range((number * (i + 1)) % 40))
            case _:
                publisher.publish(home, what, number)
    followers += [Follower(gateway, reader_of(gateway.log)) for gateway in (home, far)]
    publisher.publish(home, "delta", 7)
    for _ in range(5):
        publisher.send(home, 1000)
        _settle(followers)
        if home.anchor_is_wanted:
            publisher.publish(home, "delta", 7)  # it is an anchor
    for follower in followers:
        assert home.log.newest == far.log.newest == follower.reader.have


def _settle(followers: list[Follower]) -> None:
    for follower in (followers[0], *followers):
        while follower.step():
            pass
    if followers[0].relay is not None and followers[0].relay.anchor_is_wanted:
        followers[0].reconnect(distrust=True)


ANY = records(
    ZERO.bundle(),
    ZERO.anchor(0),
    ZERO.anchor(1),
    ZERO.delta(0, 1),
    ZERO.delta(1, 2, 9),
    ONE.anchor(1),
    ONE.bundle(),
    derived(ZERO.anchor(1)),
    Signer(job_id="job-2").anchor(1),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(ANY), max_size=40))
def test_records_in_any_order_are_taken_or_refused_with_a_typed_error(sent: list[PublicationRecord]) -> None:
    log = new_log(max_bytes=30)
    newest = Policy(0, 0)
    for record in sent:
        with suppress(CorruptFrame, Forged, Fenced, WrongBase):
            log.append(record)
        assert log.newest is None or log.newest >= newest, "never back"
        newest = log.newest or newest
    reader_of(log).follow(log)
