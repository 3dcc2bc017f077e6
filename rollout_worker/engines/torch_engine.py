"""The embedded engine: decodes a Hugging Face causal model in plain PyTorch with a key-value cache.

It is also the reference that other engines are compared with. Every batch has the same shapes: `batch_rows` rows,
prompts left-padded to `prompt_tokens`, a static cache. Missing rows are filled with one-token dummies. Kernels are
chosen by shape, and work is divided by thread. Therefore, with keyed sampling and on one thread, a row's tokens and
log-probabilities are bitwise independent of the other rows and of its own place in the batch. A batch holds only
requests with equal `max_new_tokens`, so that the cache's width does not depend on other requests either. Decoding stops
once all rows have ended; a row that ended earlier computes on, and its output is dropped.

The engine knows no text: prompts and completions are token ids.

Shapes: R rows, P prompt width, N new tokens, K = P + N cache width, V vocabulary; S x T ids of the probe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import StaticCache

from rollout_worker.engines.engine import Completion, CompletionEnd, SampleRequest
from rollout_worker.engines.sampling import choose, row_keys, uniforms

MIN_BATCH_ROWS = 4
"""Smallest number of rows: on a CPU, float32 products of one to three rows use other kernels, which round differently.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchEngine:
    """Generates with `model`, a Hugging Face causal language model (`Any`, because transformers has no strict types).

    `eos_id` ends a completion, `pad_id` fills prompts up to `prompt_tokens`, and `batch_rows` is the rows of each
    batch.
    """

    model: Any
    eos_id: int
    pad_id: int
    batch_rows: int
    prompt_tokens: int

    def __post_init__(self) -> None:
        if self.batch_rows < MIN_BATCH_ROWS:
            raise ValueError(f"batch_rows is {self.batch_rows}; at least {MIN_BATCH_ROWS} are needed")

    def generate(self, requests: Sequence[SampleRequest], *, seed: int, version: int) -> list[Completion]:
        """Return one completion for each request, in order. There may be any number of requests.

        Raises: ValueError for a prompt that is empty or wider than `prompt_tokens`, for `max_new_tokens` below 1, or
        for a temperature of 0 without greedy.
        """
        for request in requests:
            self._check(request)
        # Sort by length limit, so that requests with equal limits share batches.
        order = sorted(range(len(requests)), key=lambda index: requests[index].max_new_tokens)
        completions: dict[int, Completion] = {}
        start = 0
        while start < len(order):
            num_new = requests[order[start]].max_new_tokens
            rows = [i for i in order[start : start + self.batch_rows] if requests[i].max_new_tokens == num_new]
            done = self._generate_batch([requests[i] for i in rows], num_new, seed, version)
            completions.update(zip(rows, done, strict=True))
            start += len(rows)
        return [completions[index] for index in range(len(requests))]

    @torch.inference_mode()
    def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token given those before it, at temperature 1.

        *Shapes*: ids S x T; returns S x (T - 1).
        """
        ids_ST = torch.from_numpy(ids)
        logits_STV = self.model(input_ids=ids_ST, use_cache=False).logits
        logprobs_STV = torch.log_softmax(logits_STV[:, :-1].float(), dim=-1)
        found_ST: npt.NDArray[np.float32] = logprobs_STV.gather(2, ids_ST[:, 1:, None])[:, :, 0].numpy()
        return found_ST

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the live parameters by checkpoint name, tied weights once."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are below it."""
        return int(self.model.config.vocab_size)

    def _check(self, request: SampleRequest) -> None:
        if not 0 < len(request.prompt_ids) <= self.prompt_tokens:
            raise ValueError(
                f"a prompt of {len(request.prompt_ids)} tokens (group {request.group}); this engine takes 1 to "
                f"{self.prompt_tokens}: raise sampling.prompt_tokens"
            )
        if request.max_new_tokens < 1 or not (request.greedy or request.temperature > 0):
            raise ValueError(
                f"max_new_tokens {request.max_new_tokens} and temperature {request.temperature} must be positive "
                "(for temperature 0 set greedy)"
            )

    @torch.inference_mode()
    def _generate_batch(
        self, requests: Sequence[SampleRequest], num_new: int, seed: int, version: int
    ) -> list[Completion]:
        # Settings of each row; rows beyond the requests are dummies.
        decoder = _Decoder.start(self, requests, num_new)
        num_rows, num_live = self.batch_rows, len(requests)
        keys_R = row_keys(seed, version, _column(requests, "group", num_rows), _column(requests, "sample", num_rows))
        greedy_R = torch.tensor(_column(requests, "greedy", num_rows), dtype=torch.bool)
        temperature_R = torch.ones(num_rows)
        temperature_R[:num_live] = torch.tensor([1.0 if r.greedy else r.temperature for r in requests])
        tokens_NR, logprobs_NR = [], []
        # Dummy rows count as ended from the start.
        ended_R = torch.zeros(num_rows, dtype=torch.bool)
        ended_R[num_live:] = True
        # Draw one token per row and step, until all rows have ended or reached the limit.
        logits_RV = decoder.prefill()
        for position in range(num_new):
            uniform_R = torch.from_numpy(uniforms(keys_R, position))
            tokens_R, logprobs_R = choose(logits_RV, temperature_R, greedy_R, uniform_R)
            tokens_NR.append(tokens_R)
            logprobs_NR.append(logprobs_R)
            ended_R |= tokens_R == self.eos_id
            if position + 1 == num_new or bool(ended_R.all()):
                break
            logits_RV = decoder.advance(tokens_R, position)
        rows = zip(torch.stack(tokens_NR, 1)[:num_live].tolist(), torch.stack(logprobs_NR, 1).tolist(), strict=False)
        return [_completion(tokens, logprobs, self.eos_id) for tokens, logprobs in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoder:
    """State of the model over one batch, all of fixed shape: cache, attention masks (True: attend) and positions."""

    model: Any
    cache: Any
    input_ids_RP: torch.Tensor
    length_R1: torch.Tensor
    attend_prefill_R1PK: torch.Tensor
    attend_decode_R1NK: torch.Tensor

    @staticmethod
    def start(engine: TorchEngine, requests: Sequence[SampleRequest], num_new: int) -> "_Decoder":
        """Build the cache and the masks for one batch. The caller runs `prefill` first."""
        num_rows, width = engine.batch_rows, engine.prompt_tokens
        # Prompts are left-padded: the last token of each stands in the last column. A dummy row has length 1.
        input_ids_RP = np.full((num_rows, width), engine.pad_id, dtype=np.int64)
        lengths_R = np.ones(num_rows, dtype=np.int64)
        for row, request in enumerate(requests):
            lengths_R[row] = len(request.prompt_ids)
            input_ids_RP[row, width - lengths_R[row] :] = request.prompt_ids
        # A query attends the real tokens (not the padding) up to and including itself.
        key_K, query_P = np.arange(width + num_new), np.arange(width)
        real_R1K = key_K >= width - lengths_R[:, None, None]
        causal_PK = key_K <= query_P[:, None]
        # A query at a padding position attends itself too, because a softmax over nothing would be NaN.
        itself_PK = key_K == query_P[:, None]
        decode_NK = key_K <= width + np.arange(num_new)[:, None]
        return _Decoder(
            model=engine.model,
            cache=StaticCache(config=engine.model.config, max_cache_len=width + num_new),
            input_ids_RP=torch.from_numpy(input_ids_RP),
            length_R1=torch.from_numpy(lengths_R[:, None]),
            attend_prefill_R1PK=torch.from_numpy((real_R1K & causal_PK | itself_PK)[:, None]),
            attend_decode_R1NK=torch.from_numpy((real_R1K & decode_NK)[:, None]),
        )

    def prefill(self) -> torch.Tensor:
        """Run the prompts through the model and return the logits of the first new token. *Shapes*: returns R x V."""
        # The first real token of a prompt has position 0, wherever the padding ends.
        width = self.input_ids_RP.shape[1]
        positions_RP = (torch.arange(width) - (width - self.length_R1)).clamp(min=0)
        return self._forward(self.input_ids_RP, positions_RP, self.attend_prefill_R1PK)

    def advance(self, tokens_R: torch.Tensor, position: int) -> torch.Tensor:
        """Append the token at `position` of each completion, and return the logits after it.

        *Shapes*: tokens_R int64; returns R x V.
        """
        attend_R11K = self.attend_decode_R1NK[:, :, position : position + 1]
        return self._forward(tokens_R[:, None], self.length_R1 + position, attend_R11K)

    def _forward(self, ids_RT: torch.Tensor, positions_RT: torch.Tensor, attend: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=ids_RT,
            attention_mask=attend,
            position_ids=positions_RT,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_RV: torch.Tensor = output.logits[:, -1]
        return logits_RV


def _column(requests: Sequence[SampleRequest], name: str, num_rows: int) -> list[int]:
    return [int(getattr(request, name)) for request in requests] + [0] * (num_rows - len(requests))


def _completion(tokens: list[int], logprobs: list[float], eos_id: int) -> Completion:
    ended = eos_id in tokens
    length = tokens.index(eos_id) + 1 if ended else len(tokens)
    return Completion(
        token_ids=tuple(tokens[:length]),
        logprobs=tuple(logprobs[:length]),
        stop_reason=CompletionEnd.EOS if ended else CompletionEnd.LENGTH,
    )
