"""The table of algorithms, by the names that a job file uses.

Each entry combines a token loss and an advantage function from the files of this package. A test compares the names
with those that the job file accepts. To add an algorithm, add a file beside this one and an entry here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trainer.learning.advantages import Advantages, AdvantageSettings, Outcomes
from trainer.learning.losses import cispo, dapo, dr_grpo, grpo, gspo, m2po, ppo, reinforce_plus_plus, rloo
from trainer.learning.losses.surrogate import TokenLossFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What defines an algorithm: the loss of each token, the advantage of each token, and whether it has a critic."""

    token_loss: TokenLossFunction
    advantages: Callable[[Outcomes, AdvantageSettings], Advantages]
    has_critic: bool = False


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "grpo": Algorithm(token_loss=grpo.grpo_loss, advantages=grpo.grpo_advantages),
        "dapo": Algorithm(token_loss=dapo.dapo_loss, advantages=dapo.dapo_advantages),
        "dr_grpo": Algorithm(token_loss=dr_grpo.dr_grpo_loss, advantages=dr_grpo.dr_grpo_advantages),
        "gspo": Algorithm(token_loss=gspo.gspo_loss, advantages=gspo.gspo_advantages),
        "cispo": Algorithm(token_loss=cispo.cispo_loss, advantages=cispo.cispo_advantages),
        "m2po": Algorithm(token_loss=m2po.m2po_loss, advantages=m2po.m2po_advantages),
        "rloo": Algorithm(token_loss=rloo.rloo_loss, advantages=rloo.rloo_advantages),
        "reinforce_plus_plus": Algorithm(
            token_loss=reinforce_plus_plus.reinforce_plus_plus_loss,
            advantages=reinforce_plus_plus.reinforce_plus_plus_advantages,
        ),
        "ppo": Algorithm(token_loss=ppo.ppo_loss, advantages=ppo.ppo_advantages, has_critic=True),
    }
)
"""All algorithms, by the value of `algorithm.name` in a job file."""
