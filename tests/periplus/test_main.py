"""What the shell sees of output that cannot be written."""

import io
import subprocess
import sys
from pathlib import Path
from typing import IO

import click
import pytest

from periplus import __main__
from periplus.__main__ import never_fail_to_encode
from periplus.errors import NotFound

FULL = Path("/dev/full")


def periplus(stdout: IO[str] | IO[bytes] | None) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "periplus", "fleet", "schema"]
    return subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@pytest.mark.skipif(not FULL.exists(), reason="no device here is always full")
def test_output_without_room_is_one_line_and_a_code() -> None:
    with FULL.open("w") as full:
        ended = periplus(full)
    assert ended.returncode == 1
    assert ended.stderr == "error: the output cannot be written: No space left on device; make room there\n"


def test_a_reader_that_has_gone_away_is_no_news() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE) as reader:
        reader.wait()
        ended = periplus(reader.stdin)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ZeroDivisionError("by zero"), 1, "error: ZeroDivisionError: by zero; this is a defect"),
        (ExceptionGroup("unhandled errors in a TaskGroup", [NotFound("no such run")]), 3, "error: no such run\n"),
        (
            PermissionError(13, "Permission denied", "/root/x"),
            6,
            "error: Permission denied: /root/x; run the",
        ),
        (IsADirectoryError(21, "Is a directory", "/root/x"), 1, "error: Is a directory: /root/x\n"),
    ],
)
def test_whatever_a_command_raises_is_one_sentence_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, shown: str
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(__main__.root, "get_command", lambda context, name: fails)
    assert __main__.run(["fails"]) == code
    assert capsys.readouterr().err.startswith(shown)


def test_characters_that_the_locale_lacks_do_not_end_a_command() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    never_fail_to_encode((stream, io.StringIO()))
    stream.write("loss \u2588 0.5")
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    assert stream.buffer.getvalue() == b"loss ? 0.5"
