"""The interface between the worker and whatever generates its tokens.

An engine samples completions with the weights that it holds, and takes new weights while it samples. All methods are
called on one event loop. `submit` is called once for each lease, and many of them are under way at the same time: the
engine batches them as it likes (*continuous batching*). Whatever happens to one request must not cost another one.

**Randomness.** With the torch engine a token is a function of the weights that sampled it, and of (seed, version of
these weights, group, sample, position), and of nothing else: not of the worker, nor of the other requests or their
order. Other engines are seeded by the same numbers and promise less; each says what it promises.

**Weights.** `swap` replaces the weights between two tokens. A completion that was under way goes on under the new
policy, and `Completion.runs` says which policy sampled each token. What happens to its key-value cache is the engine's
`OnSwap`. Only one of `swap`, `digest` and `logprobs` is called at a time, so that what `digest` and `logprobs` find is
one version; requests go on meanwhile. An engine does not decide whether it may serve: the worker submits nothing before
a version is proven, and holds results back while it checks.

Shapes: S sequences, T tokens of each.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.layout import StateLayout
from periplus.codec.weights.staged import Staged, Update
from periplus.errors import PeriplusError
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from periplus.values.weight_state import WeightState
from rollout_worker.engines.stop_strings import StopStrings


class CompletionEnd(StrEnum):
    """Reason why a completion ended: the end token, the limit of its length, a stop string, or `Engine.abort`."""

    EOS = "eos"
    LENGTH = "length"
    STOP = "stop"
    ABORTED = "aborted"


class OnSwap(StrEnum):
    """What becomes of completions that are under way when the weights change.

    KEEP_KV: they go on, and keep the keys and values that the old weights computed. REPREFILL: they go on after keys
    and values of all their tokens were computed again with the new weights. DRAIN: the swap waits until they have
    ended, and nothing new begins meanwhile.
    """

    KEEP_KV = "keep_kv"
    REPREFILL = "reprefill"
    DRAIN = "drain"


class RequestFailed(PeriplusError):
    """The engine could not produce this completion, for a reason that concerns this request alone."""


class EngineDied(PeriplusError):
    """The engine has ended: this call and every later one fail. The worker's process ends then, and is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One completion to generate.

    `request_id` is unique among the requests under way. `seed`, `group` and `sample` are parts of its random key;
    requests of one `group` that begin an episode have the same prompt. A greedy request ignores `temperature`, `top_p`
    and `top_k`. `first_position` is the number of completion tokens that the prompt ends with, if the request continues
    an episode: the random numbers of these positions are not used again.

    Tokens are drawn from the `top_k` likeliest (0 means all) and among these from the fewest likeliest whose
    probabilities, after division by the temperature, sum up to `top_p`. The first `min_new_tokens` tokens are no end
    token. `stop` ends the completion at the token that completes one of its texts.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    seed: int
    group: int
    sample: int
    temperature: float
    max_new_tokens: int
    greedy: bool
    top_p: float = 1.0
    top_k: int = 0
    min_new_tokens: int = 0
    stop: StopStrings | None = None
    first_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Sampled tokens, the end token included, the log-probability of each, and the policies that sampled them.

    `logprobs` are float32 values of the sampling distribution: with the request's temperature, 1 for greedy requests,
    and after all that the request rules out.
    `runs` cover the tokens, oldest policy first. `longest_gap_s` is the longest time between two tokens, in seconds.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    runs: tuple[PolicyRun, ...]
    end: CompletionEnd
    longest_gap_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedElements:
    """New values of the elements that changed since the engine's version, oldest version first; none is empty."""

    staged: tuple[Staged, ...]

    @property
    def layout(self) -> StateLayout:
        """Layout of the state, the same in all versions."""
        return self.staged[-1].layout

    def updates(self) -> Iterator[Update]:
        """Yield what to write, in the order in which to write it. Values are absolute: writing twice does no harm."""
        for staged in self.staged:
            for span in staged.spans:
                yield from span.updates()


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeState:
    """All weights of one version. The caller keeps `state` unchanged until `Engine.swap` has returned."""

    layout: StateLayout
    state: WeightState


WeightChange = ChangedElements | WholeState
"""What `Engine.swap` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapReport:
    """What a swap cost, in seconds.

    `write_s`: the time in which the engine wrote its tensors. `pause_s`: the longest time between the last token before
    the swap and the first one after it, over the requests under way, key-value caches that were computed again
    included; `write_s` if no request was under way. With DRAIN: the time in which no request could begin.
    """

    write_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class Continuations:
    """Tokens that an engine decoded after prompts, and their log-probabilities in nats. *Shapes*: both S x N."""

    token_ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]


class Engine(Protocol):
    """A language model that samples."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are below it."""
        ...

    @property
    def num_slots(self) -> int:
        """Number of requests that decode at the same time."""
        ...

    @property
    def room(self) -> int:
        """Number of further requests that would begin at once. Those beyond it wait inside the engine."""
        ...

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether the forward pass is in bfloat16, so that log-probabilities differ more from the trainer's."""
        ...

    async def submit(self, request: SampleRequest) -> Completion:
        """Generate one completion, and return it when it has ended.

        Cancelling the call aborts the request. Raises: RequestFailed, EngineDied.
        """
        ...

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests. Their `submit` returns the tokens so far, with the end ABORTED. Unknown ids are ignored.

        Raises: EngineDied.
        """
        ...

    async def swap(self, change: WeightChange, policy: Policy, on_swap: OnSwap) -> SwapReport:
        """Write new weights, from whose next token on completions are of `policy`.

        Returns once the first token after the swap is there, or when no request is under way. Raises: WrongBase for
        a layout that does not fit the model, and then nothing was written; EngineDied; any other exception leaves
        weights that may be half written, and the caller writes a whole state next.
        """
        ...

    async def digest(self) -> bytes:
        """Return the digest (periplus/values/digest.py) of the tensors that the engine holds, by checkpoint names.

        Raises: CorruptFrame if a tensor holds a value that no publication can have written; EngineDied.
        """
        ...

    async def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token given those before it, at temperature 1, with the present weights.

        The modules that sample compute it, without any cache of earlier weights.

        *Shapes*: ids S x T; returns S x (T - 1). Raises: EngineDied.
        """
        ...

    async def continuations(self, ids: npt.NDArray[np.int64], num_tokens: int) -> Continuations | None:
        """Draw `num_tokens` tokens after each prompt at temperature 1, as completions are decoded, beside the slots.

        *Shapes*: ids S x T. Return None from an engine without room beside its slots. Raises: EngineDied.
        """
        ...

    async def drain(self) -> None:
        """Wait until no request is under way. Raises: EngineDied."""
        ...

    async def suspend(self) -> None:
        """Compute nothing until `resume`, and give up the memory of the device that can be given up.

        Requests stop between two tokens, and `submit` may be called meanwhile; all other calls but `abort` and `close`
        wait for `resume`, or must not be made. It is not called while one of them is under way. Raises: EngineDied.
        """
        ...

    async def resume(self) -> None:
        """Go on after `suspend`. Raises: EngineDied."""
        ...

    async def close(self) -> None:
        """End the engine and free what it holds. Requests under way fail with EngineDied. It may be called twice."""
        ...
