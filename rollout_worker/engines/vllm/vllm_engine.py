"""Generates with vLLM, and takes new weights while it generates. `VllmBackend` reaches vLLM; this module decides.

**Randomness.** vLLM gets a seed of its own for each request, from (seed, version of the weights that it begins with,
group, sample). vLLM promises no more than to use it; with 0.32 on a CPU a sample alone equalled the same one in a batch
of 16. The torch engine promises the same tokens always.

**Which policy sampled a token** is exact. The scheduler stands still while weights are written, and the weights get a
new label before it goes on. vLLM reports the label of each token. A vLLM without labels ends each request at a swap,
and the rest of its tokens is another request, with new keys: so it takes `REPREFILL` and `DRAIN` alone.

**The cache of prefixes** is salted with the label, so that samples of one prompt share its keys, and no request takes
keys of other weights. A request that has no token yet when the weights change begins again.

**Stop strings** are looked for here, in the tokens as they come, and not by vLLM, so that completions end at the same
token with every engine. vLLM samples a few more tokens before it hears of the end; they are dropped.

**A failed write** leaves the scheduler standing still, and the engine accepts nothing but a whole state: nothing is
sampled from weights that may be half written.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from periplus import clock
from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Update
from periplus.errors import ConfigError, StateError, WrongBase, innermost
from periplus.values.keyed_draws import row_keys
from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    ChangedElements,
    Completion,
    CompletionEnd,
    Continuations,
    EngineDied,
    OnSwap,
    RequestFailed,
    SampleRequest,
    SwapReport,
    WeightChange,
)
from rollout_worker.engines.request_limits import RequestLimits
from rollout_worker.engines.vllm.backend import ChunkEnd, Sampling, VllmBackend
from rollout_worker.engines.vllm.open_requests import LabelHistory, OpenRequest, WeightLabel, only_label

T = TypeVar("T")

ABORT_AGAIN_S = 0.05
"""Seconds after which requests are aborted again that have not ended: vLLM forgets an abort of a request that has not
reached it yet."""

ENDS = {ChunkEnd.STOP: CompletionEnd.EOS, ChunkEnd.LENGTH: CompletionEnd.LENGTH}


class VllmEngine:
    """Fulfils `Engine` with a vLLM. `num_slots` requests decode at once.

    The tokens `end_ids` end a completion; without any, only its length does.
    """

    def __init__(
        self,
        *,
        backend: VllmBackend,
        limits: RequestLimits,
        end_ids: Sequence[int],
        num_slots: int,
        computes_in_bfloat16: bool,
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._stop_ids = tuple(end_ids)
        self._num_slots = num_slots
        self._computes_in_bfloat16 = computes_in_bfloat16
        self._history = LabelHistory()
        self._open: dict[str, OpenRequest] = {}
        self._running: set[OpenRequest] = set()
        # Those that wait for a slot, in the order in which they begin.
        self._waiting: deque[tuple[OpenRequest, asyncio.Future[None]]] = deque()
        self._is_held = True  # nothing begins: there are no weights yet, or a swap is under way
        self._is_torn = False
        self._is_suspended = False
        self._is_closed = False
        # Notified whenever a request gets a token or ends.
        self._progress = asyncio.Condition()
        self._num_probes = 0

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are below it."""
        return self._limits.vocab_size

    @property
    def num_slots(self) -> int:
        """Number of requests that decode at the same time."""
        return self._num_slots

    @property
    def room(self) -> int:
        """Number of further requests that would begin at once."""
        return max(0, self._num_slots - len(self._open))

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether the forward pass is in bfloat16."""
        return self._computes_in_bfloat16

    async def submit(self, request: SampleRequest) -> Completion:
        """Generate one completion. Raises: RequestFailed, EngineDied."""
        self._check_alive()
        self._limits.check(request)
        if request.request_id in self._open:
            raise RequestFailed(f"request {request.request_id} is under way already; ids are unique")
        state = self._open[request.request_id] = OpenRequest(request)
        try:
            while True:
                await self._wait_for_slot(state)
                # Aborted while it waited: it has the tokens of earlier legs, if any.
                if state.is_aborted:
                    return self._completion(state, CompletionEnd.ABORTED)
                try:
                    end = await self._run_leg(state)
                finally:
                    self._running.discard(state)
                    self._fill_slots()
                if end is not None:
                    return self._completion(state, end)
        finally:
            del self._open[request.request_id]
            await self._made_progress()

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests with the tokens so far. Returns when they have ended. Raises: EngineDied."""
        self._check_alive()
        chosen = [self._open[each] for each in request_ids if each in self._open]
        for state in chosen:
            state.is_aborted = True
        for state, may_begin in list(self._waiting):
            if state.is_aborted and not may_begin.done():
                may_begin.set_result(None)
        await self._end_legs(chosen)

    async def drain(self) -> None:
        """Wait until no request is under way. Raises: EngineDied."""
        self._check_alive()
        async with self._progress:
            await self._progress.wait_for(lambda: self._is_closed or not self._open)
        self._check_alive()

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        """Write new weights between two tokens.

        Raises: WrongBase, with nothing written; StateError for changed elements after a failed write; ConfigError for
        an `on_swap` that this vLLM cannot do; EngineDied; what a worker of vLLM raised, and then a whole state is due.
        """
        self._check_alive()
        self._check_change(change, on_swap)
        asked_s = clock.monotonic_s()
        was_torn, self._is_held = self._is_torn, True
        try:
            if on_swap is OnSwap.DRAIN and not was_torn:
                await self._wait_until(lambda: not self._running)
            clears = on_swap is OnSwap.REPREFILL and self._backend.reports_labels
            await self._backend.pause(clear_cache=clears)
            under_way = [state for state in self._running if state.last_token_s is not None]
            label = self._history.next(policy, keeps_kv=on_swap is not OnSwap.REPREFILL)
            write_s = await self._write(change, label)
            await self._end_old_legs()
            await self._backend.resume()
        except BaseException:
            # Before the first element was written, the old weights are whole, and generation goes on with them.
            if not self._is_torn and self._history.newest is not None:
                with contextlib.suppress(EngineDied):
                    await self._backend.resume()
                self._release()
            raise
        resumed_s = clock.monotonic_s()
        self._release()
        if on_swap is OnSwap.DRAIN:
            return SwapReport(write_s=write_s, pause_s=resumed_s - asked_s)
        return SwapReport(write_s=write_s, pause_s=await self._pause_s(under_way, resumed_s, write_s))

    async def digest(self) -> bytes:
        """Return the digest of the tensors in vLLM's workers. Raises: CorruptFrame, EngineDied."""
        self._check_alive()
        return await self._backend.digest()

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token given those before it, at temperature 1.

        *Shapes*: ids S x T; returns S x (T - 1). Raises: StateError after a failed write; RequestFailed, EngineDied.
        """
        self._check_alive()
        if self._is_torn:
            raise StateError("the weights in vLLM may be half written: write a whole state before you ask for them")
        rows = await self._of_probes(lambda name, _, row: self._backend.prompt_logprobs(name, row), ids)
        return np.array(rows, np.float32).reshape(len(ids), ids.shape[1] - 1)

    async def _of_probes(
        self, asked: Callable[[str, int, list[int]], Coroutine[None, None, T]], ids: npt.NDArray[np.int64]
    ) -> list[T]:
        """Return what is answered to (id of a request, number of the row, row) of each row, all asked at once."""
        self._check_alive()
        first, self._num_probes = self._num_probes, self._num_probes + len(ids)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(asked(f"probe~{first + number}", number, row))
                    for number, row in enumerate(ids.tolist())
                ]
        except BaseExceptionGroup as errors:
            raise innermost(errors) from errors
        return [task.result() for task in tasks]

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        """Draw `num_tokens` tokens after each prompt at temperature 1, as completions are decoded, beside the slots.

        *Shapes*: ids S x T. Raises: StateError after a failed write; RequestFailed, EngineDied.
        """
        label = self._history.newest
        if self._is_torn or label is None:
            raise StateError("the weights in vLLM may be half written: write a whole state before you decode with them")

        async def decoded(name: str, seed: int, prompt: list[int]) -> tuple[list[int], list[float]]:
            salt = label.text  # as in completions, so that keys of older weights would show
            sampling = Sampling(temperature=1.0, seed=seed, max_tokens=num_tokens, stop_ids=(), cache_salt=salt)
            token_ids, logprobs = list[int](), list[float]()
            async for chunk in self._backend.generate(name, prompt, sampling):
                token_ids += chunk.token_ids
                logprobs += chunk.logprobs
            return token_ids, logprobs

        rows = await self._of_probes(decoded, ids)
        token_ids, logprobs = zip(*rows, strict=True)
        return Continuations(np.array(token_ids, np.int64), np.array(logprobs, np.float32))

    async def suspend(self) -> None:
        """Stop the scheduler between two tokens; a vLLM that can sleep gives up its memory. Raises: EngineDied."""
        self._check_alive()
        self._is_suspended = True
        await self._backend.suspend()

    async def resume(self) -> None:
        """Go on after `suspend`. Raises: EngineDied."""
        self._check_alive()
        await self._backend.wake()
        self._is_suspended = False
        self._fill_slots()

    async def close(self) -> None:
        """End vLLM. Requests under way fail with EngineDied. It may be called twice."""
        self._is_closed = True
        for _, may_begin in self._waiting:
            if not may_begin.done():
                may_begin.set_exception(EngineDied("vLLM was closed"))
        await self._made_progress()
        await self._backend.close()

    # ---- requests -----------------------------------------------------------------------------------------------

    async def _wait_for_slot(self, state: OpenRequest) -> None:
        """Return when the request may begin its next leg, or was aborted."""
        may_begin = asyncio.get_running_loop().create_future()
        entry = (state, may_begin)
        # A request that goes on comes before new ones.
        if state.num_legs:
            self._waiting.appendleft(entry)
        else:
            self._waiting.append(entry)
        self._fill_slots()
        try:
            await may_begin
        except BaseException:
            self._running.discard(state)
            self._fill_slots()
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(entry)

    def _fill_slots(self) -> None:
        while self._waiting and not (self._is_held or self._is_suspended) and len(self._running) < self._num_slots:
            state, may_begin = self._waiting.popleft()
            if not may_begin.done():
                self._running.add(state)
                may_begin.set_result(None)

    async def _run_leg(self, state: OpenRequest) -> CompletionEnd | None:
        """Run one request of vLLM. Return why the completion has ended, or None if another leg follows."""
        label = self._history.newest
        assert label is not None, "nothing begins before the first weights"
        before = len(state.token_ids)
        prompt = (*state.request.prompt_ids, *state.token_ids)
        sampling = self._sampling(state, label)
        leg_id = state.begin_leg()
        stream = self._backend.generate(leg_id, prompt, sampling)
        chunk = None
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    was_stopped = state.is_stopped
                    state.take(chunk, clock.monotonic_s())
                    if state.is_stopped and not was_stopped and chunk.end is None:
                        # It goes on until vLLM has ended the request, to learn which weights sampled the tokens.
                        await self._backend.abort([leg_id])
                    await self._made_progress()
        finally:
            state.leg_id = None
        if chunk is None or chunk.end is None:
            raise RequestFailed(f"vLLM ended request {state.request.request_id} without a reason")
        spans = chunk.spans if self._backend.reports_labels else only_label(label, len(state.token_ids) - before)
        state.end_leg(spans or ())
        if state.is_stopped:
            return CompletionEnd.EOS if state.token_ids[-1] in self._stop_ids else CompletionEnd.STOP
        if chunk.end is not ChunkEnd.ABORT:
            return ENDS[chunk.end]
        if state.is_aborted:
            return CompletionEnd.ABORTED
        if state.is_continued:
            return None
        raise RequestFailed(f"vLLM ended request {state.request.request_id} by itself")

    def _sampling(self, state: OpenRequest, label: WeightLabel) -> Sampling:
        request = state.request
        key = row_keys(request.seed, label.policy.version, [request.group], [request.sample])
        if position := request.first_position + len(state.token_ids):
            # A later leg or turn must not use the random numbers of an earlier one again.
            key = row_keys(int(key[0]), position, [0], [0])
        return Sampling(
            temperature=0.0 if request.greedy else request.temperature,
            # vLLM takes a signed integer of 64 bits, and -1 for no seed. The key's upper 62 bits are never negative.
            seed=int(key[0]) >> 2,
            max_tokens=state.num_tokens_left,
            stop_ids=self._stop_ids,
            cache_salt=label.text,
            top_p=1.0 if request.greedy else request.top_p,
            top_k=0 if request.greedy else request.top_k,
            min_tokens=max(0, request.min_new_tokens - len(state.token_ids)),
        )

    def _completion(self, state: OpenRequest, end: CompletionEnd) -> Completion:
        try:
            return state.completion(end, self._history)
        except ValueError as error:
            raise RequestFailed(f"{error}; does something else write its weights?") from error

    async def _end_legs(self, states: Collection[OpenRequest]) -> None:
        """Abort the requests of vLLM of these, and return when they have ended."""
        while left := [state.leg_id for state in states if state.leg_id is not None]:
            await self._backend.abort(left)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_AGAIN_S):
                    await self._wait_until(lambda: all(state.leg_id is None for state in states))

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self._is_closed or holds())
        self._check_alive()

    async def _made_progress(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    def _check_alive(self) -> None:
        if self._is_closed:
            raise EngineDied("vLLM was closed")

    # ---- weights ------------------------------------------------------------------------------------------------

    def _check_change(self, change: WeightChange, on_swap: OnSwap) -> None:
        check_fits(self._backend.layout, change.layout)
        if isinstance(change, ChangedElements) and (self._is_torn or self._history.newest is None):
            raise StateError("the weights in vLLM are not whole: write a whole state first")
        check_on_swap(on_swap, self._backend)

    async def _write(self, change: WeightChange, label: WeightLabel) -> float:
        """Write and label the weights, and return the seconds that writing took."""
        began_s = clock.monotonic_s()
        self._is_torn = True
        await self._backend.write(_updates(change))
        write_s = clock.monotonic_s() - began_s
        await self._backend.set_label(label.text)
        self._history.add(label)
        self._is_torn = False
        return write_s

    async def _end_old_legs(self) -> None:
        """End the requests of vLLM that must not go on: those without a token, and all if tokens have no labels."""
        ending = [state for state in self._running if not self._backend.reports_labels or not state.token_ids]
        for state in ending:
            state.is_continued = not state.is_aborted
        await self._end_legs(ending)

    def _release(self) -> None:
        self._is_held = False
        self._fill_slots()

    async def _pause_s(self, under_way: Collection[OpenRequest], resumed_s: float, write_s: float) -> float:
        """Wait until each of these has a token after the swap or has ended, and return the longest time between."""
        last_s = {state: state.last_token_s for state in under_way}
        pauses_s = [write_s]

        def have_gone_on() -> bool:
            for state, before_s in list(last_s.items()):
                now_s = state.last_token_s
                if now_s is not None and before_s is not None and now_s > resumed_s:
                    pauses_s.append(now_s - before_s)
                    del last_s[state]
                elif self._open.get(state.request.request_id) is not state:
                    del last_s[state]
            return not last_s

        await self._wait_until(have_gone_on)
        return max(pauses_s)


def check_on_swap(
    on_swap: OnSwap, backend: VllmBackend, *, whose: str = "this vLLM", remedy: str = "install vLLM 0.32 or newer"
) -> None:
    """Check that a vLLM can do at a swap what the job wants. `whose` and `remedy` are parts of the message.

    Raises: ConfigError.
    """
    if on_swap is OnSwap.KEEP_KV and not backend.reports_labels:
        raise ConfigError(
            f"engine.on_swap is {on_swap}, but {whose} does not say which weights sampled a token, so completions "
            f"cannot keep their cache when weights change; {remedy}, or set engine.on_swap to reprefill or drain"
        )


def check_fits(held: StateLayout, published: StateLayout) -> None:
    """Check that published weights are those that an engine holds. Raises: WrongBase."""
    if held == published:
        return
    ours, theirs = ({line.name: line for line in layout.lines} for layout in (held, published))
    name = next(name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name))
    here, there = ours.get(name), theirs.get(name)
    found = "missing" if there is None else f"{there.dtype} {there.shape}"
    expected = "no such tensor" if here is None else f"one of {here.dtype} {here.shape}"
    raise WrongBase(
        f"the published weights do not fit the engine: {name} is {found} in the publication, but vLLM has {expected}; "
        "is the model config the job's?"
    )


def _updates(change: WeightChange) -> Iterator[Update]:
    if isinstance(change, ChangedElements):
        yield from change.updates()
        return
    for line in change.layout.lines:
        bits = change.state[line.name].data.view(np.uint16)
        yield Update(name=line.name, positions=None, start=0, values=bits)
