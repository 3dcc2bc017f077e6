"""Checkpoints that some number of real ranks wrote, restored on another number; and damage of every kind."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from blake3 import blake3
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from periplus.audit.run_reader import _checkpoint
from periplus.config import finite_json
from periplus.errors import ConfigError, DiskFull, TrainingError
from periplus.values.digest import state_digest
from periplus.values.policy import Lineage, Policy
from periplus.values.row_parts import PartReader
from periplus.values.weight_state import read_safetensors_file, write_safetensors
from tests.support.trainer.gloo import run_on_ranks
from tests.support.trainer.learnt import Learnt, change_everything, ppo_learner
from tests.support.trainer.sharded import divided, small_qwen
from trainer.checkpointing import checkpoint, parts, restoration
from trainer.checkpointing.learner_state import flattened
from trainer.checkpointing.manifest import LEARNER, MANIFEST, Content, read_manifest
from trainer.distributed.collectives import HostCollectives
from trainer.learning.critic import Critic
from trainer.learning.learner import Learner
from trainer.publishing.publish import bf16_state, float32_state

FILES = {"config.json": b"{}"}


def content(version: int = 1) -> Content:
    return Content(
        job_id="j",
        policy=Policy(0, version),
        lineage=Lineage(0),
        progress={"steps": 1.0},
        audit_line=7,
        audit_prev=bytes(16),
        next_group=9,
        open_groups=(5,),
        batches_root=bytes(16),
        parent=None,
    )


def built() -> tuple[Any, Any, Learner]:
    """Return actor, critic and learner, divided among the ranks of the process group if there is one."""
    actor = small_qwen()
    critic, reference = Critic(actor), deepcopy(actor).requires_grad_(False)
    if dist.is_initialized():
        actor, critic, reference = divided(actor), divided(critic), divided(reference)
    return actor, critic, ppo_learner(actor, critic, reference)


def everything(actor: Any, learner: Learner) -> dict[str, np.ndarray[Any, Any]]:
    """Return all tensors as a whole, by name."""
    tensors = {**dict(actor.named_parameters()), **flattened(learner.state_dict())[1]}
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().numpy().copy()
        for name, each in tensors.items()
    }


def ranks_here() -> HostCollectives:
    return HostCollectives.over() if dist.is_initialized() else HostCollectives()


def save_two_steps(root: Path) -> None:
    """Save a checkpoint after two steps."""
    actor, critic, learner = built()
    for _ in range(2):
        change_everything(learner, actor, critic)
    ranks = ranks_here()
    if ranks.rank:
        checkpoint.save_rows(actor, learner, ranks)
    else:
        checkpoint.save(root, content(), actor, learner, FILES, ranks)


def restored(root: Path) -> tuple[dict[str, Any], dict[str, Any], int, int]:
    """Restore the checkpoint; return all tensors, those after one more step, bytes that were read, and bytes held."""
    actor, critic, learner = built()
    with torch.no_grad():
        for parameter in (*actor.parameters(), *critic.parameters()):
            parameter.zero_()
    ranks, read = ranks_here(), [0]
    rows = PartReader.rows

    def counted(*arguments: Any) -> Any:
        for data in rows(*arguments):
            read[0] += data.nbytes
            yield data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartReader, "rows", counted)
        if ranks.rank:
            restoration.restore_rows(actor, learner, ranks)
        else:
            restoration.restore(checkpoint.newest(root), actor, learner, ranks)
    held = [*actor.parameters(), *flattened(learner.state_dict())[1].values()]
    local = [each.to_local() if isinstance(each, DTensor) else each for each in held]
    found = everything(actor, learner)
    change_everything(learner, actor, critic)
    return found, everything(actor, learner), read[0], sum(each.numel() * each.element_size() for each in local)


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    """All tensors after two steps, and after three."""
    actor, critic, learner = built()
    found = []
    for _ in range(3):
        change_everything(learner, actor, critic)
        found.append(everything(actor, learner))
    return found[1:]


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    assert found.keys() == wanted.keys()
    return all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("saved_on", "resumed_on"), [(2, 1), (2, 3), (1, 2), (3, 4), (2, 2)])
def test_what_some_ranks_saved_other_ranks_resume_bit_for_bit(
    tmp_path: Path, saved_on: int, resumed_on: int, expected: list[dict[str, Any]]
) -> None:
    if saved_on == 1:
        save_two_steps(tmp_path)
    else:
        run_on_ranks(save_two_steps, saved_on, tmp_path)
    found = [restored(tmp_path)] if resumed_on == 1 else run_on_ranks(restored, resumed_on, tmp_path)
    for now, later, read_bytes, held_bytes in found:
        assert same(now, expected[0])
        assert same(later, expected[1]), "the next step is the step that would have come"
        assert read_bytes == held_bytes, "each rank reads only the rows that it holds"
    assert len(expected[0]) > 100


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a checkpoint that two ranks wrote."""
    root = tmp_path_factory.mktemp("checkpoints")
    run_on_ranks(save_two_steps, 2, root)
    return root / "0.1"


@pytest.mark.slow
@pytest.mark.processes
def test_the_manifest_of_several_ranks_has_the_digest_of_the_published_weights_and_so_finds_the_audit(
    of_two: Path, expected: list[dict[str, Any]]
) -> None:
    actor = small_qwen()
    restoration.restore(read_manifest(of_two / MANIFEST), actor, built_around(actor))
    digest = state_digest(bf16_state(actor))
    data = json.loads((of_two / MANIFEST).read_text())
    assert data["weights"] == digest.hex()
    names = {part["name"] for part in data["parts"]}
    assert names == {path.name for path in of_two.iterdir()} - {MANIFEST}
    assert len(names) == 6, "two files of the actor, two of the learner, the learner's tree, and the configuration"
    audited = _checkpoint(of_two, lambda *_: None)
    assert audited is not None
    assert (audited.rounded, audited.bad_parts) == (digest, {})


def built_around(actor: Any) -> Learner:
    return ppo_learner(actor, Critic(actor), deepcopy(actor).requires_grad_(False))


# ---- damage ---------------------------------------------------------------------------------------------------------


def is_refused(directory: Path) -> str:
    """Return the error of restoring a checkpoint, after which model and learner must be as they were."""
    actor = small_qwen()
    learner = built_around(actor)
    before = everything(actor, learner)
    with pytest.raises(ConfigError) as refused:
        restoration.restore(checkpoint.newest(directory.parent), actor, learner)
    assert same(everything(actor, learner), before)
    return str(refused.value)


@pytest.fixture
def copied(of_two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(of_two, tmp_path / "0.1"))


def part_names() -> list[str]:
    ranks = [f"{kind}-rank-0000{rank}-of-00002.safetensors" for kind in ("actor", "learner") for rank in (1, 2)]
    return [*ranks, LEARNER, "config.json"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", part_names())
@pytest.mark.parametrize("damage", ["remove", "flip", "cut"])
def test_a_part_that_is_missing_or_damaged_is_refused_by_name(copied: Path, name: str, damage: str) -> None:
    data = bytearray((copied / name).read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "remove":
        (copied / name).unlink()
    else:
        (copied / name).write_bytes(data if damage == "flip" else data[:-1])
    assert f"{name} is not the part that the manifest lists" in is_refused(copied)


def rewrite(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / MANIFEST
    data = json.loads(path.read_text())
    change(data)
    path.write_text(finite_json.dumps(data))


def part(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in data["parts"] if each["name"] == name)


ACTOR_1, ACTOR_2, LEARNER_1 = part_names()[:3]
NORM = "model.norm.weight"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda data: data["parts"].remove(part(data, ACTOR_2)), "the parts end at row", id="part"),
        pytest.param(lambda data: data["parts"].remove(part(data, LEARNER)), "learner.json is not listed", id="tree"),
        pytest.param(lambda data: part(data, ACTOR_1)["rows"].pop(NORM), r"rows 0 to 8 of .* are missing", id="rows"),
        pytest.param(
            lambda data: part(data, ACTOR_2)["rows"].update({NORM: [8, 18]}), "and in another part", id="overlap"
        ),
        pytest.param(lambda data: part(data, ACTOR_2)["rows"].update({NORM: [10, 18]}), "rows 9 to 9", id="gap"),
        pytest.param(lambda data: part(data, ACTOR_2)["rows"].update({NORM: [9, 9]}), r"rows \[9, 9\)", id="empty"),
        pytest.param(lambda data: data["tensors"]["actor"].pop(NORM), "is not among the tensors", id="tensor"),
        pytest.param(lambda data: data["tensors"].pop("actor"), "is not among the tensors", id="actor"),
        pytest.param(lambda data: data["tensors"].pop("learner"), "is not among the tensors", id="learner"),
        pytest.param(lambda data: data.pop("tensors"), "KeyError..tensors", id="tensors"),
        pytest.param(
            lambda data: data["tensors"]["actor"].update({NORM: ["F32", [18, 1]]}), "does not hold the rows", id="shape"
        ),
        pytest.param(
            lambda data: data["tensors"]["actor"].update({NORM: ["I32", [18]]}), "does not hold the rows", id="dtype"
        ),
        pytest.param(lambda data: data["tensors"]["actor"].update({NORM: ["?", [18]]}), "dtype '\\?'", id="unknown"),
        pytest.param(lambda data: data["parts"].append(part(data, LEARNER_1)), "listed twice", id="twice"),
    ],
)
def test_a_manifest_that_lacks_something_is_refused(
    copied: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    rewrite(copied, change)
    assert re.search(message, is_refused(copied))


def without(directory: Path, kind: str, unwanted: str) -> int:
    """Write a checkpoint that never had some tensors: in the files, with their hashes, and in the manifest."""
    removed: set[str] = set()

    def change(data: dict[str, Any]) -> None:
        for each in data["parts"]:
            if each.get("holds") != kind:
                continue
            state = read_safetensors_file(directory / each["name"])
            removed.update(name for name in state if unwanted in name)
            kept = {name: tensor for name, tensor in state.items() if unwanted not in name}
            copy = {name: type(tensor)(tensor.dtype, tensor.shape, tensor.data.copy()) for name, tensor in kept.items()}
            write_safetensors(directory / each["name"], copy)
            each["blake3"] = blake3((directory / each["name"]).read_bytes()).hexdigest()
            each["rows"] = {name: rows for name, rows in each["rows"].items() if unwanted not in name}
        data["tensors"][kind] = {n: line for n, line in data["tensors"][kind].items() if unwanted not in n}

    rewrite(directory, change)
    return len(removed)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "unwanted", "message"),
    [
        ("actor", "model.layers.1.", "another model: only one of them has the tensors"),
        ("actor", NORM, "another model: only one of them has the tensors"),
        ("learner", "optimizer/state/3/", "only one of learner.json and the parts has the tensors"),
        ("learner", "exp_avg_sq", "only one of learner.json and the parts has the tensors"),
        ("learner", "critic/backbone.layers.1.", "only one of learner.json and the parts has the tensors"),
        ("learner", "critic_optimizer/state/0/step", "only one of learner.json and the parts has the tensors"),
        ("learner", "reference/", "only one of learner.json and the parts has the tensors"),
    ],
)
def test_a_checkpoint_that_was_written_without_a_layer_is_refused(
    copied: Path, kind: str, unwanted: str, message: str
) -> None:
    assert without(copied, kind, unwanted) > 0
    assert message in is_refused(copied)


@pytest.mark.slow
@pytest.mark.processes
def test_a_part_with_other_rows_than_the_manifest_says_is_refused(copied: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        state = dict(read_safetensors_file(copied / ACTOR_1))
        norm = state[NORM]
        state[NORM] = type(norm)("F32", (8,), norm.data[:32].copy())
        state = {name: type(each)(each.dtype, each.shape, each.data.copy()) for name, each in state.items()}
        write_safetensors(copied / ACTOR_1, state)
        part(data, ACTOR_1)["blake3"] = blake3((copied / ACTOR_1).read_bytes()).hexdigest()

    rewrite(copied, change)
    assert f"{ACTOR_1} does not hold the rows that its manifest lists for ['{NORM}']" in is_refused(copied)


def learner_without(directory: Path, change: Callable[[Any], None]) -> None:
    """Change the learner's tree and its hash."""
    tree = json.loads((directory / LEARNER).read_text())
    change(tree)
    (directory / LEARNER).write_text(json.dumps(tree))
    hash_ = blake3((directory / LEARNER).read_bytes()).hexdigest()
    rewrite(directory, lambda data: part(data, LEARNER).update(blake3=hash_))


@pytest.mark.slow
@pytest.mark.processes
def test_a_learner_of_another_algorithm_or_with_fewer_modules_is_refused(copied: Path) -> None:
    removed = without(copied, "learner", "reference/")
    assert removed
    learner_without(copied, lambda tree: tree.update(dict=[each for each in tree["dict"] if each[0] != "reference"]))
    assert "resume with the algorithm that made the checkpoint" in is_refused(copied)


# ---- errors of one rank ---------------------------------------------------------------------------------------------


def fails_on_one_rank(root: Path, error: Exception) -> tuple[str, str, list[str], int]:
    """Fail within the file of rank 1, and try again.

    Return class and text of the error, what was on disk after it, and the number of parts after the second attempt.
    """
    actor, critic, learner = built()
    change_everything(learner, actor, critic)
    ranks, kind, why = ranks_here(), "", ""

    def broken(*_: Any) -> Any:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank == 1:
            patch.setattr(parts, "writing_safetensors", broken)
        try:
            if ranks.rank:
                checkpoint.save_rows(actor, learner, ranks)
            else:
                checkpoint.save(root, content(), actor, learner, FILES, ranks)
        except Exception as failure:
            kind, why = type(failure).__name__, str(failure)
    left = sorted(path.name for path in root.iterdir()) if ranks.rank == 0 else []
    if ranks.rank:
        checkpoint.save_rows(actor, learner, ranks)
    else:
        checkpoint.save(root, content(), actor, learner, FILES, ranks)
    dist.barrier()
    return kind, why, left, len(checkpoint.newest(root).parts)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), [DiskFull.__name__, ""]),
        (MemoryError("no memory"), [TrainingError.__name__, "MemoryError"]),
    ],
)
def test_an_error_of_one_rank_leaves_nothing_and_the_next_attempt_succeeds(
    tmp_path: Path, error: Exception, kinds: list[str]
) -> None:
    found = run_on_ranks(fails_on_one_rank, 2, tmp_path, error)
    assert [kind for kind, *_ in found] == kinds
    assert found[0][2:] == ([], 6)
    assert "0.1" in found[0][1]


def damaged_on_ranks(root: Path) -> str:
    actor, _, learner = built()
    try:
        if dist.get_rank():
            restoration.restore_rows(actor, learner, ranks_here())
        else:
            restoration.restore(checkpoint.newest(root), actor, learner, ranks_here())
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.processes
def test_damage_that_one_rank_finds_is_the_same_error_on_all(copied: Path) -> None:
    (copied / ACTOR_2).write_bytes(b"")
    first, *others = run_on_ranks(damaged_on_ranks, 3, copied.parent)
    assert f"{ACTOR_2} is not the part" in first
    assert others == [first, first]


def test_an_optimizer_without_a_state_is_restored_before_its_first_step(tmp_path: Path) -> None:
    model = small_qwen()
    checkpoint.save(tmp_path, content(), model, Learnt(model), FILES)
    assert not list((tmp_path / "0.1").glob("learner*.safetensors"))
    restored_model = small_qwen()
    learnt = Learnt(restored_model)
    restoration.restore(checkpoint.newest(tmp_path), restored_model, learnt)
    assert not learnt.state_dict()["state"]


def test_a_checkpoint_of_one_process_loads_in_transformers(tmp_path: Path) -> None:
    actor, critic, learner = built()
    change_everything(learner, actor, critic)
    files = {"config.json": actor.config.to_json_string().encode()}
    directory = checkpoint.save(tmp_path, content(), actor, learner, files).directory
    loaded = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=torch.float32)
    assert float32_state(loaded) == float32_state(actor)
