import asyncio
import re
from collections.abc import Iterator

import grpc
import pytest

from periplus import errors
from periplus.errors import (
    LINE_CHARACTERS,
    MEANING,
    PeriplusError,
    explained_error,
    from_reason,
    innermost,
    meaning,
    one_line,
    reason,
    shortened,
)


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
    assert {cls.__name__ for cls, row in MEANING.items() if row.retryable} == {"Unreachable", "Overloaded", "TimedOut"}


def raised(error: Exception, *, cause: BaseException | None = None) -> Exception:
    error.__cause__ = cause
    return error


def group(*inner: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("unhandled errors in a TaskGroup (1 sub-exception)", inner)


FULL = PeriplusError("the disk is full at /runs; free space")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (FULL, str(FULL)),
        (group(FULL), str(FULL)),
        (group(group(group(FULL))), str(FULL)),
        (group(ZeroDivisionError("by zero")), "ZeroDivisionError: by zero"),
        (group(KeyError()), "KeyError"),
        (group(FULL, group(KeyError("a")), KeyError("b")), f"{FULL} (and 2 other errors)"),
        (group(FULL, PeriplusError(str(FULL)), KeyError("a")), f"{FULL} (and 1 other error)"),
        (raised(RuntimeError("the step failed"), cause=group(FULL)), str(FULL)),
        (group(raised(RuntimeError("x"), cause=raised(KeyError("y"), cause=ValueError("z")))), "ValueError: z"),
        (raised(errors.Unreachable("gone; start it"), cause=OSError("x")), "gone; start it"),
        (BaseExceptionGroup("g", [asyncio.CancelledError(), FULL]), str(FULL)),
        (BaseExceptionGroup("g", [asyncio.CancelledError()]), "CancelledError"),
        (FileNotFoundError(2, "No such file or directory", "/a b"), "No such file or directory: /a b"),
        (group(OSError(28, "No space left on device")), "No space left on device"),
    ],
)
def test_a_person_is_shown_what_happened_and_never_the_group_around_it(error: BaseException, shown: str) -> None:
    assert explained_error(error) == shown


def test_an_error_that_is_raised_from_its_own_group_is_explained() -> None:
    leaf = RuntimeError("x")
    leaf.__cause__ = group(leaf)
    assert explained_error(leaf) == "RuntimeError: x"


def test_what_an_exit_code_is_looked_up_for_is_the_error_that_is_shown() -> None:
    assert innermost(group(group(FULL, KeyError()))) is FULL
    assert isinstance(innermost(group(KeyError(), FULL)), KeyError)


def test_the_text_of_another_library_is_shown_in_one_line_of_bounded_length() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(ValueError()) == "ValueError"
    long = one_line(ValueError("a page " * 1000))
    assert (len(long), long[-3:]) == (LINE_CHARACTERS, "...")


def test_a_long_value_is_shown_by_its_beginning() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."
