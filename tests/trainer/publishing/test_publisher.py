"""The publisher over a link that a test can hold back: order, overlap, bounds, and what is on record when."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest
import torch

from periplus.audit import records as audit
from periplus.audit.seals import Sealer
from periplus.codec.weights.decoder import decode
from periplus.codec.weights.encoder import Encoder
from periplus.publication import (
    Assembler,
    Chunk,
    Closing,
    Opening,
    Publication,
    PublicationKind,
    PublicationRecord,
    PublisherKey,
    Trust,
)
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import NUM_LOGPROBS, probe_prompts
from periplus.values.weight_state import WeightState
from tests.support.keys import AUTHORITY
from tests.support.publication.signed import payload_parts
from tests.support.trainer.reader_proofs import proof_of
from trainer.publishing import publish, publisher
from trainer.publishing.publish import Bundle
from trainer.publishing.publisher import Publisher
from trainer.publishing.trained_weights import weights_of
from trainer.reporting.delivery import ReaderProof, Sent

JOB = "job-1"
DEADLINE_S = 200.0
BUNDLE = Bundle(payload=b"tokenizer", content_bytes=9)


class Link:
    """Takes a record whenever `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.log: list[object] = []
        self.published: list[Publication] = []
        self.num_asked = 0
        self._assembler = Assembler(Trust(AUTHORITY.public_key, JOB), max_content_bytes=1 << 30)

    async def publish(self, record: PublicationRecord) -> None:
        self.num_asked += 1
        await self.open.wait()
        self.log.append(record)
        publication = self._assembler.feed(record)
        if publication is not None:
            self.published.append(publication)

    @property
    def names(self) -> list[str]:
        return [f"{each.opening.kind} {each.opening.policy}" for each in self.published]


class FakeJournal:
    def __init__(self, log: list[object]) -> None:
        self._log = log

    async def begin_sealing(self, sealer: Sealer) -> None:
        self._log.append(sealer)

    async def write_milestone(self, record: audit.Entry) -> None:
        self._log.append(record)


class FakeRecorder:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.proofs: list[ReaderProof] = []
        self.mismatches = 0

    def add_publication(self, sent: Sent) -> None:
        self.sent.append(sent)

    def add_proof(self, worker_id: str, proof: ReaderProof, held_after_s: float | None) -> None:
        self.proofs.append(proof)

    def count_mismatch(self) -> None:
        self.mismatches += 1


class Scene:
    def __init__(self, model: Any) -> None:
        self.model, self.link, self.recorder, self.key = model, Link(), FakeRecorder(), PublisherKey.generate()
        self.journal = FakeJournal(self.link.log)
        self.done: list[Policy] = []
        link: Any = self.link
        journal: Any = self.journal
        recorder: Any = self.recorder
        self.publisher = Publisher(
            JOB,
            weights_of(model),
            Policy(0, 0),
            key=self.key,
            link=link,
            journal=journal,
            recorder=recorder,
            prompts_RP=probe_prompts(1, model.config.vocab_size),
            num_threads=1,
            now=lambda: 0.0,
        )

    async def begin(self) -> None:
        await self.publisher.first(BUNDLE, AUTHORITY.certify(JOB, 0, self.key.public_key))

    async def hand(self, version: int) -> None:
        policy = Policy(0, version)
        await self.publisher.next_version(policy, lambda _: self.done.append(policy))

    def step(self, size: float = 1e-3) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 + size)

    def replace_all(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn_like(parameter))


def play(scene: Scene, act: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.publisher.run())
            await scene.begin()
            await act()
            running.cancel()

    asyncio.run(run())


async def settle(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  # threads have no event for it
        await asyncio.sleep(0.001)


@pytest.fixture
def scene(model: Any) -> Iterator[Scene]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield Scene(model)


def test_a_fork_begins_with_the_bundle_and_a_full_state_and_goes_on_in_deltas(scene: Scene) -> None:
    states = {0: publish.bf16_state(scene.model)}

    async def act() -> None:
        for version in (1, 2):
            scene.step()
            states[version] = publish.bf16_state(scene.model)
            await scene.hand(version)
        await scene.publisher.drained()

    play(scene, act)
    assert scene.link.names == ["bundle 0.0", "anchor 0.0", "delta 0.1", "delta 0.2"]
    held = None
    for version, publication in enumerate(scene.link.published[1:]):
        held = decode(held, payload_parts(publication), max_content_bytes=publication.opening.content_bytes)
        assert held == states[version]
        assert publication.closing.state_digest == state_digest(held)
        assert len(publication.closing.probe_logprobs) == NUM_LOGPROBS
    assert scene.publisher.digest == state_digest(states[2])
    assert scene.done == [Policy(0, 1), Policy(0, 2)]
    assert [sent.is_delta for sent in scene.recorder.sent] == [False, True, True]
    assert [sent.payload_bytes for sent in scene.recorder.sent] == [p.payload_bytes for p in scene.link.published[1:]]
    assert 0 < scene.recorder.sent[1].num_changed <= scene.recorder.sent[1].num_elements


def test_a_version_is_on_record_before_its_closing_leaves(scene: Scene) -> None:
    async def act() -> None:
        scene.step()
        await scene.hand(1)
        await scene.publisher.drained()

    play(scene, act)
    of_version = [type(each) for each in scene.link.log if not isinstance(each, Chunk)]
    assert of_version == [
        Sealer,
        Opening,
        Closing,
        audit.PublishEntry,
        Opening,
        Closing,
        Opening,
        audit.PublishEntry,
        Closing,
    ], "and the journal is signed before anything is published"


def test_training_may_go_on_while_a_version_is_encoded_and_sent(scene: Scene) -> None:
    async def act() -> None:
        scene.step()
        expected = state_digest(publish.bf16_state(scene.model))
        scene.link.open.clear()
        await scene.hand(1)
        scene.replace_all()
        scene.link.open.set()
        await scene.publisher.drained()
        assert scene.link.published[-1].closing.state_digest == expected

    play(scene, act)


def test_no_more_than_one_version_waits_or_is_on_its_way(scene: Scene) -> None:
    async def act() -> None:
        scene.link.open.clear()
        await scene.hand(1)
        second = asyncio.create_task(scene.hand(2))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not second.done()
        scene.link.open.set()
        await second
        await scene.publisher.drained()

    play(scene, act)
    assert scene.link.names[2:] == ["delta 0.1", "delta 0.2"]


def test_the_next_part_is_encoded_while_one_waits_to_be_sent_and_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []

    class InNine(Encoder):
        num_parts = 9

        def parts(self) -> Generator[bytes, None, None]:
            whole = b"".join(super().parts())
            for index in range(self.num_parts):
                encoded.append(index)
                yield whole[index::9]

    async def act() -> None:
        monkeypatch.setattr(publisher, "Encoder", InNine)
        scene.step()
        records = len(scene.link.log)
        await scene.hand(1)
        await settle(lambda: len(scene.link.log) > records)
        scene.link.open.clear()
        await settle(lambda: len(encoded) >= 2)
        before = len(scene.link.log)
        for _ in range(50):
            await asyncio.sleep(0.001)
        chunks = [each for each in scene.link.log[records:] if isinstance(each, Chunk)]
        assert len(scene.link.log) == before
        assert len(encoded) <= len(chunks) + 2 < InNine.num_parts
        scene.link.open.set()
        await scene.publisher.drained()

    play(scene, act)
    assert encoded == list(range(9))
    assert len(scene.link.published[-1].chunks) == 9


def test_who_asks_gets_a_full_state_of_the_newest_version(scene: Scene) -> None:
    async def act() -> None:
        scene.step()
        await scene.hand(1)
        await scene.publisher.drained()
        scene.publisher.want_anchor()
        await settle(lambda: len(scene.link.published) == 4)

    play(scene, act)
    assert scene.link.names[2:] == ["delta 0.1", "anchor 0.1"]
    delta, anchor = scene.link.published[2:]
    assert anchor.closing.state_digest == delta.closing.state_digest
    assert anchor.closing.probe_logprobs == delta.closing.probe_logprobs


def test_over_a_new_connection_the_bundle_and_the_newest_state_come_before_the_next_version(scene: Scene) -> None:
    async def act() -> None:
        scene.step()
        await scene.hand(1)
        await scene.publisher.drained()
        scene.publisher.begin_anew()
        scene.step()
        await scene.hand(2)
        await scene.publisher.drained()

    play(scene, act)
    assert scene.link.names[2:] == ["delta 0.1", "bundle 0.0", "anchor 0.1", "delta 0.2"]
    assert scene.link.published[3] == scene.link.published[0], "a repeat, to the byte"


def test_a_full_state_that_was_under_way_when_the_connection_was_lost_is_sent_again(scene: Scene) -> None:
    async def act() -> None:
        scene.replace_all()
        scene.link.open.clear()
        num_asked = scene.link.num_asked
        await scene.hand(1)
        await settle(lambda: scene.link.num_asked > num_asked)
        scene.publisher.begin_anew()
        scene.link.open.set()
        await settle(lambda: len(scene.link.published) == 5)

    play(scene, act)
    assert scene.link.names[2:] == ["anchor 0.1", "bundle 0.0", "anchor 0.1"]


def test_an_anchor_that_is_asked_for_before_the_first_publication_waits_for_it(scene: Scene) -> None:
    scene.publisher.want_anchor()

    async def act() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)

    play(scene, act)
    assert scene.link.names == ["bundle 0.0", "anchor 0.0"]


def test_the_first_full_state_answers_who_asked_while_it_was_on_its_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(scene.publisher.run())

            async def behind_the_bundle(record: audit.Entry) -> None:
                scene.link.open.clear()

            monkeypatch.setattr(scene.journal, "write_milestone", behind_the_bundle)
            beginning = tasks.create_task(scene.begin())
            await settle(lambda: not scene.link.open.is_set())
            scene.publisher.want_anchor()
            await asyncio.sleep(0.001)
            monkeypatch.undo()
            scene.link.open.set()
            await beginning
            scene.step()
            await scene.hand(1)
            await scene.publisher.drained()
            for _ in range(50):
                await asyncio.sleep(0.001)
            running.cancel()

    asyncio.run(run())
    assert scene.link.names == ["bundle 0.0", "anchor 0.0", "delta 0.1"]


def test_nothing_large_is_done_before_the_first_publication_and_then_in_a_thread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    digested: list[bool] = []

    def digest(state: WeightState) -> bytes:
        digested.append(threading.current_thread() is threading.main_thread())
        return state_digest(state)

    monkeypatch.setattr(publisher, "state_digest", digest)
    again = Scene(scene.model)
    assert digested == []

    async def act() -> None:
        again.step()
        await again.hand(1)
        await again.publisher.drained()

    play(again, act)
    assert digested == [False, False]


def test_where_everything_is_new_the_version_is_a_full_state_and_answers_who_asked(scene: Scene) -> None:
    async def act() -> None:
        scene.replace_all()
        scene.link.open.clear()
        await scene.hand(1)
        scene.publisher.want_anchor()
        scene.link.open.set()
        await scene.publisher.drained()
        for _ in range(20):
            await asyncio.sleep(0.001)

    play(scene, act)
    assert scene.link.names[2:] == ["anchor 0.1"]
    assert scene.link.published[-1].opening.base is None
    assert "delta_density" not in scene.recorder.sent[-1].values()


def test_whether_a_delta_pays_is_asked_until_one_did_and_again_when_one_did_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    pays = publish.delta_pays

    def ask(base: WeightState, state: WeightState) -> bool:
        asked.append(len(scene.link.published))
        return pays(base, state)

    async def act() -> None:
        monkeypatch.setattr(publish, "delta_pays", ask)
        for version, change in enumerate((scene.step, scene.step, scene.replace_all, scene.replace_all, scene.step), 1):
            change()
            await scene.hand(version)
            await scene.publisher.drained()

    play(scene, act)
    assert scene.link.names[2:] == ["delta 0.1", "delta 0.2", "delta 0.3", "anchor 0.4", "delta 0.5"]
    assert asked == [2, 5, 6]


def test_a_state_whose_probe_is_no_number_is_published_without_one(scene: Scene) -> None:
    async def act() -> None:
        with torch.no_grad():
            next(scene.model.parameters()).fill_(float("nan"))
        await scene.hand(1)
        await scene.publisher.drained()

    play(scene, act)
    assert scene.link.published[-1].closing.probe_logprobs == ()
    assert scene.link.published[-1].opening.kind is PublicationKind.DELTA


def test_proofs_are_compared_with_what_was_published(scene: Scene) -> None:
    here, elsewhere = Policy(0, 0), Policy(0, 7)

    async def act() -> None:
        digest = scene.publisher.digest
        for proof in (
            proof_of(here, digest, pause_s=0.25, transfer_s=float("nan")),
            proof_of(here, b"other"),
            proof_of(here, digest, ok=False, why="one weight was changed"),
            proof_of(elsewhere, b"of a version long gone"),
        ):
            scene.publisher.on_proof("w0", proof)

    play(scene, act)
    assert scene.recorder.mismatches == 2
    assert len(scene.recorder.proofs) == 4
    assert scene.recorder.proofs[0].pause_s == 0.25
