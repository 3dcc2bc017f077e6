"""What the torch engine's slots have sampled so far, on the host: tokens, log-probabilities, policies and times.

A step adds one token to many slots at once, so the values lie in arrays with a row for each slot. Python objects are
made when a request ends, once.

Shapes: R slots, N tokens of a completion, S slots that a call names.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd

Slots = npt.NDArray[np.int64]


class SlotRecords:
    """Records of `num_slots` slots, each of at most `max_new_tokens` tokens; one of `end_ids` ends a completion."""

    def __init__(self, num_slots: int, max_new_tokens: int, end_ids: Sequence[int]) -> None:
        self._end_ids = np.array(sorted(end_ids), dtype=np.int64)
        self._tokens_RN = np.zeros((num_slots, max_new_tokens), dtype=np.int64)
        self._logprobs_RN = np.zeros((num_slots, max_new_tokens), dtype=np.float32)
        self._num_tokens_R = np.zeros(num_slots, dtype=np.int64)
        self._limit_R = np.zeros(num_slots, dtype=np.int64)
        # Infinite before the first token: a gap since then is below every other one.
        self._last_token_s_R = np.full(num_slots, np.inf)
        self._longest_gap_s_R = np.zeros(num_slots)
        # For each slot: first token of each run, its policy, and whether older keys and values were kept.
        self._runs: list[list[tuple[int, Policy, bool]]] = [[] for _ in range(num_slots)]

    def begin(self, slot: int, limit: int, policy: Policy) -> None:
        """Begin a completion of at most `limit` tokens, whose first token `policy` samples."""
        self._num_tokens_R[slot], self._limit_R[slot] = 0, limit
        self._last_token_s_R[slot], self._longest_gap_s_R[slot] = np.inf, 0.0
        self._runs[slot] = [(0, policy, False)]

    def add(
        self, slots_S: Slots, tokens_S: npt.NDArray[np.int64], logprobs_S: npt.NDArray[np.float32], now_s: float
    ) -> npt.NDArray[np.bool_]:
        """Add one token to each of these slots, and return which of the completions have ended. Returns S."""
        places_S = self._num_tokens_R[slots_S]
        self._tokens_RN[slots_S, places_S] = tokens_S
        self._logprobs_RN[slots_S, places_S] = logprobs_S
        self._num_tokens_R[slots_S] = places_S + 1
        gaps_S = now_s - self._last_token_s_R[slots_S]
        self._longest_gap_s_R[slots_S] = np.maximum(self._longest_gap_s_R[slots_S], gaps_S)
        self._last_token_s_R[slots_S] = now_s
        ended_S: npt.NDArray[np.bool_] = (tokens_S[:, None] == self._end_ids).any(axis=1) | (
            places_S + 1 == self._limit_R[slots_S]
        )
        return ended_S

    def change_policy(self, slot: int, policy: Policy, *, kept_kv: bool) -> None:
        """Let the slot's next token be the first of a run of `policy`."""
        # A rewrite of the same version is no new run.
        if self._runs[slot][-1][1] != policy:
            self._runs[slot].append((int(self._num_tokens_R[slot]), policy, kept_kv))

    def tokens(self, slot: int) -> tuple[int, ...]:
        """Return the slot's tokens so far."""
        return tuple(self._tokens_RN[slot, : self._num_tokens_R[slot]].tolist())

    def newest_token_s(self, slots: Sequence[int]) -> float | None:
        """Return the time of the newest token of these slots; None if they have none."""
        times_s = [float(time_s) for time_s in self._last_token_s_R[list(slots)] if time_s < np.inf]
        return max(times_s, default=None)

    def completion(self, slot: int, end: CompletionEnd) -> Completion:
        """Return what the slot has sampled, as a completion that has ended."""
        num_tokens = int(self._num_tokens_R[slot])
        # Each run lasts until the next one begins. A swap before the first token leaves an empty run, which is no run.
        starts = [*self._runs[slot], (num_tokens, None, False)]
        runs = [
            PolicyRun(policy, after - start, kept_kv=kept)
            for (start, policy, kept), (after, _, _) in pairwise(starts)
            if policy is not None and after > start
        ]
        return Completion(
            token_ids=self.tokens(slot),
            logprobs=tuple(self._logprobs_RN[slot, :num_tokens].tolist()),
            runs=tuple(runs),
            end=end,
            longest_gap_s=float(self._longest_gap_s_R[slot]),
        )


def nothing_sampled(end: CompletionEnd) -> Completion:
    """Return the completion of a request that ended before it had a slot."""
    return Completion(token_ids=(), logprobs=(), runs=(), end=end, longest_gap_s=0.0)
