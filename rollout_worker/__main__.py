"""Entry point of a rollout worker: `python -m rollout_worker --task-file FILE`, as an agent starts it."""

import asyncio

from periplus.process import task_process
from periplus.values.task import TaskSpec, TaskState
from rollout_worker.app import run
from rollout_worker.config import WorkerConfig


def make_work(spec: TaskSpec) -> task_process.Work:
    """Return the coroutine function that runs the task until its job is done or the process is asked to stop.

    A rollout worker has nothing to save, so it stops at once. Raises: ConfigError if the task holds no valid job.
    """
    config = WorkerConfig.of_task(spec)

    async def work(stop: asyncio.Event) -> TaskState:
        serving, stopping = asyncio.ensure_future(run(config)), asyncio.ensure_future(stop.wait())
        try:
            # Whichever ends first: the job, or the wait for a signal.
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                return TaskState.STOPPED
            # Raises what ended it, if it failed.
            serving.result()
            return TaskState.SUCCEEDED
        finally:
            serving.cancel()
            stopping.cancel()

    return work


if __name__ == "__main__":
    task_process.command(make_work)()
