"""The trainer's process: `python -m trainer --task-file FILE`, which the region's agent starts."""

import asyncio

from periplus.process import task_process
from periplus.values.task import TaskSpec, TaskState
from trainer.app import run
from trainer.config import TrainerConfig


def make_work(spec: TaskSpec) -> task_process.Work:
    """Return the coroutine function that runs one trainer; when its event is set, it saves a checkpoint and ends."""
    config = TrainerConfig.of_task(spec)

    async def work(stop: asyncio.Event) -> TaskState:
        return await run(config, stop)

    return work


if __name__ == "__main__":
    task_process.command(make_work)()
