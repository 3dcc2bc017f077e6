"""The embedded engine: decodes a Hugging Face causal model in plain PyTorch, in a thread of its own.

It is also the reference that other engines are compared with: on one CPU thread in float32 it keeps the promise of
the protocol bitwise (slot_decoder.py says how). This module connects the decoder with the event loop. Its thread
alternates between what the methods asked for and one step of the decoder, so weights change between two tokens. It
sleeps while nothing is to be done. If a write of weights fails, no token is sampled until another write has succeeded.

The engine knows no text: prompts and completions are token ids. Only a request's own stop strings read it, on the
engine's thread.

Shapes: S x T ids of the probe, V vocabulary.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from periplus import clock
from periplus.errors import explained_error
from periplus.values.policy import Policy
from rollout_worker.engines.engine import (
    ChangedElements,
    Completion,
    Continuations,
    EngineDied,
    OnSwap,
    RequestFailed,
    SampleRequest,
    SwapReport,
    WeightChange,
)
from rollout_worker.engines.layer_masks import check_architecture
from rollout_worker.engines.request_limits import RequestLimits
from rollout_worker.engines.slot_decoder import Ended, SlotDecoder
from rollout_worker.engines.tensor_memory import TensorMemory

T = TypeVar("T")

CLOSE_S = 30.0
"""Seconds that `close` waits for the thread, which ends after its present step. Chosen by hand."""


@dataclass(slots=True, eq=False)
class _Swap:
    """A swap that was asked for at `asked_s`, and the future of its caller.

    Once it is written, `write_s` are the seconds that this took, and `last_token_s` is when the last token before it
    was there, if requests were under way.
    """

    change: WeightChange
    policy: Policy
    on_swap: OnSwap
    asked_s: float
    done: "asyncio.Future[SwapReport]"
    write_s: float | None = None
    last_token_s: float | None = None


class TorchEngine:
    """Generates with `model`, a Hugging Face causal language model (`Any`, because transformers has no strict types).

    The tokens `end_ids` end a completion, and `pad_id` fills prompts. `num_slots` requests decode at once. Prompts have
    at most `prompt_tokens` tokens, completions at most `max_new_tokens`. The model decides device and type.
    """

    def __init__(
        self,
        *,
        model: Any,
        end_ids: Sequence[int],
        pad_id: int,
        num_slots: int,
        prompt_tokens: int,
        max_new_tokens: int,
    ) -> None:
        check_architecture(model.config)
        self._model = model
        self._limits = RequestLimits(
            vocab_size=int(model.config.get_text_config().vocab_size),
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
        )
        self._num_slots = num_slots
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._memory = TensorMemory({name: parameter.detach() for name, parameter in model.named_parameters()})
        self._decoder = SlotDecoder(
            model=model,
            end_ids=end_ids,
            pad_id=pad_id,
            num_slots=num_slots,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            device=self._device,
            now_s=clock.monotonic_s,
        )
        # The event loop's own. What is asked for in one round of the loop is handed to the thread at once, so that
        # requests that come together begin together.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: list[Callable[[], None]] = []
        self._open: dict[str, tuple[SampleRequest, asyncio.Future[Completion]]] = {}
        self._answers: set[asyncio.Future[Any]] = set()
        # Shared with the thread, under the condition's lock.
        self._changed = threading.Condition()
        self._asked: deque[Callable[[], None]] = deque()
        self._is_closing = False
        self._died: str | None = None
        # The thread's own. The first swap is under way; another one waits behind it only if its caller was cancelled.
        self._swaps: deque[_Swap] = deque()
        self._is_torn = False
        self._is_suspended = False
        self._draining: list[asyncio.Future[None]] = []
        # What the event loop is to do after the thread's present round.
        self._told: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    # ---- the protocol, on the event loop ------------------------------------------------------------------------

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
        return bool(self._dtype == torch.bfloat16)

    async def submit(self, request: SampleRequest) -> Completion:
        """Generate one completion. Raises: RequestFailed, also if this engine cannot take the request; EngineDied."""
        self._limits.check(request)
        if request.request_id in self._open:
            raise RequestFailed(f"request {request.request_id} is under way already; ids are unique")
        self._ask(lambda: self._decoder.submit(request))
        ended: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._open[request.request_id] = (request, ended)
        try:
            return await ended
        except asyncio.CancelledError:
            with contextlib.suppress(EngineDied):
                self._ask(lambda: self._deliver(self._decoder.abort([request.request_id])))
            raise
        finally:
            del self._open[request.request_id]

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests with the tokens so far. Raises: EngineDied."""
        chosen = frozenset(request_ids)
        await self._answer_of(lambda: self._deliver(self._decoder.abort(chosen)))

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        """Write new weights between two tokens. Raises: WrongBase, with nothing written; EngineDied."""
        self._memory.check_fits(change.layout)
        asked_s = clock.monotonic_s()
        return await self._answer(lambda done: self._swaps.append(_Swap(change, policy, on_swap, asked_s, done)))

    async def digest(self) -> bytes:
        """Return the digest of the model's tensors. It is computed beside the decoding: only `swap` changes them."""
        self._check_alive()
        return await asyncio.to_thread(self._memory.digest)

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token given those before it, at temperature 1.

        It runs between two tokens. *Shapes*: ids S x T; returns S x (T - 1). Raises: EngineDied.
        """
        return await self._answer_of(lambda: self._score(ids))

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        """Return None: all rows of this engine's cache are slots."""
        return None

    async def drain(self) -> None:
        """Wait until no request is under way. Raises: EngineDied."""
        await self._answer(self._draining.append)

    async def suspend(self) -> None:
        """Decode nothing until `resume`. The model and its cache stay where they are. Raises: EngineDied."""
        await self._answer_of(partial(self._set_suspended, True))

    async def resume(self) -> None:
        """Go on decoding. Raises: EngineDied."""
        await self._answer_of(partial(self._set_suspended, False))

    async def close(self) -> None:
        """End the thread. Requests under way fail with EngineDied."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        self._fail_all(EngineDied("the engine was closed"))

    # ---- between the event loop and the thread ------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._died is not None or self._is_closing:
            raise EngineDied(self._died or "the engine was closed")

    def _ask(self, work: Callable[[], None]) -> None:
        # The thread does `work` before its next step.
        self._check_alive()
        if not self._asking:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._hand_over)
        self._asking.append(work)

    def _hand_over(self) -> None:
        asked, self._asking = self._asking, []
        with self._changed:
            self._asked.extend(asked)
            self._changed.notify()

    async def _answer(self, work: "Callable[[asyncio.Future[T]], None]") -> T:
        # The thread begins `work`, and settles its future then or later.
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._ask(lambda: work(answer))
        self._answers.add(answer)
        try:
            return await answer
        finally:
            self._answers.discard(answer)

    async def _answer_of(self, work: Callable[[], T]) -> T:
        def run(answer: "asyncio.Future[T]") -> None:
            try:
                found = work()
            except Exception as error:  # whatever it is, it is the caller's
                self._told.append(partial(_fail, answer, error))
            else:
                self._told.append(partial(_resolve, answer, found))

        return await self._answer(run)

    def _settle(self, each: Ended) -> None:
        request, future = self._open.get(each.request.request_id, (None, None))
        # A request that was cancelled may end when another one of its id is under way already.
        if future is None or request is not each.request:
            return
        if isinstance(each.result, Completion):
            _resolve(future, each.result)
        else:
            _fail(future, each.result)

    def _fail_all(self, error: EngineDied) -> None:
        for future in (*(future for _, future in self._open.values()), *self._answers):
            _fail(future, error)

    # ---- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        why = "the engine was closed"
        try:
            while self._wait():
                self._write_if_due()
                if not self._is_torn and not self._is_suspended:
                    # A swap that waits for the requests under way lets no other begin.
                    may_begin = not self._swaps or self._swaps[0].write_s is not None
                    self._deliver(self._decoder.step(may_begin=may_begin))
                self._report_if_due()
                self._end_drains()
                self._post()
        except BaseException as error:  # whatever ended the thread, nobody may wait for it
            why = f"the engine's thread ended: {explained_error(error)}"
        with self._changed:
            self._died = why
        self._told.append(partial(self._fail_all, EngineDied(why)))
        # A loop that was closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._post()

    def _post(self) -> None:
        # One wake-up of the event loop for all that a step has ended.
        if self._told and self._loop is not None:
            told, self._told = self._told, []
            self._loop.call_soon_threadsafe(_do_all, told)

    def _wait(self) -> bool:
        """Sleep until there is something to do, and do what was asked for. Return False when the engine closes."""
        with self._changed:
            while not (self._asked or self._is_closing or self._has_work()):
                self._changed.wait()
            if self._is_closing:
                return False
            asked, self._asked = self._asked, deque()
        for work in asked:
            work()
        return True

    def _set_suspended(self, is_suspended: bool) -> None:
        self._is_suspended = is_suspended

    def _has_work(self) -> bool:
        if self._is_suspended:
            return False
        if self._decoder.is_idle:
            return bool(self._swaps or self._draining)
        return bool(self._swaps) or not self._is_torn

    def _deliver(self, ended: Iterable[Ended]) -> None:
        self._told.extend(partial(self._settle, each) for each in ended)

    def _write_if_due(self) -> None:
        swap = self._swaps[0] if self._swaps else None
        if swap is None or swap.write_s is not None:
            return
        # With torn weights the requests under way cannot end first: they go on after this write.
        if swap.on_swap is OnSwap.DRAIN and self._decoder.num_running and not self._is_torn:
            return
        self._deliver(self._decoder.before_change())
        swap.last_token_s = self._decoder.newest_token_s
        began_s = clock.monotonic_s()
        try:
            if isinstance(swap.change, ChangedElements):
                self._memory.write(swap.change.updates())
            else:
                self._memory.write_all(swap.change.state)
        except Exception as error:  # the caller writes a whole state next
            self._is_torn = True
            self._swaps.popleft()
            self._told.append(partial(_fail, swap.done, error))
            return
        self._is_torn = False
        swap.write_s = clock.monotonic_s() - began_s
        self._decoder.weights_changed(swap.policy, prefill_again=swap.on_swap is OnSwap.REPREFILL)

    def _report_if_due(self) -> None:
        swap, newest_s = self._swaps[0] if self._swaps else None, self._decoder.read_s
        if swap is None or swap.write_s is None:
            return
        if swap.on_swap is OnSwap.DRAIN:
            pause_s = clock.monotonic_s() - swap.asked_s
        elif swap.last_token_s is None:
            pause_s = swap.write_s
        elif newest_s is not None and newest_s > swap.last_token_s:
            pause_s = newest_s - swap.last_token_s
        elif self._decoder.is_idle:
            pause_s = swap.write_s
        else:
            return  # the first token after the swap is still on its way
        self._swaps.popleft()
        self._told.append(partial(_resolve, swap.done, SwapReport(write_s=swap.write_s, pause_s=pause_s)))

    def _end_drains(self) -> None:
        if self._draining and self._decoder.is_idle:
            self._told.extend(partial(_resolve, done, None) for done in self._draining)
            self._draining.clear()

    @torch.inference_mode()
    def _score(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        ids_ST = torch.from_numpy(ids).to(self._device)
        logits_STV = self._model(input_ids=ids_ST, use_cache=False).logits
        logprobs_STV = torch.log_softmax(logits_STV[:, :-1].float(), dim=-1)
        found_ST: npt.NDArray[np.float32] = logprobs_STV.gather(2, ids_ST[:, 1:, None])[:, :, 0].cpu().numpy()
        return found_ST


def _do_all(told: Iterable[Callable[[], None]]) -> None:
    for each in told:
        each()


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    # Its caller may have been cancelled.
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
