"""The `algorithm` section of a job: the RL algorithm that turns samples into a gradient, and its options.

Options are named as in the papers; docs/design/0004-losses.md lists them. `filled_in` gives every option that was left
out the default of the chosen algorithm, so that the resolved job says what will run. `disagreements` refuses an option
that the chosen algorithm does not use, and combinations that make no sense. The losses themselves are in the trainer;
this module knows no tensors.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from periplus.config.loading import Config


class AlgorithmSection(Config):
    """The RL algorithm and its options. An option that is left out gets the algorithm's default."""

    name: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo", "m2po", "rloo", "reinforce_plus_plus", "ppo"] = "grpo"
    """`grpo`: the mean reward of a prompt's samples is their baseline. `dapo`: GRPO with clip-higher and handling of
    overlong samples. `dr_grpo`: GRPO without its biases of length and of standard deviation. `gspo`: ratio and clip of
    whole sequences. `cispo`: clips importance weights and keeps the gradient of every token. `m2po`: replaces the clip
    by a mask of the fewest tokens that keeps the mean square of the log-ratios small. `rloo`: leave-one-out baseline.
    `reinforce_plus_plus`: advantages normalised over the step. `ppo`: with a critic."""

    group_size: int = Field(default=8, ge=1, le=1024)
    """Number of samples drawn for each prompt, which are compared with each other. 1 is allowed only with
    reinforce_plus_plus and ppo, which do not compare them."""

    advantage_normalisation: Literal["std", "batch", "none"] | None = None
    """`std` divides a group's centred rewards by their standard deviation. `batch` scales the advantages of all tokens
    of a step to mean 0 and standard deviation 1. `none` does neither. Default: std for grpo, dapo, gspo, cispo and
    m2po, which also accept none; batch for reinforce_plus_plus and ppo, of which ppo also accepts none; none for
    dr_grpo and rloo."""

    clip_low: float | None = Field(default=None, gt=0, le=1)
    """The probability ratio is clipped from below at 1 - clip_low. No unit. Default: 0.2; gspo 0.0003; cispo 1, which
    is no bound; rloo does not clip, and m2po cannot."""

    clip_high: float | None = Field(default=None, gt=0, le=100)
    """The probability ratio is clipped from above at 1 + clip_high. No unit. Default: 0.28 for grpo and dapo, 0.2 for
    dr_grpo, reinforce_plus_plus and ppo; gspo 0.0004; cispo 4; rloo does not clip, and m2po cannot."""

    m2_threshold: float | None = Field(default=None, gt=0, le=100)
    """Largest mean square of the log-ratios to the behaviour policy, in nats squared, over the tokens whose gradient
    moves the ratio further from 1. Each optimizer update masks the tokens with the largest squares until the mean of
    the others is at most this. It needs a forward pass more than the other algorithms. For m2po. Default: 0.04."""

    dual_clip: float | None = Field(default=None, gt=1, le=100)
    """The loss of a token with a negative advantage A is at most -dual_clip x A. No unit. For grpo, dapo, dr_grpo,
    reinforce_plus_plus and ppo; null for no such bound."""

    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] | None = None
    """How token losses become one loss. `token_mean`: the mean over all tokens of a step. `sequence_mean`: first the
    mean over the tokens of each sample, then over the samples. `constant`: the sum divided by the number of samples
    times loss_constant_tokens. Default: token_mean; gspo is always sequence_mean; dr_grpo always and rloo by default
    constant."""

    loss_constant_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The divisor of loss_aggregation: constant, in tokens per sample. Default: sampling.max_new_tokens; for rloo 1,
    which is the sum over each sample."""

    importance_correction: Literal["truncated", "masked", "none"] = "truncated"
    """How stale samples are corrected. The importance weight of a token is its probability under the trainer's policy
    at the step's start, divided by that under the behaviour policy. `truncated` limits it to importance_cap; `masked`
    sets it to 0 outside importance_low to importance_high. The ratio is then clipped around the trainer's policy.
    `none` clips around the behaviour policy and corrects nothing, which is accepted only with staleness 0."""

    importance_level: Literal["token", "sequence", "sequence_geometric"] | None = None
    """What the importance weight is the ratio of: one token, a whole sample (the product over its tokens), or the
    geometric mean over a sample's tokens. Default: token; for gspo sequence_geometric, and never token; for
    m2po always token."""

    importance_cap: float | None = Field(default=None, ge=1, le=100)
    """Largest importance weight, used with importance_correction: truncated. No unit. Default: 2; m2po 100,
    because its mask takes the place of a bound on each token."""

    importance_low: float | None = Field(default=None, gt=0, le=1)
    """Smallest importance weight that is not set to 0, with importance_correction: masked. No unit. Default: 0.5."""

    importance_high: float | None = Field(default=None, ge=1, le=1000)
    """Largest importance weight that is not set to 0, with importance_correction: masked. No unit. Default: 5."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=100)
    """Weight of the KL penalty towards the reference, which is the policy after the warm-up unless kl_reference names
    another. 0 means no penalty, and no reference policy is kept. Not allowed with dapo."""

    kl_reference: str | None = Field(default=None, min_length=1)
    """Checkpoint of the reference policy, a local directory or a name on the Hub, with the architecture and vocabulary
    of the model. null: the policy after the warm-up."""

    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the KL divergence, from the log-ratio k to the reference: k1 = k, k2 = k^2 / 2,
    k3 = exp(-k) - 1 + k. Only with kl_coefficient above 0. Default: k1 in the reward; k3 in the loss, where k1 is not
    accepted."""

    kl_in: Literal["loss", "reward"] | None = None
    """Whether the KL penalty is added to the loss or subtracted from the rewards. Only with kl_coefficient above 0.
    Default: reward for rloo, reinforce_plus_plus and ppo; loss for the others."""

    gamma: float | None = Field(default=None, gt=0, le=1)
    """Discount factor of the reward per token. For reinforce_plus_plus and ppo. Default: 1."""

    gae_lambda: float | None = Field(default=None, ge=0, le=1)
    """The lambda of generalised advantage estimation: a larger value trusts returns more and the critic less. For ppo.
    Default: 0.95."""

    value_clip: float | None = Field(default=None, gt=0, le=1000)
    """The critic's loss is clipped where a value moves further than this from its value at the step's start, in units
    of reward. For ppo. Default: 0.2."""

    bootstrap_truncated: bool | None = None
    """Whether a sample that was cut off at the length limit gets the critic's value of its last state in addition to
    its reward. For ppo. Use it only where the limit is not part of the task; otherwise an answer that never ends is
    worth more than one that ends. Default: false."""

    critic_lr: float | None = Field(default=None, ge=0, le=1)
    """Peak learning rate of the critic; it follows the optimizer's schedule. For ppo. Default: optimizer.lr."""

    overlong_filter: bool | None = None
    """Whether samples that were cut off at the length limit get advantage 0, so that nothing is learnt from them. For
    dapo. Default: false."""

    overlong_cache_tokens: int | None = Field(default=None, ge=1, le=131_072)
    """The reward falls linearly by up to 1 over this number of last tokens before sampling.max_new_tokens. For dapo;
    null for no such penalty."""


GROUPLESS = frozenset({"reinforce_plus_plus", "ppo"})
"""Algorithms whose baseline is not the mean of a group, so that groups of one sample are allowed."""

_CLIP = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
_OWN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": _CLIP | {"clip_high": 0.28},
        "dapo": _CLIP | {"clip_high": 0.28, "overlong_filter": False, "overlong_cache_tokens": None},
        "dr_grpo": _CLIP,
        "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
        "cispo": {"clip_low": 1.0, "clip_high": 4.0},
        "m2po": {"m2_threshold": 0.04},
        "rloo": {"clip_low": None, "clip_high": None},
        "reinforce_plus_plus": _CLIP | {"gamma": 1.0},
        "ppo": _CLIP
        | {"gamma": 1.0, "gae_lambda": 0.95, "value_clip": 0.2, "bootstrap_truncated": False, "critic_lr": None},
    }
)
"""The options that only some algorithms have: option -> default, by algorithm.

A default of None means that the option is off, or that another key gives its value.
"""

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
            "m2po": _STD,
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
            "m2po": ("token_mean",),
            "rloo": ("constant", "token_mean", "sequence_mean"),
            "reinforce_plus_plus": _ANY,
            "ppo": _ANY,
        },
        "importance_level": dict.fromkeys(_OWN, _TOKEN_FIRST)
        | {"gspo": ("sequence_geometric", "sequence"), "m2po": ("token",)},
        "kl_in": dict.fromkeys(_OWN, ("loss", "reward"))
        | dict.fromkeys(("rloo", "reinforce_plus_plus", "ppo"), ("reward", "loss")),
    }
)
"""The values that each algorithm accepts, by option; the first is the algorithm's default."""


def filled_in(section: AlgorithmSection, *, max_new_tokens: int, optimizer_lr: float) -> AlgorithmSection:
    """Return the section with the default of every option that its algorithm uses and that was left out.

    Options that the algorithm does not use stay None.
    """
    s = section
    # Options of this algorithm alone have one default; those of several algorithms have a default for each.
    values = {name: default for name, default in _OWN[s.name].items() if getattr(s, name) is None}
    if "critic_lr" in values:
        values["critic_lr"] = optimizer_lr
    for option in _in_use(s):
        if getattr(s, option) is None:
            values[option] = _CHOICES[option][s.name][0]
    # These defaults depend on options that the lines above may just have filled in.
    if values.get("loss_aggregation", s.loss_aggregation) == "constant" and s.loss_constant_tokens is None:
        values["loss_constant_tokens"] = 1 if s.name == "rloo" else max_new_tokens
    # A correction brings its own bounds: the cap of truncation, or the interval of masking.
    cap = 100.0 if s.name == "m2po" else 2.0
    bounds = {"truncated": {"importance_cap": cap}, "masked": {"importance_low": 0.5, "importance_high": 5.0}}
    for option, default in bounds.get(s.importance_correction, {}).items():
        values[option] = default if getattr(s, option) is None else getattr(s, option)
    # In the loss the expected gradient of k1 is 0, so that it is the default for the reward alone.
    if s.kl_coefficient and s.kl_estimator is None:
        values["kl_estimator"] = "k1" if values.get("kl_in", s.kl_in) == "reward" else "k3"
    return s.model_copy(update=values)


def disagreements(section: AlgorithmSection, *, staleness: int, max_new_tokens: int) -> list[str]:
    """Return a sentence for each contradiction between the options; each ends with the keys and values to set instead.

    The section may be filled in or not.
    """
    s = section
    return [*_inapplicable(s), *_off_policy(s, staleness), *_kl(s), *_other(s, max_new_tokens)]


def _in_use(section: AlgorithmSection) -> list[str]:
    options = ["advantage_normalisation", "loss_aggregation"]
    options += ["importance_level"] if section.importance_correction != "none" else []
    return options + (["kl_in"] if section.kl_coefficient else [])


def _inapplicable(section: AlgorithmSection) -> list[str]:
    refusals = []
    for option in dict.fromkeys(option for own in _OWN.values() for option in own):
        if getattr(section, option) is not None and option not in _OWN[section.name]:
            users = ", ".join(name for name, own in _OWN.items() if option in own)
            refusals.append(
                f"algorithm.{option} is set, but {section.name} has no such option: it is for {users}; set "
                f"algorithm.{option}=null"
            )
    for option in _in_use(section):
        allowed, value = _CHOICES[option][section.name], getattr(section, option)
        if value is not None and value not in allowed:
            refusals.append(
                f"algorithm.{option} is {value}, but {section.name} accepts only {' or '.join(allowed)}; set "
                f"algorithm.{option}={' or '.join(allowed)}"
            )
    # The value that will run: as given, or else the algorithm's default.
    aggregation = section.loss_aggregation or _CHOICES["loss_aggregation"][section.name][0]
    if section.loss_constant_tokens is not None and aggregation != "constant":
        is_possible = "constant" in _CHOICES["loss_aggregation"][section.name]
        refusals.append(
            f"algorithm.loss_constant_tokens is set, but the loss is a {aggregation}; set "
            f"algorithm.loss_constant_tokens=null{', or algorithm.loss_aggregation=constant' if is_possible else ''}"
        )
    return refusals


def _off_policy(section: AlgorithmSection, staleness: int) -> list[str]:
    refusals = []
    if staleness > 0 and section.importance_correction == "none":
        refusals.append(
            f"staleness is {staleness} and algorithm.importance_correction is none: the loss would be wrong for "
            "stale tokens; set algorithm.importance_correction=truncated or masked, or staleness=0"
        )
    # The corrections that use each option.
    users = {
        "importance_level": ("truncated", "masked"),
        "importance_cap": ("truncated",),
        "importance_low": ("masked",),
        "importance_high": ("masked",),
    }
    refusals += [
        f"algorithm.{option} is set, but algorithm.importance_correction is {section.importance_correction}: it is for "
        f"{' and '.join(corrections)}; set algorithm.{option}=null, or "
        f"algorithm.importance_correction={' or '.join(corrections)}"
        for option, corrections in users.items()
        if getattr(section, option) is not None and section.importance_correction not in corrections
    ]
    return refusals


def _kl(section: AlgorithmSection) -> list[str]:
    if not section.kl_coefficient:
        return [
            f"algorithm.{option} is set, but algorithm.kl_coefficient is 0: there is no penalty; set "
            f"algorithm.{option}=null, or algorithm.kl_coefficient above 0"
            for option in ("kl_estimator", "kl_in", "kl_reference")
            if getattr(section, option) is not None
        ]
    # The paper's objective has no such term.
    if section.name == "dapo":
        return [
            f"algorithm.kl_coefficient is {section.kl_coefficient}, but dapo has no KL penalty; set "
            "algorithm.kl_coefficient=0, or algorithm.name=grpo"
        ]
    if section.kl_estimator == "k1" and (section.kl_in or _CHOICES["kl_in"][section.name][0]) == "loss":
        return [
            "algorithm.kl_estimator is k1 in the loss, where its expected gradient is 0; set algorithm.kl_estimator=k3 "
            "or k2, or algorithm.kl_in=reward"
        ]
    return []


def _other(section: AlgorithmSection, max_new_tokens: int) -> list[str]:
    refusals = []
    # A baseline that is the mean of a group of one is the sample itself.
    if section.group_size == 1 and section.name not in GROUPLESS:
        refusals.append(
            f"algorithm.group_size is 1, but {section.name} compares the samples of a group: every advantage would be "
            f"0; set algorithm.group_size=2 or more, or algorithm.name={' or '.join(sorted(GROUPLESS))}"
        )
    if section.overlong_cache_tokens is not None and section.overlong_cache_tokens > max_new_tokens:
        refusals.append(
            f"algorithm.overlong_cache_tokens is {section.overlong_cache_tokens}, but sampling.max_new_tokens is only "
            f"{max_new_tokens}; set algorithm.overlong_cache_tokens={max_new_tokens} or less"
        )
    return refusals
