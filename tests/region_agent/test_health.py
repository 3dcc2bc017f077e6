"""Probes of an agent: its gateway, and its session with the coordinator."""

import asyncio
import json
from pathlib import Path

from periplus.process.lifecycle import ShutdownReason
from region_agent.app import run
from region_agent.config import AgentConfig
from tests.support.coordinator.fake_coordinator import FakeCoordinator, served
from tests.support.gateway.loopback import play, until
from tests.support.processes.probe import probed, watched


def config(folder: Path, coordinator: str) -> AgentConfig:
    return AgentConfig(
        plaintext=True,
        region="us",
        coordinator=coordinator,
        listen="127.0.0.1:0",
        health_listen="127.0.0.1:0",
        advertise="",
        work_dir=folder,
        state_dir=folder / "state",
        wan="",
        num_cores=2,
        memory_bytes=1 << 30,
        worker_threads=1,
        trainer_threads=1,
        stop_grace_s=5.0,
        restart_backoff_s=0.1,
    )


def test_a_gateway_serves_without_a_session_and_the_session_is_told_apart(tmp_path: Path) -> None:
    async def scene() -> None:
        ready = tmp_path / "ready.json"
        async with served(FakeCoordinator()) as coordinator:
            agent = run(config(tmp_path, coordinator), ready_file=ready, stop_on_stdin_eof=False)
            running: asyncio.Task[ShutdownReason] = asyncio.create_task(agent)
            await until(ready.exists)
            address = json.loads(ready.read_text())["health"]
            async for status in watched(address, "session"):
                if status == "SERVING":
                    break
        try:
            async for status in watched(address, "session"):
                if status == "NOT_SERVING":  # the coordinator is gone
                    break
            assert await probed(address) == await probed(address, "periplus.v1.Gateway") == "SERVING"
            seen = []
            async for status in watched(address, "periplus.v1.Gateway"):
                seen.append(status)
                running.cancel()
            assert seen == ["SERVING", "NOT_SERVING"]
        finally:
            running.cancel()
            await asyncio.wait({running})

    play(scene)
