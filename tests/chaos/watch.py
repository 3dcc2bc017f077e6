"""Watches a job while something is done to its fleet: its steps, and what the coordinator says of it."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coordinator.client.connection import job_state
from periplus.errors import PeriplusError
from tests.support.processes.operated_fleet import NewLines, OperatedFleet

STEPS_EVERY_S, WORDS_EVERY_S = 0.05, 0.3


@dataclass(frozen=True, slots=True)
class Step:
    """A step, when it was seen, in seconds since 1970."""

    at_s: float
    fork: int
    version: int
    num_dropped: int


class Watch:
    """What was seen, the oldest first."""

    def __init__(self, fleet: OperatedFleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self.steps: list[Step] = []
        self.words: list[tuple[float, str]] = []

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time between two steps, the last of which came after `since_s`."""
        times = [step.at_s for step in self.steps]
        pairs = itertools.pairwise(times)
        return max((later - earlier for earlier, later in pairs if later > since_s), default=0.0)

    def first_words_s(self, since_s: float) -> tuple[float, str] | None:
        """Return when the job was first said to be otherwise than at `since_s`, and the words."""
        before = [words for at_s, words in self.words if at_s <= since_s]
        usual = {*before[-1:], "running: training"}
        return next(((at_s, words) for at_s, words in self.words if at_s > since_s and words not in usual), None)

    def follow_steps(self) -> None:
        lines = NewLines(self._fleet.run_dir / "metrics.jsonl")
        while not self._over.is_set():
            for line in lines.read():
                found = json.loads(line)
                if found["kind"] == "step":
                    dropped = int(found.get("dropped_samples", 0))
                    self.steps.append(Step(time.time(), found["fork"], found["version"], dropped))
            time.sleep(STEPS_EVERY_S)

    def follow_words(self) -> None:
        while not self._over.is_set():
            try:
                job = self._fleet.ask(lambda remote: remote.job(self._fleet.job_id))
                words = f"{job_state(job)}: {job.doing or job.reason}"
            except PeriplusError:
                words = "the coordinator does not answer"
            if not self.words or self.words[-1][1] != words:
                self.words.append((time.time(), words))
            time.sleep(WORDS_EVERY_S)

    def end(self) -> None:
        self._over.set()


@contextmanager
def watching(fleet: OperatedFleet) -> Iterator[Watch]:
    watch = Watch(fleet)
    threads = [threading.Thread(target=each) for each in (watch.follow_steps, watch.follow_words)]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        watch.end()
        for thread in threads:
            thread.join()
