import json
import os
from pathlib import Path

import pytest

from periplus.codec.weights.layout import layout_of
from periplus.errors import CorruptFrame, NotFound
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE, WeightState, open_safetensors, read_safetensors
from periplus.weights.checkpoint import copy_others, open_checkpoint, open_target, plan
from periplus.weights.replay import copy_tensors
from tests.support.checkpoints import model, tensor, write_checkpoint


def rewritten(old: Path, new: Path, state: WeightState) -> Path:
    """Write `old` with other weights, by the modules under test."""
    before = open_checkpoint(old)
    planned = plan(before, layout_of(state))
    new.mkdir()
    copy_others(before, planned, new)
    with open_target(new, planned.files) as target:
        copy_tensors(state, layout_of(state), target, lambda *_: None)
    return new


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("num_shards", [1, 3])
def test_the_same_state_gives_the_same_directory_byte_for_byte(tmp_path: Path, num_shards: int) -> None:
    state = model(1)
    old = write_checkpoint(tmp_path / "old", state, num_shards, {"config.json": b"{}", "sub/tokenizer.json": b"t"})
    assert files(rewritten(old, tmp_path / "new", state)) == files(old)


def test_a_new_tensor_goes_into_the_last_shard_and_the_index_knows_it(tmp_path: Path) -> None:
    state = model(1)
    old = write_checkpoint(tmp_path / "old", state, 3)
    changed = state | {"lm_head.weight": tensor(9)}
    new = rewritten(old, tmp_path / "new", changed)
    assert read_safetensors(new) == changed
    index = json.loads((new / INDEX_FILE).read_text())
    assert index["weight_map"]["lm_head.weight"] == "model-00003-of-00003.safetensors"
    assert index["metadata"]["total_size"] == sum(each.data.size for each in changed.values())
    assert index["metadata"]["total_parameters"] == sum(each.num_elements for each in changed.values())
    assert open_safetensors(new / "model-00003-of-00003.safetensors").metadata == {"format": "pt", "a": "ä"}
    unchanged = "model-00001-of-00003.safetensors"
    assert (new / unchanged).read_bytes() == (old / unchanged).read_bytes()


def test_tensors_that_are_gone_leave_no_shard_and_no_line_behind(tmp_path: Path) -> None:
    state = dict(list(model(1).items())[:4])
    old = write_checkpoint(tmp_path / "old", state, 2)
    kept = {name: each for number, (name, each) in enumerate(state.items()) if number % 2 == 0}
    new = rewritten(old, tmp_path / "new", kept)
    assert read_safetensors(new) == kept
    assert not (new / "model-00002-of-00002.safetensors").exists()
    assert json.loads((new / INDEX_FILE).read_text())["weight_map"].keys() == kept.keys()


def test_tensors_of_another_dtype_are_put_in_aligned_order(tmp_path: Path) -> None:
    state = {"a": tensor(1, "I8", (3,)), "b": tensor(2, "BF16", (5,))}
    old = write_checkpoint(tmp_path / "old", state)
    changed = {"a": tensor(1, "I8", (3,)), "b": tensor(2, "F32", (5,))}
    new = rewritten(old, tmp_path / "new", changed)
    assert read_safetensors(new) == changed
    assert list(open_safetensors(new / SINGLE_FILE).tensors) == ["b", "a"]


def test_a_state_of_no_tensors_is_one_file(tmp_path: Path) -> None:
    for num_shards in (1, 2):
        old = write_checkpoint(tmp_path / f"old{num_shards}", model(1), num_shards)
        new = rewritten(old, tmp_path / f"new{num_shards}", {})
        assert sorted(path.name for path in new.iterdir()) == ["config.json", SINGLE_FILE]
        assert read_safetensors(new) == {}


def test_other_weights_hidden_names_and_linked_directories_are_not_copied(tmp_path: Path) -> None:
    others = dict.fromkeys(
        [
            "config.json",
            "tokenizer.model",
            "modeling.py",
            "1_Pooling/config.json",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
            "optimizer.PT",
            "model.fp16.safetensors",
            "onnx/model.onnx",
            ".gitattributes",
            ".cache/x/y.json",
            "original/consolidated.00.pth",
            "original/params.json",
        ],
        b"x",
    )
    old = write_checkpoint(tmp_path / "old", model(1), others=others)
    (old / "linked").symlink_to(tmp_path, target_is_directory=True)
    planned = plan(open_checkpoint(old), layout_of(model(1)))
    assert {str(path) for path in planned.others} == {
        "config.json",
        "tokenizer.model",
        "modeling.py",
        "1_Pooling/config.json",
        "original/params.json",
    }
    assert {str(path) for path in planned.left_out} == {
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "optimizer.PT",
        "model.fp16.safetensors",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
    }


def test_links_to_files_are_followed_as_in_the_hub_cache(tmp_path: Path) -> None:
    blobs = write_checkpoint(tmp_path / "blobs", model(1), 2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
    new = rewritten(snapshot, tmp_path / "new", model(1))
    assert files(new) == files(blobs)
    assert not any(path.is_symlink() for path in new.iterdir())


def test_a_single_file_goes_before_an_index_as_transformers_has_it(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", model(1), 2)
    write_checkpoint(tmp_path / "other", model(5))
    (tmp_path / "other" / SINGLE_FILE).rename(old / SINGLE_FILE)
    assert read_safetensors(old) == model(5)
    planned = plan(open_checkpoint(old), layout_of(model(5)))
    assert planned.index is None
    assert [file.name for file in planned.files] == [SINGLE_FILE]
    assert len(planned.left_out) == 2


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", model(1), 2)
    first = old / "model-00001-of-00002.safetensors"
    first.with_name("model-00002-of-00002.safetensors").write_bytes(first.read_bytes())
    with pytest.raises(CorruptFrame, match=r"is in model-00001-of-00002\.safetensors and in model-00002"):
        open_checkpoint(old)


def test_the_name_that_files_reserve_is_refused(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", model(1))
    with pytest.raises(CorruptFrame, match="__metadata__"):
        plan(open_checkpoint(old), layout_of(model(1) | {"__metadata__": tensor(1)}))


def test_a_path_that_is_no_directory_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none", tmp_path / "file", tmp_path):
        with pytest.raises(NotFound):
            open_checkpoint(path)
