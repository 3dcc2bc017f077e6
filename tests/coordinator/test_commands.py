"""`periplus coordinator` answers a wrong setting or a taken port with one message and its exit code."""

import asyncio

import pytest

from periplus.__main__ import run as periplus
from tests.support.coordinator.loopback import play


def test_a_taken_port_is_a_conflict(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(address: str) -> None:
        assert (
            await asyncio.to_thread(
                periplus, ["coordinator", "--plaintext", "--listen", address, "--log-level", "error"]
            )
            == 7
        )

    play(scene)
    assert "the port is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "nowhere"], "is not HOST:PORT"),
        (["--mqtt", "127.0.0.1:0"], "nothing can be reached at port 0"),
        (["--wan", "127.0.0.1:1"], "--wan is given without --region"),
        (["--region", "eu"], "--region is given without --wan"),
        (["--listen", "127.0.0.1:0", "--state-dir", "/proc/nowhere"], "the state directory /proc/nowhere"),
    ],
)
def test_contradictory_settings_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert periplus(["coordinator", "--plaintext", *words, "--log-level", "error"]) == 2
    assert message in capsys.readouterr().err
