import io
import json
import logging
from collections.abc import Iterator

import pytest

from periplus.process import telemetry
from periplus.values.task import REGION_NAME
from tests.support import sample_run


@pytest.fixture(autouse=True)
def untouched_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(**fields: object) -> str:
    stream = io.StringIO()
    telemetry.configure("info", stream)
    telemetry.event(logging.getLogger("agent.session"), logging.INFO, "session_opened", **fields)
    return stream.getvalue()


def test_a_record_is_one_line_of_time_level_logger_event_and_fields() -> None:
    line = logged(region="eu", epoch=4, wait_s=0.25, ready=True, job=None)
    time, rest = line.split(" ", 1)
    assert time.endswith("Z")
    assert len(time) == len("2026-01-31T12:00:00.123Z")
    assert rest == "INFO agent.session session_opened region=eu epoch=4 wait_s=0.25 ready=true job=null\n"


@pytest.mark.parametrize("value", ["two words", "a=b", 'say "hi"', "", "line\nbreak", "\x1b[31mred"])
def test_a_field_with_any_text_stays_one_line_and_can_be_read_back(value: str) -> None:
    line = logged(reason=value)
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert json.loads(line.split("reason=", 1)[1]) == value


def test_a_traceback_and_a_foreign_message_stay_on_one_line() -> None:
    stream = io.StringIO()
    telemetry.configure("warning", stream)
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        logging.getLogger("x").exception("some\nlibrary")
    logging.getLogger("x").info("below the level")
    assert stream.getvalue().count("\n") == 1
    assert "traceback=" in stream.getvalue()


def test_neither_a_field_nor_a_traceback_shows_a_group_in_place_of_what_happened() -> None:
    stream = io.StringIO()
    telemetry.configure("warning", stream)
    log = logging.getLogger("x")
    try:
        try:
            raise ZeroDivisionError("by zero")
        except ZeroDivisionError as inner:
            raise ExceptionGroup("unhandled errors in a TaskGroup (1 sub-exception)", [inner]) from inner
    except ExceptionGroup as group:
        log.exception("task_crashed")
        telemetry.event(log, logging.ERROR, "lost", why=group)
    crashed, lost = stream.getvalue().splitlines()
    assert crashed.count("ZeroDivisionError: by zero") == 1
    assert "test_telemetry.py" in crashed
    assert lost.endswith('lost why="ZeroDivisionError: by zero"')
    assert "TaskGroup" not in stream.getvalue()


def test_configuring_twice_writes_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    telemetry.configure("INFO", first)
    telemetry.configure("INFO", second)
    logging.getLogger("x").info("hello")
    assert first.getvalue() == ""
    assert second.getvalue().count("hello") == 1


def test_every_metric_has_a_unit_and_a_sentence() -> None:
    for name, metric in telemetry.METRICS.items():
        assert name == metric.name
        assert metric.unit
        assert metric.sentence.endswith(".")


def test_records_use_registered_names_only() -> None:
    for record in sample_run.records():
        telemetry.check_names(record.values)


def test_an_unregistered_name_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match="rewrad_mean"):
        telemetry.check_names({"loss": 1.0, "rewrad_mean": 1.0})


def test_a_family_names_metrics_of_things_and_finds_them_again() -> None:
    name = telemetry.REGION_TOKENS_PER_S.name("aws:us-east-1")
    assert name == "tokens_per_s_region/aws:us-east-1"
    assert telemetry.REGION_TOKENS_PER_S.thing_of(name) == "aws:us-east-1"
    assert telemetry.REWARD_PART_MEAN.name("format") == "reward_part/format_mean"
    telemetry.check_names([name, "reward_part/format_mean"])


@pytest.mark.parametrize(
    "name", ["reward_part/_mean", "reward_part/a b_mean", "reward_part/format", "reward_part/a\n_mean"]
)
def test_what_a_family_does_not_allow_is_refused(name: str) -> None:
    assert telemetry.REWARD_PART_MEAN.thing_of(name) is None
    with pytest.raises(ValueError, match="not in the metric registry"):
        telemetry.check_names([name])


def test_a_thing_that_may_not_be_named_is_refused() -> None:
    with pytest.raises(ValueError, match="reward_part/<part>_mean"):
        telemetry.REWARD_PART_MEAN.name("a b")


def test_no_metric_has_the_name_of_a_family_and_regions_are_named_alike_everywhere() -> None:
    for family in telemetry.FAMILIES:
        assert not [name for name in telemetry.METRICS if name.startswith(family.prefix)]
        assert family.sentence.endswith(".")
    assert telemetry.REGION_TOKENS_PER_S.pattern == REGION_NAME
