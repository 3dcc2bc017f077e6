"""Hostile text becomes visible, and nothing else changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.job.samples.visible import visible_text, without_middle


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
