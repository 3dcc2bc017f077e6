"""How well rows are divided over trainer ranks of unlike speed: a step's seconds against those of the best division.

Two ranks train on a core each. Other programs then run on the core of the second one, which leaves it 1 / factor of
that core. The least seconds are those of two equal ranks, times two, over the sum of both speeds.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.experiment_cases.unlike_jobs import Case
from periplus.values.policy import Policy
from trainer.data.pretrained import load_weights
from trainer.distributed.leader import Leader
from trainer.distributed.profile import TrainingShape, random_trajectories
from trainer.learning.batch import sample_of

FIRST, STEPS = 12, 8
"""Steps until the ranks have followed a change, and those that are measured then."""


def rank_balance(factors: tuple[float, ...] = (2.0, 4.0)) -> tuple[float, dict[str, Any]]:
    """Return the least ratio over the factors, and the seconds of all steps.

    The model is small, so each rank has a copy of it (`train.sharding`).
    """
    keys = {"train.devices": 2, "train.micro_batch_samples": 256, "train.groups_per_step": 32}
    case = Case(regions={}, steps=1, model="4.7M", keys=keys)
    with tempfile.TemporaryDirectory(prefix="periplus-bench-") as folder:
        job = case.job(Path(folder))
        model = load_weights(Path(job.model.path))
        leader = Leader(2, num_threads=2)
        try:
            leader.start()
            leader.build(job, model)
            shape = TrainingShape(
                num_groups=job.train.groups_per_step,
                prompt_tokens=job.sampling.prompt_tokens,
                completion_tokens=job.sampling.max_new_tokens,
            )
            made = random_trajectories(job, shape, model.config.vocab_size)
            samples = [sample_of(each, each.reward) for each in made]

            def steps(number: int) -> list[float]:
                found = []
                for _ in range(number):
                    began_s = time.perf_counter()
                    leader.step(samples, consumer=Policy(0, 0), learning_rate=1e-6)
                    found.append(time.perf_counter() - began_s)
                return found

            (other,) = leader.process_ids
            for process_id, core in ((os.getpid(), 0), (other, 1)):
                _pin(process_id, core)
            steps(FIRST)  # the first ones are slower
            equal_s = statistics.median(steps(STEPS))
            told: dict[str, Any] = {"equal_s": equal_s}
            for factor in factors:
                with _busy(1, round(factor) - 1):
                    followed = steps(FIRST)
                    step_s = statistics.median(steps(STEPS))
                least_s = 2 * equal_s / (1 + 1 / factor)
                told[f"{factor:g}x"] = {
                    "step_s": step_s,
                    "least_s": least_s,
                    "ratio": least_s / step_s,
                    "followed_s": followed,
                }
                steps(FIRST)
        finally:
            leader.close()
            for thread in os.listdir(f"/proc/{os.getpid()}/task"):
                os.sched_setaffinity(int(thread), range(os.cpu_count() or 1))
    return min(told[f"{factor:g}x"]["ratio"] for factor in factors), told


def _pin(process_id: int, core: int) -> None:
    for thread in os.listdir(f"/proc/{process_id}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), {core})


@contextlib.contextmanager
def _busy(core: int, number: int) -> Iterator[None]:
    """Have so many programs compute on a core meanwhile."""
    program = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(number)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()
