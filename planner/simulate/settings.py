"""Assumptions and grids of the simulator, in one place. Only `SETTINGS` is used.

Limits of size are where they are checked (`simulator`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """Settings of engines, lengths, scoring and training."""

    # ---- sampled lengths (`generation.draws`)

    group_correlation: float = 0.68
    """Intraclass correlation of the normal scores of lengths within one prompt's samples. Measured: the median over 15
    pairs of model and contest (AIME24 and AMC23, 8 samples per prompt) of `reasoning_eval_lengths.csv`; they range from
    0.23 to 0.85."""
    groups_per_draw: int = 256
    """Number of groups whose lengths are drawn at a time. Other numbers draw other lengths for the same seed."""

    # ---- inference engines (`generation.replica_speed`, `generation.engine`, `build`)

    max_running: int = 256
    """Largest number of running sequences of one engine, unless layout or caches allow fewer. Source: vLLM's default
    `max_num_seqs`."""
    chunk_tokens: int = 2048
    """Prompt tokens in one step. Source: vLLM's default `max_num_batched_tokens` with chunked prefill."""
    prefill_multiple_tokens: int = 64
    """Prefill seconds are computed at multiples of this many tokens, so that they can be cached. Chosen by hand."""
    growth_tokens: int = 64
    """Tokens by which each running sequence must be able to grow before another is admitted. With fewer, admitted
    sequences are soon put back. Chosen by hand."""
    quota_slack: float = 1.1
    """A pool that its window limits may lease this many times its planned samples per step, so that others may be late.
    Chosen by hand."""

    # ---- phase curves of synchronous steps (`generation.group_shares`)

    curve_growth: float = 1.6
    """Ratio of two successive numbers of samples on a phase curve. Chosen by hand."""
    curve_range: float = 64.0
    """A phase curve ends once its seconds are more than this many times those of one sample. Chosen by hand."""
    split_bisections: int = 50
    """Number of bisection steps over the time by which all samples have arrived. Chosen by hand."""

    # ---- scoring and training (`learning.scoring`, `learning.training`)

    pack_tokens: int = 4096
    """Tokens that a scoring replica takes at a time. Chosen by hand."""
    stage_token_counts: int = 24
    """Number of token counts at which the seconds of a training stage are computed; between them they are interpolated.
    Chosen by hand."""

    # ---- drifting links (`faults`)

    rate_autocorrelation: float = 0.8
    """Correlation of the logarithms of a link's rate before and after one change. Chosen by hand."""


SETTINGS = SimulatorSettings()
"""The settings that the simulator uses."""
