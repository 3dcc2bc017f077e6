"""A device that is not the CPU, with real numbers: it finds tensors that code leaves on the wrong device.

Tensors of this device say that they lie on `OTHER`, which is torch's device `meta`, and each of them holds a tensor of
the CPU that computes its values. As on an accelerator, an operation may not mix the two devices, except for numbers
without dimensions. Copies between the devices are counted by whether the host waits for them, and so are reads of
single values. What the host does not wait for it must not read before an `OtherEvent` that was recorded later.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

OTHER = torch.device("meta")

WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.masked_select.default,
}
"""Operations whose result the host needs at once."""


class OtherTensor(torch.Tensor):
    """A tensor on `OTHER`, with its values in `held`."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "OtherTensor":
        # A tensor made in inference mode could not be a view of one that was made outside.
        with torch.inference_mode(False):
            made: OtherTensor = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=OTHER,
            )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(func, args, kwargs or {}, Counter())


class OtherEvent:
    """Stands in for `torch.Event` on this device, and counts how often the host has waited for one."""

    waits = 0

    def __init__(self, device: torch.device) -> None:
        assert device == OTHER

    def record(self) -> None:
        """Mark this place in the device's work."""

    def synchronize(self) -> None:
        """Wait until the device has come to this place."""
        OtherEvent.waits += 1


class OtherDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, `device=OTHER` makes an `OtherTensor`. `counts` holds copies and waits by kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket is torch.ops.aten.to:
            # In inference mode it comes whole; its parts say what is copied.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return _compute(func, args, kwargs or {}, self.counts)


def on_other(model: Any) -> Any:
    """Move a model's parameters and buffers to `OTHER`, tied ones once."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) not in moved:
                there: Any = OtherTensor(tensor.detach())
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                moved[id(tensor)] = torch.nn.Parameter(there, requires_grad=False) if is_parameter else there
            (module._parameters if name in module._parameters else module._buffers)[name] = moved[id(tensor)]
    return model


@contextmanager
def other_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherDevice]:
    """Make the device usable in this thread."""
    monkeypatch.setattr(torch, "Event", OtherEvent)
    OtherEvent.waits = 0
    with OtherDevice() as device:
        yield device


def _compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], counts: Counter[str]) -> Any:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = [leaf for leaf in given if isinstance(leaf, OtherTensor)]
    here = [leaf for leaf in given if not isinstance(leaf, OtherTensor)]
    is_copy = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if there and any(leaf.dim() for leaf in here) and not is_copy:
        raise RuntimeError(f"{func} got tensors of two devices: {[tuple(leaf.shape) for leaf in here]} are on the CPU")
    if there and func in WAITING:
        counts["waits"] += 1
    asked = kwargs.get("device")
    target = torch.device(asked) if asked is not None else (OTHER if there else torch.device("cpu"))
    if func is torch.ops.aten.copy_.default:
        target = OTHER if isinstance(args[0], OtherTensor) else torch.device("cpu")
    if is_copy and bool(there) != (target == OTHER):
        waits = not (kwargs.get("non_blocking") or (func is torch.ops.aten.copy_.default and args[2:] == (True,)))
        counts[f"{'to' if target == OTHER else 'from'} device, {'waiting' if waits else 'not waiting'}"] += 1
    if is_copy or there or target == OTHER:
        plain = {name: torch.device("cpu") if name == "device" else each for name, each in kwargs.items()}
        found = func(*_held(args), **_held(plain))
        # What is written in place is the same tensor afterwards.
        return tree_map(_returned(given, target), found)
    return func(*args, **kwargs)


def _held(values: Any) -> Any:
    return tree_map(lambda leaf: leaf.held if isinstance(leaf, OtherTensor) else leaf, values)


def _returned(given: Sequence[torch.Tensor], target: torch.device) -> Callable[[Any], Any]:
    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for before in given:
            if leaf is before or (isinstance(before, OtherTensor) and leaf is before.held):
                return before
        return OtherTensor(leaf) if target == OTHER else leaf

    return wrap
