"""Checks a request before an engine takes it, so that a bad one fails alone and with a reason."""

from dataclasses import dataclass

from rollout_worker.engines.engine import RequestFailed, SampleRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What an engine was built for: token ids below `vocab_size`, and at most so many tokens of each part."""

    vocab_size: int
    prompt_tokens: int
    max_new_tokens: int

    def check(self, request: SampleRequest) -> None:
        """Raises: RequestFailed for a request that the engine cannot take."""
        ids = request.prompt_ids
        if not 0 < len(ids) <= self.prompt_tokens:
            raise RequestFailed(
                f"a prompt of {len(ids)} tokens (group {request.group}); this engine takes 1 to {self.prompt_tokens}: "
                "raise sampling.prompt_tokens"
            )
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise RequestFailed(
                f"a prompt with the token id {min(ids) if min(ids) < 0 else max(ids)} (group {request.group}); the "
                f"model's vocabulary has {self.vocab_size}: is the tokenizer the model's?"
            )
        if not 1 <= request.max_new_tokens <= self.max_new_tokens:
            raise RequestFailed(
                f"a completion of {request.max_new_tokens} tokens is asked for; this engine takes 1 to "
                f"{self.max_new_tokens}: raise sampling.max_new_tokens"
            )
        if not 0 <= request.min_new_tokens <= request.max_new_tokens:
            raise RequestFailed(
                f"a least length of {request.min_new_tokens} tokens is asked for, of a completion of at most "
                f"{request.max_new_tokens}: lower eval.sampling.min_new_tokens"
            )
        if not (0 < request.top_p <= 1 and request.top_k >= 0):
            raise RequestFailed(
                f"eval.sampling.top_p is {request.top_p} and eval.sampling.top_k is {request.top_k}; the first must be "
                "above 0 and at most 1, and the second 0 or more"
            )
        if not (request.greedy or 0 < request.temperature < float("inf")):
            raise RequestFailed(f"temperature is {request.temperature}; it must be above 0 (for 0 set greedy)")
