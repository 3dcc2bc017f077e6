"""What is said of a model's architecture before a job is sent: nothing, a warning, or a refusal by name."""

from pathlib import Path
from typing import Any

import pytest

from periplus.errors import ConfigError
from periplus.job.architectures import ARCHITECTURES, Coverage, architecture_remarks
from periplus.job.inputs import check_inputs
from tests.periplus.job.test_inputs import directory
from tests.support.tiny_job import tiny_job

TESTED = [each.model_type for each in ARCHITECTURES]


def remarks(kind: str, engine: str = "torch", *, lora: bool = False, longest: int = 100, **config: Any) -> str:
    tree = {"model_type": kind, **config}
    return " ".join(architecture_remarks(tree, "config.json", engine=engine, has_adapters=lora, longest=longest))


@pytest.mark.parametrize("kind", TESTED)
def test_an_architecture_of_the_list_is_accepted_without_a_word(kind: str) -> None:
    assert remarks(kind) == ""


def test_another_architecture_is_accepted_with_a_warning_that_names_it() -> None:
    assert "the architecture starcoder2 is not among those tested: qwen2, qwen3, llama" in remarks("starcoder2")


@pytest.mark.parametrize("each", ARCHITECTURES, ids=lambda each: each.model_type)
def test_vllm_serves_what_the_list_says(each: Any) -> None:
    match each.vllm:
        case Coverage.TESTED:
            assert remarks(each.model_type, "vllm") == ""
        case Coverage.NOT_TESTED:
            assert "not with engine.name=vllm" in remarks(each.model_type, "vllm")
        case Coverage.REFUSED:
            with pytest.raises(ConfigError, match=f"{each.vllm_refusal}; set engine.name=torch"):
                remarks(each.model_type, "vllm")


@pytest.mark.parametrize(
    ("kind", "engine", "config", "words"),
    [
        ("mamba", "torch", {}, "'mamba'.*recurrent or state-space layers"),
        ("bloom", "torch", {}, "position biases"),
        ("gpt_neo", "torch", {}, "local attention"),
        ("falcon", "torch", {"alibi": True}, "alibi is set"),
        ("lfm2", "torch", {"layer_types": ["conv", "full_attention"]}, "it has layers of conv"),
        ("olmoe", "vllm", {"num_experts": 64}, "experts"),
        ("deepseek_v3", "vllm", {"n_routed_experts": 64}, "experts"),
        (
            "qwen2",
            "vllm",
            {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
            "only some of its layers",
        ),
        ("gemma3_text", "torch", {"use_bidirectional_attention": True}, "tokens see those after them"),
        ("gemma3_text", "vllm", {"use_bidirectional_attention": True}, "tokens see those after them"),
    ],
)
def test_what_is_known_not_to_work_is_refused_by_name(
    kind: str, engine: str, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        remarks(kind, engine, **config)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}},
        {"rope_parameters": {"rope_type": "dynamic", "original_max_position_embeddings": 4096}},
    ],
)
def test_rotary_embeddings_that_depend_on_the_batch_are_refused_beyond_their_first_length(
    config: dict[str, Any],
) -> None:
    assert remarks("phi3", longest=4096, **config) == ""
    with pytest.raises(ConfigError, match=r"beyond 4096 tokens .* up to 4097"):
        remarks("phi3", longest=4097, **config)


def test_adapters_are_refused_where_the_list_says_so() -> None:
    refused = [each.model_type for each in ARCHITECTURES if each.adapters is Coverage.REFUSED]
    assert refused == ["gpt2"]
    with pytest.raises(ConfigError, match=r"cannot be trained with model\.lora"):
        remarks("gpt2", lora=True)
    assert remarks("llama", lora=True) == ""


def test_a_job_is_warned_of_or_refused_for_its_own_model_and_engine(tmp_path: Path) -> None:
    model = {"path": str(directory(tmp_path, model_type="starcoder2", architectures=["Starcoder2ForCausalLM"]))}
    (said,) = check_inputs(tiny_job(tmp_path, model=model))
    assert "starcoder2" in said
    assert check_inputs(tiny_job(tmp_path)) == ()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    with pytest.raises(ConfigError, match="vLLM holds its weights transposed"):
        check_inputs(tiny_job(tmp_path, model=model, engine={"name": "vllm"}))
    with pytest.raises(ConfigError, match=r"model\.lora"):
        check_inputs(tiny_job(tmp_path, model={**model, "lora": {}}))
