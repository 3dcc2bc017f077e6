"""Model directories and data files that a job names are checked without torch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.job.inputs import check_inputs, check_model_dir
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE
from tests.support.checkpoints import model, write_checkpoint
from tests.support.tiny_job import tiny_job

CONFIG: dict[str, Any] = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2}


def directory(tmp_path: Path, num_shards: int = 1, **changes: Any) -> Path:
    tree = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    others = {"config.json": json.dumps(tree).encode(), "tokenizer.json": b"{}"}
    return write_checkpoint(tmp_path / "model", model(1), num_shards=num_shards, others=others)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_whole_directory_is_accepted(tmp_path: Path, num_shards: int) -> None:
    assert check_model_dir(directory(tmp_path, num_shards))["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, "has the model_type .*, which is not text"),
        ({"model_type": ["qwen3"]}, "has the model_type .*, which is not text"),
        ({"quantization_config": {"bits": 4}}, "quantised weights are not supported yet"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, which does not predict the next token"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "does not predict the next token"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000, but the weights beside it have only 6"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_model_dir(directory(tmp_path, **changes))


def cut(path: Path) -> None:
    (path / SINGLE_FILE).write_bytes((path / SINGLE_FILE).read_bytes()[:-1])


def empty(path: Path) -> None:
    (path / SINGLE_FILE).write_bytes(b"")


def huge_header(path: Path) -> None:
    (path / SINGLE_FILE).write_bytes(b"\xff" * 7 + b"\x7f" + b"{}")


def twice(path: Path) -> None:
    entry = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    head = ("{" + entry + "," + entry + "}").encode()
    (path / SINGLE_FILE).write_bytes(len(head).to_bytes(8, "little") + head + b"x")


def folder(path: Path) -> None:
    (path / SINGLE_FILE).unlink()
    (path / SINGLE_FILE).mkdir()


def other_name(path: Path) -> None:
    (path / SINGLE_FILE).rename(path / "weights.safetensors")


def no_json(path: Path) -> None:
    (path / "config.json").write_text("{")


def deep_json(path: Path) -> None:
    (path / "config.json").write_text("[" * 100_000)


def list_json(path: Path) -> None:
    (path / "config.json").write_text("[]")


def folder_json(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").mkdir()


def adapter(path: Path) -> None:
    (path / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "not a safetensors file: the file is cut short"),
        (empty, "not a safetensors file"),
        (huge_header, "not a safetensors file"),
        (twice, "'a' is given twice"),
        (folder, "no readable weights"),
        (other_name, "no readable weights"),
        (no_json, "cannot be read as JSON"),
        (deep_json, "cannot be read as JSON"),
        (list_json, "must hold a JSON object"),
        (folder_json, "cannot be read as JSON"),
        (adapter, "an adapter of the kind None"),
    ],
)
def test_a_damaged_directory_is_refused(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    path = directory(tmp_path)
    damage(path)
    with pytest.raises(ConfigError, match=words):
        check_model_dir(path)


def test_an_index_that_promises_what_no_shard_has_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path, num_shards=2)
    index = json.loads((path / INDEX_FILE).read_text())
    index["weight_map"]["model.more"] = "model-00001-of-00002.safetensors"
    (path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"lists \['model\.more'\]"):
        check_model_dir(path)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match="model-00002-of-00002"):
        check_model_dir(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("https://example.org/model", "addresses other than hf:// are not supported"),
        ("absent", "is not a directory; give a Hugging Face"),
        ("a\0b", "is not a directory"),
        ("x" * 5000, "is not a directory"),
    ],
)
def test_a_path_that_is_no_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        check_model_dir(Path(name).absolute())


@pytest.mark.parametrize("name", ["absent.jsonl", "a\0b", "x" * 5000])
def test_a_data_path_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    job = tiny_job(tmp_path)
    job = job.model_copy(update={"data": job.data.model_copy(update={"path": str(tmp_path / name)})})
    with pytest.raises(ConfigError, match=r"data\.path .* does not exist"):
        check_inputs(job)


@pytest.mark.parametrize("section", ["model", "data"])
def test_a_name_of_the_hub_that_is_not_in_the_cache_is_refused_with_what_downloads_it(
    tmp_path: Path, section: str
) -> None:
    keys = {"model": {"path": "some-org/absent"}} if section == "model" else {"data": {"path": "some-org/absent"}}
    with pytest.raises(ConfigError, match=rf"{section}\.path some-org/absent@main .* run `hf download some-org/absent"):
        check_inputs(tiny_job(tmp_path, **keys))
