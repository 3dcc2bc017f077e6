"""A real `vllm serve` with two stages of a pipeline, on two nodes of a real Ray cluster. The last test kills one.

vLLM's CPU build has no Ray executor, only because it does not know what Ray calls a CPU's device. A plugin of vLLM, as
hardware vendors write them, says that here: the cluster's nodes are started with one `GPU` each, which is a core.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from periplus.errors import CorruptFrame
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from rollout_worker.engines.engine import EngineDied, OnSwap
from rollout_worker.engines.vllm.http_backend import HttpBackend
from rollout_worker.engines.vllm.transfer_buffer import TransferBuffer
from rollout_worker.engines.vllm.vllm_engine import VllmEngine
from tests.support.engines.vllm.running import MAX_NEW_TOKENS, PROMPT_TOKENS, engine_of, request, started
from tests.support.engines.vllm.server import ROOT, VllmServer, vllm_servers
from tests.support.engines.vllm.small_model import VOCAB, SmallModel
from tests.support.processes.clusters import RayNodes, ray_nodes

pytestmark = [pytest.mark.vllm, pytest.mark.processes, pytest.mark.timeout(900)]

MAX_TOKENS = PROMPT_TOKENS + MAX_NEW_TOKENS + 1
LIMIT_S = 120.0
MEAN_NATS = 0.01
"""Difference of log-probabilities between bfloat16 and float32 that is rounding."""

SERVER = {
    "VLLM_USE_AOT_COMPILE": "0",
    # After which vLLM gives up a rank whose node is lost.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "15",
}

PLATFORM = """
from vllm.platforms.cpu import CpuPlatform
class CpuOfRay(CpuPlatform):
    ray_device_key = "GPU"
def name():
    return "cpu_of_ray.CpuOfRay"
"""


@dataclass(frozen=True)
class Spread:
    nodes: RayNodes
    server: VllmServer
    model: SmallModel


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    folder = tmp_path_factory.mktemp("ray")
    # A tied model: the last stage has a copy of the embedding.
    model = SmallModel(tied=True, num_versions=3, num_layers=4)
    model.export(folder / "final", max_file_bytes=1 << 16)
    about = folder / "plugin" / "cpu_of_ray-1.dist-info"
    about.mkdir(parents=True)
    (folder / "plugin" / "cpu_of_ray.py").write_text(PLATFORM)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-of-ray\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.platform_plugins]\ncpu_of_ray = cpu_of_ray:name\n")
    environment = {"PYTHONPATH": f"{ROOT}:{folder / 'plugin'}"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", environment["PYTHONPATH"])  # for the nodes
        patched.setenv("CUDA_VISIBLE_DEVICES", "0")  # Ray starts no node with devices that are hidden
        with (
            ray_nodes(folder, 2, "--num-gpus=1") as nodes,
            vllm_servers(
                folder / "final",
                MAX_TOKENS,
                1,
                # In eager mode the CPU build does not make the buffer of a later stage.
                ["--distributed-executor-backend", "ray", "--pipeline-parallel-size", "2", "--no-enforce-eager"],
                environment | nodes.variables | SERVER | {"RAY_ADDRESS": nodes.address},
            ) as (server,),
        ):
            yield Spread(nodes, server, model)


@asynccontextmanager
async def connected(spread: Spread) -> AsyncIterator[VllmEngine]:
    """An engine at version 0."""
    async with asyncio.timeout(LIMIT_S):
        backend = await HttpBackend.connect(spread.server.url, max_tokens=MAX_TOKENS, buffer_bytes=1 << 15)
        engine = engine_of(backend)
        try:
            await engine.swap(spread.model.whole(0), Policy(0, 0), OnSwap.KEEP_KV)
            yield engine
        finally:
            await engine.close()


@pytest.mark.parametrize("is_shared", [True, False])
def test_stages_on_two_nodes_take_a_chain_of_deltas_bit_for_bit(
    spread: Spread, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """Over shared memory, and as where a node cannot map it."""
    if not is_shared:
        monkeypatch.setattr(TransferBuffer, "path", Path("/dev/shm/not-on-this-machine"))
    model = spread.model

    async def work() -> None:
        async with connected(spread) as engine:
            assert engine._backend._is_shared == is_shared  # type: ignore[attr-defined]
            (task,) = await started(engine, [request(0, max_new_tokens=MAX_NEW_TOKENS)])
            for version in (1, 2):
                await engine.swap(model.changed(version - 1, version), Policy(0, version), OnSwap.KEEP_KV)
                assert await engine.digest() == state_digest(model.states[version])
            assert [run.policy.version for run in (await task).runs] == [0, 1, 2]
            ids = np.random.default_rng(1).integers(0, VOCAB, (4, 16))
            expected = np.array([model.logprobs(2, row) for row in ids.tolist()])
            assert np.abs(await engine.logprobs(ids) - expected).mean() < MEAN_NATS

    asyncio.run(work())


def test_stages_that_hold_different_embeddings_are_found(spread: Spread) -> None:
    async def work() -> None:
        async with connected(spread) as engine:
            await engine._backend._call("faulty_flip", ["model.embed_tokens.weight", 7, 1])  # type: ignore[attr-defined]
            with pytest.raises(CorruptFrame, match=r"ranks 0 and 1 of vLLM hold .* model\.embed_tokens\.weight"):
                await engine.digest()

    asyncio.run(work())


def test_a_node_that_dies_ends_the_engine(spread: Spread) -> None:
    """The last test of this module: it leaves no server."""

    async def work() -> None:
        async with connected(spread) as engine:
            tasks = await started(engine, [request(0, max_new_tokens=MAX_NEW_TOKENS)])
            spread.nodes.kill_node("n1")
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(each) for each in found] == [EngineDied], found
            with pytest.raises(EngineDied):
                await engine.swap(spread.model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV)

    asyncio.run(work())
