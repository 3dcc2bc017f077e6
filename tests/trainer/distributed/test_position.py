"""Positions of ranks on machines."""

import pytest

from periplus.errors import TrainingError
from periplus.values.task import RankMachine
from trainer.distributed.position import interface_of, own_address, positions, ranks_by_machine


def machines(*numbers: int) -> tuple[RankMachine, ...]:
    return tuple(RankMachine(name=f"n{place}", num_devices=number) for place, number in enumerate(numbers))


@pytest.mark.parametrize(
    ("size", "devices", "ranks"),
    [(4, (), (4,)), (4, (2, 2), (2, 2)), (5, (4, 1), (4, 1)), (4, (1, 1), (2, 2)), (3, (1, 1), (1, 2))],
)
def test_ranks_are_in_proportion_to_devices(size: int, devices: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    assert ranks_by_machine(size, machines(*devices)) == ranks


def test_the_ranks_of_a_machine_follow_one_another() -> None:
    found = positions(3, machines(2, 1), "10.0.0.1:5")
    assert [(each.rank, each.local_rank, each.local_size) for each in found] == [(0, 0, 2), (1, 1, 2), (2, 0, 1)]
    words = "--rank=2 --size=3 --local-rank=0 --local-size=1 --meet=10.0.0.1:5"
    assert " ".join(found[-1].to_words()) == words


def test_the_address_towards_a_machine_is_that_of_an_interface_of_this_one() -> None:
    assert own_address("127.0.0.1:50") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(TrainingError, match="no way to nowhere"):
        own_address("nowhere.invalid:50")
    with pytest.raises(TrainingError, match="no network interface"):
        interface_of("203.0.113.9")
