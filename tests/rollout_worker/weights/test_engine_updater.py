"""The engine's updates without a subscription: versions are proven in the host copy by hand."""

import asyncio
from typing import Any

import pytest
import torch

from periplus.errors import PeriplusError
from periplus.values.weight_state import WeightState
from rollout_worker.weights.engine_updater import EngineUpdater
from rollout_worker.weights.engine_writer import EngineWeights
from rollout_worker.weights.incoming import Incoming
from rollout_worker.weights.pending_versions import Version
from rollout_worker.weights.proven_weights import ProvenWeights
from rollout_worker.weights.subscription import REFUSALS_IN_A_ROW
from rollout_worker.weights.version_report import VersionReport
from tests.support.tiny_engine import SEED, model_states, prober, tiny_engine, tiny_model
from tests.support.versions import Versions

STATES = model_states(4)
V = Versions(STATES, probe=prober())
UP_PROJ = "model.layers.1.mlp.up_proj.weight"


class Scene:
    """A model, what is proven for it, and every report of the updater."""

    def __init__(self, *, check_every_versions: int = 100) -> None:
        self.model: Any = tiny_model()
        self.weights = ProvenWeights()
        self.reports: list[VersionReport] = []
        engine = EngineWeights(tiny_engine(self.model), SEED)
        self.updater = EngineUpdater(engine, self.weights, self._report, check_every_versions=check_every_versions)
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

    def held(self) -> WeightState:
        return EngineWeights(tiny_engine(self.model), SEED).read()


def swap(scene: Scene) -> None:
    asyncio.run(scene.updater.swap())


def test_without_a_new_version_a_swap_reports_nothing() -> None:
    scene = Scene()
    swap(scene)
    assert (scene.reports, scene.updater.policy) == ([], None)


def test_a_swap_goes_to_the_newest_version_and_reports_those_that_it_skipped() -> None:
    scene = Scene()
    scene.prove(0)
    swap(scene)
    scene.prove(1, 2)
    swap(scene)
    assert scene.told() == [(0, True, True), (1, True, False), (2, True, False)]
    assert scene.updater.policy == V.policy(2)
    assert scene.held() == STATES[2]


def test_an_engine_whose_memory_changed_is_written_again_from_the_host_copy() -> None:
    scene = Scene(check_every_versions=1)
    scene.prove(0)
    swap(scene)
    scene.model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[5] ^= 1 << 20
    scene.prove(1)
    swap(scene)
    assert scene.told() == [(0, True, True), (1, False, True), (1, True, True)]
    assert scene.held() == STATES[1]
    assert scene.weights.failures.num_engine_faults == 0


def test_an_engine_that_cannot_be_repaired_does_not_serve_and_the_reader_must_subscribe_again() -> None:
    scene = Scene(check_every_versions=1)
    scene.prove(0)
    swap(scene)
    scene.model.get_parameter(UP_PROJ).view(torch.int32).view(-1)[5] ^= 1 << 20
    scene.prove(1)
    scene.weights.host.state[UP_PROJ].data[100] ^= 1
    swap(scene)
    assert scene.updater.policy is None
    assert scene.weights.again.is_set()
    assert scene.weights.host.policy is None
    assert scene.weights.failures.num_engine_faults == 1


def test_failures_that_cannot_be_mended_end_the_process_at_the_next_swap() -> None:
    scene = Scene()
    for _ in range(REFUSALS_IN_A_ROW):
        scene.weights.refused(is_derived=False)
    with pytest.raises(PeriplusError, match=f"refused {REFUSALS_IN_A_ROW} times in a row"):
        swap(scene)
