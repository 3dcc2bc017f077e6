"""Hostile text becomes visible, and nothing else changes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.__main__ import run
from periplus.view.terminal.visible import say, visible_text, without_middle


@given(st.text())
def test_nothing_invisible_but_line_breaks_is_left(text: str) -> None:
    shown = visible_text(text)
    assert shown.replace("\n", "").isprintable()
    assert shown.count("\n") == text.count("\n")
    shown.encode()


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb", "a\\rb"),
        ("\u202eabc", "\\u202eabc"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("a\tb\n", "a    b\n"),
        ("Grüße, 世界", "Grüße, 世界"),
    ],
)
def test_characters_that_command_a_terminal_are_escapes(hostile: str, shown: str) -> None:
    assert visible_text(hostile) == shown


def test_a_long_text_keeps_its_beginning_and_its_end_and_says_how_much_is_missing() -> None:
    assert without_middle("abcd", 4) == "abcd"
    assert without_middle("a" * 5 + "b" * 10 + "c" * 5, 10) == "aaaaa\n[10 characters are not shown]\nccccc"


def test_what_is_printed_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    clipboard = "\x1b]52;c;ZXZpbA==\x07"
    say(f"lost {clipboard}\x9b2J\n\tnext", err=True)
    say("fine")
    found = capsys.readouterr()
    assert found.out == "fine\n"
    assert found.err == "lost \\x1b]52;c;ZXZpbA==\\x07\\x9b2J\n    next\n"


def test_the_error_of_a_command_commands_no_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["job", "audit", str(tmp_path / "\x1b]0;title\x07")]) != 0
    found = capsys.readouterr()
    assert "\x1b" not in found.out + found.err
    assert "\\x1b]0;title" in found.err
