"""`python -m trainer --task-file FILE`, as an agent starts it."""

import asyncio

from periplus.process import task_process
from periplus.values.task import TaskSpec, TaskState
from trainer.app import run
from trainer.config import TrainerConfig


def make_work(spec: TaskSpec) -> task_process.Work:
    """A trainer that is asked to stop writes a checkpoint first."""
    config = TrainerConfig.of_task(spec)

    async def work(stop: asyncio.Event) -> TaskState:
        return await run(config, stop)

    return work


if __name__ == "__main__":
    task_process.command(make_work)()
