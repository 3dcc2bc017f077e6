"""The torch engine's decoding: requests in slots, one token a step for all of them, and new weights between two steps.

A fixed number of slots decode together, and a slot whose request has ended is given to the next one between two tokens
(*continuous batching*). Every forward pass has one of three fixed shapes: a prefill of `PREFILL_ROWS` prompts, a step
of one token in every slot, and a prefill again of prompt and completion. Kernels are chosen by shape, and work is
divided by thread. Therefore, with keyed sampling and on one thread, a request's tokens and log-probabilities are
bitwise independent of the other requests, of their order and of the slot. Idle slots are computed too, and what they
sample is dropped.

Prompts end in the same column, so that the column of a completion's token is its position:

    | padding | prompt | completion | free |
    <------- P -------> <------ N ------->

A prompt is prefilled once for all samples of its group: the keys, values and logits of the prompts that were asked for
last are kept until the weights change, one prompt for `SLOTS_PER_KEPT_PROMPT` slots.

On an accelerator the tokens of a step are read by the host one step later (`LAG`), so that no step waits for the
device. What a request's slot draws after its end is dropped.

Only one thread may use a decoder. torch_engine.py connects that thread with the event loop.

Shapes: R slots, S of them that a call names, F rows of a prefill, P prompt columns, N completion columns, K = P + N
cache columns, V vocabulary.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from periplus.errors import explained_error
from periplus.values.keyed_draws import row_keys, uniforms
from periplus.values.policy import Policy
from rollout_worker.engines.engine import Completion, CompletionEnd, RequestFailed, SampleRequest
from rollout_worker.engines.layer_masks import LayerMasks
from rollout_worker.engines.sampling import Nucleus, choose
from rollout_worker.engines.slot_attention import use_slot_attention
from rollout_worker.engines.slot_cache import PrefillCache, PrefilledRow, SlotCache
from rollout_worker.engines.slot_records import SlotRecords, nothing_sampled
from rollout_worker.engines.stop_strings import StopWatch

MIN_SLOTS = 4
"""Smallest number of rows of a forward pass: on a CPU, float32 products of one to three rows use other kernels, which
round differently."""

PREFILL_ROWS = 8
"""Prompts of one prefill. A step of training has tens of prompts, and they come as slots become free. Chosen by
hand."""

LAG = 1
"""Number of steps that an accelerator is ahead of the host. No step then waits for the copy of its own tokens."""

SLOTS_PER_KEPT_PROMPT = 4
"""Slots for each prefilled prompt that is kept. Samples of a group are leased together, so they come within a few
prompts of each other; and kept prompts take at most a quarter of the memory of the slots. Chosen by hand."""


@dataclass(slots=True, eq=False)
class _Row:
    """A request in a slot. Once `has_ended`, what the slot still draws for it is dropped.

    `watch` looks for the request's stop strings, if it has some.
    """

    request: SampleRequest
    slot: int
    watch: StopWatch | None
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class _Prefilled:
    cache: PrefilledRow
    logits_V: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Tokens of one step, on their way from the device to the host: `copied` says when they are there."""

    rows: Sequence[_Row]
    tokens_R: torch.Tensor
    logprobs_R: torch.Tensor
    copied: torch.Event | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that has ended: with a completion, or with the error that it alone has met."""

    request: SampleRequest
    result: Completion | RequestFailed


class SlotDecoder:
    """Slots of one model. `policy` is that of the model's weights; set it before the first request."""

    def __init__(
        self,
        *,
        model: Any,
        end_ids: Sequence[int],
        pad_id: int,
        num_slots: int,
        prompt_tokens: int,
        max_new_tokens: int,
        device: torch.device,
        now_s: Callable[[], float],
    ) -> None:
        if num_slots < MIN_SLOTS:
            raise ValueError(f"num_slots is {num_slots}; at least {MIN_SLOTS} are needed")
        self._model = model
        self._end_ids, self._pad_id = frozenset(end_ids), pad_id
        self._lag = 0 if device.type == "cpu" else LAG
        # A slot may go on for `_lag` tokens after its request's last one, which need columns too.
        self._width_P, self._width_K = prompt_tokens, prompt_tokens + max_new_tokens + self._lag
        self._device, self._now_s = device, now_s
        self._num_layers = int(model.config.get_text_config().num_hidden_layers)
        use_slot_attention(model)
        self._cache = SlotCache(self._num_layers, num_slots, self._width_K, device)
        self._rows: list[_Row | None] = [None] * num_slots
        self._records = SlotRecords(num_slots, max_new_tokens, end_ids)
        self._waiting: deque[SampleRequest] = deque()
        # Requests that were under way when a forward pass failed: they are generated again, one at a time.
        self._suspects: deque[SampleRequest] = deque()
        self._prompts: OrderedDict[tuple[int, ...], _Prefilled] = OrderedDict()
        self._drawn: deque[_Drawn] = deque()
        self.policy: Policy | None = None
        self.read_s: float | None = None
        """Time at which the newest tokens were read."""
        # State of the slots on the device, which each step reads: four rows of one tensor, so that a slot changes in
        # one operation. They are the token to feed, its position, its column, and what the last two advance by.
        # An idle slot feeds padding, attends to column 0 alone and does not advance.
        self._idle_41 = self._on_device([[pad_id], [0], [0], [0]])
        self._state_4R = self._idle_41.repeat(1, num_slots)
        self._tokens_R, self._positions_R, self._columns_R, self._advance_R = self._state_4R
        # The mask is added to attention scores: 0 where a row attends, minus infinity elsewhere.
        dtype = next(model.parameters()).dtype
        self._idle_mask_K = torch.full((self._width_K,), -torch.inf, dtype=dtype, device=device)
        self._idle_mask_K[0] = 0.0
        self._mask_RK = self._idle_mask_K.repeat(num_slots, 1)
        self._columns_K = torch.arange(self._width_K, device=device)
        self._layer_masks = LayerMasks(model.config, self._width_K)
        self._temperature_R = torch.ones(num_slots, device=device)
        self._greedy_R = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self._nucleus = Nucleus(
            top_k_R=torch.zeros(num_slots, dtype=torch.int64, device=device),
            top_p_R=torch.ones(num_slots, dtype=torch.float64, device=device),
        )
        # Keys and positions of the slots on the host, which knows them without asking the device.
        self._keys_R = np.zeros(num_slots, dtype=np.uint64)
        self._position_R = np.zeros(num_slots, dtype=np.int64)

    # ---- what is under way --------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Number of requests that have a slot."""
        return len(self._rows) - self._rows.count(None)

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way or waits."""
        return not (self._waiting or self._suspects or self.num_running)

    @property
    def newest_token_s(self) -> float | None:
        """Time of the newest token of the requests that have a slot; None without one."""
        return self._records.newest_token_s([row.slot for row in self._running()])

    def submit(self, request: SampleRequest) -> None:
        """Add a request to those that wait for a slot."""
        self._waiting.append(request)

    @torch.inference_mode()
    def abort(self, request_ids: Collection[str]) -> list[Ended]:
        """End these requests with the tokens that they have, and return them with any others that have ended."""
        ended = self._read(0)
        for line in (self._waiting, self._suspects):
            for request in [each for each in line if each.request_id in request_ids]:
                line.remove(request)
                ended.append(Ended(request=request, result=nothing_sampled(CompletionEnd.ABORTED)))
        chosen = [row for row in self._running() if row.request.request_id in request_ids]
        self._free(chosen)
        return ended + [self._ended(row, CompletionEnd.ABORTED) for row in chosen]

    # ---- one step -----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self, *, may_begin: bool) -> list[Ended]:
        """Fill free slots unless `may_begin` is False, and sample one token in every slot that has a request.

        A request that begins gets its first token from its prompt's prefill, and the second in the same step.
        """
        ended: list[Ended] = []
        if may_begin:
            ended += self._guarded(self._begin)
        if self.num_running:
            ended += self._guarded(self._advance)
        return ended

    def _guarded(self, work: Callable[[], list[Ended]]) -> list[Ended]:
        # A forward pass may fail because of one request. Which one is not known, so all of them are generated again,
        # alone; keyed sampling makes that the same samples. The one that fails alone is at fault.
        try:
            return work()
        except Exception as error:  # foreign code: a model may raise anything
            rows = self._clear_slots()
            if len(rows) == 1:
                why = RequestFailed(f"generation failed: {explained_error(error)}")
                return [Ended(request=rows[0].request, result=why)]
            self._suspects.extend(row.request for row in rows)
            return []

    def _clear_slots(self) -> list[_Row]:
        rows = self._running()
        self._drawn.clear()
        self._free(rows)
        return rows

    def _begin(self) -> list[Ended]:
        rows = self._fill_slots()
        if not rows:
            return []
        prefilled = self._prefilled([row.request.prompt_ids for row in rows])
        slots_S = self._on_device([row.slot for row in rows])
        self._cache.install(slots_S, [each.cache for each in prefilled])
        self._set_up(rows, slots_S)
        # The first token of all of them, from the logits after their prompts, in the shape of a whole step.
        logits_RV = prefilled[0].logits_V.new_zeros((len(self._rows), prefilled[0].logits_V.shape[0]))
        logits_RV[slots_S] = torch.stack([each.logits_V for each in prefilled])
        tokens_R, logprobs_R = self._choose(logits_RV)
        self._tokens_R[slots_S] = tokens_R[slots_S]
        return self._take(rows, tokens_R, logprobs_R)

    def _fill_slots(self) -> list[_Row]:
        if self._suspects:
            # One at a time, and nothing beside it.
            if self.num_running:
                return []
            chosen = [self._suspects.popleft()]
        else:
            free = len(self._rows) - self.num_running
            chosen = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        slots = (slot for slot, row in enumerate(self._rows) if row is None)
        rows = [
            _Row(request, slot, request.stop.watch() if request.stop else None)
            for request, slot in zip(chosen, slots, strict=False)
        ]
        for row in rows:
            self._rows[row.slot] = row
        return rows

    def _set_up(self, rows: Sequence[_Row], slots_S: torch.Tensor) -> None:
        assert self.policy is not None, "weights come before requests"
        lengths_S = np.array([len(row.request.prompt_ids) for row in rows])
        columns_K = np.arange(self._width_K)
        attend_SK = (columns_K >= self._width_P - lengths_S[:, None]) & (columns_K < self._width_P)
        mask_SK = np.where(attend_SK, np.float32(0.0), np.float32(-np.inf))
        self._mask_RK[slots_S] = self._on_device(mask_SK).to(self._mask_RK.dtype)
        # The token to feed is the one that comes of the prompt.
        ones_S = np.ones_like(lengths_S)
        self._state_4R[1:, slots_S] = self._on_device(np.stack([lengths_S, self._width_P * ones_S, ones_S]))
        self._greedy_R[slots_S] = self._on_device([row.request.greedy for row in rows])
        temperatures = [1.0 if row.request.greedy else row.request.temperature for row in rows]
        self._temperature_R[slots_S] = self._on_device(np.array(temperatures, dtype=np.float32))
        nuclei = [(0, 1.0) if row.request.greedy else (row.request.top_k, row.request.top_p) for row in rows]
        self._nucleus.top_k_R[slots_S] = self._on_device(np.array([top_k for top_k, _ in nuclei], dtype=np.int64))
        self._nucleus.top_p_R[slots_S] = self._on_device(np.array([top_p for _, top_p in nuclei], dtype=np.float64))
        for row in rows:
            self._position_R[row.slot] = row.request.first_position
            self._records.begin(row.slot, row.request.max_new_tokens, self.policy)
        self._renew_keys(rows)

    def _renew_keys(self, rows: Sequence[_Row]) -> None:
        assert self.policy is not None, "weights come before requests"
        for row in rows:
            request = row.request
            key = row_keys(request.seed, self.policy.version, [request.group], [request.sample])
            self._keys_R[row.slot] = key[0]

    def _advance(self) -> list[Ended]:
        # Feed each slot's last token, and draw the next one.
        self._cache.columns_R = self._columns_R
        self._mask_RK.scatter_(1, self._columns_R[:, None], 0.0)
        output = self._model(
            input_ids=self._tokens_R[:, None],
            attention_mask=self._layer_masks.of(
                self._mask_RK[:, None, None, :], self._columns_R[:, None, None, None], self._columns_K
            ),
            position_ids=self._positions_R[:, None],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._state_4R[1:3] += self._advance_R
        tokens_R, logprobs_R = self._choose(output.logits[:, -1])
        self._tokens_R.copy_(torch.where(self._advance_R > 0, tokens_R, self._pad_id))
        return self._take(self._running(), tokens_R, logprobs_R)

    def _choose(self, logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        running = self._running()
        too_early = [row.slot for row in running if self._position_R[row.slot] < row.request.min_new_tokens]
        ends = [token for token in sorted(self._end_ids) if token < logits_RV.shape[1]]
        if too_early and ends:
            logits_RV = logits_RV.clone()
            logits_RV[self._on_device(too_early)[:, None], self._on_device(ends)] = -torch.inf
        # Sorting the vocabulary is left out while nobody needs it. It changes no row that draws from all tokens.
        restricts = any(row.request.top_k or row.request.top_p < 1 for row in running if not row.request.greedy)
        uniform_R = self._on_device(uniforms(self._keys_R, self._position_R))
        return choose(logits_RV, self._temperature_R, self._greedy_R, uniform_R, self._nucleus if restricts else None)

    def _take(self, rows: Sequence[_Row], tokens_R: torch.Tensor, logprobs_R: torch.Tensor) -> list[Ended]:
        # The tokens of these rows are on their way to the host. What other slots have drawn is dropped.
        self._position_R[[row.slot for row in rows]] += 1
        self._drawn.append(_to_host(rows, tokens_R, logprobs_R))
        return self._read(self._lag)

    def _read(self, num_left: int) -> list[Ended]:
        # Takes the tokens of all steps but the newest `num_left`, and frees the slots of requests that have ended.
        ended = []
        while len(self._drawn) > num_left:
            drawn = self._drawn.popleft()
            if drawn.copied is not None:
                drawn.copied.synchronize()
            self.read_s = self._now_s()
            rows = [row for row in drawn.rows if not row.has_ended]
            slots_S = np.array([row.slot for row in rows], dtype=np.int64)
            tokens_S = drawn.tokens_R.numpy()[slots_S]
            has_ended_S = self._records.add(slots_S, tokens_S, drawn.logprobs_R.numpy()[slots_S], self.read_s)
            stopped_S = np.array(
                [
                    row.watch is not None and row.watch.completes(token)
                    for row, token in zip(rows, tokens_S.tolist(), strict=True)
                ],
                dtype=np.bool_,
            )
            has_ended_S |= stopped_S
            if has_ended_S.any():
                places = np.flatnonzero(has_ended_S).tolist()
                self._free([rows[place] for place in places])
                ended += [
                    self._ended(rows[place], self._end_of(int(tokens_S[place]), is_stopped=bool(stopped_S[place])))
                    for place in places
                ]
        return ended

    def _end_of(self, token: int, *, is_stopped: bool) -> CompletionEnd:
        if token in self._end_ids:
            return CompletionEnd.EOS
        return CompletionEnd.STOP if is_stopped else CompletionEnd.LENGTH

    # ---- prefill ------------------------------------------------------------------------------------------------

    def _prefilled(self, prompts: Sequence[tuple[int, ...]]) -> list[_Prefilled]:
        # Each prompt is computed once, in passes of a fixed shape.
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._prompts]
        found = {prompt: self._prompts[prompt] for prompt in prompts if prompt in self._prompts}
        for start in range(0, len(missing), PREFILL_ROWS):
            part = missing[start : start + PREFILL_ROWS]
            found |= self._prefilled_ahead([*part, *self._next_prompts(prompts, PREFILL_ROWS - len(part))], len(part))
        for prompt, each in found.items():
            self._prompts[prompt] = each
            self._prompts.move_to_end(prompt)
        while len(self._prompts) > max(PREFILL_ROWS, len(self._rows) // SLOTS_PER_KEPT_PROMPT):
            self._prompts.popitem(last=False)
        return [found[prompt] for prompt in prompts]

    def _next_prompts(self, prompts: Sequence[tuple[int, ...]], num_rows: int) -> list[tuple[int, ...]]:
        # Prompts of requests that wait, for rows of a prefill that would be idle.
        known = self._prompts.keys() | set(prompts)
        ahead = (request.prompt_ids for request in islice(self._waiting, len(self._rows)))
        return list(islice(dict.fromkeys(prompt for prompt in ahead if prompt not in known), num_rows))

    def _prefilled_ahead(self, prompts: list[tuple[int, ...]], num_needed: int) -> dict[tuple[int, ...], _Prefilled]:
        # The first `num_needed` prompts are needed now. If the others prevent that, they are computed later.
        try:
            cache, logits_FV = self._prefill([(prompt, ()) for prompt in prompts], self._width_P)
        except Exception:  # foreign code: a model may raise anything
            if len(prompts) == num_needed:
                raise
            prompts = prompts[:num_needed]
            cache, logits_FV = self._prefill([(prompt, ()) for prompt in prompts], self._width_P)
        return {prompt: _Prefilled(cache.row(index), logits_FV[index].clone()) for index, prompt in enumerate(prompts)}

    def _prefill(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], width: int
    ) -> tuple[PrefillCache, torch.Tensor]:
        """Run (prompt, completion) pairs through the model, each prompt ending at column P of `width` columns.

        Returns their cache, and the logits after column P - 1 as F x V: those of a prompt's first new token.
        """
        ids_FW = np.full((PREFILL_ROWS, width), self._pad_id, dtype=np.int64)
        starts_F = np.full(PREFILL_ROWS, self._width_P - 1, dtype=np.int64)
        for index, (prompt, completion) in enumerate(sequences):
            starts_F[index] = self._width_P - len(prompt)
            ids_FW[index, starts_F[index] : self._width_P + len(completion)] = prompt + completion
        columns_W = np.arange(width)
        # A query attends the tokens from its sequence's start up to itself, and at a padding column itself alone:
        # a softmax over nothing would be NaN.
        causal_FWW = (columns_W[None, None, :] >= starts_F[:, None, None]) & (columns_W[:, None] >= columns_W[None, :])
        attend_FWW = causal_FWW | np.eye(width, dtype=np.bool_)
        positions_FW = np.maximum(columns_W[None, :] - starts_F[:, None], 0)
        cache = PrefillCache(self._num_layers)
        output = self._model(
            input_ids=self._on_device(ids_FW),
            attention_mask=self._layer_masks.of(
                self._on_device(attend_FWW[:, None]), self._columns_K[:width, None], self._columns_K[:width]
            ),
            position_ids=self._on_device(positions_FW),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=self._on_device([self._width_P - 1]),
        )
        return cache, output.logits[:, -1]

    # ---- new weights --------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def before_change(self) -> list[Ended]:
        """Read all tokens that the present weights have drawn. Call this before weights change."""
        return self._read(0)

    @torch.inference_mode()
    def weights_changed(self, policy: Policy, *, prefill_again: bool) -> None:
        """Go on with the weights that the model has now, which are those of `policy`.

        With `prefill_again` the keys and values of all tokens so far are computed again; otherwise requests under way
        go on with what the earlier weights computed, and their next runs say so.
        """
        self._prompts.clear()
        self.policy = policy
        rows = self._running()
        self._renew_keys(rows)
        for row in rows:
            self._records.change_policy(row.slot, policy, kept_kv=not prefill_again)
        if not prefill_again:
            return
        try:
            self._prefill_again(rows)
        except Exception:  # foreign code: a model may raise anything
            # They are generated again, alone, and so the one at fault is found.
            self._suspects.extend(row.request for row in self._clear_slots())

    def _prefill_again(self, rows: Sequence[_Row]) -> None:
        for start in range(0, len(rows), PREFILL_ROWS):
            part = rows[start : start + PREFILL_ROWS]
            # The newest token is not in the cache yet: the next step feeds it.
            sequences = [(row.request.prompt_ids, self._records.tokens(row.slot)[:-1]) for row in part]
            cache, _ = self._prefill(sequences, self._width_K)
            slots_S = self._on_device([row.slot for row in part])
            self._cache.install(slots_S, [cache.row(index) for index in range(len(part))])

    # ---- slots --------------------------------------------------------------------------------------------------

    def _running(self) -> list[_Row]:
        return [row for row in self._rows if row is not None]

    def _ended(self, row: _Row, end: CompletionEnd) -> Ended:
        return Ended(request=row.request, result=self._records.completion(row.slot, end))

    def _free(self, rows: Sequence[_Row]) -> None:
        # An idle slot computes on at column 0, with one key to attend to.
        if not rows:
            return
        for row in rows:
            row.has_ended = True
            self._rows[row.slot] = None
        slots_S = self._on_device([row.slot for row in rows])
        self._mask_RK[slots_S] = self._idle_mask_K
        self._state_4R[:, slots_S] = self._idle_41

    def _on_device(self, values: npt.ArrayLike) -> torch.Tensor:
        # The host does not wait until the values are there.
        return torch.from_numpy(np.asarray(values)).to(self._device, non_blocking=True)


def _to_host(rows: Sequence[_Row], tokens_R: torch.Tensor, logprobs_R: torch.Tensor) -> _Drawn:
    if tokens_R.device.type == "cpu":
        return _Drawn(rows, tokens_R, logprobs_R, None)
    on_host = tokens_R.to("cpu", non_blocking=True), logprobs_R.to("cpu", non_blocking=True)
    copied = torch.Event(tokens_R.device)
    copied.record()
    return _Drawn(rows, *on_host, copied)
