"""What the engine needs of a vLLM, whether it runs below this process or is a server somewhere else.

A backend starts and ends requests, stops and continues the scheduler, and reaches the weights in the workers. It
decides nothing: `VllmEngine` decides which request begins when, which policy a token is of, and what a swap does.

All methods raise EngineDied once vLLM has ended, and so do calls that are under way then.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Update


class ChunkEnd(StrEnum):
    """Reason why vLLM ended a request."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How vLLM samples one request.

    `stop_ids` end the completion and belong to it. `cache_salt` names the weights: keys and values are shared only
    between requests with equal ones. A temperature of 0 is greedy. Before `min_tokens` tokens there is no stop id. A
    `top_k` of 0 and a `top_p` of 1 draw from all tokens.
    """

    temperature: float
    seed: int
    max_tokens: int
    stop_ids: tuple[int, ...]
    cache_salt: str
    top_p: float = 1.0
    top_k: int = 0
    min_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSpan:
    """So many tokens of a request, which were sampled while the weights had this label."""

    label: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """The next tokens of a request with their log-probabilities.

    The last chunk has an `end`, and `spans` over all tokens of the request, or None if vLLM reports no labels.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end: ChunkEnd | None
    spans: tuple[LabelSpan, ...] | None


class VllmBackend(Protocol):
    """One vLLM: all ranks that hold one copy of the model."""

    @property
    def layout(self) -> StateLayout:
        """Names and shapes of the weights that the ranks together hold."""
        ...

    @property
    def reports_labels(self) -> bool:
        """Whether the last chunk of a request has spans."""
        ...

    def generate(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[TokenChunk]:
        """Generate one completion. Leaving the iteration early ends the request in vLLM. Raises: RequestFailed."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests that have begun; others are ignored. Their iteration ends with the tokens so far."""
        ...

    async def prompt_logprobs(self, request_id: str, ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each id but the first, at temperature 1, without any cached prefix."""
        ...

    async def pause(self, *, clear_cache: bool) -> None:
        """Stop the scheduler between two tokens. Requests stay; with `clear_cache` they compute all keys again."""
        ...

    async def resume(self) -> None:
        """Let the scheduler go on."""
        ...

    async def suspend(self) -> None:
        """Stop the scheduler, and give up the memory of the devices that can be given up, until `wake`."""
        ...

    async def wake(self) -> None:
        """Take the memory back, and let the scheduler go on."""
        ...

    async def write(self, updates: Iterable[Update]) -> None:
        """Write elements on all ranks. An exception leaves weights that may be half written."""
        ...

    async def set_label(self, label: str) -> None:
        """Give the weights a label, which the tokens from now on carry. The scheduler must be paused."""
        ...

    async def digest(self) -> bytes:
        """Return the digest of the tensors of all ranks. Raises: CorruptFrame."""
        ...

    async def close(self) -> None:
        """End vLLM, if this process started it. It may be called twice."""
        ...
