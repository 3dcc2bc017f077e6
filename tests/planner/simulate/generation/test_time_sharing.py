"""Devices of a group run one task at a time."""

from planner.simulate.event_queue import Agenda
from planner.simulate.generation.time_sharing import Turns


def test_passes_take_turns_and_the_background_stops_for_them() -> None:
    agenda = Agenda()
    seen: list[tuple[object, ...]] = []

    def pause() -> float:
        seen.append(("pause", agenda.now_s))
        return agenda.now_s + 0.5

    turns = Turns(agenda, pause, lambda: seen.append(("resume", agenda.now_s)))
    turns.request_pass(lambda: 2.0, lambda began, ended: seen.append(("first", began, ended)))
    turns.request_pass(lambda: 3.0, lambda began, ended: seen.append(("second", began, ended)))
    while agenda.step():
        pass
    assert seen == [("pause", 0.0), ("first", 0.5, 2.5), ("second", 2.5, 5.5), ("resume", 5.5)]


def test_a_pass_may_ask_for_the_next_and_nothing_comes_in_between() -> None:
    agenda = Agenda()
    seen: list[tuple[object, ...]] = []
    turns = Turns(agenda, None, None)

    def again(_began_s: float, ended_s: float) -> None:
        turns.request_pass(lambda: 1.0, lambda began, ended: seen.append((began, ended)))

    turns.request_pass(lambda: 1.0, again)
    while agenda.step():
        pass
    assert seen == [(1.0, 2.0)]
    assert not turns.is_busy
