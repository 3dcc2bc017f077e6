from pathlib import Path
from typing import get_args

import pytest

from periplus.errors import ConfigError
from periplus.job.algorithm import AlgorithmSection
from periplus.job.job_file import JobFile
from periplus.pb.v1 import common_pb2
from planner.files.capabilities import load_capabilities, read_file
from planner.problem.workload import Task

DOCUMENT = Path(__file__).parents[3] / "periplus" / "schemas" / "capabilities.json"


def test_the_document_holds_what_a_job_can_ask_for() -> None:
    capabilities = load_capabilities()
    assert set(get_args(AlgorithmSection.model_fields["name"].annotation)) == capabilities.algorithms
    ceiling = next(item.le for item in JobFile.model_fields["staleness"].metadata if hasattr(item, "le"))
    assert ceiling == capabilities.max_staleness


def test_its_weight_codecs_are_in_the_protocol() -> None:
    assert set(read_file(DOCUMENT).weight_codecs) <= set(common_pb2.Codec.keys())


def test_a_document_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "capabilities.json").write_text('{"schema": "periplus.capabilities/2"}')
    with pytest.raises(ConfigError, match="must carry schema"):
        read_file(tmp_path / "capabilities.json")


def test_its_limits_are_those_of_placements() -> None:
    limits = load_capabilities().limits
    assert (limits.max_tensor, limits.max_pipeline, limits.max_data, limits.max_train_blocks) == (1, 1, 4, 1)
    assert not limits.colocates
    assert limits.roles_on_trainer == {Task.REFERENCE, Task.CRITIC_INFERENCE, Task.ACTOR_TRAINING, Task.CRITIC_TRAINING}
    assert load_capabilities().degrees == {"torch": {1}, "vllm": {1, 2}}


def test_every_role_of_the_document_is_a_task() -> None:
    assert set(read_file(DOCUMENT).roles) == {
        "generation",
        "reward",
        "actor_training",
        "critic_training",
        "critic_inference",
        "reference_inference",
    }
