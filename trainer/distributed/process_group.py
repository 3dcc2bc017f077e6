"""How the ranks of one trainer find each other, which device each of them has, and the groups in which they talk.

Ranks of one machine meet through a file in a folder that only their user can open, so no other process can join them.
Ranks of several machines meet at a TCP store of rank 0, and talk over the network of their region, which is trusted.
accelerate's `PartialState` chooses device and backend: with CUDA, rank i of a machine gets GPU i and NCCL sends its
tensors; otherwise all ranks compute on CPUs and gloo sends.

Each purpose has a process group of its own, because calls on one group must come in the same order on all ranks:
- the default group carries the collectives of training;
- `host_group` sends host memory between training's collectives, for sharding and checkpoints;
- `publishing` sends host memory from a thread that works beside training;
- `verdict` carries the votes before updates.

A collective waits for the other ranks only so long. The limits are for ranks that hang: rank 0 sees the end of another
rank's process, and that it is stopped (followers.py). A collective of gloo fails at once if the other end of its
connection is closed. One of NCCL would wait on for its partner on the GPU, so rank 0 aborts it (`abort`). What it
computed is dropped then, since the vote on the update goes over gloo. Nothing of NCCL was run so far.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import patch_environment
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from periplus.errors import ConfigError
from trainer.distributed.collectives import HostCollectives
from trainer.distributed.position import RankPosition, interface_of, own_address

JOIN_LIMIT_S = 20.0
"""Seconds that a rank waits for the others to connect. All of them have imported what they need before, so it takes
milliseconds. Chosen by hand, so that a rank that died meanwhile is found out within half a minute."""

COLLECTIVE_LIMIT_S = 600.0
"""Seconds that a collective of training waits for the other ranks. Between two collectives the ranks compute the same
amount, so they are late by the differences of their speeds only. Chosen by hand, as torch's default for NCCL."""

COPIES_LIMIT_S = 7_200.0
"""The same seconds where ranks have copies: they meet only once an update, so they are late by the differences of all
their passes. Chosen by hand."""

PUBLISHING_LIMIT_S = 86_400.0
"""Seconds that a rank waits until rank 0 takes what it has to publish. Rank 0 may be sending an earlier version over a
slow network meanwhile. Chosen by hand."""

VERDICT_LIMIT_S = 20.0
"""Seconds that a vote waits for the other ranks. They vote right after a collective, so milliseconds are usual. Chosen
by hand, so that a rank that hangs there is found out within half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroups:
    """Position of this process among `size` ranks, its device, and its process groups.

    `mesh` is the line of all ranks, over which FSDP2 divides models; or a table with a row for each machine, which
    has a copy. With `is_whole` each rank has a copy, and FSDP2 divides nothing.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    is_whole: bool
    host_group: Any
    publishing: HostCollectives
    verdict: Any

    @property
    def host(self) -> HostCollectives:
        """The exchange of host memory between training's collectives."""
        return HostCollectives(rank=self.rank, size=self.size, group=self.host_group)


def device_of_rank(rank: int, size: int) -> torch.device:
    """Return the device of a rank of a machine with `size`: a GPU of its own, or the CPU if torch can use no GPU there.

    Raises: ConfigError if there are fewer GPUs than ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < size:
        raise ConfigError(
            f"the trainer has {size} ranks on a machine with {torch.cuda.device_count()} GPUs; set train.devices to at "
            "most that"
        )
    return torch.device("cuda", rank)


def store_at(position: RankPosition, store: Store | None = None) -> Store:
    """Return the store through which the ranks meet. `store` is that of rank 0 if they are on several machines."""
    if store is not None:
        return store
    if Path(position.meet).is_absolute():
        return FileStore(str(Path(position.meet) / "ranks"), position.size)
    host, _, port = position.meet.rpartition(":")
    return TCPStore(host, int(port), position.size, False, timedelta(seconds=JOIN_LIMIT_S))


def first_store(address: str, size: int) -> TCPStore:
    """Return the store that rank 0 has for ranks of several machines, at a free port of an address of this machine."""
    limit = timedelta(seconds=JOIN_LIMIT_S)
    return TCPStore(address, 0, size, True, limit, wait_for_workers=False)


def join(position: RankPosition, store: Store | None = None, *, sharding: str = "full") -> RankGroups:
    """Join the other ranks. All of them must be ready, or come soon. `store` is as in `store_at`.

    `sharding` is that of a settled job (trainer/recipe.py). With `hybrid` all machines have as many ranks.

    Nothing else in this process may use torch.distributed's default group until `leave` is called.

    Raises: ConfigError if there are fewer GPUs than ranks; RuntimeError if the other ranks do not come.
    """
    rank, size = position.rank, position.size
    has_cuda = device_of_rank(position.local_rank, position.local_size).type == "cuda"
    is_here = Path(position.meet).is_absolute()
    # What accelerate reads in the environment of a process that a launcher has started. Connections use the interface
    # that leads to rank 0, unless the operator has chosen one for gloo.
    interface = "lo" if is_here else interface_of(own_address(position.meet))
    variables = {
        # Asked for if ranks are on several machines; the store below is what is used.
        "master_addr": "" if is_here else position.meet.rpartition(":")[0],
        "master_port": "" if is_here else position.meet.rpartition(":")[2],
        "rank": rank,
        "world_size": size,
        "local_rank": position.local_rank,
        "local_world_size": position.local_size,
        "gloo_socket_ifname": os.environ.get("GLOO_SOCKET_IFNAME", interface),
        "omp_num_threads": torch.get_num_threads(),
    }
    with patch_environment(**variables):
        state = PartialState(
            cpu=not has_cuda,
            **({"backend": "cpu:gloo,cuda:nccl"} if has_cuda else {}),
            store=store_at(position, store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=JOIN_LIMIT_S),
        )
        limit_s = COLLECTIVE_LIMIT_S if sharding == "full" else COPIES_LIMIT_S
        distributed_c10d._set_pg_timeout(timedelta(seconds=limit_s), dist.group.WORLD)
        assert (state.process_index, state.num_processes) == (rank, size), "accelerate sees other ranks"
        # accelerate gives the CPU an index, which tensors do not have.
        device = device_of_rank(position.local_rank, position.local_size)
        assert (state.device.type, state.device.index or 0) == (device.type, device.index or 0), "another device"
        shape = (size // position.local_size, position.local_size) if sharding == "hybrid" else (size,)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("copies", "rows")[-len(shape) :])
        for group in mesh.get_all_groups():
            distributed_c10d._set_pg_timeout(timedelta(seconds=limit_s), group)
        return RankGroups(
            rank=rank,
            size=size,
            device=device,
            mesh=mesh,
            is_whole=sharding == "none",
            host_group=_gloo(COLLECTIVE_LIMIT_S),
            publishing=HostCollectives.over(_gloo(PUBLISHING_LIMIT_S)),
            verdict=_gloo(VERDICT_LIMIT_S),
        )


def abort(groups: RankGroups) -> None:
    """End the collectives on GPUs that wait for ranks that are lost; any thread may call it."""
    if groups.device.type == "cuda":
        # The mesh has the default group, or some of its own, as torch chooses.
        for group in {*groups.mesh.get_all_groups(), distributed_c10d._get_default_group()}:
            group._get_backend(groups.device).abort()


def leave() -> None:
    """Close all groups of this process. The other ranks must not need them any more: they may have ended."""
    if dist.is_initialized():
        if torch.cuda.is_available():
            distributed_c10d._abort_process_group()  # NCCL would wait for the others to close theirs
        else:
            dist.destroy_process_group()
    PartialState._reset_state()  # a later trainer in this process may have another number of ranks


def _gloo(limit_s: float) -> Any:
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s))
