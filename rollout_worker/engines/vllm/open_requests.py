"""The requests under way in a vLLM, and which policy sampled which of their tokens.

Pure bookkeeping. A request begins in vLLM once a slot is free, with the weights of that moment. Its *leg* is one
request of vLLM. Usually a completion is one leg. It gets another one if it had no token yet when the weights changed
(then it begins again, so that no key of the old weights is left in it), or if vLLM cannot say which weights sampled
which token (then a leg ends at every swap, and the next one continues its tokens).

Each state of the weights has a label that is never used twice, even where two states are of one policy: a repair of
broken weights must share no cached key with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd, SampleRequest
from rollout_worker.engines.stop_strings import StopWatch
from rollout_worker.engines.vllm.backend import LabelSpan, TokenChunk


@dataclass(frozen=True, slots=True)
class WeightLabel:
    """One state of the weights. `keeps_kv`: requests under way kept the keys and values of the state before."""

    number: int
    policy: Policy
    keeps_kv: bool

    @property
    def text(self) -> str:
        """The label as vLLM reports it, and the salt of its cache."""
        return f"{self.policy}#{self.number}"


class LabelHistory:
    """All states of the weights so far, oldest first."""

    def __init__(self) -> None:
        self._labels: list[WeightLabel] = []

    @property
    def newest(self) -> WeightLabel | None:
        """The present state, None before the first swap."""
        return self._labels[-1] if self._labels else None

    def next(self, policy: Policy, *, keeps_kv: bool) -> WeightLabel:
        """Return the label of the state that comes next, without adding it."""
        return WeightLabel(len(self._labels), policy, keeps_kv)

    def add(self, label: WeightLabel) -> None:
        """Make a label the present state."""
        assert label.number == len(self._labels), "labels are added in order"
        self._labels.append(label)

    def runs(self, legs: Sequence[Sequence[LabelSpan]]) -> tuple[PolicyRun, ...]:
        """Return the policy runs of a completion from the labelled spans of its legs.

        Raises: ValueError for a label that was never added.
        """
        found: list[PolicyRun] = []
        for spans in legs:
            first = self._number(spans[0].label) if spans else 0
            for span in spans:
                number = self._number(span.label)
                # The leg attends to keys of older weights if it began before this state, and the swap to this state
                # kept the cache.
                kept = number > first and self._labels[number].keeps_kv
                run = PolicyRun(self._labels[number].policy, span.num_tokens, kept_kv=kept)
                if found and found[-1].policy == run.policy:
                    run = PolicyRun(run.policy, found[-1].num_tokens + run.num_tokens, kept_kv=found[-1].kept_kv)
                    found.pop()
                found.append(run)
        return tuple(found)

    def _number(self, text: str) -> int:
        number = text.rpartition("#")[2]
        # The whole label must be ours: another worker that writes the same server may have used the number for others.
        if not number.isdigit() or int(number) >= len(self._labels) or self._labels[int(number)].text != text:
            raise ValueError(f"vLLM reports tokens of weights {text!r}, which this worker has not written")
        return int(number)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that was submitted and has not ended. Times are in seconds of the monotonic clock."""

    request: SampleRequest
    leg_id: str | None = None  # its request in vLLM, None while it waits
    num_legs: int = 0
    is_aborted: bool = False
    is_continued: bool = False  # another leg follows
    is_stopped: bool = False  # its last token completes a stop string
    watch: StopWatch | None = None
    last_token_s: float | None = None
    longest_gap_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    legs: list[tuple[LabelSpan, ...]] = field(default_factory=list)

    def begin_leg(self) -> str:
        """Return the id of its next request in vLLM."""
        self.leg_id = f"{self.request.request_id}~{self.num_legs}"
        self.num_legs += 1
        self.is_continued = False
        return self.leg_id

    def take(self, chunk: TokenChunk, now_s: float) -> None:
        """Add the tokens of a chunk, up to one that completes a stop string. What comes after that is dropped."""
        if not chunk.token_ids or self.is_stopped:
            return
        if self.last_token_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_token_s)
        self.last_token_s = now_s
        num_taken = self._num_until_stop(chunk.token_ids)
        self.token_ids += chunk.token_ids[:num_taken]
        self.logprobs += chunk.logprobs[:num_taken]

    def end_leg(self, spans: tuple[LabelSpan, ...]) -> None:
        """Record the labels of the leg that has ended, of the tokens that were taken."""
        self.leg_id = None
        earlier = sum(span.num_tokens for leg in self.legs for span in leg)
        if self.is_stopped:
            spans = first_tokens(spans, len(self.token_ids) - earlier)
        if spans:
            self.legs.append(spans)

    def _num_until_stop(self, token_ids: Sequence[int]) -> int:
        if self.request.stop is not None and self.watch is None:
            self.watch = self.request.stop.watch()
        for number, token in enumerate(token_ids, start=1):
            if self.watch is not None and self.watch.completes(token):
                self.is_stopped = True
                return number
        return len(token_ids)

    @property
    def num_tokens_left(self) -> int:
        """Number of tokens that it may still sample."""
        return self.request.max_new_tokens - len(self.token_ids)

    def completion(self, end: CompletionEnd, history: LabelHistory) -> Completion:
        """Return the completion. Raises: ValueError if the labels do not cover its tokens."""
        runs = history.runs(self.legs)
        covered = sum(run.num_tokens for run in runs)
        if covered != len(self.token_ids) or len(self.logprobs) != len(self.token_ids):
            raise ValueError(
                f"vLLM reports weights of {covered} tokens and {len(self.logprobs)} log-probabilities of a completion "
                f"of {len(self.token_ids)}"
            )
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            runs=runs,
            end=end,
            longest_gap_s=self.longest_gap_s,
        )


def first_tokens(spans: Sequence[LabelSpan], num_tokens: int) -> tuple[LabelSpan, ...]:
    """Return the spans of the first `num_tokens` tokens."""
    found, left = [], num_tokens
    for span in spans:
        if left > 0:
            found.append(LabelSpan(label=span.label, num_tokens=min(left, span.num_tokens)))
        left -= span.num_tokens
    return tuple(found)


def only_label(label: WeightLabel, num_tokens: int) -> tuple[LabelSpan, ...]:
    """Return the spans of a leg that ran under one label from its beginning to its end."""
    return (LabelSpan(label=label.text, num_tokens=num_tokens),) if num_tokens else ()
