"""When the agent goes on trying to open a job's stores, and when it gives them up."""

import errno
from pathlib import Path

import pytest

from periplus.errors import Conflict, DiskFull, PeriplusError
from periplus.spool.files import refusal
from region_agent.stores import GIVE_UP_S, unusable

FOLDER = Path("/nowhere/spools/j")


def refused(number: int) -> PeriplusError:
    """The error of ours for one of the operating system, as `explained` raises it."""
    try:
        try:
            raise OSError(number, "why not")
        except OSError as error:
            raise refusal(FOLDER, error) from error
    except PeriplusError as error:
        return error


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EROFS, errno.EACCES, errno.ENOTDIR])
def test_what_only_a_person_can_mend_is_given_up_at_once(number: int) -> None:
    found = unusable(refused(number), None, 5.0)
    assert (found.is_given_up, found.why) == (
        True,
        "cannot use /nowhere/spools/j: why not; repair the disk or its permissions",
    )


def test_a_full_disk_is_waited_for_without_end() -> None:
    full = refused(errno.ENOSPC)
    assert isinstance(full, DiskFull)
    first = unusable(full, None, 5.0)
    assert not unusable(full, first, 5.0 + 86_400).is_given_up


@pytest.mark.parametrize("error", [Conflict("it is locked"), refused(errno.EIO)])
def test_anything_else_is_tried_for_a_while(error: PeriplusError) -> None:
    first = unusable(error, None, 5.0)
    later = unusable(error, first, 4.9 + GIVE_UP_S)
    assert not first.is_given_up
    assert (later.is_given_up, later.since_s) == (False, 5.0)
    assert unusable(error, later, 5.0 + GIVE_UP_S).is_given_up
