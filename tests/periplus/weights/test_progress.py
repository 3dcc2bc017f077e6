from periplus.weights.progress import LINE_S, REDRAW_S, Watched, progress_of
from tests.support.checkpoints import model


class Terminal:
    def __init__(self, can_redraw: bool) -> None:
        self.now_s, self.text = 100.0, ""
        self.show = progress_of(can_redraw, self.write, lambda: self.now_s)

    def write(self, text: str) -> None:
        self.text += text

    def at(self, now_s: float, what: str, done: int, total: int = 1000) -> str:
        self.now_s, self.text = 100.0 + now_s, ""
        self.show(what, done, total)
        return self.text


def test_short_work_says_nothing() -> None:
    terminal = Terminal(can_redraw=True)
    assert terminal.at(0.5, "hashing", 500) == ""
    assert terminal.at(0.9, "", 0) == ""


def test_a_terminal_sees_one_line_that_is_drawn_over_and_cleared() -> None:
    terminal = Terminal(can_redraw=True)
    terminal.at(1.0, "hashing", 0)
    assert terminal.at(3.0, "hashing", 500) == "\rhashing: 50 % of 1 kB, 250 B/s"
    assert terminal.at(3.0 + REDRAW_S / 2, "hashing", 600) == ""
    assert terminal.at(4.0, "x", 600) == "\rx: 60 % of 1 kB, 0 B/s".ljust(len("\rhashing: 50 % of 1 kB, 250 B/s"))
    assert terminal.at(4.1, "", 0).strip("\r ") == ""


def test_elsewhere_there_is_a_line_now_and_then() -> None:
    terminal = Terminal(can_redraw=False)
    assert terminal.at(2.0, "hashing", 100) == ""
    assert terminal.at(LINE_S, "hashing", 900).endswith(" B/s\n")
    assert terminal.at(LINE_S + 1, "hashing", 950) == ""
    assert terminal.at(LINE_S + 2, "", 0) == ""


def test_a_watched_state_is_the_state_and_tells_what_is_read() -> None:
    state, seen = model(1), list[int]()
    assert dict(Watched(state, seen.append)) == state
    assert seen == [each.data.size for each in state.values()]
    assert len(Watched(state, seen.append)) == len(state)
