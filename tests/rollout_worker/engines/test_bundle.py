"""Which engine a worker builds from a bundle, as the job says."""

import asyncio
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from periplus.environment.job_environment import DATA_FILE, trainer_environment
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from rollout_worker.engines import bundle
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.bundle import MORE_SLOTS, NUM_SLOTS, LoadedBundle, _name_architecture, load_bundle
from rollout_worker.engines.torch_engine import TorchEngine
from tests.support.tiny_job import NUM_PROBLEMS, tiny_job
from trainer.data.model import resolve_model_dir


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model_dir("builtin:qwen3-tiny-h32", tmp_path_factory.mktemp("models"), 0)


def load(model_dir: Path, folder: Path, **sections: Any) -> LoadedBundle:
    """Build from a bundle, and end the engine."""
    job = tiny_job(folder, **sections)
    return asyncio.run(_loaded(files_of(model_dir, job), folder / "scratch", job))


def files_of(model_dir: Path, job: JobFile) -> Mapping[str, bytes]:
    problems = trainer_environment(job).file
    assert problems is not None
    files = {file.name: file.read_bytes() for file in model_dir.iterdir() if file.suffix != ".safetensors"}
    return files | {DATA_FILE: problems}


async def _loaded(files: Mapping[str, bytes], scratch: Path, job: JobFile) -> LoadedBundle:
    loaded = await load_bundle(files, scratch, job)
    await loaded.engine.close()
    return loaded


def test_requests_at_once_are_fewer_where_they_take_much_memory_and_what_the_job_says(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(model_dir, tmp_path, engine={"max_requests": 70}).engine.num_slots == 70
    monkeypatch.setattr(bundle, "MORE_SLOTS_BYTES", 1 << 10)
    assert load(model_dir, tmp_path).engine.num_slots == NUM_SLOTS


def test_a_job_gets_the_torch_engine_with_float32_on_a_cpu_and_its_own_problems(
    model_dir: Path, tmp_path: Path
) -> None:
    loaded = load(model_dir, tmp_path)
    assert isinstance(loaded.engine, TorchEngine)
    assert (loaded.engine.num_slots, loaded.engine.computes_in_bfloat16) == (MORE_SLOTS, False)
    assert loaded.engine.vocab_size == len(loaded.encoder.tokenizer)
    assert loaded.environment.item(NUM_PROBLEMS - 1).prompt == f"{NUM_PROBLEMS - 1}?"


def test_the_job_chooses_type_and_number_of_requests(model_dir: Path, tmp_path: Path) -> None:
    loaded = load(model_dir, tmp_path, engine={"dtype": "bfloat16", "max_requests": 7})
    assert (loaded.engine.num_slots, loaded.engine.computes_in_bfloat16) == (7, True)


def test_adapters_are_merged_for_the_engine(model_dir: Path, tmp_path: Path) -> None:
    loaded = load(model_dir, tmp_path, model={"path": str(model_dir), "lora": {"rank": 2}})
    assert isinstance(loaded.engine, AdapterEngine)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="this interpreter has vLLM")
def test_a_job_that_asks_for_vllm_where_there_is_none_says_how_to_get_it(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--engine vllm=PYTHON"):
        load(model_dir, tmp_path, engine={"name": "vllm"})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "qwen3"}, ["Qwen3ForCausalLM"]),
        ({"model_type": "llama", "architectures": None}, ["LlamaForCausalLM"]),
        ({"model_type": "qwen3", "architectures": ["Mine"]}, ["Mine"]),
        ({"model_type": "nobody-knows"}, None),
    ],
)
def test_a_configuration_without_a_class_gets_that_of_its_type(
    config: dict[str, Any], expected: list[str] | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    _name_architecture(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).get("architectures") == expected
