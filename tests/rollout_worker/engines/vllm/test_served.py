"""Two real `vllm serve`s of an exported model, over HTTP, one alone and both as one. The last two tests kill them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import psutil
import pytest

from periplus import clock
from periplus.errors import ConfigError, CorruptFrame, Unreachable
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd, EngineDied, OnSwap
from rollout_worker.engines.replicated_engine import ReplicatedEngine
from rollout_worker.engines.vllm import http_backend
from rollout_worker.engines.vllm.http_backend import HttpBackend
from rollout_worker.engines.vllm.http_routes import TokensRoute
from rollout_worker.engines.vllm.served import served_engine
from rollout_worker.engines.vllm.transfer_buffer import TransferBuffer
from rollout_worker.engines.vllm.vllm_engine import VllmEngine
from tests.support.engines.vllm.running import (
    LIMITS,
    MAX_NEW_TOKENS,
    NOTICED_S,
    PROMPT_TOKENS,
    engine_of,
    request,
    started,
)
from tests.support.engines.vllm.server import VllmServer, vllm_servers
from tests.support.engines.vllm.small_model import EOS, VOCAB, SmallModel
from tests.support.processes.fake_engine import is_alive, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.processes]

T = TypeVar("T")

MAX_TOKENS = PROMPT_TOKENS + MAX_NEW_TOKENS + 1
GONE = "http://127.0.0.1:9"
"""Where nothing listens."""

LONG = 200
"""Tokens of a completion that is under way for long enough to change weights."""

NUM_LAYERS = 16
MEAN_NATS = 0.01
"""Difference of log-probabilities between bfloat16 and float32 that is rounding."""


@dataclass(frozen=True)
class Served:
    server: VllmServer
    second: VllmServer
    model: SmallModel


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # So many layers that the server sends tokens as fast as it samples them.
    model = SmallModel(tied=True, num_versions=3, num_layers=NUM_LAYERS)
    # Files of at most 64 KiB, so that the weights are in several.
    folder = tmp_path_factory.mktemp("model") / "final"
    model.export(folder, max_file_bytes=1 << 16)
    assert len(list(folder.glob("*.safetensors"))) > 1
    with vllm_servers(folder, MAX_TOKENS, number=2) as (server, second):
        yield Served(server, second, model)


@asynccontextmanager
async def connected(served: Served, *, has_scale_out: bool = True) -> AsyncIterator[VllmEngine]:
    """An engine at version 0."""
    backend = await HttpBackend.connect(served.server.url, max_tokens=MAX_TOKENS, buffer_bytes=1 << 15)
    assert backend.reports_labels == has_scale_out
    engine = engine_of(backend)
    try:
        await engine.swap(served.model.whole(0), Policy(0, 0), OnSwap.KEEP_KV if has_scale_out else OnSwap.REPREFILL)
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def both(served: Served) -> AsyncIterator[tuple[ReplicatedEngine, dict[str, VllmEngine]]]:
    """Both servers as one engine at version 0, and the engine of each by URL."""
    urls = [served.server.url, served.second.url]
    engine = await served_engine(urls, limits=LIMITS, end_ids=(), num_slots=8, on_swap=OnSwap.KEEP_KV)
    assert isinstance(engine, ReplicatedEngine)
    try:
        await engine.swap(served.model.whole(0), Policy(0, 0), OnSwap.KEEP_KV)
        yield engine, cast("dict[str, VllmEngine]", engine._replicas)
    finally:
        await engine.close()


def groups_by_server(engine: ReplicatedEngine, number: int) -> dict[str, list[int]]:
    """So many groups for each server: their ports, and with them the routes, are others in each run."""
    found: dict[str, list[int]] = {url: [] for url in engine._replicas}
    for group in range(200):
        groups = found[engine._choose(request(group))]
        if len(groups) < number:
            groups.append(group)
    assert all(len(groups) == number for groups in found.values())
    return found


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


def compare(found: Any, expected: Any) -> None:
    assert np.abs(np.asarray(found) - np.asarray(expected)).mean() < MEAN_NATS


def test_vllm_loads_an_exported_model_and_computes_with_its_weights(served: Served) -> None:
    """The first test of this module: what the servers hold is what they have read. The model is tied: its export has
    no output projection, which vLLM must make from the embeddings."""

    async def work() -> None:
        backend = await HttpBackend.connect(served.server.url, max_tokens=MAX_TOKENS, buffer_bytes=1 << 15)
        try:
            assert await backend.digest() == state_digest(served.model.states[0])
            ids = np.random.default_rng(1).integers(0, VOCAB, 32).tolist()
            compare(await backend.prompt_logprobs("loaded", ids), served.model.logprobs(0, ids))
        finally:
            await backend.close()

    run(work())


@pytest.mark.parametrize("is_shared", [True, False])
def test_deltas_are_written_over_vllms_own_routes(
    served: Served, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through shared memory, or as text where the server cannot map it, as on another machine."""
    if not is_shared:
        monkeypatch.setattr(TransferBuffer, "path", "/dev/shm/of-another-machine")

    async def work() -> None:
        async with connected(served) as engine:
            assert engine._backend._is_shared == is_shared  # type: ignore[attr-defined]
            assert await engine.digest() == state_digest(served.model.states[0])
            for version in (1, 2):
                await engine.swap(served.model.changed(version - 1, version), Policy(0, version), OnSwap.KEEP_KV)
                assert await engine.digest() == state_digest(served.model.states[version])
            ids = np.random.default_rng(1).integers(0, VOCAB, (4, 16))
            compare(await engine.logprobs(ids), [served.model.logprobs(2, row) for row in ids.tolist()])

    run(work())


def across_a_swap(work: Callable[[], Coroutine[Any, Any, list[Completion]]]) -> list[Completion]:
    """Run a scene until all of its completions went on after its swap.

    On a busy machine a completion may have ended before the swap began: the server does not wait for this process.
    """
    for _ in range(5):
        found = run(work())
        if all(len(each.runs) == 2 for each in found):
            break
    return found


@pytest.mark.parametrize("on_swap", [OnSwap.KEEP_KV, OnSwap.REPREFILL])
def test_weights_change_while_completions_are_under_way(served: Served, on_swap: OnSwap) -> None:
    asked = [request(group, max_new_tokens=MAX_NEW_TOKENS) for group in range(4)]
    model = served.model
    change = model.changed(0, 1)

    async def work() -> list[Completion]:
        async with connected(served) as engine:
            tasks = await started(engine, asked)
            report = await engine.swap(change, Policy(0, 1), on_swap)
            assert 0 < report.write_s <= report.pause_s
            return await asyncio.gather(*tasks)

    pairs: list[tuple[float, float]] = []
    for each, completion in zip(asked, across_a_swap(work), strict=True):
        assert [(run.policy.version, run.kept_kv) for run in completion.runs] == [
            (0, False),
            (1, on_swap is OnSwap.KEEP_KV),
        ]
        ids, prompt, old = each.prompt_ids + completion.token_ids, len(each.prompt_ids), completion.runs[0]
        of_old = model.logprobs(0, ids)[prompt - 1 :][: old.num_tokens]
        pairs += zip(completion.logprobs[: old.num_tokens], of_old, strict=True)
        before = prompt + old.num_tokens - 1
        of_new = (
            model.mixed_logprobs(((0, before), (1, len(ids) - before)), ids)
            if on_swap is OnSwap.KEEP_KV
            else model.logprobs(1, ids)
        )
        pairs += zip(completion.logprobs[old.num_tokens :], of_new[prompt - 1 :][old.num_tokens :], strict=True)
    # Over all tokens: a part that a swap leaves may have only a few.
    compare(*zip(*pairs, strict=True))


def test_a_server_without_labels_is_asked_over_openais_route(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its completions are continued as other requests at a swap."""
    monkeypatch.setattr(TokensRoute, "path", "/inference/v1/not-there")
    asked = [request(group, max_new_tokens=MAX_NEW_TOKENS) for group in range(4)]
    model = served.model
    change = model.changed(0, 1)

    async def work() -> list[Completion]:
        async with connected(served, has_scale_out=False) as engine:
            with pytest.raises(ConfigError, match="which weights sampled a token"):
                await engine.swap(model.whole(0), Policy(0, 0), OnSwap.KEEP_KV)
            await engine.swap(model.whole(0), Policy(0, 0), OnSwap.REPREFILL)
            tasks = await started(engine, asked)
            await engine.swap(change, Policy(0, 1), OnSwap.REPREFILL)
            ids = np.random.default_rng(1).integers(0, VOCAB, (2, 9))
            compare(await engine.logprobs(ids), [model.logprobs(1, row) for row in ids.tolist()])
            return await asyncio.gather(*tasks)

    pairs: list[tuple[float, float]] = []
    for each, completion in zip(asked, across_a_swap(work), strict=True):
        ids, first, done = each.prompt_ids + completion.token_ids, len(each.prompt_ids) - 1, 0
        assert [policy_run.policy.version for policy_run in completion.runs] == [0, 1]
        for policy_run in completion.runs:
            part = slice(done, done + policy_run.num_tokens)
            expected = model.logprobs(policy_run.policy.version, ids)[first:][part]
            pairs += zip(completion.logprobs[part], expected, strict=True)
            done += policy_run.num_tokens
    compare(*zip(*pairs, strict=True))


def test_an_aborted_request_keeps_its_tokens(served: Served) -> None:
    async def work() -> None:
        async with connected(served) as engine:
            (task,) = await started(engine, [request(0, max_new_tokens=MAX_NEW_TOKENS)])
            await engine.abort([request(0).request_id])
            completion = await task
        assert completion.end is CompletionEnd.ABORTED
        assert 0 < len(completion.token_ids) < MAX_NEW_TOKENS
        assert completion.runs == (PolicyRun(Policy(0, 0), len(completion.token_ids)),)

    run(work())


def test_a_job_uses_the_servers_that_answer(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """One of the two does not, and is left out with a warning."""

    async def work() -> None:
        engine = await served_engine(
            [GONE, served.server.url], limits=LIMITS, end_ids=(EOS,), num_slots=4, on_swap=OnSwap.KEEP_KV
        )
        assert isinstance(engine, VllmEngine)
        try:
            await engine.swap(served.model.whole(0), Policy(0, 0), OnSwap.KEEP_KV)
            assert (await engine.submit(request(1))).runs[0].policy == Policy(0, 0)
        finally:
            await engine.close()
        with pytest.raises(Unreachable, match="is a vLLM server running there"):
            await served_engine([GONE], limits=LIMITS, end_ids=(EOS,), num_slots=4, on_swap=OnSwap.KEEP_KV)

    run(work())
    assert "engine_server_does_not_answer" in caplog.text


def test_a_server_without_the_extension_or_the_transfer_backend_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers as the server does that has the methods and the route, and is asked for others."""
    call, post = HttpBackend._call, HttpBackend._post

    async def call_other(self: HttpBackend, method: str, *rest: Any, **more: Any) -> Any:
        return await call(self, f"no_{method}", *rest, **more)

    async def post_other(self: HttpBackend, path: str, *rest: Any, **more: Any) -> Any:
        return await post(self, path.replace("/init_weight", "/no_weight"), *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(HttpBackend, "_call", call_other)
        with pytest.raises(ConfigError, match=r"cannot be updated.*worker extension and weight transfer"):
            run(HttpBackend.connect(served.server.url))
    monkeypatch.setattr(HttpBackend, "_post", post_other)
    with pytest.raises(ConfigError, match=r"""--weight-transfer-config '{"backend": "periplus"}'"""):
        run(HttpBackend.connect(served.server.url))


def test_a_server_without_labels_is_refused_at_the_start_of_a_job_that_keeps_caches(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the key, its value, the server, and both ways out."""
    monkeypatch.setattr(TokensRoute, "path", "/inference/v1/not-there")

    async def work() -> None:
        urls = [served.server.url]
        why = f"engine.on_swap is keep_kv, but the vLLM server at {urls[0]} .*--enable-scale-out.*reprefill or drain"
        with pytest.raises(ConfigError, match=why):
            await served_engine(urls, limits=LIMITS, end_ids=(EOS,), num_slots=4, on_swap=OnSwap.KEEP_KV)
        for on_swap in (OnSwap.REPREFILL, OnSwap.DRAIN):
            engine = await served_engine(urls, limits=LIMITS, end_ids=(EOS,), num_slots=4, on_swap=on_swap)
            await engine.swap(served.model.whole(0), Policy(0, 0), on_swap)
            assert (await engine.submit(request(1))).runs[0].policy == Policy(0, 0)
            await engine.close()

    run(work())


def test_a_server_that_takes_fewer_tokens_than_the_job_needs_is_refused(served: Served) -> None:
    with pytest.raises(ConfigError, match=f"--max-model-len {MAX_TOKENS + 1}"):
        run(HttpBackend.connect(served.server.url, max_tokens=MAX_TOKENS + 1))


def test_an_update_reaches_both_servers_and_a_server_that_missed_one_is_found(served: Served) -> None:
    model = served.model

    async def work() -> None:
        async with both(served) as (engine, replicas):
            for version in (1, 2):
                await engine.swap(model.changed(version - 1, version), Policy(0, version), OnSwap.KEEP_KV)
                assert await engine.digest() == state_digest(model.states[version])
            for replica in replicas.values():
                assert await replica.digest() == state_digest(model.states[2])
            ids = np.random.default_rng(1).integers(0, VOCAB, (4, 16))
            for _ in replicas:
                compare(await engine.logprobs(ids), [model.logprobs(2, row) for row in ids.tolist()])
            await replicas[served.second.url].swap(model.whole(1), Policy(0, 1), OnSwap.KEEP_KV)
            with pytest.raises(CorruptFrame, match="2 different states"):
                await engine.digest()
            with pytest.raises(CorruptFrame, match="two replicas"):
                await engine.logprobs(ids)

    run(work())


def test_samples_of_one_group_go_to_one_server(served: Served) -> None:
    async def work() -> None:
        async with both(served) as (engine, replicas):
            groups = groups_by_server(engine, 2)
            asked = [request(each, sample) for sample in range(4) for pair in groups.values() for each in pair]
            tasks = [asyncio.ensure_future(engine.submit(each)) for each in asked]
            await asyncio.sleep(0)
            for url, replica in replicas.items():
                here = [state.request.group for state in replica._open.values()]
                assert sorted(here) == sorted(groups[url] * 4)
            found = await asyncio.gather(*tasks)
            assert all(each.end is CompletionEnd.LENGTH for each in found)

    run(work())


def test_requests_of_a_killed_server_begin_again_on_the_other_and_the_rest_goes_on(served: Served) -> None:
    """It leaves the first server alone."""
    model, stays, dies = served.model, served.server.url, served.second.url
    change = model.changed(0, 1)

    async def work() -> None:
        async with both(served) as (engine, replicas):
            groups = groups_by_server(engine, 2)
            asked = [request(group, max_new_tokens=LONG) for url in (stays, dies) for group in groups[url]]
            tasks = [asyncio.ensure_future(engine.submit(each)) for each in asked]
            await asyncio.sleep(0)
            stayed, dying = (list(replicas[url]._open.values()) for url in (stays, dies))
            await replicas[dies]._wait_until(lambda: all(len(state.token_ids) >= 8 for state in dying))
            served.second.kill()
            found = await asyncio.gather(*tasks)
            assert [state.num_legs for state in stayed] == [1, 1], "what was on the other server has not begun again"
            for each, completion in zip(asked, found, strict=True):
                assert completion.runs == (PolicyRun(Policy(0, 0), LONG),)
                expected = model.logprobs(0, each.prompt_ids + completion.token_ids)[len(each.prompt_ids) - 1 :]
                compare(completion.logprobs, expected)
            assert engine.num_slots == 8
            # Weights, proofs and new requests of the dead server's groups are the other one's.
            await engine.swap(change, Policy(0, 1), OnSwap.KEEP_KV)
            assert await engine.digest() == state_digest(model.states[1])
            assert (await engine.submit(request(groups[dies][0]))).runs[0].policy == Policy(0, 1)

    run(work())


def test_a_core_that_hangs_is_dead_soon_although_its_server_is_healthy(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the loss of a node of a pipeline: vLLM waits for its rank without a limit."""
    monkeypatch.setattr(http_backend, "ANSWER_S", 1.0)
    processes, _ = served.server.holdings()
    (core,) = (each for each in map(psutil.Process, processes) if "EngineCore" in " ".join(each.cmdline()))

    async def work() -> None:
        async with connected(served) as engine:
            core.suspend()
            try:
                await engine._backend._check_lives()  # type: ignore[attr-defined]
                with pytest.raises(EngineDied, match="does not answer"):
                    await engine.swap(served.model.changed(0, 1), Policy(0, 1), OnSwap.KEEP_KV)
            finally:
                core.resume()

    run(work())


def test_a_killed_server_ends_every_call_and_leaves_no_process_and_no_shared_memory(served: Served) -> None:
    """The last test of this module: it leaves no server."""
    processes, blocks = served.server.holdings()
    assert len(processes) >= 3, "the server itself, vLLM's core, and the guard"

    async def work() -> float:
        async with connected(served) as engine:
            tasks = await started(engine, [request(group, max_new_tokens=MAX_NEW_TOKENS) for group in range(3)])
            served.server.kill()
            killed_s = clock.monotonic_s()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            seconds = clock.monotonic_s() - killed_s
            assert [type(each) for each in found] == [EngineDied] * 3
            for call in (engine.submit(request(0)), engine.digest()):
                with pytest.raises(EngineDied, match="does not answer"):
                    await call
            with pytest.raises(EngineDied):
                await engine.swap(served.model.whole(0), Policy(0, 1), OnSwap.KEEP_KV)
        return seconds

    assert run(work()) < NOTICED_S
    with pytest.raises(Unreachable, match="is a vLLM server running there"):
        run(HttpBackend.connect(served.server.url))
    wait_for(lambda: not any(is_alive(process) for process in processes), "the server's processes to end")
    assert not any(block.exists() for block in blocks)
