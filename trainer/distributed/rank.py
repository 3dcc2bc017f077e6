"""What one rank holds, and what it does for each command.

Rank 0 and the followers run the same code. The commands come in the same order on all ranks, and most are collectives.
What is only for rank 0 is what a command returns: followers get None for weights, and the same report of a step.
"""

from typing import Any, assert_never

import torch

from periplus.job.job_file import JobFile
from trainer.distributed.commands import BuildLearner, Command, FirstVersion, ProbeWeights, TakeVersion, TrainStep
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
    """One rank of a trainer. Without `groups` it is the only one, and nothing is divided."""

    def __init__(self, groups: RankGroups | None = None) -> None:
        self._groups = groups
        self._model: Any = None
        self._learner: Learner | None = None
        self._weights: Weights | FollowerWeights | None = None

    @property
    def learner(self) -> Learner:
        assert self._learner is not None, "the learner is built first"
        return self._learner

    @property
    def weights(self) -> Weights | FollowerWeights:
        """The trained weights, as this rank publishes them."""
        assert self._weights is not None, "the learner is built first"
        return self._weights

    def build(self, command: BuildLearner, model: Any) -> None:
        """Build the learner around the actor: with its weights on rank 0, on the `meta` device elsewhere."""
        job, groups = JobFile.from_json(command.job_json), self._groups
        self._model = model
        if groups is None:
            self._learner = build_learner(job, model, pad_id=command.pad_id)
            self._weights = weights_of(model)
            return
        ranks = Ranks(rank=groups.rank, size=groups.size, agree=vote_of(groups.verdict))
        self._learner = build_learner(
            job, model, pad_id=command.pad_id, ranks=ranks, place=lambda each: divide(each, groups)
        )
        publishing = groups.publishing
        self._weights = FollowerWeights(model, publishing) if groups.rank else weights_of(model, publishing)

    def execute(self, command: Command) -> Any:
        """Do this rank's part of a command, and return its result.

        Raises: NonFiniteLoss on all ranks alike; RankLost; any other error, after which the ranks cannot go on.
        """
        match command:
            case BuildLearner():
                # Only followers come here: rank 0 has the weights.
                self.build(command, _skeleton(command))
                return None
            case TrainStep(samples=samples, consumer=consumer, learning_rate=rate):
                return self.learner.step(samples, consumer=consumer, learning_rate=rate)
            case FirstVersion():
                return self.weights.first()
            case TakeVersion():
                return self.weights.take()
            case ProbeWeights(ids_RP=ids_RP):
                return self.weights.probe(ids_RP)
            case _:
                assert_never(command)


def _skeleton(command: BuildLearner) -> Any:
    with torch.device("meta"):
        return command.model_class(command.model_config).eval()
