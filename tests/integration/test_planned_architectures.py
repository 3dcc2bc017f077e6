"""The shape that the planner reads from `config.json` is that of the model which transformers makes of it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from coordinator.app import plan_request
from coordinator.state import JobRequest
from periplus.job.architectures import ARCHITECTURES
from periplus.values.machine import DeviceCount
from planner.answer.outcome import Found
from planner.files.huggingface import architecture_of_config
from tests.support.engines.architectures import CASES
from tests.support.planner.hosts import host, mesh, tiny_job


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_of_a_model_is_counted(name: str, tmp_path: Path) -> None:
    config = CASES[name](vocab_size=70, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    shape = architecture_of_config(json.loads((tmp_path / "config.json").read_text()), name)
    assert shape.num_params == sum(parameter.numel() for parameter in model.parameters())
    layers = model.get_decoder().layers if hasattr(model.get_decoder(), "layers") else model.transformer.h
    assert shape.params_per_layer == sum(parameter.numel() for parameter in layers[0].parameters())


def test_all_architectures_that_a_job_may_have_are_planned() -> None:
    assert {name.split()[0] for name in CASES} == {each.model_type for each in ARCHITECTURES}


@pytest.mark.parametrize(("model_type", "method"), [("llama", "auto"), ("mamba", "static")])
def test_a_job_is_planned_by_the_configuration_that_was_sent_with_it(model_type: str, method: str) -> None:
    """The coordinator has no file of the model. A family that it does not know is placed without a prediction."""
    config = CASES["llama"](vocab_size=70).to_dict() | {"model_type": model_type}
    job = tiny_job(model={"path": "SomeBody/SomeModel"})
    request = JobRequest(
        name="j", min_regions=1, job_json=job.to_json(), model_config=json.dumps(config), model_bytes=70_000
    )
    fleet = mesh((host("a"), host("b")))
    outcome = plan_request(fleet, dict.fromkeys("ab", DeviceCount(2, 2)), request)
    assert isinstance(outcome, Found)
    assert outcome.best.method == method
    assert (outcome.best.evaluation is None) == (method == "static")
    assert (outcome.best.simulated is None) == (method == "static")
