"""The learner's state as a tree without tensors and the tensors by path, so that each rank can keep its own rows.

A *path* joins the keys that lead to a tensor, such as `optimizer/state/3/exp_avg`. The tree is a JSON value in which
dicts, lists, tuples and tensors are marked, because JSON has neither tuples nor keys that are integers.

To load a state, tensors of the right size and division are made first and filled then. The state of a module tells how
each of its tensors is divided. A new optimizer has no state that could tell: what it keeps of a parameter is divided as
the parameter is, and has its shape. Only a number, such as a step count, is whole on every rank.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from periplus.errors import ConfigError

SEPARATOR = "/"


class Stateful(Protocol):
    """An object whose state a checkpoint saves and restores, with the same methods as torch's optimizers.

    `optimizers` gives the optimizers whose states are part of the state, by their key in it, or by "" for one that is
    the whole state.
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]: ...


def flattened(state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the tree of a state, and its tensors by path. A tensor that occurs twice is kept once.

    Raises: ValueError for a value that is no tensor and no JSON scalar.
    """
    tensors: dict[str, torch.Tensor] = {}
    # Tied weights are one tensor under two names; views of different shapes are different tensors.
    path_of: dict[tuple[int, tuple[int, ...]], str] = {}

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            memory = value.to_local() if isinstance(value, DTensor) else value
            key = (memory.data_ptr(), tuple(value.shape))
            known = path_of.setdefault(key, path) if memory.numel() else path
            tensors.setdefault(known, value)
            return {"tensor": known}
        if isinstance(value, Mapping):
            return {"dict": [[key, visit(each, _joined(path, key))] for key, each in value.items()]}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [visit(each, _joined(path, index)) for index, each in enumerate(value)]}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise ValueError(f"{path} is a {type(value).__name__}, which no checkpoint can hold")

    return visit(state, ""), tensors


def rebuilt(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the state with this tree and these tensors. Raises: ValueError or KeyError for what is no tree."""
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: rebuilt(each, tensors) for key, each in content}
        case "list":
            return [rebuilt(each, tensors) for each in content]
        case "tuple":
            return tuple(rebuilt(each, tensors) for each in content)
        case _:
            raise ValueError(f"{kind!r} is no part of a tree")


def paths_in(tree: Any) -> Iterator[str]:
    """Yield the path of each tensor in a tree, once for each place where it occurs."""
    if isinstance(tree, dict):
        ((kind, content),) = tree.items()
        if kind == "tensor":
            yield content
        else:
            for each in content:
                yield from paths_in(each[1] if kind == "dict" else each)


def empty_tensors(
    learner: Stateful, layouts: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> dict[str, torch.Tensor]:
    """Return new tensors for a saved state, by path, which are divided among ranks as the learner needs them.

    `layouts` gives dtype and shape of each saved tensor. A path that the learner does not have becomes a whole tensor.

    Raises: ConfigError if a tensor of the learner has another shape.
    """
    _, present = flattened(learner.state_dict())
    parameter_of = {
        _joined(_joined(key, "state"), index): parameter
        for key, optimizer in learner.optimizers().items()
        for index, parameter in enumerate(each for group in optimizer.param_groups for each in group["params"])
    }
    found = {}
    for path, (dtype, shape) in layouts.items():
        like = present.get(path)
        # `optimizer/state/3/exp_avg` belongs to parameter 3.
        parameter = parameter_of.get(path.rpartition(SEPARATOR)[0])
        if parameter is not None:
            like = parameter if shape else None
        if like is not None and tuple(like.shape) != shape:
            raise ConfigError(
                f"the checkpoint is of another model: {path} has the shape {shape} in it, but {tuple(like.shape)} in "
                "this job's learner; resume with the job that made the checkpoint"
            )
        found[path] = torch.zeros(shape, dtype=dtype) if like is None else torch.zeros_like(like.detach(), dtype=dtype)
    return found


def check_fits(learner: Stateful, tree: Any) -> None:
    """Compare the tree of a saved state with that of a learner, whose optimizers may have no state yet.

    A state with other keys at the top passes: the learner itself refuses it, and names the algorithm.

    Raises: ConfigError if a module has other tensors, or an optimizer other parameters.
    """
    optimizers = learner.optimizers()
    present, _ = flattened(learner.state_dict())
    if "" in optimizers:
        saved_of, present_of = {"": tree}, {"": present}
    else:
        saved_of, present_of = dict(tree["dict"]), dict(present["dict"])
    for key in saved_of.keys() & present_of.keys():
        compared = _parameters if key in optimizers else _keys
        if compared(saved_of[key]) != compared(present_of[key]):
            raise ConfigError(
                f"the checkpoint is of another model: {key or 'the optimizer'} has other tensors in it than in this "
                "job's learner; resume with the job that made the checkpoint"
            )


def _parameters(tree: Any) -> list[Any]:
    # The numbers of the parameters by group, of which each state must have one.
    content = dict(tree["dict"])
    groups = [dict(group["dict"])["params"]["list"] for group in content["param_groups"]["list"]]
    known = {number for group in groups for number in group}
    return [groups, sorted({number for number, _ in content["state"]["dict"]} - known)]


def _keys(tree: Any) -> list[str]:
    return sorted(str(key) for key, _ in tree["dict"])


def _joined(path: str, key: object) -> str:
    return f"{path}{SEPARATOR}{key}" if path else str(key)
