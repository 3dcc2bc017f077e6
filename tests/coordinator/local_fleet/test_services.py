"""The processes of a local fleet: which of them it needs."""

import asyncio
import tempfile
import time
from pathlib import Path

import pytest

from coordinator.local_fleet.services import Services
from periplus.errors import PeriplusError


def test_a_fork_server_that_cannot_serve_ends_no_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)  # too long for the path of a Unix socket
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    services = Services(tmp_path)
    services.start_fork_server()
    (server,) = services._running
    deadline_s = time.monotonic() + 60
    while server.popen.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)

    services.check()
    asyncio.run(services.stop(lambda: False))

    assert server.popen.returncode != 0
    assert "path too long" in server.log.read_text()
    assert list(long.iterdir()) == []


def test_a_service_that_ends_early_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    async def scene() -> None:
        services = Services(tmp_path)
        with pytest.raises(PeriplusError, match=r"coordinator ended before it was ready.*No such option"):
            await services.start("coordinator", ["coordinator", "run", "--nothing"])
        with pytest.raises(PeriplusError, match="coordinator ended unexpectedly"):
            services.check()
        await services.stop(lambda: False)

    asyncio.run(scene())
