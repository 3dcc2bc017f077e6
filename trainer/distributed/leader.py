"""Rank 0 of a trainer: it executes each operation on the models together with all other ranks.

With one device there are no other ranks. With several, `start` starts the other ranks' processes, which import what
they need while rank 0 loads and warms up the model. `build` joins them, divides the models and makes the learner.

Invariants:
- Commands are executed one after the other, in the same order on all ranks.
- If a rank ends, whatever waits for it fails within two seconds with RankLost, which says which rank and why. Nothing
  can be saved then, since the rank's rows are gone; the run goes on from its last checkpoint.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from periplus.errors import PeriplusError, RankLost
from periplus.job.job_file import JobFile
from periplus.process.telemetry import event
from periplus.values.policy import Policy
from periplus.values.task import RankMachine
from periplus.values.weight_state import WeightState
from trainer.checkpointing import checkpoint, export, restoration
from trainer.checkpointing.manifest import Content, Manifest
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
from trainer.distributed.failures import explained_failure, is_out_of_memory
from trainer.distributed.followers import Followers
from trainer.distributed.position import ranks_by_machine
from trainer.distributed.process_group import RankGroups, abort, device_of_rank, join, leave
from trainer.distributed.rank import TrainingRank
from trainer.learning.batch import Sample
from trainer.learning.learner import StepReport
from trainer.publishing.snapshot import Taken, Weights
from trainer.recipe import settled

log = logging.getLogger(__name__)

T = TypeVar("T")

LOSS_S = 5.0
"""Seconds after an error of a collective within which the process that caused it is found to have ended. Watchers see
it in milliseconds. Chosen by hand."""

EXIT_S = 60.0
"""Seconds after `close` in which this process is ended if a thread of it still waits for a GPU. Chosen by hand."""


class Leader:
    """Rank 0 of a trainer of `num_devices` ranks. Those of one machine share `num_threads` threads.

    `machines` are those of the ranks if there are several; then `address` is that of this one in their network.
    """

    def __init__(
        self, num_devices: int = 1, num_threads: int = 1, machines: Sequence[RankMachine] = (), address: str = ""
    ) -> None:
        self._size = num_devices
        self._machines, self._address = machines, address
        self._num_here = ranks_by_machine(num_devices, machines)[0]
        self._num_threads = num_threads
        self._followers: Followers | None = None
        self._groups: RankGroups | None = None
        self._rank: TrainingRank | None = None
        # Only one command at a time, also if the event loop gave up a thread that still waits for one.
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the other ranks' processes, in the order of their ranks."""
        return self._followers.process_ids if self._followers is not None else ()

    @property
    def weights(self) -> Weights:
        """The weights of all ranks, from which versions are taken."""
        return self._here.weights if self._followers is None else _LedWeights(self)

    @property
    def _here(self) -> TrainingRank:
        assert self._rank is not None, "the learner is built first"
        return self._rank

    def start(self) -> None:
        """Start the processes of the other ranks, if there are any."""
        if self._size > 1:
            torch.set_num_threads(max(1, self._num_threads // self._num_here))
            self._followers = Followers(self._size, self._num_threads, self._on_loss, self._machines, self._address)

    def build(self, job: JobFile, model: Any, planned_sharding: str = "") -> None:
        """Build the learner of a job around the actor, and divide its models if there are several ranks.

        `planned_sharding` is what the plan has for a job that leaves it open, or empty.

        Raises: ConfigError if there are fewer GPUs than devices; RankLost.
        """
        if self._followers is None:
            self._rank = TrainingRank(job, model)
            return
        ranks = ranks_by_machine(self._size, self._machines)
        job = settled(job, model, device_of_rank(0, self._num_here), ranks, planned_sharding)
        event(log, logging.INFO, "model_shared", sharding=job.train.sharding, ranks=ranks)
        config = deepcopy(model.config)
        config._attn_implementation = None  # the learner chooses it, after the model is made
        with self._lock, _explained(self._followers):
            self._followers.send(BuildLearner(job_json=job.to_json(), model_class=type(model), model_config=config))
            # Rank 0 cannot see the end of a follower while it joins, so what takes long comes first.
            self._followers.wait_until_ready()
            self._followers.send(JoinRanks())
            self._groups = join(self._followers.positions[0], self._followers.store, sharding=job.train.sharding)
            self._rank = TrainingRank(job, model, self._groups)

    def step(self, samples: Sequence[Sample], *, consumer: Policy, learning_rate: float) -> StepReport | None:
        """Take one training step, as `Learner.step` does. Raises: NonFiniteLoss; RankLost."""
        command = TrainStep(samples=tuple(samples), consumer=consumer, learning_rate=learning_rate)
        return self.together(
            command, lambda here: here.learner.step(samples, consumer=consumer, learning_rate=learning_rate)
        )

    def save(self, root: Path, content: Content, files: Mapping[str, bytes]) -> Manifest:
        """Write a checkpoint (trainer/checkpointing/checkpoint.py). Raises: as `save` there; RankLost."""
        return self.together(
            SaveRows(), lambda here: checkpoint.save(root, content, here.model, here.learner, files, here.host)
        )

    def restore(self, manifest: Manifest) -> None:
        """Load a checkpoint (trainer/checkpointing/restoration.py). Raises: ConfigError; RankLost."""
        self.together(RestoreRows(), lambda here: restoration.restore(manifest, here.model, here.learner, here.host))

    def export(self, files: Mapping[str, bytes], directory: Path, published_digest: bytes) -> bytes:
        """Write the final model and return its digest (trainer/checkpointing/export.py).

        Raises: as `final_model` there; RankLost.
        """
        return self.together(
            ExportRows(),
            lambda here: export.final_model(here.model, files, directory, published_digest, here.host),
        )

    def together(self, command: Command, here: Callable[[TrainingRank], T]) -> T:
        """Send a command to the other ranks, and return what rank 0's own part of it returns.

        Raises: RankLost if a rank has ended or rank 0 failed in a collective; what `here` raises.
        """
        with self._lock:
            if self._followers is None:
                return here(self._here)
            with _explained(self._followers):
                self._followers.send(command)
                return here(self._here)

    def beside(self, finish: Callable[[], T]) -> T:
        """Return what rank 0's part returns of something that runs beside commands. Raises: as `together` does."""
        with nullcontext() if self._followers is None else _explained(self._followers):
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
            # A thread that waits for the others in a collective fails now, and must not use closed groups.
            if self._lock.acquire(timeout=LOSS_S):
                leave()
                self._lock.release()
            elif self._groups is not None and self._groups.device.type == "cuda":
                # A thread that waits for a GPU cannot be ended, and Python would wait for it at its exit.
                timer = threading.Timer(EXIT_S, os._exit, (1,))
                timer.daemon = True
                timer.start()

    def _on_loss(self) -> None:
        if self._groups is not None:
            abort(self._groups)


class _LedWeights:
    """The weights of all ranks. What rank 0 asks of them, it asks of all ranks (trainer/publishing/snapshot.py)."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def first(self) -> WeightState:
        return self._leader.together(FirstVersion(), lambda here: here.weights.first())

    def take(self) -> Callable[[WeightState], Taken]:
        complete = self._leader.together(TakeVersion(), lambda here: here.weights.take())
        return lambda base: self._leader.beside(lambda: complete(base))

    def probe(self, ids_RP: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return self._leader.together(ProbeWeights(ids_RP=ids_RP), lambda here: here.weights.probe(ids_RP))


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
        raise lost or RankLost(
            f"rank 0 failed: {explained_failure(error)}; the step under way was not applied; resume the job from its "
            "last checkpoint"
        ) from error
