"""A reader with a real engine behind a scripted gateway: what it asks for, serves and reports, whatever goes wrong."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from periplus.errors import Fenced, Forged, PeriplusError, WrongBase
from periplus.publication import Publication, Trust
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from rollout_worker.engines.engine import OnSwap, SwapReport
from rollout_worker.engines.torch_engine import TorchEngine
from rollout_worker.weights.engine_updater import EngineUpdater, SwapSettings
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.reader import WeightReader
from rollout_worker.weights.serving import Serving
from rollout_worker.weights.subscription import (
    FAILURES_IN_A_ROW,
    REFUSALS_BEFORE_ANEW,
    SubscriptionRequest,
    SubscriptionState,
)
from rollout_worker.weights.version_report import VersionReport
from tests.support.gateway.scripted import DEADLINE_S, ScriptedGateway, Served, play, until
from tests.support.keys import AUTHORITY
from tests.support.publication.versions import JOB, Versions, flipped
from tests.support.tiny_engine import SEED, held_by, model_states, prober, tiny_engine, tiny_model

STATES = model_states(8)
V = Versions(STATES, probe=prober())
UP_PROJ = "model.layers.1.mlp.up_proj.weight"


@dataclass
class Scene:
    """A reader whose subscriptions follow each other at once, and what it reported."""

    gateway: ScriptedGateway
    reader: WeightReader
    updater: EngineUpdater
    proven: ProvenWeights
    serving: Serving
    model: Any
    engine: TorchEngine
    proofs: list[VersionReport] = field(default_factory=list)
    errors: list[PeriplusError] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self) -> None:
        while True:
            try:
                await self.reader.subscription()
            except PeriplusError as error:
                self.errors.append(error)
                await asyncio.sleep(0)

    async def waits(self, policy: Policy) -> None:
        """Until the host copy has it."""
        await until(lambda: self.proven.host.policy == policy)

    async def serves(self, policy: Policy) -> None:
        """A worker without leases: it swaps whenever it is woken, until its engine serves this policy."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await self.updater.update()
                if self.serving.policy == policy:
                    return
                await self.woken.wait()
                self.woken.clear()

    def told(self) -> list[tuple[int, bool]]:
        return [(proof.policy.version, proof.ok) for proof in self.proofs]

    def asked(self) -> list[tuple[int | None, bool]]:
        """Of each subscription: the version that it has, and whether it distrusts copies."""
        return [
            (None if request.have is None else request.have.version, request.distrusts_copies)
            for request in self.gateway.requests
        ]


@asynccontextmanager
async def scene(
    script: Callable[[SubscriptionRequest], Served], *, every: int = 100, model: Any = None
) -> AsyncIterator[Scene]:
    gateway = ScriptedGateway(script)
    model = model or tiny_model()
    engine, serving = tiny_engine(model), Serving()
    proven = ProvenWeights()

    async def report(proof: VersionReport) -> None:
        it.proofs.append(proof)

    trust = Trust(AUTHORITY.public_key, JOB)
    reader = WeightReader(proven, trust, gateway.subscribed, report, lambda: it.woken.set())
    settings = SwapSettings(on_swap=OnSwap.KEEP_KV, check_every_versions=every, probe_seed=SEED)
    updater = EngineUpdater(engine, proven, serving, report, settings)
    it = Scene(gateway, reader, updater, proven, serving, model, engine)
    running = asyncio.create_task(it.keep())
    try:
        yield it
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await engine.close()


def followed_to(newest: int) -> Callable[[SubscriptionRequest], Iterable[Publication]]:
    """A gateway that has everything of the trainer's."""

    def script(request: SubscriptionRequest) -> Iterable[Publication]:
        if request.have is None:
            return [V.anchor(0), *V.chain(0, newest)]
        return V.chain(request.have.version, newest)

    return script


def test_a_joiner_is_checked_before_it_serves_and_then_follows_version_by_version() -> None:
    async def run() -> None:
        async with scene(followed_to(0), every=3) as it:
            await it.serves(V.policy(0))
            assert it.proofs[-1].engine_checked
            assert it.proofs[-1].probe_max_difference < 1e-4
            for version in range(1, 5):
                it.gateway.publish(V.delta(version - 1, version))
                await it.serves(V.policy(version))
            assert it.told() == [(version, True) for version in range(5)]
            assert [proof.state_digest for proof in it.proofs] == [V.digest(version) for version in range(5)]
            assert [proof.engine_checked for proof in it.proofs] == [True, False, False, True, False]
            assert all(proof.pause_s > 0 and proof.apply_s > 0 and proof.transfer_s > 0 for proof in it.proofs)
            assert not any(proof.fallback for proof in it.proofs)
            assert held_by(it.model) == STATES[4]

    play(run)


def test_versions_that_came_since_the_last_swap_are_written_together_and_each_is_proven() -> None:
    async def run() -> None:
        async with scene(followed_to(0)) as it:
            await it.serves(V.policy(0))
            it.gateway.publish(*V.chain(0, 4))
            await it.waits(V.policy(4))
            assert it.serving.policy == V.policy(0), "nobody has updated it"
            assert held_by(it.model) == STATES[0]
            await it.updater.update()
            assert it.serving.policy == V.policy(4)
            assert held_by(it.model) == STATES[4]
            assert it.told() == [(version, True) for version in range(5)]
            assert [proof.pause_s > 0 for proof in it.proofs] == [True, False, False, False, True]

    play(run)


def test_versions_that_change_nearly_everything_are_written_whole_and_are_no_recovery() -> None:
    async def run() -> None:
        dense = Versions(model_states(3, density=0.9), probe=V.probe)
        async with scene(lambda request: [dense.anchor(0)]) as it:
            await it.serves(dense.policy(0))
            for version in (1, 2):
                it.gateway.publish(dense.delta(version - 1, version))
                # The host copy has a version a moment before it is pending.
                await until(lambda: it.proven.pending.is_whole)
                await it.serves(dense.policy(version))
                assert state_digest(held_by(it.model)) == dense.digest(version)
            assert [proof.engine_checked for proof in it.proofs] == [True, False, False]

    play(run)


def test_the_pause_is_what_the_engine_says_and_decoding_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves by what the decoding is said to take."""
    now_s = 0.0

    def takes(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            nonlocal now_s
            now_s += seconds
            return function(*arguments)

        return slow

    async def run() -> None:
        monkeypatch.setattr("periplus.clock.monotonic_s", lambda: now_s)
        async with scene(followed_to(0), every=2) as it:
            await it.serves(V.policy(0))
            swap = it.engine.swap

            async def paused(*arguments: Any) -> SwapReport:
                return replace(await swap(*arguments), pause_s=0.25)

            monkeypatch.setattr(it.engine, "swap", paused)
            monkeypatch.setattr(it.proven.host, "take", takes(100.0, it.proven.host.take))
            for version in (1, 2):
                it.gateway.publish(V.delta(version - 1, version))
                await it.serves(V.policy(version))
            assert [proof.pause_s for proof in it.proofs[1:]] == [0.25, 0.25]
            assert [proof.apply_s for proof in it.proofs[1:]] == [100.0, 100.0]

    play(run)


def test_waiting_for_a_swap_is_no_part_of_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    async def run() -> None:
        nonlocal now_s
        monkeypatch.setattr("periplus.clock.monotonic_s", lambda: now_s)
        async with scene(followed_to(0)) as it:
            await it.serves(V.policy(0))
            it.gateway.publish(V.delta(0, 1))
            async with it.proven.host_lock:
                await until(lambda: it.gateway.served[-1:] == [V.delta(0, 1).closing])
                now_s += 30.0
            await it.serves(V.policy(1))
            assert it.proofs[-1].apply_s == 0

    play(run)


@pytest.mark.parametrize("bit", [0, 23])
def test_one_bit_of_one_weight_in_the_engine_is_caught_and_healed_from_the_host_copy(bit: int) -> None:
    async def run() -> None:
        async with scene(followed_to(0), every=2) as it:
            await it.serves(V.policy(0))
            it.gateway.publish(V.delta(0, 1))
            await it.serves(V.policy(1))
            it.model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[5] ^= 1 << bit
            it.gateway.publish(V.delta(1, 2))
            await it.serves(V.policy(2))
            assert it.told() == [(0, True), (1, True), (2, False), (2, True)]
            assert it.proofs[2].why
            assert held_by(it.model) == STATES[2]
            assert it.asked() == [(None, False)], "it went over the network for what it had"

    play(run)


def test_an_engine_that_computes_with_another_tensor_is_caught_by_the_probe_and_never_serves() -> None:
    """The hash is right, and writing again does not help: the process must end."""

    async def run() -> None:
        async with scene(followed_to(0)) as it:
            layer = it.model.model.layers[0].mlp.up_proj
            layer.weight = torch.nn.Parameter(layer.weight.detach() * 1.01, requires_grad=False)
            with pytest.raises(PeriplusError, match="engine failed its check"):
                await it.serves(V.policy(0))
            assert it.serving.policy is None
            assert it.told() == [(0, False)] * FAILURES_IN_A_ROW
            assert all(proof.state_digest == V.digest(0) for proof in it.proofs)
            assert it.proofs[0].probe_mean_difference > 0
            assert it.asked()[1:] == [(None, True)] * (len(it.asked()) - 1)

    play(run)


def test_a_fault_that_passes_is_repaired_by_a_full_state_of_the_trainers_own_if_the_host_copy_is_bad_too() -> None:
    async def run() -> None:
        async with scene(followed_to(1), every=1) as it:
            await it.serves(V.policy(1))
            host, swap = it.proven.host, it.engine.swap

            async def bad_memory(*arguments: Any) -> SwapReport:
                report = await swap(*arguments)
                it.model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[7] ^= 1 << 20
                host.state[UP_PROJ].data[100] ^= 1
                return report

            it.engine.swap = bad_memory  # type: ignore[assignment,method-assign]
            it.gateway.publish(V.delta(1, 2))
            await it.waits(V.policy(2))
            await it.updater.update()
            assert it.serving.policy is None, "an engine that is not what was proven may serve"
            assert it.told()[-1] == (2, False)
            it.engine.swap = swap  # type: ignore[method-assign]
            it.gateway.script = followed_to(3)
            await it.serves(V.policy(3))
            assert it.asked() == [(None, False), (None, True)]
            assert held_by(it.model) == STATES[3]
            assert it.proofs[-1].engine_checked
            assert it.proofs[-1].fallback

    play(run)


def test_a_derived_way_that_leads_elsewhere_is_given_up_for_the_trainers_own_and_the_engine_serves_on() -> None:
    async def run() -> None:
        async with scene(followed_to(1)) as it:
            await it.serves(V.policy(1))
            it.gateway.script = followed_to(4)
            it.gateway.publish(V.derived_delta(1, 4, made=flipped(STATES[4], UP_PROJ, 9)))
            await until(lambda: (4, False) in it.told())
            assert it.serving.policy == V.policy(1), "its engine was not touched"
            assert held_by(it.model) == STATES[1]
            await it.serves(V.policy(4))
            assert it.asked() == [(None, False), (None, True)]
            assert held_by(it.model) == STATES[4]
            assert it.proofs[-1].engine_checked

    play(run)


def test_an_older_full_state_after_a_mismatch_does_not_set_the_engine_back() -> None:
    async def run() -> None:
        async with scene(followed_to(3)) as it:
            await it.serves(V.policy(3))
            it.gateway.script = followed_to(3)
            it.gateway.publish(V.derived_delta(3, 4, made=flipped(STATES[4], UP_PROJ)))
            await until(lambda: len(it.gateway.requests) == 2)
            await it.waits(V.policy(3))
            await it.updater.update()
            assert it.serving.policy == V.policy(3)
            it.gateway.publish(V.delta(3, 4))
            await it.serves(V.policy(4))
            assert [version for version, ok in it.told() if ok] in ([0, 1, 2, 3, 4], [3, 4], [2, 3, 4], [1, 2, 3, 4])
            assert it.proofs[-1].engine_checked
            assert held_by(it.model) == STATES[4]

    play(run)


def test_a_fold_from_a_state_that_is_older_than_the_engines_leaves_nothing_of_what_lies_between() -> None:
    states = [STATES[0], flipped(STATES[0], UP_PROJ, 5), flipped(STATES[0], UP_PROJ, 9)]
    versions = Versions(states, probe=prober())

    async def run() -> None:
        def script(request: SubscriptionRequest) -> Served:
            behind = len(it.gateway.requests) > 1
            return [versions.anchor(0)] if behind else [versions.anchor(0), versions.delta(0, 1)]

        async with scene(script) as it:
            await it.serves(versions.policy(1))
            it.proven.failures = SubscriptionState(num_refused=REFUSALS_BEFORE_ANEW)
            it.gateway.publish(V.delta(5, 6))
            await until(lambda: len(it.gateway.requests) == 2)
            await it.waits(versions.policy(0))
            await it.updater.update()
            it.gateway.publish(versions.derived_delta(0, 2))
            await it.serves(versions.policy(2))
            assert all(proof.ok for proof in it.proofs), it.proofs
            assert held_by(it.model) == states[2]

    play(run)


def test_mismatches_without_end_end_the_process() -> None:
    async def run() -> None:
        def script(request: SubscriptionRequest) -> Iterable[Publication]:
            return [V._derived(2, None, flipped(STATES[2], UP_PROJ))]

        async with scene(script) as it:
            with pytest.raises(PeriplusError, match="did not lead to the weights"):
                await it.serves(V.policy(2))
            assert it.told()[:FAILURES_IN_A_ROW] == [(2, False)] * FAILURES_IN_A_ROW

    play(run)


def test_refusals_without_end_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_worker.weights.subscription.REFUSALS_IN_A_ROW", 4)

    async def run() -> None:
        forged = [next(V.anchor(0).records()), *list(Versions(STATES).anchor(0).records())[1:]]
        async with scene(lambda request: forged) as it:
            with pytest.raises(PeriplusError, match="refused 4 times in a row"):
                await it.serves(V.policy(0))

    play(run)


def damaged(what: str) -> Served:
    """Version 2 for who has version 1, not as it should be."""
    other_key = Versions(STATES)
    good = list(V.delta(1, 2).records())
    forged = list(other_key.delta(1, 2).records())
    match what:
        case "forged":
            return [good[0], forged[1]]
        case "of another base":
            return [V.delta(5, 6)]
        case "rolled back":
            return [V.anchor(0)]
        case _:
            return [other_key.anchor(1)]


@pytest.mark.parametrize(
    ("what", "error"), [("forged", Forged), ("of another base", WrongBase), ("rolled back", Fenced), ("other", Fenced)]
)
def test_what_is_refused_is_counted_and_asked_for_again_from_what_is_held(
    what: str, error: type[PeriplusError]
) -> None:
    async def run() -> None:
        states = list(STATES)
        if what == "other":
            states[1] = flipped(STATES[1], UP_PROJ)
        num_bad = 1

        def script(request: SubscriptionRequest) -> Served:
            nonlocal num_bad
            if request.have is not None and num_bad:
                num_bad -= 1
                return [Versions(states).anchor(1)] if what == "other" else damaged(what)
            return followed_to(1 if request.have is None else 2)(request)

        async with scene(script) as it:
            await it.serves(V.policy(1))
            it.proven.again.set()
            await it.serves(V.policy(2))
            assert dict(it.reader.num_refused) == {error.__name__: 1}
            assert it.asked() == [(None, False), (1, False), (1, False)]
            assert all(ok for _, ok in it.told()), "what is refused is no mismatch"
            assert held_by(it.model) == STATES[2]

    play(run)


def test_what_is_refused_again_is_asked_for_from_nothing() -> None:
    async def run() -> None:
        def script(request: SubscriptionRequest) -> Served:
            return (
                damaged("of another base") if request.have is not None else followed_to(3 if it.proofs else 1)(request)
            )

        async with scene(script) as it:
            await it.serves(V.policy(1))
            it.proven.again.set()
            await it.serves(V.policy(3))
            assert it.asked() == [(None, False), (1, False), (1, False), (None, False)]
            assert held_by(it.model) == STATES[3]

    play(run)


def test_a_connection_that_breaks_after_any_record_costs_nothing_but_the_rest() -> None:
    """Each subscription lasts one record longer than the last one did."""

    async def run() -> None:
        num_records = 0

        def script(request: SubscriptionRequest) -> Served:
            nonlocal num_records
            num_records += 1
            every = [record for each in followed_to(3)(request) for record in each.records()]
            return [*every[:num_records], None] if num_records < len(every) else every

        async with scene(script) as it:
            await it.serves(V.policy(3))
            assert held_by(it.model) == STATES[3]
            assert not it.reader.num_refused
            have = [version for version, _ in it.asked() if version is not None]
            assert have == sorted(have), "what was proven was asked for again"
            assert len(it.gateway.requests) > 4

    play(run)


def test_weights_of_another_model_end_the_process() -> None:
    async def run() -> None:
        other = {name: tensor for name, tensor in STATES[0].items() if name != UP_PROJ}
        async with scene(lambda request: [Versions([other]).anchor(0)]) as it:
            with pytest.raises(WrongBase, match="up_proj"):
                await it.serves(V.policy(0))
            assert it.serving.policy is None

    play(run)


def test_a_new_fork_is_followed_and_the_old_one_refused() -> None:
    async def run() -> None:
        fork = Versions(STATES[5:], fork=1, first=2, probe=V.probe)
        async with scene(followed_to(3)) as it:
            await it.serves(V.policy(3))
            it.gateway.publish(fork.anchor(0), fork.delta(0, 1))
            await it.serves(fork.policy(1))
            assert any(proof.engine_checked for proof in it.proofs if proof.policy.fork == 1)
            it.gateway.publish(V.delta(3, 4))
            await until(lambda: it.reader.num_refused == {"Fenced": 1})
            await it.updater.update()
            assert it.serving.policy == fork.policy(1)
            assert state_digest(held_by(it.model)) == fork.digest(1)

    play(run)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_breaks_and_whenever_the_engine_ends_with_the_newest_weights_and_serves_no_others(seed: int) -> None:
    """Every version: a connection lost at any record, derived ways good and bad, bits flipped in host and engine."""
    rng = random.Random(seed)

    async def run() -> None:
        newest = 0

        def script(request: SubscriptionRequest) -> Served:
            have = None if request.have is None else request.have.version
            ways: list[list[Publication]] = [
                [V.anchor(0), *V.chain(0, newest)] if have is None else V.chain(have, newest)
            ]
            if not request.distrusts_copies and have != newest:
                made = STATES[newest] if rng.random() < 0.7 else flipped(STATES[newest], UP_PROJ, rng.randrange(40))
                ways.append([V.derived_anchor(newest) if have is None else V.derived_delta(have, newest, made=made)])
            records = [record for each in rng.choice(ways) for record in each.records()]
            return [*records[: rng.randrange(len(records))], None] if records and rng.random() < 0.3 else records

        async with scene(script, every=1) as it:
            await it.serves(V.policy(0))
            for newest in range(1, len(STATES)):
                if rng.random() < 0.3:
                    it.model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[rng.randrange(99)] ^= 1 << rng.randrange(
                        32
                    )
                if rng.random() < 0.3:
                    it.proven.host.state[UP_PROJ].data[rng.randrange(99)] ^= 1 << rng.randrange(8)
                if rng.random() < 0.5:
                    it.gateway.publish(V.delta(newest - 1, newest))
                else:
                    it.proven.again.set()
                await it.serves(V.policy(newest))
                assert held_by(it.model) == STATES[newest]
            last = {proof.policy.version: proof for proof in it.proofs}
            assert all(proof.ok and proof.state_digest == V.digest(version) for version, proof in last.items())

    play(run)
