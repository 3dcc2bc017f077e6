import csv
from pathlib import Path

import pytest

from periplus.errors import ConfigError
from periplus.job.model_section import BUILTIN
from planner.devices.catalogue import architecture, architectures
from planner.files.loaders import load_architecture
from trainer.data.model import resolve_model_dir

TABLE = Path(__file__).parents[4] / "planner" / "data" / "architectures.csv"


def test_shapes_count_as_many_parameters_as_the_models_have() -> None:
    with TABLE.open(newline="") as file:
        counted = [(row["model"], int(row["params_total"])) for row in csv.DictReader(file) if row["params_total"]]
    assert len(counted) >= 22
    assert all(architectures()[name].num_params == count for name, count in counted)


def test_every_row_says_where_it_is_from() -> None:
    with TABLE.open(newline="") as file:
        assert all(row["source"] for row in csv.DictReader(file))


@pytest.mark.parametrize("name", BUILTIN)
def test_a_builtin_has_the_shape_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    made = load_architecture(str(resolve_model_dir(name, tmp_path, seed=0)))
    known = load_architecture(name)
    fields = [field for field in known.__dataclass_fields__ if field != "name"]
    assert [getattr(known, field) for field in fields] == [getattr(made, field) for field in fields]


def test_a_name_is_found_whatever_its_case_and_owner() -> None:
    assert architecture("Qwen/qwen3-8b").name == "Qwen3-8B"


def test_an_unknown_model_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match=r"'Qwen3-9B' is no known model; nearest: Qwen3-"):
        architecture("Qwen3-9B")
