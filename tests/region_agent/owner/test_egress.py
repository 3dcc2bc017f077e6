"""The count of a day's egress."""

from pathlib import Path

import pytest

from region_agent.owner.egress import DayOfEgress, kept_day

NOON_S = 1_795_780_800.0  # 2026-11-27 12:00 UTC
DAY_S = 86_400.0


def test_readings_of_the_counter_add_up_until_the_day_ends() -> None:
    day = DayOfEgress().counted(100, NOON_S)
    assert (day.day, day.sent_bytes) == ("2026-11-27", 100)
    day = day.counted(150, NOON_S + 60)
    assert (day.sent_bytes, day.ends_at) == (150, "2026-11-28 00:00 UTC")
    day = day.counted(170, NOON_S + DAY_S)
    assert (day.day, day.sent_bytes) == ("2026-11-28", 20)


def test_another_agent_goes_on_with_the_count_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "egress.json"
    path.write_text(DayOfEgress().counted(100, NOON_S).to_json())
    assert kept_day(path).counted(0, NOON_S + 60).sent_bytes == 100
    assert kept_day(path).counted(7, NOON_S + 60).sent_bytes == 107
    assert kept_day(path).counted(7, NOON_S + DAY_S).sent_bytes == 7


@pytest.mark.parametrize("text", ["", "{", "[]", '{"day": "soon", "sent_bytes": 1}', '{"day": "2026-11-27"}'])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "egress.json"
    path.write_text(text)
    assert kept_day(path) == kept_day(tmp_path / "none") == DayOfEgress()


def test_a_clock_that_goes_back_forgets_nothing_unless_it_was_wrong_by_days() -> None:
    day = DayOfEgress().counted(100, NOON_S + DAY_S)
    assert day.counted(110, NOON_S).sent_bytes == 110
    assert day.counted(110, NOON_S - 3 * DAY_S) == DayOfEgress("2026-11-24", 10, 110)
