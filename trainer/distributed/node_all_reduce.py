"""Times an all-reduce over one rank a node of a cluster: with NCCL if each node has a GPU, else with gloo.

    python -m trainer.distributed.node_all_reduce RANK SIZE HOST PORT

Rank 0 gets the address at which it meets the others, and port 0. It prints the port that it has chosen, and at the end
the result. The agent of a region starts all ranks (region_agent/launchers/fabric.py). NCCL was not tried.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from periplus.process.measuring import result_lines
from trainer.distributed.all_reduce import LIMIT_S, group_times
from trainer.distributed.position import interface_of, own_address

NUM_ELEMENTS = 1 << 24
"""Elements of float32 (64 MiB). Chosen by hand: an all-reduce takes a second at 1 Gbit/s."""


def main(rank: int, size: int, host: str, port: int) -> None:
    """Take part in the all-reduce. The result of rank 0 is the bytes that each rank sends in a second, in a ring."""
    limit = timedelta(seconds=LIMIT_S)
    with result_lines() as say:
        store = TCPStore(host, port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False)
        if rank == 0:
            say("port", store.port)
        store.set(f"has_gpu:{rank}", str(torch.cuda.is_available()))
        on_gpus = all(store.get(f"has_gpu:{each}") == b"True" for each in range(size))
        # The host's name may belong to another network, or to none.
        interface = interface_of(own_address(f"{host}:9"))
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, interface)
        dist.init_process_group("nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=size, timeout=limit)
        few_s, many_s = group_times(torch.device("cuda", 0) if on_gpus else torch.device("cpu"), NUM_ELEMENTS)
        if rank == 0:
            sent_bytes = 2 * (size - 1) / size * NUM_ELEMENTS * torch.float32.itemsize
            say("result", {"bytes_per_s": sent_bytes / many_s, "all_reduce_s": few_s})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
