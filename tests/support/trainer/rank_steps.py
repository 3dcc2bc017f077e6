"""Training steps that several processes share, or that one takes alone, on the small model.

The optimizer is plain gradient descent, so that the change of the weights is the gradient.
"""

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from tests.support.trainer.learning import make_job, sampled, tiny_model
from tests.support.trainer.samples import CONSUMER
from trainer.distributed.collectives import HostCollectives
from trainer.distributed.process_group import RankGroups
from trainer.distributed.sharding import divide
from trainer.distributed.verdict import vote_of
from trainer.learning.critic import Critic
from trainer.learning.learner import Learner
from trainer.learning.ranks import Ranks
from trainer.learning.step import Trained
from trainer.recipe import learner_settings, policy_scorer, settled

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"name": "grpo"}},
    "grpo sequence mean": {"algorithm": {"name": "grpo", "loss_aggregation": "sequence_mean", "kl_coefficient": 0.1}},
    "dr_grpo": {"algorithm": {"name": "dr_grpo"}},
    "gspo": {"algorithm": {"name": "gspo"}},
    "m2po": {
        "algorithm": {"name": "m2po", "m2_threshold": 1e-3},
        "train": {"minibatches": 2, "epochs": 2, "micro_batch_samples": 3},
        "optimizer": {"lr": 0.1},
    },
    "reinforce++": {"algorithm": {"name": "reinforce_plus_plus", "kl_coefficient": 0.1}},
    "ppo": {"algorithm": {"name": "ppo", "kl_coefficient": 0.1, "bootstrap_truncated": True}},
    "minibatches": {
        "algorithm": {"name": "ppo"},
        "train": {"minibatches": 2, "epochs": 2, "micro_batch_samples": 3},
        "optimizer": {"lr": 0.1},
    },
    "fewer rows than ranks at the end": {"algorithm": {"name": "ppo"}, "train": {"micro_batch_samples": 3}},
    "more processes than rows": {"algorithm": {"name": "ppo"}, "train": {"minibatches": 4}},
}
CASES |= {
    "recomputed": {"algorithm": {"name": "ppo"}, "train": {"activation_checkpointing": "on"}},
    "bfloat16": {"algorithm": {"name": "ppo", "kl_coefficient": 0.1}, "train": {"dtype": "bfloat16"}},
}
TOLERANCE = {"bfloat16": 2e-2}
"""Relative difference of results from those of one process, where it is not 1e-5. In bfloat16 each rank rounds the
gradients of its own rows."""

RATE = 1.0
"""Large, so that the change of a weight is not lost in its own rounding; smaller where updates build on each other."""


def groups_here() -> RankGroups:
    """Return the groups of a rank of `run_on_ranks`, which has joined the default group already."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return RankGroups(
        is_whole=False,
        rank=rank,
        size=size,
        device=torch.device("cpu"),
        mesh=init_device_mesh("cpu", (size,)),
        host_group=dist.new_group(backend="gloo"),
        publishing=HostCollectives.over(dist.new_group(backend="gloo")),
        verdict=dist.new_group(backend="gloo"),
    )


def steps_on_ranks() -> dict[str, dict[str, Any]]:
    """Return what each case reports on this rank, and by how much the weights changed."""
    groups = groups_here()
    return {name: _step(name, changes, groups) for name, changes in CASES.items()}


def steps_alone() -> dict[str, dict[str, Any]]:
    """Return what each case reports on a single process, and by how much the weights changed."""
    return {name: _step(name, changes, None) for name, changes in CASES.items()}


def _step(name: str, changes: dict[str, Any], groups: RankGroups | None) -> dict[str, Any]:
    with torch.device("meta" if groups is not None and groups.rank else "cpu"):
        actor = tiny_model()
    job = make_job(**{**changes, "optimizer": {"lr": RATE, "max_grad_norm": 1e9} | changes.get("optimizer", {})})
    job = settled(job, actor, torch.device("cpu"))
    settings = learner_settings(job, actor)
    group_size = 1 if name == "more processes than rows" else 4
    samples = sampled(tiny_model(), 0, group_size=group_size)
    scorer = policy_scorer(job, actor)
    models: list[Any] = [scorer] + ([Critic(actor)] if settings.algorithm.has_critic else [])
    reference = deepcopy(scorer).requires_grad_(False) if job.algorithm.kl_coefficient else None
    ranks = Ranks()
    if groups is not None:
        ranks = Ranks(rank=groups.rank, size=groups.size, agree=vote_of(groups.verdict))
        for module in (*models, *([] if reference is None else [reference])):
            divide(module, groups)
        assert all(isinstance(parameter, DTensor) for model in models for parameter in model.parameters())
    trained = [Trained(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0)) for model in models]
    learner = Learner(
        actor=trained[0],
        critic=trained[1] if len(trained) > 1 else None,
        reference=reference,
        settings=settings,
        ranks=ranks,
    )
    before = whole_values(models)
    report = learner.step(samples, consumer=CONSUMER, learning_rate=job.optimizer.lr)
    assert report is not None
    samples_told = [list(each) for each in report.samples]
    return {"values": report.values(), "samples": samples_told, "changed": whole_values(models) - before}


def whole_values(models: list[Any]) -> torch.Tensor:
    """Return all weights of the models in one row, gathered from all ranks."""
    found = []
    for model in models:
        for parameter in model.parameters():
            value = parameter.detach()
            found.append((value.full_tensor() if isinstance(value, DTensor) else value).flatten().clone())
    return torch.cat(found)
