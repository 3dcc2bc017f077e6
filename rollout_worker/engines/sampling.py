"""Keyed sampling: the token at a position is a function of the logits and of (seed, version, group, sample, position).

There is no generator state. A counter-based hash (the finaliser of SplitMix64, chained over the words of the key) gives
one uniform number a token, and inversion of the cumulative distribution turns it into the token. So a sample does not
depend on which worker, batch row or batch composition produced it, and a generation that was cut can be resumed.

Shapes: R rows of a batch, V vocabulary.
"""

import numpy as np
import numpy.typing as npt
import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: SplitMix64's increment
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIFORM_BITS = 40  # below 53, so that uniform * total stays strictly under the total after rounding

UInt64s = npt.NDArray[np.uint64]


def row_keys(seed: int, version: int, groups: npt.ArrayLike, samples: npt.ArrayLike) -> UInt64s:
    """The key of each row's stream. *Shapes*: groups and samples R; returns R."""
    groups_R, samples_R = np.asarray(groups, dtype=np.uint64), np.asarray(samples, dtype=np.uint64)
    key_R = np.zeros_like(groups_R)
    for word in (_words(seed, key_R), _words(version, key_R), groups_R, samples_R):
        key_R = _absorb(key_R, word)
    return key_R


def uniforms(keys_R: UInt64s, position: int) -> npt.NDArray[np.float64]:
    """One number in [0, 1) a row for the token at `position` of its completion."""
    bits_R = _absorb(keys_R, _words(position, keys_R)) >> np.uint64(64 - _UNIFORM_BITS)
    return bits_R.astype(np.float64) * 2.0**-_UNIFORM_BITS


def choose(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, greedy_R: torch.Tensor, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row and its log-probability under the distribution that it was drawn from.

    Greedy rows take the largest logit and report the log-probability at temperature 1.
    *Shapes*: returns tokens R (int64), logprobs R (float32).
    """
    scale_R = torch.where(greedy_R, torch.ones_like(temperature_R), temperature_R)
    logprobs_RV = torch.log_softmax(logits_RV.float() / scale_R[:, None], dim=-1)
    cdf_RV = logprobs_RV.double().exp().cumsum(dim=-1)
    drawn_R = (cdf_RV <= uniform_R[:, None] * cdf_RV[:, -1:]).sum(dim=-1)
    tokens_R = torch.where(greedy_R, logits_RV.argmax(dim=-1), drawn_R)
    return tokens_R, logprobs_RV.gather(1, tokens_R[:, None])[:, 0]


def _words(value: int, like_R: UInt64s) -> UInt64s:
    return np.full_like(like_R, value & _MASK)


def _absorb(key_R: UInt64s, word_R: UInt64s) -> UInt64s:
    mixed_R: UInt64s = (key_R ^ word_R) + np.uint64(_GOLDEN)
    mixed_R = (mixed_R ^ (mixed_R >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed_R = (mixed_R ^ (mixed_R >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed_R ^ (mixed_R >> np.uint64(31))
