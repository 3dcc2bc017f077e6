"""Modes that watch the tensors that operations return: the largest one, and the memory that outlives the operations."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the number of elements of the largest tensor that any operation has returned, and all new memory.

    It keeps what it has seen from being freed, so it is for small tests.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_elements = 0
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor):
                self.num_elements = max(self.num_elements, each.numel())
                storage = each.untyped_storage()
                self._storages[storage.data_ptr()] = storage
        return out

    def kept_bytes(self, *, apart_from: list[torch.Tensor]) -> int:
        """Return the bytes of all memory that somebody still refers to, such as autograd for the backward pass.

        The memory of `apart_from`, and tensors with as many elements as one of them, such as their copies in another
        type, are not counted.
        """
        known = {tensor.untyped_storage().data_ptr() for tensor in apart_from}
        sizes = {tensor.numel() * width for tensor in apart_from for width in (2, 4)}
        return sum(
            storage.nbytes()
            for address, storage in self._storages.items()
            # This object's own reference is one.
            if address not in known
            and storage.nbytes() not in sizes
            and torch._C._storage_Use_Count(storage._cdata) > 1
        )
