"""How the ranks of one trainer find each other, which device each of them has, and the groups in which they talk.

All ranks run on one machine. They meet through a file in a folder that only their user can open, so no other process
can join them. accelerate's `PartialState` chooses device and backend: with CUDA, rank i gets GPU i and NCCL sends its
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
from torch._C._distributed_c10d import FileStore
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from periplus.errors import ConfigError
from trainer.distributed.collectives import HostCollectives

JOIN_LIMIT_S = 20.0
"""Seconds that a rank waits for the others to connect. All of them have imported what they need before, so it takes
milliseconds. Chosen by hand, so that a rank that died meanwhile is found out within half a minute."""

COLLECTIVE_LIMIT_S = 600.0
"""Seconds that a collective of training waits for the other ranks. Between two collectives the ranks compute the same
amount, so they are late by the differences of their speeds only. Chosen by hand, as torch's default for NCCL."""

PUBLISHING_LIMIT_S = 86_400.0
"""Seconds that a rank waits until rank 0 takes what it has to publish. Rank 0 may be sending an earlier version over a
slow network meanwhile. Chosen by hand."""

VERDICT_LIMIT_S = 20.0
"""Seconds that a vote waits for the other ranks. They vote right after a collective, so milliseconds are usual. Chosen
by hand, so that a rank that hangs there is found out within half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroups:
    """Position of this process among `size` ranks, its device, and its process groups.

    `mesh` is the line of all ranks, over which FSDP2 divides models.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    host_group: Any
    publishing: HostCollectives
    verdict: Any

    @property
    def host(self) -> HostCollectives:
        """The exchange of host memory between training's collectives."""
        return HostCollectives(rank=self.rank, size=self.size, group=self.host_group)


def device_of_rank(rank: int, size: int) -> torch.device:
    """Return the device of a rank: a GPU of its own, or the CPU if the machine has no GPU that torch can use.

    Raises: ConfigError if there are fewer GPUs than ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if torch.cuda.device_count() < size:
        raise ConfigError(
            f"train.devices is {size}, but the trainer's machine has {torch.cuda.device_count()} GPUs; set "
            "train.devices to at most that"
        )
    return torch.device("cuda", rank)


def join(rank: int, size: int, folder: Path) -> RankGroups:
    """Join the ranks that meet in `folder`. All `size` ranks must be ready (`is_ready`) or come soon.

    Nothing else in this process may use torch.distributed's default group until `leave` is called.

    Raises: ConfigError if there are fewer GPUs than ranks; RuntimeError if the other ranks do not come.
    """
    has_cuda = device_of_rank(rank, size).type == "cuda"
    # What accelerate reads in the environment of a process that a launcher has started. Connections stay on this
    # machine, unless the operator has chosen an interface for gloo.
    position = {"rank": rank, "world_size": size, "local_rank": rank, "local_world_size": size}
    variables = {
        **position,
        "gloo_socket_ifname": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "omp_num_threads": torch.get_num_threads(),
    }
    with patch_environment(**variables):
        state = PartialState(
            cpu=not has_cuda,
            **({"backend": "cpu:gloo,cuda:nccl"} if has_cuda else {}),
            store=FileStore(str(folder / "ranks"), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=JOIN_LIMIT_S),
        )
        distributed_c10d._set_pg_timeout(timedelta(seconds=COLLECTIVE_LIMIT_S), dist.group.WORLD)
        assert (state.process_index, state.num_processes) == (rank, size), "accelerate sees other ranks"
        # accelerate gives the CPU an index, which tensors do not have.
        device = device_of_rank(rank, size)
        assert (state.device.type, state.device.index or 0) == (device.type, device.index or 0), "another device"
        return RankGroups(
            rank=rank,
            size=size,
            device=device,
            mesh=init_device_mesh(device.type, (size,)),
            host_group=_gloo(COLLECTIVE_LIMIT_S),
            publishing=HostCollectives.over(_gloo(PUBLISHING_LIMIT_S)),
            verdict=_gloo(VERDICT_LIMIT_S),
        )


def say_ready(rank: int, folder: Path) -> None:
    """Leave a sign in `folder` that this rank is about to join."""
    _ready_file(rank, folder).touch()


def is_ready(rank: int, folder: Path) -> bool:
    """Return whether a rank has called `say_ready`."""
    return _ready_file(rank, folder).exists()


def _ready_file(rank: int, folder: Path) -> Path:
    return folder / f"ready-{rank}"


def abort(groups: RankGroups) -> None:
    """End the collectives on GPUs that wait for ranks that are lost; any thread may call it."""
    if groups.device.type == "cuda":
        # The mesh has the default group, or one of its own, as torch chooses.
        for group in {groups.mesh.get_group(), distributed_c10d._get_default_group()}:
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
