"""A whole trainer in this process, over workers that `FakeLink` plays, and what the trainer left behind."""

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch

from periplus.job.run_directory import RunDirectory
from periplus.values.digest import state_digest
from periplus.values.machine import Pace
from periplus.values.record import Record, RecordKind
from periplus.values.task import Role, TaskState
from tests.support.tiny_job import task_of, tiny_job
from tests.support.trainer.fake_link import FakeLink
from trainer.assembly import Running, assembled
from trainer.config import TrainerConfig
from trainer.disk_wait import DiskWait
from trainer.publishing import publish
from trainer.setup import Prepared, prepare
from trainer.tracking.feeds import Trackers

DEADLINE_S = 400.0

PREPARED_S = 5.0
"""Seconds that the preparation of a trainer takes at least on the tests' clock; chosen by hand."""


@dataclass
class Run:
    """One trainer, from its preparation to its end."""

    config: TrainerConfig
    link: FakeLink
    prepared: Prepared
    running: Running
    opened: ExitStack
    records: tuple[Record, ...] = ()
    state: TaskState | None = None

    @property
    def run_dir(self) -> Path:
        return Path(self.config.task.run_dir)

    @property
    def digest(self) -> bytes:
        """The digest of the weights that were published last."""
        return self.running.publisher.digest

    @property
    def model_digest(self) -> bytes:
        """The digest of the weights that the trainer will publish first."""
        return state_digest(publish.bf16_state(self.prepared.model))

    @property
    def summary(self) -> dict[str, float]:
        return dict(self.of_kind(RecordKind.SUMMARY)[-1].values)

    def of_kind(self, kind: RecordKind) -> list[Record]:
        return [record for record in self.records if record.kind is kind]

    def journal(self) -> list[dict[str, Any]]:
        """Return the lines of the run's journal."""
        return [json.loads(line) for line in (self.run_dir / "audit.jsonl").read_text().splitlines()]

    async def serve(self, stop: asyncio.Event) -> TaskState:
        """Run the parts of a trainer together, as app.py does."""
        async with asyncio.TaskGroup() as tasks:
            parts = (self.running.ledger_service.run(), self.running.publisher.run())
            serving = [tasks.create_task(part) for part in parts]
            try:
                return await self.running.loop.run(stop)
            finally:
                for task in serving:
                    task.cancel()

    def finish(self, *, stop_after: int | None = None) -> Self:
        """Train to the end, or until the step that leads to the version `stop_after`, and close the run's files."""

        async def go() -> None:
            stop = asyncio.Event()

            def watch(record: Record) -> None:
                if record.kind is RecordKind.STEP and record.policy.version == stop_after:
                    stop.set()

            self.link.on_record = watch
            async with asyncio.timeout(DEADLINE_S):
                self.state = await self.serve(stop)

        asyncio.run(go())
        self.opened.close()
        self.records = RunDirectory(self.run_dir).records()
        return self


class Trainers:
    """Starts trainers that share one folder of prepared models.

    Within its context torch runs on one thread, since results are equal bit by bit only then; its end closes the files
    of trainers that did not finish.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        self._opened.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def start(
        self,
        folder: Path,
        *,
        workers: int = 1,
        order: int = 0,
        fork: int = 0,
        resume_from: Path | None = None,
        allows_other_problems: bool = False,
        link_class: type[FakeLink] = FakeLink,
        say: Callable[[str], None] = lambda phase: None,
        pace: Pace | None = None,
        now: Callable[[], float] | None = None,
        **overrides: Any,
    ) -> Run:
        """Prepare a trainer of a tiny job. `order` seeds who answers when; `say` is told what the trainer waits for.

        Without `now`, its clock goes on by a millisecond whenever it is read.
        """
        folder.mkdir(exist_ok=True)
        job = tiny_job(folder, **overrides)
        task = task_of(job, Role.TRAINER, folder, fork=fork)
        task = replace(task, allows_other_problems=allows_other_problems, pace=pace)
        config = TrainerConfig(task=task, job=job, cache_dir=self.cache_dir, resume_from=resume_from)
        run_directory = RunDirectory(folder / "run")
        run_directory.create()
        clock = iter(range(1, 1_000_000))

        def ticking() -> float:
            return next(clock) / 1000

        prepared = prepare(config, lambda *_: None, ticking)
        for _ in range(int(PREPARED_S * 1000)):
            next(clock)
        link = link_class(job, folder, workers, order, fork)
        disk = DiskWait(asyncio.Event(), say)
        opened = self._opened.enter_context(ExitStack())
        running = opened.enter_context(
            assembled(config, prepared, link, link.key, run_directory, disk, Trackers(), now or ticking, 0.0)
        )
        link.on_message = running.on_message
        return Run(config, link, prepared, running, opened)

    def train(self, folder: Path, **settings: Any) -> Run:
        return self.start(folder, **settings).finish()

    def untrained_digest(self, folder: Path) -> bytes:
        """Return the digest of the weights that no step has changed."""
        return self.start(folder / "untrained").model_digest

    def messages_of(self, folder: Path, **settings: Any) -> tuple[int, Run]:
        """Return the number of messages that a whole run sends to its gateway, and the run."""
        run, calls = self.start(folder, **settings), count()
        run.link.before_each = calls.__next__
        run.finish()
        return next(calls), run
