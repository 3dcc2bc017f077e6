"""What one rank holds: the models and the learner, which all ranks share, and the weights that it publishes.

Rank 0 and the followers run the same code. Rank 0 calls the parts from leader.py. A follower calls them for each
command that comes, in `follow`.
"""

from collections.abc import Callable
from typing import Any, assert_never

import torch

from periplus.job.job_file import JobFile
from trainer.checkpointing import checkpoint, export, restoration
from trainer.distributed.collectives import HostCollectives
from trainer.distributed.commands import (
    BuildLearner,
    Command,
    ExportRows,
    FirstVersion,
    JoinRanks,
    ProbeWeights,
    RestoreRows,
    SaveRows,
    TakeVersion,
    TrainStep,
)
from trainer.distributed.process_group import RankGroups
from trainer.distributed.sharding import divide
from trainer.distributed.verdict import vote_of
from trainer.learning.learner import Learner
from trainer.learning.ranks import Ranks
from trainer.publishing.sharded_snapshot import FollowerWeights
from trainer.publishing.snapshot import Weights
from trainer.publishing.trained_weights import weights_of
from trainer.recipe import build_learner


class TrainingRank:
    """One rank of a trainer, around the actor `model`.

    With `groups` it is one of several, and all of them must make the same object at the same time. On rank 0 `model`
    holds the weights, and elsewhere it is on the `meta` device: rank 0 sends each rank its rows. Without `groups` it
    is the only one, and nothing is divided.
    """

    def __init__(self, job: JobFile, model: Any, groups: RankGroups | None = None) -> None:
        self.model = model
        self.host = HostCollectives() if groups is None else groups.host
        self._follower: FollowerWeights | None = None
        self._weights: Weights | None = None
        if groups is None:
            self.learner: Learner = build_learner(job, model)
            self._weights = weights_of(model)
            return
        ranks = Ranks(
            rank=groups.rank,
            size=groups.size,
            agree=vote_of(groups.verdict),
            shards=1 if groups.is_whole else groups.mesh.shape[-1],
        )
        self.learner = build_learner(job, model, ranks=ranks, place=lambda each: divide(each, groups))
        if groups.rank:
            # Rank 0 publishes alone if it has all weights.
            self._follower = None if groups.is_whole else FollowerWeights(model, groups.publishing)
        else:
            self._weights = weights_of(model, groups.publishing)

    @property
    def weights(self) -> Weights:
        """The trained weights, as rank 0 publishes them."""
        assert self._weights is not None, "only rank 0 publishes"
        return self._weights

    def follow(self, command: Command) -> Callable[[], None] | None:
        """Do a follower's part of a command.

        Return what is to be called beside the commands that follow, if there is such a part. Raises: NonFiniteLoss or
        ConfigError on all ranks alike; any other error, after which this rank cannot go on.
        """
        weights = self._follower
        match command:
            case TrainStep(samples=samples, consumer=consumer, learning_rate=rate):
                self.learner.step(samples, consumer=consumer, learning_rate=rate)
            case FirstVersion():
                if weights:
                    weights.first()
            case TakeVersion():
                return weights.take() if weights else None
            case ProbeWeights(ids_RP=ids_RP):
                if weights:
                    weights.probe(ids_RP)
            case SaveRows():
                checkpoint.save_rows(self.model, self.learner, self.host)
            case RestoreRows():
                restoration.restore_rows(self.model, self.learner, self.host)
            case ExportRows():
                export.final_rows(self.model, self.host)
            case BuildLearner() | JoinRanks():
                raise AssertionError("the learner is built once, by the first two commands")
            case _:
                assert_never(command)
        return None


def skeleton(command: BuildLearner) -> Any:
    """Return the actor on the `meta` device, where its weights take no memory."""
    with torch.device("meta"):
        return command.model_class(command.model_config).eval()
