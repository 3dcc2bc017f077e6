"""Where each rank of a trainer runs: the machines of its task, and the position of a rank among all ranks.

The ranks of one machine follow one another. If a machine has fewer devices than ranks, they share them.
"""

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import psutil

from periplus.errors import TrainingError
from periplus.values.task import RankMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """The position of a rank among `size` ranks, and among the `local_size` ranks of its machine.

    `meet` is where the ranks find each other: a folder that only their user can open if they are all on one machine,
    otherwise host:port of a store of rank 0.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    meet: str

    def to_words(self) -> tuple[str, ...]:
        """Return the position as arguments of a command line."""
        return tuple(f"--{name.replace('_', '-')}={getattr(self, name)}" for name in self.__slots__)


def ranks_by_machine(size: int, machines: Sequence[RankMachine]) -> tuple[int, ...]:
    """Return the number of ranks of each machine, in proportion to their devices; all on one if none are given."""
    if not machines:
        return (size,)
    ends, num_devices = [0], sum(machine.num_devices for machine in machines)
    for machine in machines:
        ends.append(ends[-1] + machine.num_devices)
    return tuple(size * end // num_devices - size * start // num_devices for start, end in pairwise(ends))


def positions(size: int, machines: Sequence[RankMachine], meet: str) -> tuple[RankPosition, ...]:
    """Return the positions of all ranks, in order."""
    return tuple(
        RankPosition(rank=start + local, size=size, local_rank=local, local_size=number, meet=meet)
        for start, number in _starts(ranks_by_machine(size, machines))
        for local in range(number)
    )


def _starts(numbers: Sequence[int]) -> list[tuple[int, int]]:
    return [(sum(numbers[:place]), number) for place, number in enumerate(numbers)]


def own_address(towards: str) -> str:
    """Return the address of this machine from which it reaches the host of `towards` (host:port).

    Raises: TrainingError if there is no way.
    """
    host, _, port = towards.rpartition(":")
    with contextlib.suppress(OSError, ValueError):
        for family, kind, _, _, there in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as looking:
                looking.connect(there)  # of a datagram: nothing is sent
                address: str = looking.getsockname()[0]
                return address
    raise TrainingError(f"this machine has no way to {towards}, so the other machines of the trainer cannot reach it")


def interface_of(address: str) -> str:
    """Return the name of the network interface of this machine that has an address. Raises: TrainingError."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in found):
            return name
    raise TrainingError(f"no network interface of this machine has the address {address}")
