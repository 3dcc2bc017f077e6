"""Checkpoints of the small model of conftest.py with a real optimizer."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from blake3 import blake3
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from periplus.errors import ConfigError, DiskFull, NotFound, StorageError
from periplus.job import resumption
from periplus.values.digest import state_digest
from periplus.values.policy import Lineage, Policy
from tests.support.small_disk import small_disk
from tests.support.trainer.learnt import Learnt
from trainer.checkpointing import checkpoint, manifest, parts, restoration
from trainer.checkpointing.export import model_files
from trainer.checkpointing.manifest import LEARNER, LEARNER_TENSORS, MANIFEST, WEIGHTS, Content, Manifest
from trainer.data.model import load_model, resolve_model_dir
from trainer.publishing.publish import bf16_state, float32_state

FILES = {"config.json": b"{}", "tokenizer.json": b"{}"}


def optimizer_of(model: Any) -> Learnt:
    return Learnt(model)


def step(model: Any, optimizer: Learnt, seed: int) -> None:
    tokens = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(seed))
    model(input_ids=tokens).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def content(version: int, fork: int = 0, parent: Manifest | None = None) -> Content:
    return Content(
        job_id="j",
        policy=Policy(fork, version),
        lineage=Lineage(fork),
        progress={"steps": float(version)},
        audit_line=7,
        audit_prev=bytes(16),
        next_group=9,
        open_groups=(5, 8),
        batches_root=b"r" * 16,
        parent=parent,
    )


def save(root: Path, version: int, model: Any, optimizer: Any, fork: int = 0) -> Path:
    return checkpoint.save(root, content(version, fork), model, optimizer, FILES).directory


def power_cut(*_: object) -> None:
    raise OSError("power cut")


@pytest.fixture
def optimizer(model: Any) -> Learnt:
    optimizer = optimizer_of(model)
    step(model, optimizer, 0)
    return optimizer


def other(model: Any, **sizes: int) -> Any:
    config = {name: value for name, value in model.config.to_dict().items() if name != "layer_types"}
    return Qwen3ForCausalLM(Qwen3Config(**{**config, **sizes})).eval()


def test_a_restored_trainer_takes_the_very_same_next_step(tmp_path: Path, model: Any, optimizer: Learnt) -> None:
    """Weights, moments and counts, bit for bit: a step after the restore is the step that would have come."""
    save(tmp_path, 3, model, optimizer)
    restored = other(model)
    restored_optimizer = optimizer_of(restored)
    manifest = checkpoint.newest(tmp_path)
    restoration.restore(manifest, restored, restored_optimizer)
    assert (manifest.job_id, manifest.policy, manifest.progress) == ("j", Policy(0, 3), {"steps": 3.0})
    assert float32_state(restored) == float32_state(model)
    step(model, optimizer, 1)
    step(restored, restored_optimizer, 1)
    assert float32_state(restored) == float32_state(model)


def test_the_newest_is_that_of_the_highest_fork_and_version_and_not_of_the_highest_name(
    tmp_path: Path, model: Any, optimizer: Learnt
) -> None:
    for fork, version in ((0, 10), (1, 9), (1, 10), (0, 99)):
        save(tmp_path, version, model, optimizer, fork)
    assert checkpoint.newest(tmp_path).policy == Policy(1, 10)


def test_without_a_manifest_there_is_no_checkpoint(tmp_path: Path, model: Any, optimizer: Learnt) -> None:
    (save(tmp_path, 1, model, optimizer) / MANIFEST).unlink()
    with pytest.raises(NotFound, match=str(tmp_path)):
        checkpoint.newest(tmp_path)


def test_an_error_before_the_manifest_leaves_the_previous_checkpoint_only_and_the_next_attempt_succeeds(
    tmp_path: Path, model: Any, optimizer: Learnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, model, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", power_cut)
        with pytest.raises(StorageError, match="power cut"):
            save(tmp_path, 2, model, optimizer)
    assert not (tmp_path / "0.2").exists()
    assert checkpoint.newest(tmp_path).policy == Policy(0, 1)
    save(tmp_path, 2, model, optimizer)
    assert checkpoint.newest(tmp_path).policy == Policy(0, 2)


def test_saving_a_policy_again_never_endangers_the_checkpoint_that_is_there(
    tmp_path: Path, model: Any, optimizer: Learnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that is stopped right after a periodic checkpoint saves the same policy a second time."""
    save(tmp_path, 1, model, optimizer)
    monkeypatch.setattr(parts, "writing_safetensors", power_cut)
    save(tmp_path, 1, model, optimizer)
    assert checkpoint.newest(tmp_path).policy == Policy(0, 1)
    restoration.restore(checkpoint.newest(tmp_path), model, optimizer)


@pytest.mark.parametrize("part", [WEIGHTS, LEARNER, LEARNER_TENSORS])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_part_is_refused_by_name_and_nothing_is_loaded(
    tmp_path: Path, model: Any, optimizer: Learnt, part: str, damage: str
) -> None:
    path = save(tmp_path, 1, model, optimizer) / part
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[:-1])
    fresh = other(model)
    before = float32_state(fresh)
    with pytest.raises(ConfigError, match=part):
        restoration.restore(checkpoint.newest(tmp_path), fresh, optimizer_of(fresh))
    assert float32_state(fresh) == before


def test_a_manifest_says_where_the_run_stood_and_names_its_parent_by_hash(
    tmp_path: Path, model: Any, optimizer: Learnt
) -> None:
    first = checkpoint.save(tmp_path, content(1), model, optimizer, FILES)
    second = checkpoint.save(tmp_path, content(2, parent=first), model, optimizer, FILES)
    assert (second.next_group, second.open_groups, second.audit_line) == (9, (5, 8), 7)
    assert (second.batches_root, second.lineage) == (b"r" * 16, Lineage(0))
    data = json.loads((second.directory / MANIFEST).read_text())
    assert (data["parent"], data["parent_manifest"]) == ([0, 1], blake3(_manifest_of(first)).hexdigest())
    assert data["weights"] == state_digest(bf16_state(model)).hex()
    assert checkpoint.oldest(tmp_path).policy == Policy(0, 1)


def _manifest_of(manifest: Manifest) -> bytes:
    return (manifest.directory / MANIFEST).read_bytes()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "periplus.checkpoint/99"}'])
def test_an_unreadable_manifest_is_an_error_that_names_it(
    tmp_path: Path, model: Any, optimizer: Learnt, text: str
) -> None:
    (save(tmp_path, 1, model, optimizer) / MANIFEST).write_text(text)
    with pytest.raises(ConfigError, match=r"manifest\.json"):
        checkpoint.newest(tmp_path)


def test_a_manifest_that_lists_no_parts_is_not_believed(tmp_path: Path, model: Any, optimizer: Learnt) -> None:
    path = save(tmp_path, 1, model, optimizer) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "parts": []}))
    with pytest.raises(ConfigError, match=r"manifest\.json"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("sizes", [{"num_hidden_layers": 2}, {"intermediate_size": 32}])
def test_a_checkpoint_of_another_model_is_a_config_error(
    tmp_path: Path, model: Any, optimizer: Learnt, sizes: dict[str, int]
) -> None:
    save(tmp_path, 1, model, optimizer)
    stranger = other(model, **sizes)
    with pytest.raises(ConfigError, match="another model"):
        restoration.restore(checkpoint.newest(tmp_path), stranger, optimizer_of(stranger))


def test_pruning_keeps_the_newest_and_leaves_what_is_being_written(
    tmp_path: Path, model: Any, optimizer: Learnt
) -> None:
    for version in (2, 10, 9):
        save(tmp_path, version, model, optimizer)
    (tmp_path / "0.11").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.10", "0.11", "0.9"]
    checkpoint.prune(tmp_path, 5)
    assert checkpoint.newest(tmp_path).policy == Policy(0, 10)


def test_who_goes_on_with_a_run_reads_the_manifests_that_are_written_here() -> None:
    assert (manifest.SCHEMA, manifest.MANIFEST) == (resumption.CHECKPOINT_SCHEMA, resumption.MANIFEST)


def test_a_full_disk_leaves_nothing_of_a_checkpoint_at_any_size_and_room_heals_it(
    tmp_path: Path, model: Any, optimizer: Learnt
) -> None:
    whole = save(tmp_path / "elsewhere", 1, model, optimizer)
    num_bytes = sum(path.stat().st_size for path in whole.iterdir())
    with small_disk(tmp_path / "small", num_kib=1 + num_bytes // 256) as disk:
        root = disk.root / "checkpoints"
        for leaving_bytes in range(0, num_bytes, 4096):
            filler = disk.fill(leaving_bytes=leaving_bytes)
            with pytest.raises(DiskFull, match=rf"0\.1 \(\d+ bytes are needed, {disk.free_bytes} are free\)"):
                save(root, 1, model, optimizer)
            assert list(root.iterdir()) == []
            filler.unlink()
        save(root, 1, model, optimizer)
        restoration.restore(checkpoint.newest(root), model, optimizer)


def test_every_file_of_a_checkpoint_is_a_part_that_a_restore_verifies(
    tmp_path: Path, model: Any, optimizer: Learnt
) -> None:
    directory = save(tmp_path, 1, model, optimizer)
    manifest = checkpoint.newest(tmp_path)
    assert manifest.parts.keys() == {path.name for path in directory.iterdir()} - {MANIFEST}
    (directory / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not the part"):
        restoration.restore(manifest, model, optimizer)


def test_a_checkpoint_of_before_configuration_and_tokenizer_were_parts_is_restored(
    tmp_path: Path, model: Any, optimizer: Learnt
) -> None:
    directory = checkpoint.save(tmp_path, content(1), model, optimizer, {}).directory
    assert {path.name for path in directory.iterdir()} == {MANIFEST, WEIGHTS, LEARNER, LEARNER_TENSORS}
    restoration.restore(checkpoint.newest(tmp_path), model, optimizer)


def test_any_checkpoint_loads_with_transformers(tmp_path: Path) -> None:
    model_dir = resolve_model_dir("builtin:qwen3-tiny", tmp_path / "cache", 1)
    model, _ = load_model(model_dir)
    optimizer = optimizer_of(model)
    step(model, optimizer, 0)
    directory = checkpoint.save(tmp_path, content(1), model, optimizer, model_files(model_dir, model)).directory
    loaded = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    assert float32_state(loaded) == float32_state(model), "in float32, bit for bit"
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    assert tokenizer.decode(tokenizer("sun")["input_ids"], skip_special_tokens=True) == "sun"
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o666 & ~umask()}


def umask() -> int:
    present = os.umask(0)
    os.umask(present)
    return present


def test_a_sweep_removes_what_is_no_checkpoint_and_nothing_else(tmp_path: Path, model: Any, optimizer: Learnt) -> None:
    save(tmp_path, 1, model, optimizer)
    (save(tmp_path, 2, model, optimizer) / MANIFEST).unlink()
    checkpoint.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0.1"]
    checkpoint.sweep(tmp_path / "absent")


def test_a_run_directory_that_was_removed_is_not_made_again(tmp_path: Path, model: Any, optimizer: Learnt) -> None:
    with pytest.raises(NotFound, match=r"run/checkpoints/0\.1"):
        save(tmp_path / "run" / "checkpoints", 1, model, optimizer)
    assert not (tmp_path / "run").exists()
