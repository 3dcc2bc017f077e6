"""Faults in TRL's path, each given to the code that loads an adapter there: vLLM's server and peft.

The directories were written by TRL's own function (trl_adapter.py). TRL's trainer looks at nothing but the status of
the server's answer, so a fault is *found* if that is not 200, or if the server then fails a completion. It is *missed*
if the adapter is loaded and sampled with. Of the missed ones `changed` counts those whose served log-probabilities of
the probe's prompts differ from the right adapter's.

Damage on the way into and out of a bucket is not played here: the storage's client may find it. The flipped bits stand
for what happens after that, in a mount's cache, on a disk or in memory.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.engine_cases.lora.our_faults import flipped
from bench.engine_cases.lora.vllm_server import Server, same

TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

Row = dict[str, int]


def faults_found(
    server: Server, folders: Sequence[Path], scratch: Path, prompts: npt.NDArray[np.int64], num_flips: int
) -> tuple[Mapping[str, Row], list[float]]:
    """Inject every fault that needs the right base. `folders` are the adapters of versions 0, 1 and 2.

    Return what was found, and the log-probabilities of the prompts under version 2.
    """
    for version, folder in enumerate(folders):
        status, text = server.load(f"policy-v{version}", folder)
        assert status == 200, text
    right, again, old = (server.logprobs(name, prompts) for name in ("policy-v2", "policy-v2", "policy-v1"))
    assert right is not None
    assert again is not None
    assert old is not None
    assert same(right, again), "the server does not repeat its own log-probabilities"
    assert not same(right, old), "the adapters of two versions cannot be told apart"
    rng = np.random.default_rng(2)
    bits = rng.integers(8 * (folders[2] / TENSORS).stat().st_size, size=num_flips).tolist()

    def tried(name: str, damage: Callable[[Path], None], source: Path = folders[2]) -> Row:
        folder = scratch / name
        shutil.copytree(source, folder)
        damage(folder)
        return _loaded(server, name, folder, prompts, right)

    flips = [tried(f"flip-{number}", partial(_flip, bit=bit)) for number, bit in enumerate(bits)]
    found = {
        "bit flipped at rest, in the adapter's file": {key: sum(row[key] for row in flips) for key in flips[0]},
        "old adapter under a new version number": tried("old-as-new", lambda _: None, folders[1]),
        "adapter with another scale": tried("scale", _halve_scale),
        "file cut short": tried("short", _cut),
    }
    return found, right


def other_base(server: Server, folder: Path, prompts: npt.NDArray[np.int64], right: list[float]) -> Row:
    """Give the adapter to a server whose base has other weights of the same shapes."""
    return _loaded(server, "other-base", folder, prompts, right)


def _loaded(server: Server, name: str, folder: Path, prompts: npt.NDArray[np.int64], right: list[float]) -> Row:
    status, _ = server.load(name, folder)
    if status != 200:
        return {"found": 1, "missed": 0, "changed": 0}
    served = server.logprobs(name, prompts)
    server.unload(name)
    if served is None:
        return {"found": 1, "missed": 0, "changed": 0}
    return {"found": 0, "missed": 1, "changed": int(not same(right, served))}


def _flip(folder: Path, bit: int) -> None:
    path = folder / TENSORS
    path.write_bytes(flipped(path.read_bytes(), bit))


def _cut(folder: Path) -> None:
    path = folder / TENSORS
    path.write_bytes(path.read_bytes()[:-64])


def _halve_scale(folder: Path) -> None:
    settings = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(settings | {"lora_alpha": settings["lora_alpha"] / 2}))
