import json
from pathlib import Path

import pytest

from periplus.errors import ConfigError
from planner.files.loaders import load_architecture, load_fleet, load_workload, read_rows


def test_rows_are_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    for name, text in (("a.csv", "x,y\n1,2\n"), ("b.csv", "\ufeffx,y\n1,2\n")):
        (tmp_path / name).write_text(text)
        assert read_rows(tmp_path / name) == ({"x": "1", "y": "2"},)


def test_comment_lines_of_a_table_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("# where this is from\n\n#a,b\nx,y\n1,2\n# left out:\n3,4\n")
    assert read_rows(tmp_path / "a.csv") == ({"x": "1", "y": "2"}, {"x": "3", "y": "4"})


def test_a_torn_table_is_refused_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(ConfigError, match=r"x\.csv, row 2: has not as many values as the header"):
        read_rows(tmp_path / "x.csv")


@pytest.mark.parametrize("load", [read_rows, load_fleet, load_workload])
def test_a_file_that_is_not_there_is_refused_by_its_path(load: object, tmp_path: Path) -> None:
    assert callable(load)
    with pytest.raises(ConfigError, match=r"absent: no such file; check the path"):
        load(tmp_path / "absent")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as UTF-8 text"):
        read_rows(tmp_path / "x.csv")


def test_a_checkpoints_shape_is_in_its_config(tmp_path: Path) -> None:
    config = {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 96, "vocab_size": 99}))
    shape = load_architecture(str(tmp_path))
    assert (shape.name, shape.num_layers, shape.qkv_bias) == (str(tmp_path), 2, True)
    assert load_architecture(str(tmp_path / "config.json")).num_layers == 2


def test_a_checkpoint_that_is_not_there_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_architecture(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json, line 1: not valid JSON"):
        load_architecture(str(tmp_path))
