"""Checkpoints that transformers wrote, and directories that transformers must load again."""

from pathlib import Path
from typing import Any

import pytest

from periplus.weights import operations, reading

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def silent(what: str, done: int, total: int) -> None: ...


def small_model(dtype: Any, *, tied: bool) -> Any:
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(1)
    return transformers.Qwen3ForCausalLM(config).to(dtype)


def step(model: Any) -> None:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.001 * (torch.rand_like(parameter) < 0.05)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", [("5GB", "20KB"), ("20KB", "5GB")])
def test_a_model_that_was_trained_on_is_loaded_from_its_delta(
    tmp_path: Path, dtype: Any, tied: bool, sizes: tuple[str, str]
) -> None:
    model = small_model(dtype, tied=tied)
    model.save_pretrained(tmp_path / "old", max_shard_size=sizes[0])
    step(model)
    model.save_pretrained(tmp_path / "new", max_shard_size=sizes[1])
    model.save_pretrained(tmp_path / "same", max_shard_size=sizes[0])
    (tmp_path / "old" / "tokenizer.json").write_text("{}")

    operations.diff(tmp_path / "old", tmp_path / "new", tmp_path / "d", force=False, with_floors=True, progress=silent)
    operations.apply(tmp_path / "old", tmp_path / "d", tmp_path / "made", force=False, progress=silent)

    assert reading.verify(tmp_path / "made", tmp_path / "d", silent).is_result
    for path in (tmp_path / "same").iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "made" / "tokenizer.json").read_text() == "{}"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=dtype)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(loaded.state_dict()[name], each) for name, each in model.state_dict().items())


def test_a_checkpoint_of_mixed_dtypes_and_quantised_tensors_is_kept_bit_for_bit(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(3)
    old = {
        "w.qweight": torch.randint(-128, 127, (32, 16), dtype=torch.int8),
        "w.scales": torch.rand(32, 1, dtype=torch.float16),
        "w.f8": torch.randn(8, 4).to(torch.float8_e4m3fn),
        "norm": torch.randn(16, dtype=torch.float32),
        "mask": torch.rand(5) > 0.5,
        "position": torch.arange(3),
    }
    new = {name: each.clone() for name, each in old.items()}
    new["w.qweight"][3] += 1
    new["norm"][4] = -0.0
    for name, tensors in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        safetensors.save_file(tensors, tmp_path / name / "model.safetensors", metadata={"quantizer": "ours"})
    operations.diff(tmp_path / "old", tmp_path / "new", tmp_path / "d", force=False, with_floors=True, progress=silent)
    operations.apply(tmp_path / "old", tmp_path / "d", tmp_path / "made", force=False, progress=silent)
    file = "model.safetensors"
    assert (tmp_path / "made" / file).read_bytes() == (tmp_path / "new" / file).read_bytes()
