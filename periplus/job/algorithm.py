"""The job's `algorithm` section: which algorithm turns samples into a gradient, with which options.

Options are named as in the papers (docs/design/0004-losses.md has the list). One left out takes the value that its
algorithm uses: `filled_in` writes it down, so that the resolved job says what will run. One that the chosen algorithm
has no use for is refused rather than ignored; `disagreements` says why. What an option does to a gradient is the
trainer's: nothing here knows a tensor.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from periplus.config.loading import Config


class AlgorithmSection(Config):
    """How samples become a gradient. Options left out take the values that the algorithm uses."""

    name: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "ppo"] = "grpo"
    """`grpo`: the samples of one prompt are each other's baseline. `dapo`: with clip-higher and overlong handling.
    `dr_grpo`: without the biases of length and spread. `gspo`: ratio and clip of whole sequences. `cispo`: clipped
    weights, no clipped gradients. `rloo`: leave-one-out baseline. `reinforce_plus_plus`: normalised over the step.
    `ppo`: with a critic."""

    group_size: int = Field(default=8, ge=1, le=1024)
    """Samples drawn for each prompt and compared with each other; 1 only with reinforce_plus_plus and ppo, which do not
    compare them."""

    advantage_normalisation: Literal["std", "batch", "none"] | None = None
    """`std` divides a group's centred rewards by their standard deviation; `batch` brings the advantages of all tokens
    of a step to mean 0 and deviation 1; `none` does neither. Default: std for grpo, dapo, gspo and cispo, which also
    take none; batch for reinforce_plus_plus and ppo, of which ppo also takes none; none for dr_grpo and rloo."""

    clip_low: float | None = Field(default=None, gt=0, le=1)
    """The probability ratio is clipped from below at 1 - clip_low. No unit. Default: 0.2; gspo 0.0003; cispo 1, no
    bound; rloo: no clip."""

    clip_high: float | None = Field(default=None, gt=0, le=100)
    """The probability ratio is clipped from above at 1 + clip_high. No unit. Default: 0.28 for grpo and dapo, 0.2 for
    dr_grpo, reinforce_plus_plus and ppo; gspo 0.0004; cispo 4; rloo: no clip."""

    dual_clip: float | None = Field(default=None, gt=1, le=100)
    """A token of negative advantage A costs at most -dual_clip x A. No unit. For grpo, dapo, dr_grpo,
    reinforce_plus_plus and ppo; null: no such bound."""

    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] | None = None
    """`token_mean`: over all tokens of a step; `sequence_mean`: over the tokens of each sample first; `constant`: the
    sum over samples times loss_constant_tokens. Default: token_mean; gspo is always sequence_mean; dr_grpo always and
    rloo by default constant."""

    loss_constant_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The divisor of loss_aggregation: constant, in tokens. Default: sampling.max_new_tokens; rloo 1, the sum over each
    sample."""

    importance_correction: Literal["truncated", "masked", "none"] = "truncated"
    """What makes stale samples right: the weight of a token is the probability of the trainer's policy at the step's
    start over the behaviour policy's, `truncated` at importance_cap or `masked`, set to 0, outside importance_low to
    importance_high; the ratio is then clipped around the trainer's policy. `none` clips around the behaviour policy and
    corrects for nothing, which is accepted only with staleness 0."""

    importance_level: Literal["token", "sequence", "sequence_geometric"] | None = None
    """What the weight is a ratio of: a token, the product over a sample, or its geometric mean a token. Default: token;
    gspo sequence_geometric, and never token."""

    importance_cap: float | None = Field(default=None, ge=1, le=100)
    """Largest importance weight, with importance_correction: truncated. No unit. Default: 2."""

    importance_low: float | None = Field(default=None, gt=0, le=1)
    """Smallest importance weight that still counts, with importance_correction: masked. No unit. Default: 0.5."""

    importance_high: float | None = Field(default=None, ge=1, le=1000)
    """Largest importance weight that still counts, with importance_correction: masked. No unit. Default: 5."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the penalty on the distance to the policy that the job starts from, after the warm-up; 0: none, and no
    reference policy is kept. Not with dapo."""

    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """With log-ratio k to the reference: k1 = k, k2 = k^2 / 2, k3 = exp(-k) - 1 + k. With kl_coefficient above 0.
    Default: k1 in the reward, k3 in the loss, where k1 is not accepted."""

    kl_in: Literal["loss", "reward"] | None = None
    """Whether the penalty is added to the loss or taken off the rewards. With kl_coefficient above 0. Default: reward
    for rloo, reinforce_plus_plus and ppo, loss for the others."""

    gamma: float | None = Field(default=None, gt=0, le=1)
    """Discount of the reward, a token. For reinforce_plus_plus and ppo. Default: 1."""

    gae_lambda: float | None = Field(default=None, ge=0, le=1)
    """Weight of longer returns against the critic's values. For ppo. Default: 0.95."""

    value_clip: float | None = Field(default=None, gt=0, le=1000)
    """A value that moved further than this from that at the step's start is not rewarded for it, in units of reward.
    For ppo. Default: 0.2."""

    bootstrap_truncated: bool | None = None
    """Whether a sample that was cut off at the length limit is credited with the critic's value of where it stopped,
    beside its reward. For ppo; only where the limit is no part of the task: else an answer that never ends is worth
    more than one that does. Default: false."""

    critic_lr: float | None = Field(default=None, ge=0, le=1)
    """Peak learning rate of the critic; it follows the optimizer's schedule. For ppo. Default: optimizer.lr."""

    overlong_filter: bool | None = None
    """Samples that were cut off at the length limit teach nothing. For dapo. Default: false."""

    overlong_cache_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """The reward falls by up to 1 over so many last tokens before sampling.max_new_tokens. For dapo; null: it does
    not."""


GROUPLESS = frozenset({"reinforce_plus_plus", "ppo"})
"""Algorithms whose baseline is not the group."""

_CLIP = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
_OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": _CLIP | {"clip_high": 0.28},
        "dapo": _CLIP | {"clip_high": 0.28, "overlong_filter": False, "overlong_cache_tokens": None},
        "dr_grpo": _CLIP,
        "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
        "cispo": {"clip_low": 1.0, "clip_high": 4.0},
        "rloo": {"clip_low": None, "clip_high": None},
        "reinforce_plus_plus": _CLIP | {"gamma": 1.0},
        "ppo": _CLIP
        | {"gamma": 1.0, "gae_lambda": 0.95, "value_clip": 0.2, "bootstrap_truncated": False, "critic_lr": None},
    }
)
"""Options that only some algorithms have, with their defaults; None: none, or taken from another key."""

_STD, _BATCH, _NONE = ("std", "none"), ("batch", "none"), ("none",)
_ANY = ("token_mean", "sequence_mean", "constant")
_TOKEN_FIRST = ("token", "sequence", "sequence_geometric")
_CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "advantage_normalisation": {
            "grpo": _STD,
            "dapo": _STD,
            "dr_grpo": _NONE,
            "gspo": _STD,
            "cispo": _STD,
            "rloo": _NONE,
            "reinforce_plus_plus": ("batch",),
            "ppo": _BATCH,
        },
        "loss_aggregation": {
            "grpo": _ANY,
            "dapo": ("token_mean",),
            "dr_grpo": ("constant",),
            "gspo": ("sequence_mean",),
            "cispo": ("token_mean",),
            "rloo": ("constant", "token_mean", "sequence_mean"),
            "reinforce_plus_plus": _ANY,
            "ppo": _ANY,
        },
        "importance_level": dict.fromkeys(_OWN, _TOKEN_FIRST) | {"gspo": ("sequence_geometric", "sequence")},
        "kl_in": dict.fromkeys(_OWN, ("loss", "reward"))
        | dict.fromkeys(("rloo", "reinforce_plus_plus", "ppo"), ("reward", "loss")),
    }
)
"""What each algorithm accepts; the first is its default."""


def filled_in(section: AlgorithmSection, *, max_new_tokens: int, optimizer_lr: float) -> AlgorithmSection:
    """The section with every option that its algorithm uses. What it has no use for stays null."""
    s = section
    values = {name: default for name, default in _OWN[s.name].items() if getattr(s, name) is None}
    if "critic_lr" in values:
        values["critic_lr"] = optimizer_lr
    for option in _in_use(s):
        if getattr(s, option) is None:
            values[option] = _CHOICES[option][s.name][0]
    if values.get("loss_aggregation", s.loss_aggregation) == "constant" and s.loss_constant_tokens is None:
        values["loss_constant_tokens"] = 1 if s.name == "rloo" else max_new_tokens
    bounds = {"truncated": {"importance_cap": 2.0}, "masked": {"importance_low": 0.5, "importance_high": 5.0}}
    for option, default in bounds.get(s.importance_correction, {}).items():
        values[option] = default if getattr(s, option) is None else getattr(s, option)
    if s.kl_coefficient and s.kl_estimator is None:
        values["kl_estimator"] = "k1" if values.get("kl_in", s.kl_in) == "reward" else "k3"
    return s.model_copy(update=values)


def disagreements(section: AlgorithmSection, *, staleness: int, max_new_tokens: int) -> list[str]:
    """Why the options do not go together, one sentence each, which ends with the keys and values that would do; the
    section may be filled in or not."""
    s = section
    return [*_inapplicable(s), *_off_policy(s, staleness), *_kl(s), *_other(s, max_new_tokens)]


def _in_use(s: AlgorithmSection) -> list[str]:
    options = ["advantage_normalisation", "loss_aggregation"]
    options += ["importance_level"] if s.importance_correction != "none" else []
    return options + (["kl_in"] if s.kl_coefficient else [])


def _inapplicable(s: AlgorithmSection) -> list[str]:
    refusals = []
    for option in dict.fromkeys(option for own in _OWN.values() for option in own):
        if getattr(s, option) is not None and option not in _OWN[s.name]:
            users = ", ".join(name for name, own in _OWN.items() if option in own)
            refusals.append(
                f"algorithm.{option} is set, but {s.name} has no such option: it is for {users}; set "
                f"algorithm.{option}=null"
            )
    for option in _in_use(s):
        allowed, value = _CHOICES[option][s.name], getattr(s, option)
        if value is not None and value not in allowed:
            refusals.append(
                f"algorithm.{option} is {value}, but {s.name} accepts only {' or '.join(allowed)}; set "
                f"algorithm.{option}={' or '.join(allowed)}"
            )
    aggregation = s.loss_aggregation or _CHOICES["loss_aggregation"][s.name][0]
    if s.loss_constant_tokens is not None and aggregation != "constant":
        is_possible = "constant" in _CHOICES["loss_aggregation"][s.name]
        refusals.append(
            f"algorithm.loss_constant_tokens is set, but the loss is a {aggregation}; set "
            f"algorithm.loss_constant_tokens=null{', or algorithm.loss_aggregation=constant' if is_possible else ''}"
        )
    return refusals


def _off_policy(s: AlgorithmSection, staleness: int) -> list[str]:
    refusals = []
    if staleness > 0 and s.importance_correction == "none":
        refusals.append(
            f"staleness is {staleness} and algorithm.importance_correction is none: the loss would be wrong for "
            "stale tokens; set algorithm.importance_correction=truncated or masked, or staleness=0"
        )
    users = {
        "importance_level": ("truncated", "masked"),
        "importance_cap": ("truncated",),
        "importance_low": ("masked",),
        "importance_high": ("masked",),
    }
    refusals += [
        f"algorithm.{option} is set, but algorithm.importance_correction is {s.importance_correction}: it is for "
        f"{' and '.join(corrections)}; set algorithm.{option}=null, or "
        f"algorithm.importance_correction={' or '.join(corrections)}"
        for option, corrections in users.items()
        if getattr(s, option) is not None and s.importance_correction not in corrections
    ]
    return refusals


def _kl(s: AlgorithmSection) -> list[str]:
    if not s.kl_coefficient:
        return [
            f"algorithm.{option} is set, but algorithm.kl_coefficient is 0: there is no penalty; set "
            f"algorithm.{option}=null, or algorithm.kl_coefficient above 0"
            for option in ("kl_estimator", "kl_in")
            if getattr(s, option) is not None
        ]
    if s.name == "dapo":
        return [
            f"algorithm.kl_coefficient is {s.kl_coefficient}, but dapo has no KL penalty; set "
            "algorithm.kl_coefficient=0, or algorithm.name=grpo"
        ]
    if s.kl_estimator == "k1" and (s.kl_in or _CHOICES["kl_in"][s.name][0]) == "loss":
        return [
            "algorithm.kl_estimator is k1 in the loss, where its expected gradient is 0; set algorithm.kl_estimator=k3 "
            "or k2, or algorithm.kl_in=reward"
        ]
    return []


def _other(s: AlgorithmSection, max_new_tokens: int) -> list[str]:
    refusals = []
    if s.group_size == 1 and s.name not in GROUPLESS:
        refusals.append(
            f"algorithm.group_size is 1, but {s.name} compares the samples of a group: every advantage would be 0; set "
            f"algorithm.group_size=2 or more, or algorithm.name={' or '.join(sorted(GROUPLESS))}"
        )
    if s.overlong_cache_tokens is not None and s.overlong_cache_tokens > max_new_tokens:
        refusals.append(
            f"algorithm.overlong_cache_tokens is {s.overlong_cache_tokens}, but sampling.max_new_tokens is only "
            f"{max_new_tokens}; set algorithm.overlong_cache_tokens={max_new_tokens} or less"
        )
    return refusals
