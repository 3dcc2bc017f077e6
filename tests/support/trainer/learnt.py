"""Learners whose state a checkpoint holds: a single optimizer, and all that PPO has."""

from typing import Any

import torch

from tests.support.trainer.learning import make_job
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.learner import Learner
from trainer.learning.step import Trained
from trainer.recipe import learner_settings


class Learnt(torch.optim.AdamW):
    """An optimizer whose state is the whole state of the learner."""

    def __init__(self, model: Any) -> None:
        super().__init__(model.parameters(), lr=1e-2)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"": self}


def ppo_learner(actor: Any, critic: Any, reference: Any) -> Learner:
    """Return the learner of a PPO job with a KL penalty around models that may be divided among ranks."""
    settings = learner_settings(make_job(algorithm={"name": "ppo", "kl_coefficient": 0.1}), actor)
    return Learner(
        actor=Trained(model=actor, optimizer=torch.optim.AdamW(actor.parameters(), lr=1e-2)),
        critic=Trained(model=critic, optimizer=torch.optim.AdamW(critic.parameters(), lr=1e-2)),
        reference=PolicyScorer(reference),
        settings=settings,
    )


@torch.no_grad()
def change_everything(learner: Learner, actor: Any, critic: Any) -> None:
    """Take a step of both optimizers with gradients that depend on each weight alone.

    So the result is the same bit for bit, however many ranks share the weights.
    """
    for model, key in ((actor, "optimizer"), (critic, "critic_optimizer")):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * 0.5 + 0.25
        learner.optimizers()[key].step()
        learner.optimizers()[key].zero_grad()
