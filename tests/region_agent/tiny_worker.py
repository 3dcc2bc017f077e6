"""A worker process for the agent's tests, started with `-m`: its job, or the environment, says how it behaves."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from periplus.errors import TrainingError
from periplus.process.task_process import Work, command
from periplus.values.task import TaskSpec, TaskState
from tests.support.processes.fake_engine import start_fake_engine


def make_work(spec: TaskSpec) -> Work:
    def note(name: str, pid: int) -> None:
        Path(spec.run_dir, name).write_text(str(pid))

    async def work(stop: asyncio.Event) -> TaskState:
        print("at work", flush=True)  # noqa: T201  # what the log file is to show
        match os.environ.get("TINY_WORKER", spec.job_json):
            case "succeed":
                return TaskState.SUCCEEDED
            case "look around":
                cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
                pace = spec.pace and asdict(spec.pace)
                seen = {"cuda": os.environ["CUDA_VISIBLE_DEVICES"], "cores": cores, "pace": pace}
                await asyncio.to_thread(
                    Path(spec.run_dir, spec.task_id.rpartition("/")[2]).write_text, json.dumps(seen)
                )
                return TaskState.SUCCEEDED
            case "fail":
                raise TrainingError("the loss is not finite")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave a child":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # noqa: ASYNC220
                note("child", child.pid)
                os.kill(os.getpid(), signal.SIGKILL)
            case "run an engine":
                engine = await asyncio.to_thread(start_fake_engine)
                await asyncio.to_thread(Path(spec.run_dir, "engine").write_text, json.dumps(engine))
            case "ignore":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        digest = hashlib.sha256(os.environ.get("HF_TOKEN", "").encode()).hexdigest()
        await asyncio.to_thread(Path(spec.run_dir, "token_digest").write_text, digest)
        await asyncio.to_thread(Path(spec.run_dir, "authority_key").write_text, spec.authority_key)
        note("running", os.getpid())
        await stop.wait()
        if spec.job_json == "ignore":
            await asyncio.sleep(60)
        await asyncio.sleep(0.1)  # saving: a second SIGTERM would cut it short
        return TaskState.STOPPED

    return work


if __name__ == "__main__":
    command(make_work)()
