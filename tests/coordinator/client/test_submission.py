"""What a submitted job says of its model, and that the trainer's machine has the same one."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coordinator.client.submission import plan_by_hand, submission
from periplus.errors import ConfigError
from periplus.job.inputs import check_planned_config
from planner.plan import Plan
from planner.plan_of_placement import without_question
from tests.support.checkpoints import model, write_checkpoint
from tests.support.planner.gpu_plan import gpu_plan
from tests.support.planner.hosts import tiny_job

CONFIG = {"model_type": "llama", "hidden_size": 64, "transformers_version": "5.0"}


def checkpoint(folder: Path, **changes: Any) -> Path:
    return write_checkpoint(folder, model(1), others={"config.json": json.dumps(CONFIG | changes).encode()})


def test_the_models_configuration_and_size_travel_with_the_job(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    request = submission(tiny_job(model={"path": str(folder)}), "r")
    assert json.loads(request.model_config) == CONFIG
    assert request.model_bytes == 2 * sum(math.prod(each.shape) for each in model(1).values())
    assert (request.request_id, json.loads(request.job_json)["model"]["path"]) == ("r", str(folder))
    assert submission(tiny_job(), "r").model_config == "", "a built-in model is known everywhere"


def test_the_base_of_an_adapter_is_what_is_planned(tmp_path: Path) -> None:
    checkpoint(tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    named = {"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "base")}
    (adapter / "adapter_config.json").write_text(json.dumps(named))
    assert json.loads(submission(tiny_job(model={"path": str(adapter)}), "r").model_config) == CONFIG
    check_planned_config(adapter, json.dumps(CONFIG))


def test_a_trainer_with_another_model_of_that_name_says_what_differs(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", hidden_size=128, transformers_version="5.1")
    check_planned_config(folder, json.dumps(CONFIG | {"hidden_size": 128}))
    with pytest.raises(ConfigError, match="was submitted with: hidden_size is 128 here and was 64; put the same model"):
        check_planned_config(folder, json.dumps(CONFIG))


def test_a_plan_travels_without_its_question(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(gpu_plan().to_json())
    sent = Plan.from_json(submission(tiny_job(), "r", plan=plan_by_hand(path)).plan_json)
    assert sent == without_question(gpu_plan())
    path.write_text('{"schema": "periplus.plan/1", "method": "x"}')
    with pytest.raises(ConfigError, match="trainer_region"):
        plan_by_hand(path)
