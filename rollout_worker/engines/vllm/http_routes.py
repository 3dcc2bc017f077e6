"""The two routes of a vLLM server that generate from token ids: what they are asked, and what they answer.

`TokensRoute` says which weights sampled which token; a server has it with `--enable-scale-out`. `CompletionsRoute` is
the OpenAI route with vLLM's additions, which every server has; it says nothing of weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rollout_worker.engines.vllm.backend import ChunkEnd, LabelSpan, Sampling, TokenChunk


class GenerateRoute(Protocol):
    """How to ask one route, and how to read its answers."""

    @property
    def path(self) -> str:
        """The route's path."""
        ...

    def server_id(self, request_id: str) -> str:
        """Return the id under which the server knows a request."""
        ...

    def body(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        """Return the body that asks for a streamed completion."""
        ...

    def chunk(self, choice: Mapping[str, Any]) -> TokenChunk:
        """Return the tokens of one event's choice."""
        ...

    def probe_body(self, request_id: str, ids: Sequence[int]) -> dict[str, Any]:
        """Return the body that asks for log-probabilities of given tokens."""
        ...

    def prompt_logprobs(self, answer: Mapping[str, Any], ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each id but the first from the answer. Raises: KeyError, ValueError."""
        ...


class TokensRoute:
    """vLLM's route for token ids in and out."""

    path = "/inference/v1/generate"

    def server_id(self, request_id: str) -> str:
        """Return the id under which the server knows a request."""
        return f"generate-tokens-{request_id}"

    def body(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        """Return the body that asks for a streamed completion."""
        return {
            "request_id": request_id,
            "token_ids": list(prompt_ids),
            "cache_salt": sampling.cache_salt,
            "stream": True,
            "sampling_params": {**_sampling(sampling), "detokenize": False},
        }

    def chunk(self, choice: Mapping[str, Any]) -> TokenChunk:
        """Return the tokens of one event's choice."""
        content = (choice.get("logprobs") or {}).get("content") or ()
        logprobs = tuple(float(entry["logprob"]) for entry in content)
        spans = choice.get("weight_versions")
        labelled = None if spans is None else tuple(map(_span, spans))
        return _chunk(choice, logprobs, labelled)

    def probe_body(self, request_id: str, ids: Sequence[int]) -> dict[str, Any]:
        """Return the body that asks for log-probabilities of given tokens."""
        params = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        return {"request_id": request_id, "token_ids": list(ids), "stream": False, "sampling_params": params}

    def prompt_logprobs(self, answer: Mapping[str, Any], ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each id but the first from the answer. Raises: KeyError, ValueError."""
        return _of_tokens(answer["prompt_logprobs"], ids)


class CompletionsRoute:
    """OpenAI's route for completions, with token ids as vLLM adds them. `model` is the server's name for it."""

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self._model = model

    def server_id(self, request_id: str) -> str:
        """Return the id under which the server knows a request."""
        return f"cmpl-{request_id}-0"

    def body(self, request_id: str, prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        """Return the body that asks for a streamed completion."""
        return {
            "model": self._model,
            "request_id": request_id,
            "prompt": list(prompt_ids),
            "cache_salt": sampling.cache_salt,
            "stream": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **_sampling(sampling),
        }

    def chunk(self, choice: Mapping[str, Any]) -> TokenChunk:
        """Return the tokens of one event's choice."""
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        return _chunk(choice, tuple(map(float, logprobs)), None)

    def probe_body(self, request_id: str, ids: Sequence[int]) -> dict[str, Any]:
        """Return the body that asks for log-probabilities of given tokens."""
        params = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0}
        return {"model": self._model, "request_id": request_id, "prompt": list(ids), **params}

    def prompt_logprobs(self, answer: Mapping[str, Any], ids: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probability of each id but the first from the answer. Raises: KeyError, ValueError."""
        return _of_tokens(answer["choices"][0]["prompt_logprobs"], ids)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    # All else that truncates or reweights the distribution is off, whatever the model's own files say.
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": sampling.seed,
        "min_tokens": sampling.min_tokens,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
    }


def _chunk(choice: Mapping[str, Any], logprobs: tuple[float, ...], spans: tuple[LabelSpan, ...] | None) -> TokenChunk:
    token_ids, end = tuple(choice.get("token_ids") or ()), choice.get("finish_reason")
    return TokenChunk(
        token_ids=token_ids,
        logprobs=logprobs if token_ids else (),
        end=None if end is None else ChunkEnd(end),
        spans=spans,
    )


def _span(span: Mapping[str, Any]) -> LabelSpan:
    return LabelSpan(label=span["version"], num_tokens=span["end"] - span["start"])


def _of_tokens(entries: Sequence[Mapping[str, Any] | None], ids: Sequence[int]) -> tuple[float, ...]:
    found = []
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        if entry is None:
            raise ValueError(f"vLLM gives no log-probability of token {token}")
        found.append(float(entry[str(token)]["logprob"]))
    return tuple(found)
