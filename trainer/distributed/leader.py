"""Rank 0 of a trainer: it has each command executed on all ranks, itself included.

With one device there are no other ranks, and commands are executed here alone. With several, `start` starts the other
ranks' processes, which import what they need while rank 0 loads and warms up the model. `build` joins them, divides the
models and makes the learner.

Invariants:
- Commands are executed one after the other, in the same order on all ranks.
- If a rank ends, whatever waits for it fails within a second with RankLost, which says which rank and why. Nothing can
  be saved then, since the rank's rows are gone; the run goes on from its last checkpoint.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from periplus.errors import PeriplusError, RankLost, TrainingError
from periplus.job.job_file import JobFile
from periplus.values.policy import Policy
from periplus.values.weight_state import WeightState
from trainer.distributed.commands import BuildLearner, Command, FirstVersion, ProbeWeights, TakeVersion, TrainStep
from trainer.distributed.failures import explained_failure, is_out_of_memory
from trainer.distributed.followers import Followers
from trainer.distributed.process_group import join, leave
from trainer.distributed.rank import TrainingRank
from trainer.learning.batch import Sample
from trainer.learning.learner import Learner, StepReport
from trainer.publishing.sharded_snapshot import FollowerWeights
from trainer.publishing.snapshot import Taken, Weights

LOSS_S = 5.0
"""Seconds after an error of a collective within which the process that caused it is found to have ended. Watchers see
it in milliseconds. Chosen by hand."""


class Leader:
    """Rank 0 of a trainer of `num_devices` ranks. Each of them gets its share of `num_threads` threads."""

    def __init__(self, num_devices: int = 1, num_threads: int = 1) -> None:
        self._size = num_devices
        self._num_threads = max(1, num_threads // num_devices)
        self._followers: Followers | None = None
        self._here = TrainingRank()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the other ranks' processes, in the order of their ranks."""
        return self._followers.process_ids if self._followers is not None else ()

    @property
    def learner(self) -> Learner:
        """The learner of this rank. With several ranks only `step` may train with it."""
        return self._here.learner

    @property
    def weights(self) -> Weights:
        """The weights of all ranks, from which versions are taken."""
        weights = self._here.weights
        assert not isinstance(weights, FollowerWeights)
        return weights if self._followers is None else _LedWeights(self)

    def start(self) -> None:
        """Start the processes of the other ranks, if there are any."""
        if self._size > 1:
            torch.set_num_threads(self._num_threads)
            self._followers = Followers(self._size, self._num_threads)

    def build(self, job: JobFile, model: Any, *, pad_id: int) -> None:
        """Build the learner of a job around the actor, and divide its models if there are several ranks.

        Raises: ConfigError if there are fewer GPUs than devices; RankLost.
        """
        command = BuildLearner(
            job_json=job.to_json(), pad_id=pad_id, model_class=type(model), model_config=model.config
        )
        if self._followers is None:
            self._here.build(command, model)
            return
        followers = self._followers
        with self._lock, _explained(followers):
            self._here = TrainingRank(join(0, self._size, followers.folder))
            followers.send(command)
            self._here.build(command, model)

    def step(self, samples: Sequence[Sample], *, consumer: Policy, learning_rate: float) -> StepReport | None:
        """Take one training step on all ranks, as `Learner.step` does. Raises: NonFiniteLoss, RankLost."""
        report: StepReport | None = self.run(
            TrainStep(samples=tuple(samples), consumer=consumer, learning_rate=learning_rate)
        )
        return report

    def run(self, command: Command) -> Any:
        """Execute a command on all ranks, and return what it returns on this one.

        Raises: RankLost if a rank has ended or the ranks can no longer work together; PeriplusErrors of the command.
        """
        with self._lock:
            if self._followers is None:
                return self._here.execute(command)
            with _explained(self._followers):
                self._followers.send(command)
                return self._here.execute(command)

    def finish(self, finish: Callable[[], Any]) -> Any:
        """Return what `finish` returns: the part of a command that runs beside later ones. Raises: RankLost."""
        assert self._followers is not None
        with _explained(self._followers):
            return finish()

    def wait_for_loss(self) -> RankLost | None:
        """Wait until another rank has ended, and return the error; None once `close` was called."""
        if self._followers is None:
            self._closed.wait()
            return None
        return self._followers.lost(None)

    def close(self) -> None:
        """Let the other ranks leave. Calling it again does nothing."""
        self._closed.set()
        if self._followers is not None:
            self._followers.close()
            leave()


class _LedWeights:
    """The weights of all ranks. What rank 0 asks of them, it asks of all ranks (trainer/publishing/snapshot.py)."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def first(self) -> WeightState:
        state: WeightState = self._leader.run(FirstVersion())
        return state

    def take(self) -> Callable[[WeightState], Taken]:
        complete: Callable[[WeightState], Taken] = self._leader.run(TakeVersion())

        def completed(base: WeightState) -> Taken:
            taken: Taken = self._leader.finish(lambda: complete(base))
            return taken

        return completed

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        logprobs_RP: npt.NDArray[np.float32] = self._leader.run(ProbeWeights(ids_RP=ids_RP))
        return logprobs_RP


@contextmanager
def _explained(followers: Followers) -> Iterator[None]:
    """Raise RankLost for what a lost rank leads to here, such as a closed connection."""
    try:
        yield
    except RankLost as error:
        raise followers.lost(LOSS_S) or error from error
    except PeriplusError:
        raise
    except (RuntimeError, MemoryError) as error:
        # torch has no class of its own for a lost connection or a timeout of gloo: the other rank's reason is better.
        lost = None if is_out_of_memory(error) else followers.lost(LOSS_S)
        raise lost or TrainingError(
            f"rank 0 failed: {explained_failure(error)}; the step under way was not applied; resume the job from its "
            "last checkpoint"
        ) from error
