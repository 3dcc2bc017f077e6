"""The engine's updates without a subscription: versions are proven in the host copy by hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

from periplus.errors import PeriplusError
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from periplus.values.weight_state import WeightState
from rollout_worker.engines.engine import (
    ChangedElements,
    Engine,
    EngineDied,
    OnSwap,
    SwapReport,
    WeightChange,
    WholeState,
)
from rollout_worker.weights.engine_updater import EngineUpdater, SwapSettings
from rollout_worker.weights.incoming import Incoming
from rollout_worker.weights.pending_versions import Version
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.serving import ServedRequest, Serving
from rollout_worker.weights.subscription import REFUSALS_IN_A_ROW
from rollout_worker.weights.version_report import VersionReport
from tests.support.engines.scripted import ScriptedEngine
from tests.support.publication.versions import Versions
from tests.support.tiny_engine import SEED, held_by, model_states, prober, tiny_engine, tiny_model

STATES = model_states(4)
V = Versions(STATES, probe=prober())
UP_PROJ = "model.layers.1.mlp.up_proj.weight"


class ForgetfulEngine(ScriptedEngine):
    """It takes whole states, and loses changed elements unless a test sets what it holds."""

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        report = await super().swap(change, policy, on_swap)
        if isinstance(change, WholeState):
            self.holds(change.state)
        return report

    def holds(self, state: WeightState) -> None:
        self.held_digest, self.probe = state_digest(state), np.array(V.probe(state), dtype=np.float32)


class Scene:
    """An engine, what is proven for it, and every report of the updater."""

    def __init__(self, engine: Engine, *, check_every_versions: int, on_swap: OnSwap) -> None:
        self.weights, self.serving = ProvenWeights(), Serving()
        self.reports: list[VersionReport] = []
        settings = SwapSettings(on_swap=on_swap, check_every_versions=check_every_versions, probe_seed=SEED)
        self.updater = EngineUpdater(engine, self.weights, self.serving, self._report, settings)
        self._incoming = Incoming(V.trust, self.weights.host, highest_fork=0, distrust=False, max_content_bytes=1 << 24)

    async def _report(self, report: VersionReport) -> None:
        self.reports.append(report)

    def prove(self, *versions: int) -> None:
        """Bring the host copy to these versions, the first of all by a full state."""
        for version in versions:
            publication = V.anchor(version) if self.weights.host.policy is None else V.delta(version - 1, version)
            for record in publication.records():
                if isinstance(proven := self._incoming.take(record), Version):
                    self.weights.proven(proven)

    def told(self) -> list[tuple[int, bool, bool]]:
        return [(report.policy.version, report.ok, report.engine_checked) for report in self.reports]

    def result(self, request: ServedRequest, *versions: int) -> "asyncio.Future[bool]":
        """A result with tokens of these versions comes; return whether it may be used, once that is known."""
        runs = [PolicyRun(V.policy(version), 1) for version in versions]
        return asyncio.ensure_future(self.serving.verdict(request, runs))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def real(scene: Callable[[Scene, Any], Awaitable[None]], *, check_every_versions: int = 100) -> None:
    """Run a scene with the torch engine of a model."""

    async def run() -> None:
        model = tiny_model()
        engine = tiny_engine(model)
        try:
            async with asyncio.timeout(60):
                it = Scene(engine, check_every_versions=check_every_versions, on_swap=OnSwap.KEEP_KV)
                await scene(it, model)
        finally:
            await engine.close()

    asyncio.run(run())


def scripted(
    scene: Callable[[Scene, ForgetfulEngine], Awaitable[None]],
    *,
    check_every_versions: int = 100,
    on_swap: OnSwap = OnSwap.KEEP_KV,
) -> None:
    """Run a scene with an engine that does what the scene says."""

    async def run() -> None:
        engine = ForgetfulEngine()
        it = Scene(engine, check_every_versions=check_every_versions, on_swap=on_swap)
        async with asyncio.timeout(60):
            await scene(it, engine)

    asyncio.run(run())


def test_without_a_new_version_an_update_reports_nothing() -> None:
    async def scene(it: Scene, model: Any) -> None:
        await it.updater.update()
        assert (it.reports, it.serving.policy) == ([], None)

    real(scene)


def test_an_update_goes_to_the_newest_version_and_reports_those_that_it_skipped() -> None:
    async def scene(it: Scene, model: Any) -> None:
        it.prove(0)
        await it.updater.update()
        it.prove(1, 2)
        await it.updater.update()
        assert it.told() == [(0, True, True), (1, True, False), (2, True, False)]
        assert it.serving.policy == V.policy(2)
        assert held_by(model) == STATES[2]

    real(scene)


def test_an_engine_whose_memory_changed_is_written_again_from_the_host_copy() -> None:
    async def scene(it: Scene, model: Any) -> None:
        it.prove(0)
        await it.updater.update()
        model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[5] ^= 1 << 20
        it.prove(1)
        await it.updater.update()
        assert it.told() == [(0, True, True), (1, False, True), (1, True, True)]
        assert held_by(model) == STATES[1]
        assert it.weights.failures.num_engine_faults == 0

    real(scene, check_every_versions=1)


def test_an_engine_that_cannot_be_repaired_does_not_serve_and_the_reader_must_subscribe_again() -> None:
    async def scene(it: Scene, model: Any) -> None:
        it.prove(0)
        await it.updater.update()
        model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[5] ^= 1 << 20
        it.prove(1)
        it.weights.host.state[UP_PROJ].data[100] ^= 1
        await it.updater.update()
        assert it.serving.policy is None
        assert it.weights.again.is_set()
        assert it.weights.host.policy is None
        assert it.weights.failures.num_engine_faults == 1

    real(scene, check_every_versions=1)


def test_an_engine_that_the_trainer_doubts_is_written_again_also_without_a_new_version() -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.updater.doubt("too early", starts_anew=False)
        await it.updater.update()
        assert it.told() == []  # there is nothing yet that could be written

        it.prove(0)
        await it.updater.update()
        engine.holds(STATES[2])
        it.prove(1)
        it.updater.doubt("its samples are of other weights", starts_anew=False)
        await it.updater.update()
        assert it.told() == [(0, True, True), (0, False, True), (1, True, True)]
        assert it.reports[1].why == "its samples are of other weights"
        assert engine.held_digest == state_digest(STATES[1])
        assert it.serving.policy == V.policy(1)

        it.updater.doubt("again", starts_anew=True)
        with pytest.raises(PeriplusError, match=r"found again .*: again"):
            await it.updater.update()
        assert it.told()[3:] == [(1, False, True)]

    scripted(scene)


def test_failures_that_cannot_be_mended_end_the_process_at_the_next_update() -> None:
    async def scene(it: Scene, model: Any) -> None:
        for _ in range(REFUSALS_IN_A_ROW):
            it.weights.refused(is_derived=False)
        with pytest.raises(PeriplusError, match=f"refused {REFUSALS_IN_A_ROW} times in a row"):
            await it.updater.update()

    real(scene)


def test_a_sound_engine_gets_what_changed_and_a_new_one_everything() -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        await it.updater.update()
        it.prove(1, 2)
        await it.updater.update()
        (first, _, whole), (second, on_swap, changes) = engine.swapped
        assert (first, second, on_swap) == (V.policy(0), V.policy(2), OnSwap.REPREFILL)
        assert isinstance(whole, WholeState)
        assert isinstance(changes, ChangedElements)
        assert len(changes.staged) == 2
        assert [report.pause_s for report in it.reports] == [0.25, 0.0, 0.25]

    scripted(scene, on_swap=OnSwap.REPREFILL)


def test_nothing_begins_before_the_first_check_has_passed() -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        engine.checking.clear()
        updating = asyncio.ensure_future(it.updater.update())
        await settled()
        assert engine.swapped
        assert it.serving.policy is None
        engine.checking.set()
        await updating
        assert it.serving.policy == V.policy(0)

    scripted(scene)


def test_requests_go_on_during_a_check_and_only_results_of_that_version_wait_for_it() -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        await it.updater.update()
        it.prove(1)
        engine.checking.clear()
        engine.holds(STATES[1])
        updating = asyncio.ensure_future(it.updater.update())
        await settled()
        assert it.serving.policy == V.policy(1), "new requests begin with the version that is checked"
        with it.serving.request("a", 0) as a, it.serving.request("b", 0) as b:
            old, mixed = it.result(a, 0), it.result(b, 0, 1)
            await settled()
            assert (old.done(), mixed.done()) == (True, False)
            engine.checking.set()
            assert await mixed
            assert await old
        await updating
        assert engine.aborted == []
        assert it.told() == [(0, True, True), (1, True, True)]

    scripted(scene, check_every_versions=1)


@pytest.mark.parametrize("is_repaired", [True, False])
def test_a_version_that_fails_its_check_costs_every_result_in_doubt_and_every_request(is_repaired: bool) -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        await it.updater.update()
        it.prove(1)
        engine.checking.clear()
        updating = asyncio.ensure_future(it.updater.update())  # the engine still holds version 0
        await settled()
        with it.serving.request("waits", 0) as waits, it.serving.request("runs", 0) as runs:
            provisional = it.result(waits, 1)
            if not is_repaired:
                it.weights.host.state[UP_PROJ].data[100] ^= 1
            engine.checking.set()
            await updating
            assert not await provisional
            assert not await it.result(runs, 0), "it was under way when the engine failed"
        assert engine.aborted == ["waits", "runs"]
        assert it.serving.policy == (V.policy(1) if is_repaired else None)
        assert it.told()[1] == (1, False, True)

    scripted(scene, check_every_versions=1)


@pytest.mark.parametrize("on_swap", [OnSwap.KEEP_KV, OnSwap.DRAIN])
def test_a_write_that_fails_half_way_is_a_fault_of_the_engine_and_is_repaired(on_swap: OnSwap) -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        await it.updater.update()
        it.prove(1)
        engine.swap_error = RuntimeError("the device hiccuped")
        with it.serving.request("a", 0) as request:
            await it.updater.update()
            assert not await it.result(request, 0)
        assert it.told() == [(0, True, True), (1, False, True), (1, True, True)]
        assert "the device hiccuped" in it.reports[1].why
        assert isinstance(engine.swapped[-1][2], WholeState)
        assert it.serving.policy == V.policy(1)

    scripted(scene, on_swap=on_swap)


@pytest.mark.parametrize("at", ["swap", "digest"])
def test_an_engine_that_died_ends_the_updates_at_once(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def died(*_: object) -> None:
        raise EngineDied("the core was killed")

    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        monkeypatch.setattr(engine, at, died)
        with pytest.raises(EngineDied, match="killed"):
            await it.updater.update()
        assert it.serving.policy is None

    scripted(scene)


def test_a_new_fork_aborts_the_requests_of_the_old_one_before_it_is_written() -> None:
    async def scene(it: Scene, engine: ForgetfulEngine) -> None:
        it.prove(0)
        await it.updater.update()
        fork = Versions(STATES[1:], fork=1, first=0, probe=V.probe)
        for record in fork.anchor(0).records():
            if isinstance(proven := it._incoming.take(record), Version):
                it.weights.proven(proven)
        with it.serving.request("0.1", 0):
            await it.updater.update()
        assert engine.aborted == ["0.1"]
        assert it.serving.policy == Policy(1, 0)

    scripted(scene)
