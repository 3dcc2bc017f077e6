"""The demo's model, and how it goes on: what `periplus demo` leaves behind, continued by the trainer's own learner.

The folder holds the last checkpoint of a real demo: float32 masters and the optimizer's state. One step afterwards is
one of the demo's: 64 groups of 8 drawn from the bf16 rounding of the weights by the torch engine, scored by the task,
and GRPO through `trainer.learning.learner`, at a rate of our own. Samples are of the newest version. A demo that
succeeded answers nearly everything right, and groups whose answers are all right have no advantage: its gradients come
from few groups.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.learning import RECIPE, Run, install, open_run, publish, rollout
from bench.weight_deltas.states import widened
from periplus.job.job_file import load_job
from periplus.values.policy import Policy
from trainer.checkpointing import checkpoint, restoration
from trainer.data.dataset import training_sources
from trainer.data.mixture import item_order
from trainer.learning.learner import Learner
from trainer.publishing.publish import bf16_state, load_float32
from trainer.recipe import build_learner

Say = Callable[[str], None]

CHECKPOINTS = "checkpoints"


def demo_checkpoint(folder: Path, say: Say, *, seed: int) -> Path:
    """The folder of checkpoints in `folder`, made by a demo if it is not there (three minutes on two cores)."""
    kept = folder / CHECKPOINTS
    if not kept.is_dir():
        with tempfile.TemporaryDirectory(prefix="periplus-bench-") as work:
            say("running `periplus demo`")
            command = [sys.executable, "-m", "periplus", "demo", "--json", "--plain", "--work-dir", work]
            subprocess.run([*command, "--seed", str(seed)], check=True, stdout=subprocess.DEVNULL)
            (run,) = (Path(work) / "runs").iterdir()
            keep(run, folder)
    return kept


def keep(run: Path, folder: Path) -> None:
    """Copies the newest checkpoint of a run directory; it appears whole or not at all."""
    newest = checkpoint.newest(run / CHECKPOINTS).directory
    partial = folder / f"{CHECKPOINTS}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(newest, partial / newest.name)
    os.rename(partial, folder / CHECKPOINTS)


class Continued:
    """The demo's model at the end of its run, and one step after another from there."""

    def __init__(self, checkpoints: Path, *, resumed: bool, seed: int) -> None:
        job = load_job(RECIPE, (f"seed={seed}",))
        with tempfile.TemporaryDirectory() as cache:
            self._run: Run = open_run(job, Path(cache))
        learner = build_learner(job, self._run.actor)
        manifest = checkpoint.newest(checkpoints)
        restoration.restore(manifest, self._run.actor, learner)
        if not resumed:
            self._start_anew()
            learner = build_learner(job, self._run.actor)
        self._learner: Learner = learner
        self._item_of = item_order(training_sources(self._run.dataset, job), job.seed)
        self._version = manifest.policy.version

    @property
    def model(self) -> Any:
        return self._run.actor

    def step(self, rate: float) -> float:
        """One GRPO step; the mean reward of its samples."""
        size = self._run.job.train.groups_per_step
        install(self._run.engine, publish(self._run.actor), self._version)
        indices = [self._item_of(group) for group in range(self._version * size, (self._version + 1) * size)]
        samples = rollout(self._run, indices, self._version)
        report = self._learner.step(samples, consumer=Policy(0, self._version), learning_rate=rate)
        assert report is not None
        self._version += 1
        return sum(sample.reward or 0.0 for sample in samples) / len(samples)

    def _start_anew(self) -> None:
        load_float32(self._run.actor, widened(bf16_state(self._run.actor)))
