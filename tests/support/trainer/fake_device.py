"""A device that does not exist, on which tensors compute with real numbers: it finds tensors that were left on the CPU.

A tensor of this device holds a tensor of the CPU. Each operation runs on what its arguments hold. As on a CUDA device,
an operation that takes a tensor of this device and one of the CPU is an error, unless the latter is a single number.
Two things that CUDA permits are errors as well, because they copy in secret: an index on the CPU, and an assignment
from there. Reading a value waits for the device, so it is counted.

`use_fake_device()` sets torch up for it, once for the whole process, so tests use it in a process of their own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "fake"
"""Name of the device, under which torch knows it once `use_fake_device` was called."""


class DeviceTensor(torch.Tensor):
    """A tensor of the fake device; `held` has its content."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls: Any, held: torch.Tensor) -> Any:
        assert not isinstance(held, DeviceTensor)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return run(func, args, kwargs or {}, lambda: None)


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is active, tensors can be made on the device. `num_reads` counts the values read from it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_reads = 0
        self._lists = _ListsToTensors()

    def __enter__(self) -> Any:
        self._lists.__enter__()  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)  # type: ignore[no-untyped-call]
        self._lists.__exit__(*details)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def on_read() -> None:
            self.num_reads += 1

        return run(func, args, kwargs or {}, on_read)


class _ListsToTensors(TorchFunctionMode):
    """Does what torch does below the place where modes see operations: makes tensors of lists, and lists of tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == NAME:
            return DeviceTensor(torch.tensor(*args, **{**kwargs, "device": "cpu"}))
        if func is torch.Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].cpu().tolist()  # torch refuses this for tensors of classes of one's own
        return func(*args, **kwargs)


def run(func: Any, args: Any, kwargs: dict[str, Any], on_read: Callable[[], None]) -> Any:
    """Run one operation of torch on what its arguments hold. Raises: RuntimeError if it mixes devices."""
    leaves = tree_flatten((args, kwargs))[0]
    here = [leaf for leaf in leaves if isinstance(leaf, DeviceTensor)]
    asked = kwargs.get("device")
    wanted = None if asked is None else torch.device(asked).type
    if wanted == NAME:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func is torch.ops.aten._to_copy.default and wanted is not None:
        moved = func(*unwrapped(args), **unwrapped(kwargs))
        if wanted == "cpu" and here:
            on_read()
        return moved if wanted == "cpu" else DeviceTensor(moved)
    if not here:
        made = func(*args, **kwargs)
        return wrapped(made, {}) if wanted == NAME else made
    if func is torch.ops.aten._fused_sdp_choice.default:
        return 0  # attention from plain operations, since the fused ones ask for a device that they know
    if func is torch.ops.aten._local_scalar_dense.default:
        on_read()
        return func(*unwrapped(args))
    strangers = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor)]
    if any(stranger.dim() or "index" in func.name() or "copy" in func.name() for stranger in strangers):
        shapes = [tuple(stranger.shape) for stranger in strangers]
        raise RuntimeError(f"{func} takes tensors of the device and of the CPU, the latter of shapes {shapes}")
    return wrapped(func(*unwrapped(args), **unwrapped(kwargs)), {id(each.held): each for each in here})


def unwrapped(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.held if isinstance(leaf, DeviceTensor) else leaf, tree)


def wrapped(tree: Any, known: dict[int, DeviceTensor]) -> Any:
    """Wrap all tensors; a tensor that an operation changed in place and returned stays the one that it was."""

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return known[id(leaf)] if id(leaf) in known else DeviceTensor(leaf)

    return tree_map(wrap, tree)


class _Backend(_DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def use_fake_device() -> None:
    """Tell torch about the device. Once in a process."""
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Backend())


def to_fake_device(model: torch.nn.Module) -> None:
    """Move all parameters and buffers to the device, in place. Shared ones stay shared."""
    moved: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in moved:
                    moved[parameter] = torch.nn.Parameter(DeviceTensor(parameter.detach().clone()))
                module._parameters[name] = moved[parameter]  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = DeviceTensor(buffer.clone())
