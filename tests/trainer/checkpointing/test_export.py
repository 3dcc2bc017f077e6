"""The final model on disk, as transformers and other people find it."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

from periplus.errors import Denied, DiskFull, StorageError, TrainingError
from periplus.values.digest import state_digest
from periplus.values.weight_state import INDEX_FILE, writing_safetensors
from tests.support.cases.tiers import rest_is_slow
from tests.support.processes.dying import GONE, before_each_call, die_at, in_a_child, num_calls
from tests.support.small_disk import small_disk
from tests.support.trainer.gloo import run_on_ranks
from tests.support.trainer.sharded import divided, small_qwen
from trainer.checkpointing import export
from trainer.checkpointing.export import final_model, final_rows, model_files
from trainer.data.model import load_model, resolve_model_dir
from trainer.distributed.collectives import HostCollectives
from trainer.publishing.publish import bf16_state


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_model_dir("builtin:qwen3-tiny", tmp_path_factory.mktemp("cache"), 1)


@pytest.fixture(scope="module")
def trained(model_dir: Path) -> Any:
    return trained_model(model_dir)


def trained_model(model_dir: Path) -> Any:
    model, _ = load_model(model_dir)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3)
    return model


@pytest.fixture(scope="module")
def files(model_dir: Path, trained: Any) -> dict[str, bytes]:
    return model_files(model_dir, trained)


def digest_of(model: Any) -> bytes:
    return state_digest(bf16_state(model))


@pytest.fixture(params=[0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_the_model_loads_with_transformers_in_the_precision_that_was_published(
    tmp_path: Path, trained: Any, files: dict[str, bytes]
) -> None:
    final_model(trained, files, tmp_path / "final", digest_of(trained))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final", local_files_only=True, dtype="auto")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert digest_of(loaded) == digest_of(trained)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "final", local_files_only=True)
    assert tokenizer.decode(tokenizer("sun")["input_ids"], skip_special_tokens=True) == "sun"
    assert json.loads((tmp_path / "final" / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_modes_follow_the_umask(tmp_path: Path, trained: Any, files: dict[str, bytes], umask: int) -> None:
    final_model(trained, files, tmp_path / "final", digest_of(trained))
    assert (tmp_path / "final").stat().st_mode & 0o777 == 0o777 & ~umask
    for path in (tmp_path / "final").iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path


def test_a_built_in_model_in_the_cache_is_readable_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    made = resolve_model_dir("builtin:qwen3-tiny", tmp_path / "cache", 2)
    assert made.stat().st_mode & 0o777 == 0o777 & ~umask
    assert {path.stat().st_mode & 0o777 for path in made.iterdir()} == {0o666 & ~umask}


def test_weights_that_were_not_published_last_are_not_exported(
    tmp_path: Path, trained: Any, files: dict[str, bytes]
) -> None:
    with pytest.raises(TrainingError, match="published last"):
        final_model(trained, files, tmp_path / "final", bytes(32))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gives_back_something_else_is_a_failure_and_nothing_stands_in_its_place(
    tmp_path: Path, trained: Any, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def lying(path: Path, lines: Any) -> Iterator[Any]:
        with writing_safetensors(path, lines) as write:
            yield write
        with path.open("r+b") as file:
            file.seek(-3, os.SEEK_END)
            last = file.read(1)
            file.seek(-3, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))

    monkeypatch.setattr(export, "writing_safetensors", lying)
    with pytest.raises(StorageError, match=r"model\.safetensors has digest .* when it is read back"):
        final_model(trained, files, tmp_path / "final", digest_of(trained))
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_export_left_is_replaced(tmp_path: Path, trained: Any, files: dict[str, bytes]) -> None:
    for name in ("final", ".final.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("half")
        (tmp_path / name / "odd").write_text("half")
    final_model(trained, files, tmp_path / "final", digest_of(trained))
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert not (tmp_path / "final" / "odd").exists()


def test_a_full_disk_leaves_nothing_at_any_size_and_room_heals_it(
    tmp_path: Path, trained: Any, files: dict[str, bytes]
) -> None:
    with small_disk(tmp_path / "small", num_kib=1024) as disk:
        for leaving_bytes in range(0, 380_000, 40_000):
            filler = disk.fill(leaving_bytes=leaving_bytes)
            with pytest.raises(DiskFull, match="final"):
                final_model(trained, files, disk.root / "final", digest_of(trained))
            assert [path.name for path in disk.root.iterdir()] == ["filler"]
            filler.unlink()
        final_model(trained, files, disk.root / "final", digest_of(trained))
        assert [path.name for path in disk.root.iterdir()] == ["final"]


def test_a_read_only_disk_is_named(tmp_path: Path, trained: Any, files: dict[str, bytes]) -> None:
    with small_disk(tmp_path / "small", num_kib=1024) as disk:
        disk.make_read_only()
        with pytest.raises(Denied, match=r"final: its file system is read-only"):
            final_model(trained, files, disk.root / "final", digest_of(trained))


def dies(model_dir: Path, folder: Path, name: str, number: int) -> None:
    model = trained_model(model_dir)
    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, (os, name), die_at(number))
        final_model(model, model_files(model_dir, model), folder / "final", digest_of(model))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param("fsync", marks=pytest.mark.faults), "replace", "rename", "mkdir", "unlink", "rmdir"]
)
def test_an_export_that_dies_anywhere_leaves_all_or_nothing_and_the_next_one_succeeds(
    tmp_path: Path, model_dir: Path, trained: Any, files: dict[str, bytes], name: str
) -> None:
    def work() -> None:
        final_model(trained, files, tmp_path / "final", digest_of(trained))

    work()
    total = num_calls((os, name), work)
    assert total, "an export makes no such call: the test would prove nothing"
    for number in range(1, 1 + total):
        assert in_a_child(dies, model_dir, tmp_path, name, number) == GONE
        if (tmp_path / "final").exists():
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final", dtype="auto")
            assert digest_of(loaded) == digest_of(trained)
        work()
        assert [path.name for path in tmp_path.iterdir()] == ["final"]


# ---- large models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_file_bytes", [1, 10_000, 100_000, 1 << 30])
def test_a_model_above_the_limit_is_several_files_that_transformers_loads(
    tmp_path: Path, trained: Any, files: dict[str, bytes], max_file_bytes: int
) -> None:
    final_model(trained, files, tmp_path / "final", digest_of(trained), max_file_bytes=max_file_bytes)
    found = sorted((tmp_path / "final").glob("*.safetensors"))
    largest_tensor_bytes = max(2 * parameter.numel() for parameter in trained.parameters())
    for path in found:
        assert path.stat().st_size <= max(max_file_bytes, largest_tensor_bytes) + 8192  # the headers
    if max_file_bytes == 1 << 30:
        assert [path.name for path in found] == ["model.safetensors"]
    else:
        assert len(found) > 2
        index = json.loads((tmp_path / "final" / INDEX_FILE).read_text())
        assert set(index["weight_map"].values()) == {path.name for path in found}
        assert index["metadata"]["total_size"] == sum(2 * parameter.numel() for parameter in trained.parameters())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final", local_files_only=True, dtype="auto")
    assert digest_of(loaded) == digest_of(trained)


def test_a_full_disk_within_any_of_several_files_leaves_nothing(
    tmp_path: Path, trained: Any, files: dict[str, bytes]
) -> None:
    with small_disk(tmp_path / "small", num_kib=1024) as disk:
        for leaving_bytes in range(0, 380_000, 60_000):
            filler = disk.fill(leaving_bytes=leaving_bytes)
            with pytest.raises(DiskFull, match="final"):
                final_model(trained, files, disk.root / "final", digest_of(trained), max_file_bytes=50_000)
            assert [path.name for path in disk.root.iterdir()] == ["filler"]
            filler.unlink()


def export_on_ranks(folder: Path, published: bytes) -> str:
    ranks, model = HostCollectives.over(), divided(small_qwen())
    failure = ""
    try:
        if ranks.rank:
            final_rows(model, ranks)
        else:
            final_model(model, {}, folder / "final", published, ranks, max_file_bytes=2000)
    except TrainingError as error:
        failure = str(error)
    ranks.exchange_values(None)  # no rank is left waiting
    return failure


@pytest.mark.processes
@pytest.mark.parametrize("size", rest_is_slow([2, 1, 4], quick=0))
def test_ranks_that_share_a_model_export_it_together(tmp_path: Path, size: int) -> None:
    whole = small_qwen()
    assert run_on_ranks(export_on_ranks, size, tmp_path, digest_of(whole)) == [""] * size
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final", local_files_only=True, dtype="auto")
    assert digest_of(loaded) == digest_of(whole)
    assert bf16_state(loaded) == bf16_state(whole)


@pytest.mark.processes
def test_an_export_that_fails_on_the_first_rank_leaves_no_other_rank_waiting(tmp_path: Path) -> None:
    first, other = run_on_ranks(export_on_ranks, 2, tmp_path, bytes(32))
    assert "published last" in first
    assert other == ""
    assert list(tmp_path.iterdir()) == []
    # No directory to write into: the error comes with the first tensor.
    with pytest.raises(AssertionError, match="NotFound"):
        run_on_ranks(export_on_ranks, 2, tmp_path / "absent", bytes(32))


NUM_TENSORS, TENSOR_BYTES = 12, 4 << 20


class Tall(torch.nn.Module):
    """Twelve tensors of 4 MiB as they are exported, 8 MiB in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Qwen3Config()
        for number in range(NUM_TENSORS):
            self.register_parameter(f"w{number}", torch.nn.Parameter(torch.full((TENSOR_BYTES // 2048, 1024), 0.5)))


def export_in_little_memory(folder: Path) -> None:
    """Export with room for three tensors above what the process has."""
    model = Tall()
    digest = digest_of(model)
    data_kib = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line
    )
    resource.setrlimit(resource.RLIMIT_DATA, ((data_kib << 10) + 3 * TENSOR_BYTES, resource.RLIM_INFINITY))
    final_model(model, {}, folder / "final", digest)


@pytest.mark.processes
def test_an_export_needs_the_memory_of_few_tensors(tmp_path: Path) -> None:
    run_on_ranks(export_in_little_memory, 1, tmp_path)
    assert (tmp_path / "final" / "model.safetensors").stat().st_size > NUM_TENSORS * TENSOR_BYTES
