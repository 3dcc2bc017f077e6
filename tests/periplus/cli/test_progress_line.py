import pytest

from periplus.cli.progress_line import LINE_S, QUIET_S, REDRAW_S, ProgressLine

BEGAN_S = 100.0


class Terminal:
    """A line, and what was written since it was last looked at."""

    def __init__(self, can_redraw: bool) -> None:
        self.text = ""
        self.line = ProgressLine.of_files(self.write, can_redraw=can_redraw, began_s=BEGAN_S)

    def write(self, text: str) -> None:
        self.text += text

    def at(self, seconds: float, text: str) -> str:
        """Show a text if one is due, and return what was written."""
        self.text = ""
        if self.line.is_due(BEGAN_S + seconds):
            self.line.show(text, BEGAN_S + seconds)
        return self.text

    def cleared(self) -> str:
        self.text = ""
        self.line.clear()
        return self.text


def test_short_work_shows_nothing() -> None:
    terminal = Terminal(can_redraw=True)
    assert terminal.at(QUIET_S - 0.1, "half") == ""
    assert terminal.cleared() == ""


def test_a_terminal_shows_one_line_that_is_drawn_over_and_cleared() -> None:
    terminal = Terminal(can_redraw=True)
    assert terminal.at(QUIET_S, "a long text") == "\ra long text"
    assert terminal.at(QUIET_S + REDRAW_S / 2, "too early") == ""
    assert terminal.at(QUIET_S + 1.5 * REDRAW_S, "short") == "\rshort      "
    assert terminal.at(QUIET_S + 3 * REDRAW_S, "shorter") == "\rshorter"
    assert terminal.cleared() == "\r       \r"
    assert terminal.cleared() == ""


def test_elsewhere_there_is_a_line_at_times_and_nothing_to_clear() -> None:
    terminal = Terminal(can_redraw=False)
    assert terminal.at(LINE_S - 1, "early") == ""
    assert terminal.at(LINE_S, "first") == "first\n"
    assert terminal.at(2 * LINE_S - 1, "early") == ""
    assert terminal.at(2 * LINE_S, "second") == "second\n"
    assert terminal.cleared() == ""


@pytest.mark.parametrize(("can_redraw", "pause_s"), [(True, REDRAW_S), (False, 2.0)])
def test_the_first_text_is_due_as_soon_as_the_quiet_time_is_over(can_redraw: bool, pause_s: float) -> None:
    line = ProgressLine(lambda _: None, can_redraw=can_redraw, began_s=0.0, quiet_s=0.5, line_s=2.0)
    assert [line.is_due(now_s) for now_s in (0.0, 0.4, 0.5)] == [False, False, True]
    line.show("text", 0.5)
    assert [line.is_due(0.5 + share * pause_s) for share in (0.5, 1.5)] == [False, True]
