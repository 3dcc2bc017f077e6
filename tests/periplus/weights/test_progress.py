from periplus.cli.progress_line import LINE_S, ProgressLine
from periplus.weights.progress import Watched, progress_on
from tests.support.checkpoints import model


def test_what_is_done_is_shown_with_the_rate_since_it_began() -> None:
    now_s, written = [100.0], list[str]()
    show = progress_on(ProgressLine.of_files(written.append, can_redraw=False, began_s=100.0), lambda: now_s[0])
    for at_s, what, done in ((0.0, "hashing", 0), (LINE_S, "hashing", 500), (LINE_S + 5, "encoding", 600)):
        now_s[0] = 100.0 + at_s
        show(what, done, 1000)
    now_s[0] = 100.0 + 2 * LINE_S
    show("encoding", 700, 1000)
    assert written == ["hashing: 50 % of 1 kB, 50 B/s\n", "encoding: 70 % of 1 kB, 20 B/s\n"]


def test_a_watched_state_is_the_state_and_tells_what_is_read() -> None:
    state, seen = model(1), list[int]()
    assert dict(Watched(state, seen.append)) == state
    assert seen == [each.data.size for each in state.values()]
    assert len(Watched(state, seen.append)) == len(state)
