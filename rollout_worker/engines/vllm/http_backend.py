"""A vLLM server that somebody runs already (`vllm serve`), reached over HTTP.

Requests go to a route that takes and gives token ids (http_routes.py). The scheduler and the weights are reached by the
routes of the server's development mode: /pause, /resume, the weight-transfer routes, /abort_requests, and
/collective_rpc for what our extension does in the workers. So the server must have been started with

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --enable-scale-out --logprobs-mode processed_logprobs \\
        --worker-extension-cls rollout_worker.engines.vllm.worker_extension.WorkerExtension \\
        --weight-transfer-config '{"backend": "periplus"}'

in an environment where Periplus is installed; on a CPU with --no-enable-chunked-prefill too. Without --enable-scale-out
it does not say which weights sampled a token, and completions cannot keep their cache at a swap. These routes let
everybody who reaches the server change its weights: such a server belongs on a private network.

New elements go through shared memory if all ranks of the server are on this machine, else as base64 text. The ranks may
be stages of a pipeline, on several nodes of a Ray cluster. Run with vLLM 0.32.0.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import aiohttp

from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Update
from periplus.errors import ConfigError, CorruptFrame, PeriplusError, Unreachable, shortened
from rollout_worker.engines.engine import EngineDied, RequestFailed
from rollout_worker.engines.vllm.backend import Sampling, TokenChunk
from rollout_worker.engines.vllm.gathered_digest import gathered_digest, whole_digest
from rollout_worker.engines.vllm.http_routes import CompletionsRoute, GenerateRoute, TokensRoute
from rollout_worker.engines.vllm.transfer_buffer import LEAST_BUFFER_BYTES, Record, TransferBuffer
from rollout_worker.engines.vllm.worker_description import WorkerDescription, layout_of_workers

CONNECT_S = 10.0
"""Seconds that a connection may take. Chosen by hand."""

CALL_S = 600.0
"""Seconds without a byte after which the server counts as dead. Chosen by hand: a completion that waits behind others,
and a load of weights on a slow network, take less."""

ANSWER_S = 60.0
"""As `CALL_S`, for calls that wait for one step of the engine at most. If a rank is lost at such a moment, vLLM's core
waits for it without a limit, and `/health` says that all is well."""

POLL_S = 0.05
"""Seconds that a worker waits for its digest, and seconds between two such calls."""

ERROR_CHARACTERS = 300
"""Most characters of a server's answer in a message. Chosen by hand."""


class HttpBackend:
    """Fulfils `VllmBackend` for one server. Make it with `connect`."""

    def __init__(self, url: str, session: aiohttp.ClientSession, buffer: TransferBuffer) -> None:
        self._url = url.rstrip("/")
        self._session = session
        self._buffer = buffer
        self._is_shared = False  # whether the server maps the same block
        self._is_updating = False
        self._reports_labels = False
        self._route: GenerateRoute = TokensRoute()
        self._workers: tuple[WorkerDescription, ...] = ()
        self._layout = StateLayout(lines=())

    @classmethod
    async def connect(
        cls, url: str, *, api_key: str | None = None, max_tokens: int = 0, buffer_bytes: int | None = None
    ) -> "HttpBackend":
        """Connect to a server, which must take requests of `max_tokens` tokens.

        Raises: Unreachable if it does not answer; ConfigError if it cannot serve, and what to start it with.
        """
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        # Each request under way has a connection of its own.
        session = aiohttp.ClientSession(
            headers=headers, timeout=_within(CALL_S), connector=aiohttp.TCPConnector(limit=0), raise_for_status=False
        )
        buffer = TransferBuffer.create(buffer_bytes)
        backend = cls(url, session, buffer)
        try:
            await backend._prepare(max_tokens)
        except EngineDied as error:
            await session.close()
            raise Unreachable(f"{error}; is a vLLM server running there?") from error
        except BaseException:
            await session.close()
            raise
        finally:
            buffer.unlink()
        return backend

    async def _prepare(self, max_tokens: int) -> None:
        try:
            described = await self._call("periplus_describe")
        except ServerRefused as error:
            raise ConfigError(
                f"the vLLM server at {self._url} cannot be updated: {error}. Start it in development mode and with the "
                "worker extension and weight transfer that docs/engines.md names"
            ) from error
        self._workers = tuple(WorkerDescription.from_json(each) for each in described)
        self._layout = layout_of_workers(self._workers)
        if self._workers[0].max_tokens < max_tokens:
            raise ConfigError(
                f"the vLLM server at {self._url} takes {self._workers[0].max_tokens} tokens, the job needs "
                f"{max_tokens}: start it with --max-model-len {max_tokens}"
            )
        problems = await self._call("periplus_attach", [str(self._buffer.path)])
        self._is_shared = not any(problems)
        if not self._is_shared:
            # Each load is the text of one request, which is in memory several times.
            self._buffer = TransferBuffer.private(min(self._buffer.num_bytes, LEAST_BUFFER_BYTES))
        path = str(self._buffer.path) if self._is_shared else ""
        init_info = {"path": path, "num_bytes": self._buffer.num_bytes}
        try:
            await self._post("/init_weight_transfer_engine", {"init_info": init_info})
        except ServerRefused as error:
            raise ConfigError(
                f"the vLLM server at {self._url} has no weight transfer of ours: {error}. Start it with "
                '--weight-transfer-config \'{"backend": "periplus"}\''
            ) from error
        # An earlier worker may have died in the middle of a swap.
        await self.resume()
        await self._choose_route()

    async def _choose_route(self) -> None:
        """Take the route that labels tokens with their weights, if the server has it; else OpenAI's."""
        sampling = Sampling(temperature=0.0, seed=0, max_tokens=1, stop_ids=(), cache_salt="periplus")
        try:
            async for chunk in self.generate("periplus-first", (0,), sampling):
                self._reports_labels = chunk.spans is not None
        except RequestFailed:
            self._route = CompletionsRoute(await self._model_name())
            try:
                async for _ in self.generate("periplus-second", (0,), sampling):
                    pass
            except RequestFailed as error:
                raise ConfigError(f"{error}: no route of it generates from token ids") from error

    async def _model_name(self) -> str:
        try:
            async with self._session.get(f"{self._url}/v1/models") as response:
                return str((await response.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._died(error) from error

    @property
    def layout(self) -> StateLayout:
        """Names and shapes of the weights that the ranks together hold."""
        return self._layout

    @property
    def reports_labels(self) -> bool:
        """Whether this server labels the tokens of a completion."""
        return self._reports_labels

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether the server's forward pass is in bfloat16."""
        return self._workers[0].dtype == "bfloat16"

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk]:
        """Generate one completion. Raises: RequestFailed, EngineDied."""
        body = self._route.body(request_id, prompt_ids, sampling)
        async with contextlib.aclosing(self._events(body)) as events:
            async for event in events:
                if "error" in event:
                    await self._check_lives()
                    raise RequestFailed(f"vLLM at {self._url}: {shortened(str(event['error']), ERROR_CHARACTERS)}")
                for choice in event.get("choices", ()):
                    yield self._route.chunk(choice)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests that have begun. Raises: EngineDied."""
        # An empty list would abort those of everybody.
        if request_ids:
            await self._post("/abort_requests", {"request_ids": [self._route.server_id(each) for each in request_ids]})

    async def prompt_logprobs(self, request_id: str, ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each id but the first, at temperature 1. Raises: RequestFailed, EngineDied."""
        try:
            answer = await self._post(self._route.path, self._route.probe_body(request_id, ids), limit_s=CALL_S)
            return self._route.prompt_logprobs(answer, ids)
        except (ServerRefused, KeyError, ValueError) as error:
            raise RequestFailed(f"vLLM at {self._url} does not score given tokens: {error}") from error

    async def pause(self, *, clear_cache: bool) -> None:
        """Stop the scheduler between two tokens. Raises: EngineDied."""
        await self._post("/pause", params={"mode": "keep", "clear_cache": str(clear_cache).lower()})

    async def resume(self) -> None:
        """Let the scheduler go on. Raises: EngineDied."""
        await self._post("/resume")

    async def suspend(self) -> None:
        """Stop the scheduler between two tokens. The server keeps its memory. Raises: EngineDied."""
        await self.pause(clear_cache=False)

    async def wake(self) -> None:
        """Let the scheduler go on. Raises: EngineDied."""
        await self.resume()

    async def write(self, updates: Iterable[Update]) -> None:
        """Write elements on all ranks. Raises: EngineDied, or ServerRefused for a worker's failure."""
        if not self._is_updating:
            await self._post("/start_weight_update")
        self._is_updating = True
        try:
            await self._buffer.send(updates, self._announce)
        except ServerRefused:
            # The server has ended the update by itself.
            self._is_updating = False
            raise

    async def _announce(self, records: list[Record]) -> None:
        content = "" if self._is_shared else base64.b64encode(self._buffer.content(records)).decode()
        await self._post("/update_weights", {"update_info": {"records": records, "content": content}}, limit_s=CALL_S)

    async def set_label(self, label: str) -> None:
        """End the update and label the weights. Raises: EngineDied."""
        await self._post("/finish_weight_update", {"weight_version": label})
        self._is_updating = False

    async def digest(self) -> bytes:
        """Return the digest of the tensors of all ranks. Raises: CorruptFrame, EngineDied."""
        if len(self._workers) > 1:
            return await gathered_digest(
                self._layout,
                [worker.shards for worker in self._workers],
                lambda load: self._call("periplus_gather_digests", [load], limit_s=CALL_S),
            )
        await self._call("periplus_begin_digest")
        while True:
            (found,) = await self._call("periplus_poll_digest", [POLL_S])
            if isinstance(found, str):
                raise CorruptFrame(found)
            if found is not None:
                return whole_digest(self._layout, {name: bytes.fromhex(digest) for name, digest in found})
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Close the connections. The server goes on."""
        await self._session.close()

    async def _call(self, method: str, arguments: Sequence[object] = (), limit_s: float | None = None) -> list[Any]:
        """Call a method of all workers, and return their results by rank."""
        answer = await self._post("/collective_rpc", {"method": method, "args": list(arguments)}, limit_s=limit_s)
        found: list[Any] = answer["results"]
        return found

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        limit_s: float | None = None,
    ) -> dict[str, Any]:
        """Raises: ServerRefused for an answer that is an error; EngineDied if none begins in `limit_s` (`ANSWER_S`)."""
        timeout = _within(limit_s or ANSWER_S)
        try:
            async with self._session.post(self._url + path, json=body, params=params, timeout=timeout) as response:
                text = await response.text()
                if response.status >= 500:
                    await self._check_lives()
                if response.status >= 400:
                    raise ServerRefused(
                        f"{path} answers {response.status}: {shortened(' '.join(text.split()), ERROR_CHARACTERS)}"
                    )
        except (aiohttp.ClientError, TimeoutError, OSError, RuntimeError) as error:
            raise self._died(error) from error
        answer: dict[str, Any] = json.loads(text) if text else {}
        return answer

    async def _events(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of a streamed answer."""
        try:
            async with self._session.post(self._url + self._route.path, json=body) as response:
                if response.status >= 500:
                    await self._check_lives()
                if response.status >= 400:
                    text = " ".join((await response.text()).split())
                    raise RequestFailed(
                        f"vLLM at {self._url} answers {response.status}: {shortened(text, ERROR_CHARACTERS)}"
                    )
                lines: AsyncIterator[bytes] = response.content
                async for line in lines:
                    content = line.removeprefix(b"data: ").strip()
                    if content and content != b"[DONE]":
                        yield json.loads(content)
        except (aiohttp.ClientError, TimeoutError, OSError, RuntimeError) as error:
            raise self._died(error) from error

    async def _check_lives(self) -> None:
        """Check that the server's core still runs: a server without one answers for a while. Raises: EngineDied."""
        try:
            async with self._session.get(f"{self._url}/health") as response:
                if response.status < 500:
                    return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._died(error) from error
        raise EngineDied(f"vLLM's core behind the server at {self._url} has ended; the server's log says why")

    def _died(self, error: Exception) -> EngineDied:
        return EngineDied(f"the vLLM server at {self._url} does not answer ({str(error) or type(error).__name__})")


def _within(limit_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=limit_s)


class ServerRefused(PeriplusError):
    """The server answered with an error: a wrong request, or a failure in one of its workers."""
