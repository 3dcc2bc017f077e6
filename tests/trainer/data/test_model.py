import json
import re
from pathlib import Path

import peft
import pytest
import torch

from periplus.errors import ConfigError, Denied
from periplus.job.model_section import BUILTIN
from trainer.data.characters import CHARACTERS, TEMPLATES
from trainer.data.model import build_tokenizer, load_model, resolve_model_dir
from trainer.data.pretrained import load_tokenizer, load_weights

NAME = "builtin:qwen3-tiny"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_a_builtin_is_an_ordinary_checkpoint_in_float32(cache: Path) -> None:
    model, tokenizer = load_model(resolve_model_dir(NAME, cache, seed=0))
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.vocab_size == len(tokenizer)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        assert getattr(model.config, name) == getattr(tokenizer, name)
    assert not model.training


def test_a_builtin_is_made_once_and_leaves_no_scratch_behind(cache: Path) -> None:
    directory = resolve_model_dir(NAME, cache, seed=0)
    stamp = (directory / "model.safetensors").stat().st_mtime_ns
    assert resolve_model_dir(NAME, cache, seed=0) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == stamp
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_the_weights_are_a_function_of_the_seed(cache: Path, tmp_path: Path) -> None:
    first, again, other = (
        (resolve_model_dir(NAME, place, seed) / "model.safetensors").read_bytes()
        for place, seed in [(cache, 0), (tmp_path, 0), (cache, 1)]
    )
    assert first == again
    assert first != other


def test_making_a_model_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    resolve_model_dir(NAME, tmp_path, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_path_to_a_checkpoint_is_taken_as_it_is(cache: Path) -> None:
    directory = resolve_model_dir(NAME, cache, seed=0)
    assert resolve_model_dir(str(directory), cache, seed=9) == directory


def test_an_unknown_builtin_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(", ".join(BUILTIN))):
        resolve_model_dir("builtin:qwen3-huge", tmp_path, seed=0)


def test_a_directory_without_a_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        resolve_model_dir(str(tmp_path), tmp_path, seed=0)
    with pytest.raises(ConfigError, match="not a directory"):
        resolve_model_dir(str(tmp_path / "absent"), tmp_path, seed=0)


def test_text_survives_the_tokenizer_one_token_a_character() -> None:
    tokenizer = build_tokenizer()
    text = "".join(CHARACTERS)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_a_prompt_is_framed_and_its_template_is_one_token() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer(TEMPLATES[0] + "sun")["input_ids"]
    assert len(ids) == 1 + 1 + 3 + 1
    assert tokenizer.convert_ids_to_tokens(ids)[0] == "<bos>"
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == "<answer>"
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == TEMPLATES[0] + "sun"


def test_the_alphabet_has_no_case() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer("Sun")["input_ids"] == tokenizer("sUN")["input_ids"]
    assert tokenizer.unk_token_id not in tokenizer("Sun")["input_ids"]


def test_the_saved_tokenizer_is_the_same(cache: Path) -> None:
    _, loaded = load_model(resolve_model_dir(NAME, cache, seed=0))
    text = TEMPLATES[0] + "Hello, wörld\n"
    assert loaded(text)["input_ids"] == build_tokenizer()(text)["input_ids"]
    assert loaded.pad_token_id == 0


def test_a_cache_that_cannot_be_written_names_the_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Denied, match=r"cannot write .*Not a directory.*XDG_CACHE_HOME"):
        resolve_model_dir(NAME, tmp_path / "file" / "models", seed=0)


def test_a_model_may_start_from_a_lora_adapter_which_is_merged_once(tmp_path: Path) -> None:
    base = resolve_model_dir("builtin:qwen3-tiny", tmp_path / "cache", 0)
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(load_weights(base), settings)
    adapted.save_pretrained(tmp_path / "adapter")
    configure(tmp_path / "adapter", base_model_name_or_path=str(base))
    merged = resolve_model_dir(str(tmp_path / "adapter"), tmp_path / "cache", 0)
    ids = torch.tensor([[1, 20, 30, 40]])
    with torch.no_grad():
        torch.testing.assert_close(load_weights(merged)(ids).logits, adapted.eval()(ids).logits, rtol=1e-4, atol=1e-5)
    assert load_tokenizer(merged).eos_token_id == load_tokenizer(base).eos_token_id
    assert resolve_model_dir(str(tmp_path / "adapter"), tmp_path / "cache", 0) == merged


def test_an_adapter_without_its_base_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    configure(folder, peft_type="LORA", base_model_name_or_path="/nowhere/base")
    with pytest.raises(ConfigError, match="LoRA adapter of '/nowhere/base', which does not exist here"):
        resolve_model_dir(str(folder), tmp_path / "cache", 0)
    configure(folder, peft_type="PREFIX_TUNING")
    with pytest.raises(ConfigError, match="of the kind 'PREFIX_TUNING'"):
        resolve_model_dir(str(folder), tmp_path / "cache", 0)


def configure(folder: Path, **changes: str) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
