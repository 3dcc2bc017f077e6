"""What a rollout engine promises to the worker, whatever generates the tokens.

An engine turns requests into completions with the weights that it holds now. The caller passes the version of those
weights: together with the seed it keys the randomness, so that a sample is a function of (weights, seed, version,
group, sample) and of nothing else: not of the worker, of the other requests or of their order. The torch engine keeps
this promise bitwise. An engine decides neither what to sample nor when its weights change: `tensors` hands out the
live parameters and the reader writes into them between calls. `logprobs` answers the probe
(periplus/values/probe_prompts.py): what the engine computes now, by the modules that generate.

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
    """Why a completion ended."""

    EOS = "eos"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One completion to generate. A greedy request ignores `temperature`."""

    prompt_ids: tuple[int, ...]
    group: int
    sample: int
    temperature: float
    max_new_tokens: int
    greedy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The sampled tokens, the end token included, and what the sampler thought of each.

    `logprobs` are float32 values of the sampling distribution (temperature applied; 1 for greedy).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: CompletionEnd


class Engine(Protocol):
    """A model that samples."""

    def generate(self, requests: Sequence[SampleRequest], *, seed: int, version: int) -> list[Completion]:
        """One completion a request, in the order of the requests."""
        ...

    def logprobs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log-probability of each token given those before it, at temperature 1.

        *Shapes*: ids S x T; returns S x (T - 1).
        """
        ...

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The live parameters by checkpoint name, tied weights once."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids lie below."""
        ...
