import re
from collections.abc import Iterator

import grpc
import pytest

from periplus import errors
from periplus.errors import MEANING, PeriplusError, from_reason, meaning, reason


def tree(cls: type[PeriplusError] = PeriplusError) -> Iterator[type[PeriplusError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from tree(child)


OURS = [cls for cls in tree() if cls.__module__ == errors.__name__]


def test_the_table_has_one_row_for_each_class_of_the_tree() -> None:
    assert set(MEANING) == set(OURS)


def test_the_drawing_in_the_docstring_is_the_tree_with_its_exit_codes() -> None:
    drawn = re.findall(r"[├└]── (\w+)(?:.*exit (\d+))?", errors.__doc__ or "")
    assert {name for name, _ in drawn} == {cls.__name__ for cls in OURS} - {"PeriplusError"}
    for name, exit_code in drawn:
        if exit_code:
            assert MEANING[getattr(errors, name)].exit_code == int(exit_code)


@pytest.mark.parametrize("cls", OURS)
def test_each_class_has_a_status_that_is_no_success_and_an_exit_code_that_says_failure(
    cls: type[PeriplusError],
) -> None:
    row = meaning(cls("why"))
    assert row.status is not grpc.StatusCode.OK
    assert 1 <= row.exit_code <= 8
    for parent in cls.__mro__[1:]:
        if parent in MEANING and parent is not PeriplusError:
            assert row.exit_code == MEANING[parent].exit_code


@pytest.mark.parametrize("cls", OURS)
def test_each_class_comes_back_from_its_stable_name(cls: type[PeriplusError]) -> None:
    error = from_reason(reason(cls("why")), "why")
    assert type(error) is cls
    assert str(error) == "why"
    assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", reason(error))


def test_a_reason_of_a_newer_peer_becomes_the_root_class() -> None:
    assert type(from_reason("OF_THE_FUTURE", "x")) is PeriplusError


def test_only_what_time_can_heal_is_worth_a_retry() -> None:
    assert {cls.__name__ for cls, row in MEANING.items() if row.retryable} == {"Unreachable", "TimedOut"}
