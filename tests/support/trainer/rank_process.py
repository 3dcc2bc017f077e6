"""One process among several that share training steps.

`python -m tests.support.trainer.rank_process RANK SIZE STORE OUT` runs a step of each of CASES on the small model, with
plain gradient descent so that the change of the weights is the gradient, and saves what it reports and how the weights
changed.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.trainer.learning import make_job, sampled, tiny_model
from tests.support.trainer.samples import CONSUMER
from trainer.learning.critic import Critic
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.learner import Learner
from trainer.learning.ranks import Ranks
from trainer.learning.step import Trained
from trainer.recipe import learner_settings

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo"}},
    "grpo sequence mean": {"algorithm": {"name": "grpo", "loss_aggregation": "sequence_mean", "kl_coefficient": 0.1}},
    "dr_grpo": {"algorithm": {"name": "dr_grpo"}},
    "gspo": {"algorithm": {"name": "gspo"}},
    "reinforce++": {"algorithm": {"name": "reinforce_plus_plus", "kl_coefficient": 0.1}},
    "ppo": {"algorithm": {"name": "ppo", "kl_coefficient": 0.1, "bootstrap_truncated": True}},
    "minibatches": {
        "algorithm": {"name": "ppo"},
        "train": {"minibatches": 2, "epochs": 2, "micro_batch_samples": 3},
        "optimizer": {"lr": 0.1},
    },
    "more processes than rows": {"algorithm": {"name": "ppo"}, "train": {"minibatches": 4}},
}
RATE = 1.0
"""Large, so that the change of a weight is not lost in its own rounding; smaller where updates build on each other."""


def steps(ranks: Ranks) -> dict[str, dict[str, Any]]:
    """Return what each case reports, and by how much its weights changed."""
    return {name: _step(name, changes, ranks) for name, changes in CASES.items()}


def _step(name: str, changes: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    actor = tiny_model()
    job = make_job(**{**changes, "optimizer": {"lr": RATE, "max_grad_norm": 1e9} | changes.get("optimizer", {})})
    settings = learner_settings(job, actor)
    critic = Critic(actor) if settings.algorithm.has_critic else None
    models: list[torch.nn.Module] = [PolicyScorer(actor)] + ([critic] if critic is not None else [])
    trained = [Trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0)) for model in models]
    learner = Learner(
        actor=trained[0],
        critic=trained[1] if critic is not None else None,
        reference=PolicyScorer(tiny_model()) if job.algorithm.kl_coefficient else None,
        settings=settings,
        ranks=ranks,
    )
    before = [parameter.detach().clone() for model in models for parameter in model.parameters()]
    group_size = 1 if name == "more processes than rows" else 4
    report = learner.step(sampled(actor, 0, group_size=group_size), consumer=CONSUMER, learning_rate=job.optimizer.lr)
    assert report is not None
    after = [parameter.detach() for model in models for parameter in model.parameters()]
    changed = torch.cat([(new - old).flatten() for new, old in zip(after, before, strict=True)])
    return {"values": report.values(), "changed": changed}


def main() -> None:
    rank, size, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.save(steps(Ranks(rank=rank, size=size)), out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
