"""Where a data set's files are: a file, a directory, what `datasets` saved, and the local cache of the Hub."""

import json
from pathlib import Path
from typing import Any

import pytest

from periplus.environment.datasets.locate import data_files
from periplus.errors import ConfigError
from periplus.job.data_section import DatasetKeys


def files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def found(folder: Path, **keys: Any) -> list[str]:
    source = DatasetKeys.model_validate({"path": str(folder), **keys})
    return [str(file.relative_to(folder)) for file in data_files(source, "data.path")]


def test_a_single_file_needs_no_split(tmp_path: Path) -> None:
    files(tmp_path, "problems.jsonl", "notes.txt")
    assert found(tmp_path, split="test") == ["problems.jsonl"]
    assert data_files(DatasetKeys(path=str(tmp_path / "problems.jsonl")), "data.path") == (tmp_path / "problems.jsonl",)


def test_files_belong_to_the_split_and_the_subset_that_their_paths_name_in_the_order_of_names(tmp_path: Path) -> None:
    shards = [f"main/train-0000{n}-of-00002.parquet" for n in (1, 0)]
    files(
        tmp_path, *shards, "main/test-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet", "training.jsonl"
    )
    assert found(tmp_path, subset="main") == sorted(shards)
    assert found(tmp_path, subset="main", split="test") == ["main/test-00000-of-00001.parquet"]
    with pytest.raises(ConfigError, match="no file of the split 'dev'; it has main/test"):
        found(tmp_path, split="dev")
    with pytest.raises(ConfigError, match="no file of the subset 'other'"):
        found(tmp_path, subset="other")


def test_compressed_texts_and_lists_are_found_and_descriptions_are_not(tmp_path: Path) -> None:
    files(tmp_path, "train.csv.gz", "test.jsonl.gz", "dataset_info.json", "settings.json")
    assert found(tmp_path) == ["train.csv.gz"]
    assert found(tmp_path, split="test") == ["test.jsonl.gz"]
    lists = files(tmp_path / "lists", "problems.json", "dataset_infos.json")
    assert found(lists) == ["problems.json"]


def test_a_card_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    files(tmp_path, "one.parquet", "two.parquet")
    (tmp_path / "README.md").write_text("\ufeff---\nconfigs:\n- data_files: two.parquet\n---\n")
    assert found(tmp_path) == ["two.parquet"]


def test_the_card_of_a_data_set_says_which_files_a_split_has(tmp_path: Path) -> None:
    files(tmp_path, "a/one.parquet", "a/two.parquet", "b/one.jsonl", "train.jsonl")
    card = (
        "---\nconfigs:\n- config_name: alpha\n  data_files:\n  - split: train\n    path: a/*.parquet\n"
        "  - {split: test, path: [b/one.jsonl]}\n- config_name: beta\n  data_files: b/one.jsonl\n---\n# A data set\n"
    )
    (tmp_path / "README.md").write_text(card)
    assert found(tmp_path, subset="alpha") == ["a/one.parquet", "a/two.parquet"]
    assert found(tmp_path, subset="alpha", split="test") == ["b/one.jsonl"]
    assert found(tmp_path, subset="beta") == ["b/one.jsonl"]
    with pytest.raises(ConfigError, match="configurations alpha, beta; say which"):
        found(tmp_path)
    with pytest.raises(ConfigError, match="no split 'dev'; it has test, train"):
        found(tmp_path, subset="alpha", split="dev")


@pytest.mark.parametrize("path", ["../secret.jsonl", "/etc/secret.jsonl"])
def test_a_card_cannot_name_files_outside_the_data_set(tmp_path: Path, path: str) -> None:
    files(tmp_path, "secret.jsonl", "data/train.jsonl")
    (tmp_path / "data" / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {path}\n---\n")
    assert found(tmp_path / "data") == ["train.jsonl"]


@pytest.mark.parametrize("card", ["---\nconfigs: [a, {config_name: x}]\n---\n", "---\n: [\n---\n", "# words", "---\n"])
def test_a_card_that_lists_no_files_leaves_them_to_their_names(tmp_path: Path, card: str) -> None:
    files(tmp_path, "train.jsonl", "test.jsonl")
    (tmp_path / "README.md").write_text(card)
    assert found(tmp_path) == ["train.jsonl"]


def test_what_datasets_saved_is_read_by_its_state(tmp_path: Path) -> None:
    for split in ("train", "test"):
        files(tmp_path / split, "data-00000-of-00002.arrow", "data-00001-of-00002.arrow")
        state = {"_data_files": [{"filename": f"data-0000{n}-of-00002.arrow"} for n in (0, 1)]}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert found(tmp_path, split="test") == ["test/data-00000-of-00002.arrow", "test/data-00001-of-00002.arrow"]
    assert found(tmp_path / "train") == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    with pytest.raises(ConfigError, match="no split 'dev'; it has test, train"):
        found(tmp_path, split="dev")
    (tmp_path / "train" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(ConfigError, match=r"lacks the file data-00001-of-00002\.arrow"):
        found(tmp_path / "train")


def test_a_directory_without_data_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    files(tmp_path, "notes.txt")
    with pytest.raises(ConfigError, match="no file that ends with"):
        found(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        found(tmp_path / "absent")
