"""Keyed sampling: a token is a function of its logits and of the key (seed, version, group, sample, position).

There is no generator state. A counter-based hash (SplitMix64's finaliser, chained over the words of the key) gives one
uniform number per token, and inversion of the cumulative distribution turns it into the token. So a sample does not
depend on the worker, batch row or batch that produced it, and an interrupted generation can be resumed.

Shapes: R rows of a batch, V vocabulary.
"""

import numpy as np
import numpy.typing as npt
import torch

_MASK = (1 << 64) - 1  # words of a key are 64 bits
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: SplitMix64's increment
# Multipliers of SplitMix64's finaliser.
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_UNIFORM_BITS = 40  # below 53, so that uniform * total stays strictly under the total after rounding

UInt64s = npt.NDArray[np.uint64]


def row_keys(seed: int, version: int, groups: npt.ArrayLike, samples: npt.ArrayLike) -> UInt64s:
    """Return the random key of each row: a hash of seed, version, group and sample.

    *Shapes*: groups, samples R; returns R.
    """
    groups_R, samples_R = np.asarray(groups, dtype=np.uint64), np.asarray(samples, dtype=np.uint64)
    key_R = np.zeros_like(groups_R)
    for word in (_words(seed, key_R), _words(version, key_R), groups_R, samples_R):
        key_R = _absorb(key_R, word)
    return key_R


def uniforms(keys_R: UInt64s, positions: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a number in [0, 1) for each row, for the token at its position of the completion.

    *Shapes*: positions R, or one position for all rows; returns R.
    """
    positions_R = np.broadcast_to(np.asarray(positions, dtype=np.uint64), keys_R.shape)
    bits_R = _absorb(keys_R, positions_R) >> np.uint64(64 - _UNIFORM_BITS)
    return bits_R.astype(np.float64) * 2.0**-_UNIFORM_BITS


def choose(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, greedy_R: torch.Tensor, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's token, and its log-probability under the distribution that it was drawn from.

    Greedy rows take the largest logit and report its log-probability at temperature 1.

    *Shapes*: logits_RV float; temperature_R float; greedy_R bool; uniform_R float64 in [0, 1). Returns tokens R (int64)
    and logprobs R (float32).
    """
    # Greedy rows use temperature 1, so that an ignored temperature of 0 cannot divide.
    scale_R = torch.where(greedy_R, torch.ones_like(temperature_R), temperature_R)
    logprobs_RV = torch.log_softmax(logits_RV.float() / scale_R[:, None], dim=-1)
    # Inversion in float64: the token is the number of cumulative sums up to the uniform number. That is scaled by
    # the total, because rounding may keep the total from being exactly 1.
    cdf_RV = logprobs_RV.double().exp().cumsum(dim=-1)
    drawn_R = (cdf_RV <= uniform_R[:, None] * cdf_RV[:, -1:]).sum(dim=-1)
    tokens_R = torch.where(greedy_R, logits_RV.argmax(dim=-1), drawn_R)
    return tokens_R, logprobs_RV.gather(1, tokens_R[:, None])[:, 0]


def _words(value: int, like_R: UInt64s) -> UInt64s:
    return np.full_like(like_R, value & _MASK)


def _absorb(key_R: UInt64s, word_R: UInt64s) -> UInt64s:
    # One step of SplitMix64 with `key ^ word` as its state.
    mixed_R: UInt64s = (key_R ^ word_R) + np.uint64(_GOLDEN)
    mixed_R = (mixed_R ^ (mixed_R >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed_R = (mixed_R ^ (mixed_R >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed_R ^ (mixed_R >> np.uint64(31))
