"""Random numbers that are functions of a key (seed, version, group, sample, position), without generator state.

A counter-based hash (SplitMix64's finaliser, chained over the words of the key) gives one uniform number for each token
of a completion. So a sample does not depend on the worker, batch row or batch that produced it, an interrupted
generation can be resumed, and whoever knows the key can tell which number a token was drawn with.

Shapes: R rows of a batch.
"""

import numpy as np
import numpy.typing as npt

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


def _words(value: int, like_R: UInt64s) -> UInt64s:
    return np.full_like(like_R, value & _MASK)


def _absorb(key_R: UInt64s, word_R: UInt64s) -> UInt64s:
    # One step of SplitMix64 with `key ^ word` as its state.
    mixed_R: UInt64s = (key_R ^ word_R) + np.uint64(_GOLDEN)
    mixed_R = (mixed_R ^ (mixed_R >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed_R = (mixed_R ^ (mixed_R >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed_R ^ (mixed_R >> np.uint64(31))
