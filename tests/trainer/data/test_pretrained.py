"""Checkpoints that are not whole, or not of their configuration, are refused by name before a weight is used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BertConfig, Qwen3ForSequenceClassification

from periplus.errors import ConfigError
from periplus.values.weight_state import INDEX_FILE, SINGLE_FILE, Tensor, read_safetensors, write_safetensors
from tests.support.tiny_job import tiny_job
from trainer.data.model import resolve_model_dir
from trainer.data.pretrained import check_checkpoint, load_tokenizer, load_weights
from trainer.preflight import checked_inputs

MLP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model_dir("builtin:qwen3-tiny", tmp_path_factory.mktemp("models"), 0)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def rewrite(directory: Path, change: Callable[[State], None]) -> None:
    state = dict(read_safetensors(directory))
    change(state)
    write_safetensors(directory / SINGLE_FILE, state)


def configure(directory: Path, file: str = "config.json", **changes: Any) -> None:
    tree = json.loads((directory / file).read_text())
    (directory / file).write_text(json.dumps({key: v for key, v in (tree | changes).items() if v is not None}))


def no_mlp(state: State) -> None:
    del state[MLP]


def without_layer(state: State) -> None:
    for name in [name for name in state if ".layers.1." in name]:
        del state[name]


def layer_more(state: State) -> None:
    state["model.layers.7.mlp.up_proj.weight"] = state[MLP]


def narrow_norm(state: State) -> None:
    state[NORM] = Tensor("F32", (4,), np.zeros(4, np.float32))


def integer_norm(state: State) -> None:
    state[NORM] = Tensor("I8", (128,), np.zeros(128, np.int8))


def double_norm(state: State) -> None:
    state[NORM] = Tensor("F64", (128,), np.zeros(128, np.float64))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_mlp, ("1 tensor the model has and the files lack", MLP)),
        (without_layer, ("11 tensors the model has and the files lack", "model.layers.1.input_layernorm", "6 more")),
        (layer_more, ("the files have and the model lacks", "model.layers.7.mlp.up_proj.weight")),
        (
            narrow_norm,
            (
                "1 tensor of another shape",
                f"{NORM} ((4,), not (128,))",
            ),
        ),
        (
            integer_norm,
            (
                "1 tensor stored as no float",
                f"{NORM} (I8)",
            ),
        ),
        (double_norm, (f"{NORM} (F64)",)),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    copy: Path, change: Callable[[State], None], words: tuple[str, ...]
) -> None:
    rewrite(copy, change)
    with pytest.raises(ConfigError) as refused:
        check_checkpoint(copy)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("change", [no_mlp, layer_more, narrow_norm])
def test_what_was_loaded_is_held_against_the_model_once_more(copy: Path, change: Callable[[State], None]) -> None:
    rewrite(copy, change)
    with pytest.raises(ConfigError, match=r"not those of the Qwen3ForCausalLM"):
        load_weights(copy)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_is_refused_by_name(copy: Path, value: float) -> None:
    def spoil(state: State) -> None:
        values = np.ones(128, np.float32)
        values[77] = value
        state[NORM] = Tensor("F32", (128,), values)

    rewrite(copy, spoil)
    with pytest.raises(ConfigError, match=rf"NaN or infinite values in 1 tensor: {NORM}"):
        load_weights(copy)


def test_the_configuration_of_another_model_is_refused(copy: Path, tmp_path: Path) -> None:
    sizes = {"vocab_size": 105, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8}
    for is_decoder, words in (
        (False, "is an encoder"),
        (True, r"bert\.embeddings.*the files have and the model lacks"),
    ):
        BertConfig(**sizes, intermediate_size=64, is_decoder=is_decoder).save_pretrained(copy)
        with pytest.raises(ConfigError, match=words):
            check_checkpoint(copy)
    with pytest.raises(ConfigError, match="not those of the BertLMHeadModel"):
        load_weights(copy)


def test_a_classifier_with_the_models_own_weights_is_refused(copy: Path, tmp_path: Path) -> None:
    Qwen3ForSequenceClassification(AutoConfig.from_pretrained(copy)).save_pretrained(copy)
    with pytest.raises(ConfigError, match="Qwen3ForSequenceClassification, which does not predict the next token"):
        checked_inputs(tiny_job(tmp_path, model={"path": str(copy)}), copy)
    configure(copy, architectures=None)
    with pytest.raises(ConfigError, match=r"the files have and the model lacks: score\.weight"):
        check_checkpoint(copy)


@pytest.mark.parametrize("model_type", ["qwen2", "llama", "mistral", "gpt2", "opt", "gpt_neo", "gpt_neox"])
def test_what_transformers_saves_is_accepted(tmp_path: Path, model_type: str) -> None:
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
        "gpt_neo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]},
        "opt": small | {"ffn_dim": 32, "word_embed_proj_dim": 32},
    }
    config = AutoConfig.for_model(model_type, vocab_size=64, **sizes.get(model_type, small))
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    check_checkpoint(tmp_path)
    loaded = load_weights(tmp_path)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True))


def test_tensors_that_are_no_parameters_are_refused_by_name(tmp_path: Path) -> None:
    """Apertus keeps two numbers of its activation as buffers."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = AutoConfig.for_model("apertus", vocab_size=64, pad_token_id=0, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"besides its parameters.*: model\.layers\.0\.mlp\.act_fn\.beta"):
        check_checkpoint(tmp_path)


def test_adapters_of_layers_that_the_model_lacks_are_refused_before_weights_are_read(
    copy: Path, tmp_path: Path
) -> None:
    job = tiny_job(tmp_path, model={"path": str(copy), "lora": {"target_modules": ("q_proj", "c_attn")}})
    with pytest.raises(ConfigError, match=r"'c_attn', but no layer .* its linear layers are down_proj, gate_proj"):
        checked_inputs(job, copy)
    check_checkpoint(copy, ["q_proj"])
    with pytest.raises(ConfigError, match="'lm_head', but it shares its weight with another layer"):
        check_checkpoint(copy, ["lm_head"])


def test_tied_weights_may_be_left_out_and_only_these(copy: Path) -> None:
    assert "lm_head.weight" not in read_safetensors(copy)
    check_checkpoint(copy)
    configure(copy, tie_word_embeddings=False)
    with pytest.raises(ConfigError, match=r"the files lack: lm_head\.weight"):
        check_checkpoint(copy)


def test_a_checkpoint_saved_without_its_head_is_accepted_where_the_head_is_tied(copy: Path) -> None:
    def strip(state: State) -> None:
        for name in list(state):
            state[name.removeprefix("model.")] = state.pop(name)

    before = load_weights(copy).state_dict()
    rewrite(copy, strip)
    check_checkpoint(copy)
    after = load_weights(copy).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_shards_are_checked_as_one_file(copy: Path) -> None:
    state = dict(read_safetensors(copy))
    (copy / SINGLE_FILE).unlink()
    names = sorted(state)
    home = {name: f"model-{1 + number % 2:05}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(home.values()):
        write_safetensors(copy / file, {name: state[name] for name in names if home[name] == file})
    (copy / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": home}))
    check_checkpoint(copy)
    file = home.pop(MLP)
    write_safetensors(copy / file, {name: state[name] for name in home if home[name] == file})
    (copy / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": home}))
    with pytest.raises(ConfigError, match=MLP):
        check_checkpoint(copy)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "no-such-family"}, "no-such-family"),
        (
            {"model_type": "no-such-family", "auto_map": {"AutoConfig": "code.Config"}},
            "code from the checkpoint",
        ),
        ({"hidden_size": "wide"}, "refused by transformers"),
        ({"hidden_size": -1}, "describes no causal language model"),
    ],
)
def test_a_configuration_that_transformers_cannot_use_is_refused(
    copy: Path, changes: dict[str, Any], words: str
) -> None:
    configure(copy, architectures=None, **changes)
    with pytest.raises(ConfigError, match=words):
        check_checkpoint(copy)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(copy: Path) -> None:
    tokenizer = load_tokenizer(copy)
    tokenizer.add_tokens(["<one-more>"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(ConfigError, match=r"'<one-more>' with id \d+, but the model's vocab_size is"):
        load_tokenizer(copy)


@pytest.mark.parametrize("token", ["eos_token", "pad_token"])
def test_a_tokenizer_without_an_end_or_padding_is_refused(copy: Path, token: str) -> None:
    configure(copy, "tokenizer_config.json", **{token: None})
    (copy / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=f"has no {token}"):
        load_tokenizer(copy)


def test_a_tokenizer_that_is_damaged_is_refused(copy: Path) -> None:
    (copy / "tokenizer.json").write_text('{"version": "1.0", "model": ')
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_tokenizer(copy)


def test_files_with_two_tensors_where_the_model_has_one_are_refused_by_name(copy: Path) -> None:
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    rewrite(copy, lambda state: state.update({head: state[embedding]}))
    check_checkpoint(copy)  # equal ones are one
    other = Tensor("F32", read_safetensors(copy)[head].shape, read_safetensors(copy)[head].data[::-1].copy())
    rewrite(copy, lambda state: state.update({head: other}))
    with pytest.raises(ConfigError, match=f"{head} is tied to {embedding} .*set tie_word_embeddings to false"):
        check_checkpoint(copy)
    configure(copy, tie_word_embeddings=False)
    check_checkpoint(copy)
