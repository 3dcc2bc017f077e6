"""Devices of a group run one task at a time."""

from planner.simulate.event_queue import EventQueue
from planner.simulate.generation.time_sharing import DeviceQueue


def test_passes_run_one_after_the_other_and_the_background_stops_for_them() -> None:
    events = EventQueue()
    seen: list[tuple[object, ...]] = []

    def pause() -> float:
        seen.append(("pause", events.now_s))
        return events.now_s + 0.5

    queue = DeviceQueue(events, pause, lambda: seen.append(("resume", events.now_s)))
    queue.request_pass(lambda: 2.0, lambda began, ended: seen.append(("first", began, ended)))
    queue.request_pass(lambda: 3.0, lambda began, ended: seen.append(("second", began, ended)))
    while events.step():
        pass
    assert seen == [("pause", 0.0), ("first", 0.5, 2.5), ("second", 2.5, 5.5), ("resume", 5.5)]


def test_a_pass_may_ask_for_the_next_and_nothing_comes_in_between() -> None:
    events = EventQueue()
    seen: list[tuple[object, ...]] = []
    queue = DeviceQueue(events, None, None)

    def again(_began_s: float, ended_s: float) -> None:
        queue.request_pass(lambda: 1.0, lambda began, ended: seen.append((began, ended)))

    queue.request_pass(lambda: 1.0, again)
    while events.step():
        pass
    assert seen == [(1.0, 2.0)]
    assert not queue.is_busy
