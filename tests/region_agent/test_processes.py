"""`periplus agent` as an operator meets it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from periplus.__main__ import run
from periplus.net import rpc
from tests.support.cases.tiers import rest_is_slow

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:1"

AGENT = ("agent", "--plaintext", "--region", "us", "--coordinator", NOWHERE)


def agent(*options: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "periplus", *AGENT, *options],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("number", "code"), rest_is_slow([(signal.SIGTERM, 0), (signal.SIGINT, 130)]))
def test_an_agent_without_a_coordinator_keeps_trying_and_stops_when_asked(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with agent(cwd=tmp_path) as process:
        assert process.stderr is not None
        num_lost = 0
        for line in process.stderr:
            num_lost += "coordinator_lost" in line and NOWHERE in line
            if num_lost == 2:
                break
        process.send_signal(number)
        rest = process.communicate(timeout=60)[1]
        assert process.returncode == code
        assert "Traceback" not in rest
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_busy_port_is_a_conflict_told_in_one_line(tmp_path: Path) -> None:
    async def scene() -> tuple[str, int]:
        server = rpc.server()
        address = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        try:
            return await asyncio.to_thread(_refused, tmp_path, "--listen", address)
        finally:
            await server.stop(None)

    text, code = asyncio.run(scene())
    assert code == 7
    assert "the port is in use" in text
    assert sum(line.startswith("error:") for line in text.splitlines()) == 1
    assert "add_port" not in text, "gRPC says nothing of its own"


@pytest.mark.parametrize(
    "options",
    [
        ("--cores", "0"),
        ("--cores", "many"),
        ("--memory-gib", "nan"),
        ("--worker-threads", "-1"),
        ("--stop-grace-s", "0"),
        ("--listen", "nonsense"),
        ("--advertise", "nonsense"),
        ("--advertise", "none", "--relay"),
        ("--log-level", "loud"),
    ],
)
def test_a_bad_value_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run([*AGENT, *options])
    text = capfd.readouterr().err
    assert code == 2, text
    assert "Traceback" not in text


def test_an_agent_of_a_cluster_says_that_nobody_can_dial_it_and_what_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    text, code = _refused(tmp_path, "--launcher", "ray", "--listen", "127.0.0.1:0")
    assert code == 2
    assert "listens_on_loopback" in text
    assert "RAY_ADDRESS is 'nonsense'; give HOST:PORT of the cluster's head" in text


def _refused(cwd: Path, *options: str) -> tuple[str, int]:
    with agent(*options, cwd=cwd) as process:
        text = process.communicate(timeout=60)[1]
    assert "Traceback" not in text
    return text, process.returncode
