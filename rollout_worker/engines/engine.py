"""The interface between the worker and whatever generates its tokens.

An engine turns requests into completions, with the weights that it holds. The caller passes the version of those
weights. Version and seed are the key of the randomness, so a sample is a function of (weights, seed, version, group,
sample) and of nothing else: not of the worker, nor of the other requests or their order. The torch engine keeps this
promise bitwise.

An engine decides neither what to sample nor when its weights change: `tensors` returns the live parameters, and the
weight reader writes into them between calls. `logprobs` scores fixed prompts (periplus/values/probe_prompts.py) with
the same modules that generate, so that a check sees what the engine computes.

Shapes: S sequences, T tokens of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch


class CompletionEnd(StrEnum):
    """Reason why a completion ended: the end token, or the limit of its length."""

    EOS = "eos"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One completion to generate.

    `group` and `sample` are part of its random key. A greedy request ignores `temperature`.
    """

    prompt_ids: tuple[int, ...]
    group: int
    sample: int
    temperature: float
    max_new_tokens: int
    greedy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Sampled tokens, the end token included, and the log-probability of each.

    `logprobs` are float32 values of the sampling distribution: with the request's temperature, 1 for greedy requests.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: CompletionEnd


class Engine(Protocol):
    """A language model that samples."""

    def generate(self, requests: Sequence[SampleRequest], *, seed: int, version: int) -> list[Completion]:
        """Return one completion for each request, in the order of the requests."""
        ...

    def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token given those before it, at temperature 1.

        *Shapes*: ids S x T; returns S x (T - 1).
        """
        ...

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the live parameters by checkpoint name, tied weights once."""
        ...

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: token ids are below it."""
        ...
