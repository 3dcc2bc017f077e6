"""Gathering and broadcasting between real gloo processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.gloo import run_on_ranks
from trainer.distributed.collectives import HostCollectives

pytestmark = pytest.mark.processes


def gathered() -> list[Any]:
    ranks = HostCollectives.over()
    found: list[Any] = []
    # Rank 1 has nothing, and the others have different amounts of different types.
    words = np.arange(0 if ranks.rank == 1 else 3 + ranks.rank, dtype=np.uint16) + 65530
    positions = np.arange(ranks.rank, dtype=np.int64) - 5
    ranks.gather([words, positions], lambda rank, arrays: found.append([rank, *(each.tolist() for each in arrays)]))
    return found


def test_arrays_of_any_length_arrive_on_the_first_rank_in_order() -> None:
    first, *others = run_on_ranks(gathered, 3)
    assert first == [
        [0, [65530, 65531, 65532], []],
        [1, [], [-5]],
        [2, [65530, 65531, 65532, 65533, 65534], [-5, -4]],
    ]
    assert others == [[], []]


def failing() -> tuple[str, list[Any]]:
    ranks = HostCollectives.over()

    def visit(rank: int, arrays: Sequence[Any]) -> None:
        raise OSError(f"the disk is full at rank {rank}")

    try:
        ranks.gather([np.arange(1000)], visit)
        failure = ""
    except OSError as error:
        failure = str(error)
    return failure, ranks.exchange_values(f"from {ranks.rank}")


def test_an_error_on_the_first_rank_leaves_no_other_rank_waiting() -> None:
    found = run_on_ranks(failing, 3)
    assert [failure for failure, _ in found] == ["the disk is full at rank 0", "", ""]
    assert [values for _, values in found] == [["from 0", "from 1", "from 2"]] * 3


def broadcast() -> Any:
    ranks = HostCollectives.over()
    return ranks.broadcast_value({"directory": "ä", "n": [1, None]} if ranks.rank == 0 else None)


def test_a_value_of_the_first_rank_is_on_every_rank() -> None:
    assert run_on_ranks(broadcast, 2) == [{"directory": "ä", "n": [1, None]}] * 2


def test_alone_nothing_is_sent() -> None:
    ranks, found = HostCollectives(), []
    ranks.gather([np.arange(3)], lambda rank, arrays: found.append((rank, arrays[0].tolist())))
    assert found == [(0, [0, 1, 2])]
    assert ranks.exchange_values({"a": 1}) == [{"a": 1}]
