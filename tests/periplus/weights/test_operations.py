import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from periplus.codec.weights.encoder import Encoder
from periplus.codec.weights.layout import StateLayout, TensorLayout, layout_of
from periplus.errors import CorruptFrame, NotFound, PeriplusError, StorageError, WrongBase
from periplus.values.digest import state_digest
from periplus.values.safetensors_format import safetensors_head
from periplus.values.weight_state import SINGLE_FILE, Tensor, WeightState, read_safetensors
from periplus.weights import operations, reading
from periplus.weights.files import DeltaWriter, FileHead, FileTail
from tests.support.cases.examples import examples
from tests.support.cases.strategies import states
from tests.support.checkpoints import model, moved, next_model, tensor, write_checkpoint


def silent(what: str, done: int, total: int) -> None: ...


def diff(old: Path, new: Path, output: Path, *, force: bool = False) -> reading.Delta:
    return operations.diff(old, new, output, force=force, with_floors=True, progress=silent)


def apply(old: Path, file: Path, output: Path, *, force: bool = False) -> operations.Applied:
    return operations.apply(old, file, output, force=force, progress=silent)


def fold(base: Path, files: list[Path], output: Path) -> reading.Delta:
    return operations.fold(base, files, output, force=False, with_floors=True, progress=silent)


def forge(path: Path, base: WeightState, new: WeightState, *, parts: list[bytes] | None = None, **head: object) -> Path:
    """Write a delta's file with every hash right, whatever it says."""
    encoder = Encoder(base, new)
    made = list(encoder.parts()) if parts is None else parts
    fields = {"base_digest": state_digest(base), "result_digest": state_digest(new), "layout": layout_of(new)} | head
    with path.open("wb") as file:
        writer = DeltaWriter(file, FileHead(num_parts=len(made), **fields))  # type: ignore[arg-type]
        for part in made:
            writer.part(part)
        writer.finish(FileTail(num_elements=0, num_changed=0, payload_bytes=writer.payload_bytes, floors=None))
    return path


@pytest.fixture
def chain(tmp_path: Path) -> list[Path]:
    """Write four versions of a checkpoint, in one and in three shards by turns."""
    versions = [model(1)]
    for number in range(3):
        versions.append(next_model(versions[-1], 100 * number))
    return [write_checkpoint(tmp_path / f"v{v}", state, 1 + v % 2 * 2) for v, state in enumerate(versions)]


# ---- what comes out --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(states(), states())
def test_any_two_states_are_turned_into_each_other(old: WeightState, new: WeightState) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        before, after = write_checkpoint(root / "old", old), write_checkpoint(root / "new", new)
        diff(before, after, root / "d")
        apply(before, root / "d", root / "made")
        assert read_safetensors(root / "made") == new
        assert reading.verify(root / "made", root / "d", silent).is_result


def test_the_result_has_the_sharding_and_the_other_files_of_the_old_one(chain: list[Path], tmp_path: Path) -> None:
    old, new = chain[0], chain[1]
    diff(old, new, tmp_path / "d")
    apply(old, tmp_path / "d", tmp_path / "made")
    assert read_safetensors(tmp_path / "made") == read_safetensors(new)
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["config.json", SINGLE_FILE]
    diff(new, old, tmp_path / "back")
    apply(new, tmp_path / "back", tmp_path / "again")
    assert read_safetensors(tmp_path / "again") == read_safetensors(old)
    assert len(list((tmp_path / "again").iterdir())) == 5


def test_a_fold_is_the_sequence_and_smaller(chain: list[Path], tmp_path: Path) -> None:
    deltas = [tmp_path / f"d{v}" for v in range(3)]
    for old, new, delta in zip(chain, chain[1:], deltas, strict=False):
        diff(old, new, delta)
    folded = fold(chain[0], deltas, tmp_path / "folded")
    apply(chain[0], tmp_path / "folded", tmp_path / "made")
    assert read_safetensors(tmp_path / "made") == read_safetensors(chain[3])
    assert folded.head.base_digest == state_digest(read_safetensors(chain[0]))
    assert (tmp_path / "folded").stat().st_size < sum(delta.stat().st_size for delta in deltas)
    direct = diff(chain[0], chain[3], tmp_path / "direct")
    assert (tmp_path / "direct").read_bytes() == (tmp_path / "folded").read_bytes()
    assert direct.tail == folded.tail


def test_a_fold_over_changes_of_layout_is_the_sequence(tmp_path: Path) -> None:
    first = model(1)
    second = {name: each for name, each in first.items() if "norm" not in name} | {"lm_head.weight": tensor(50)}
    third = second | {"lm_head.weight": tensor(51, "F32"), "more": tensor(52)}
    fourth = third | {"more": moved(third["more"], 1)}
    places = [write_checkpoint(tmp_path / f"v{v}", state) for v, state in enumerate([first, second, third, fourth])]
    deltas = [tmp_path / f"d{v}" for v in range(3)]
    for old, new, delta in zip(places, places[1:], deltas, strict=False):
        diff(old, new, delta)
    fold(places[0], deltas, tmp_path / "folded")
    apply(places[0], tmp_path / "folded", tmp_path / "made")
    assert read_safetensors(tmp_path / "made") == fourth


def test_many_spans_go_through_files_as_one_does(tmp_path: Path) -> None:
    old = {"a": tensor(1, "BF16", (3 << 20, 2)), "b": tensor(2, "F32", (1 << 20,)), "c": tensor(3)}
    new = {"a": moved(old["a"], 1, 0.003), "b": moved(old["b"], 2, 0.4), "c": old["c"]}
    newest = {"a": moved(new["a"], 3, 0.003), "b": new["b"], "c": moved(new["c"], 4)}
    places = [write_checkpoint(tmp_path / f"v{v}", state) for v, state in enumerate([old, new, newest])]
    assert diff(places[0], places[1], tmp_path / "d0").head.num_parts > 3
    diff(places[1], places[2], tmp_path / "d1")
    fold(places[0], [tmp_path / "d0", tmp_path / "d1"], tmp_path / "folded")
    apply(places[0], tmp_path / "folded", tmp_path / "made")
    assert (tmp_path / "made" / SINGLE_FILE).read_bytes() == (places[2] / SINGLE_FILE).read_bytes()


def test_a_file_whose_tensors_are_not_aligned_is_read_and_written(tmp_path: Path) -> None:
    old, new = model(1), next_model(model(1), 9)
    places = []
    for name, state in (("old", old), ("new", new)):
        place = write_checkpoint(tmp_path / name, {})
        odd = {"x": tensor(3, "U8", (5,))} | state
        head = safetensors_head(((n, t.dtype, t.shape) for n, t in odd.items()), {})
        (place / SINGLE_FILE).write_bytes(head + b"".join(t.data.tobytes() for t in odd.values()))
        places.append(place)
    diff(places[0], places[1], tmp_path / "d")
    apply(places[0], tmp_path / "d", tmp_path / "made")
    assert (tmp_path / "made" / SINGLE_FILE).read_bytes() == (places[1] / SINGLE_FILE).read_bytes()


def test_what_did_not_change_costs_almost_nothing(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", {"a": tensor(1, "BF16", (512, 512))})
    same = write_checkpoint(tmp_path / "same", {"a": tensor(1, "BF16", (512, 512))})
    delta = diff(old, same, tmp_path / "d")
    assert delta.tail.num_changed == 0
    assert delta.file_bytes < 1000
    apply(old, tmp_path / "d", tmp_path / "made")
    assert reading.verify(old, tmp_path / "d", silent).is_result


def test_nan_payloads_and_negative_zeros_are_kept(tmp_path: Path) -> None:
    bits = np.array([0x7FC1, 0x7F81, 0xFFFF, 0x8000, 0x0000, 0x7F80], "<u2")
    old, new = Tensor("BF16", (6,), bits), Tensor("BF16", (6,), np.roll(bits, 1))
    places = [write_checkpoint(tmp_path / name, {"a": each}) for name, each in (("old", old), ("new", new))]
    diff(places[0], places[1], tmp_path / "d")
    apply(places[0], tmp_path / "d", tmp_path / "made")
    assert read_safetensors(tmp_path / "made") == {"a": new}


def test_a_checkpoint_may_be_replaced_by_its_successor(chain: list[Path], tmp_path: Path) -> None:
    diff(chain[0], chain[1], tmp_path / "d")
    apply(chain[0], tmp_path / "d", chain[0], force=True)
    assert read_safetensors(chain[0]) == read_safetensors(chain[1])


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_delta_of_another_base_is_refused_with_both_digests(chain: list[Path], tmp_path: Path) -> None:
    delta = diff(chain[1], chain[2], tmp_path / "d")
    held = state_digest(read_safetensors(chain[0])).hex()
    with pytest.raises(WrongBase, match=f"{held}.*{delta.head.base_digest.hex()}"):
        apply(chain[0], tmp_path / "d", tmp_path / "made")
    with pytest.raises(WrongBase, match="nothing to apply"):
        apply(chain[2], tmp_path / "d", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_chain_with_a_gap_is_refused_before_any_work(chain: list[Path], tmp_path: Path) -> None:
    diff(chain[0], chain[1], tmp_path / "d0")
    diff(chain[2], chain[3], tmp_path / "d2")
    with pytest.raises(WrongBase, match=r"d0 leads to .*d2 is a delta of .*in their order"):
        fold(chain[0], [tmp_path / "d0", tmp_path / "d2"], tmp_path / "folded")
    with pytest.raises(WrongBase, match="state digest"):
        fold(chain[2], [tmp_path / "d0"], tmp_path / "folded")


def test_a_verdict_says_why_not(chain: list[Path], tmp_path: Path) -> None:
    diff(chain[0], chain[1], tmp_path / "d")
    state = read_safetensors(chain[1])

    def why(name: str, changed: WeightState) -> str:
        return reading.verify(write_checkpoint(tmp_path / name, changed), tmp_path / "d", silent).why_not

    assert reading.verify(chain[1], tmp_path / "d", silent).why_not == ""
    assert "not yet applied" in reading.verify(chain[0], tmp_path / "d", silent).why_not
    assert "values" in reading.verify(chain[2], tmp_path / "d", silent).why_not
    assert why("more", state | {"x": tensor(1)}) == "it also has 'x'"
    assert why("less", dict(list(state.items())[2:])) == "it lacks 'model.embed_tokens.weight' and 1 more"
    assert "dtype or shape of 'model.norm.weight'" in why("other", state | {"model.norm.weight": tensor(1)})


def test_every_damaged_byte_of_a_delta_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    old, new = {"a": tensor(1)}, {"a": moved(tensor(1), 5), "b": tensor(6, "I8", (3,))}
    before, after = write_checkpoint(tmp_path / "old", old), write_checkpoint(tmp_path / "new", new)
    diff(before, after, tmp_path / "d")
    data = (tmp_path / "d").read_bytes()
    for at in range(0, len(data), 7):
        (tmp_path / "d").write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
        with pytest.raises(PeriplusError):
            apply(before, tmp_path / "d", tmp_path / "made")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "new", "old"]


def test_a_damaged_delta_is_found_before_any_checkpoint_is_hashed(chain: list[Path], tmp_path: Path) -> None:
    diff(chain[0], chain[1], tmp_path / "d")
    (tmp_path / "d").write_bytes((tmp_path / "d").read_bytes()[:-1])
    seen: list[str] = []
    with pytest.raises(CorruptFrame, match="cut short"):
        operations.apply(
            chain[0], tmp_path / "d", tmp_path / "x", force=False, progress=lambda what, *_: seen.append(what)
        )
    assert all(what.startswith("reading") for what in seen)


def test_a_delta_may_come_through_a_pipe(chain: list[Path], tmp_path: Path) -> None:
    diff(chain[0], chain[1], tmp_path / "d")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes((tmp_path / "d").read_bytes()))
    writer.start()
    apply(chain[0], tmp_path / "pipe", tmp_path / "made")
    writer.join()
    assert read_safetensors(tmp_path / "made") == read_safetensors(chain[1])


def test_a_part_that_was_changed_and_hashed_again_is_refused_or_harmless(tmp_path: Path) -> None:
    old, new = {"a": tensor(1)}, {"a": moved(tensor(1), 5), "b": tensor(6, "I8", (300,))}
    before = write_checkpoint(tmp_path / "old", old)
    parts = list(Encoder(old, new).parts())
    num_refused = 0
    for index, part in enumerate(parts):
        for at in range(0, len(part), max(1, len(part) // 12)):
            changed = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
            forged = forge(tmp_path / "d", old, new, parts=[*parts[:index], changed, *parts[index + 1 :]])
            try:
                apply(before, forged, tmp_path / "made")
                assert read_safetensors(tmp_path / "made") == new
                _remove(tmp_path / "made")
            except (CorruptFrame, WrongBase):
                num_refused += 1
            with suppress(CorruptFrame, WrongBase):
                fold(before, [forged], tmp_path / "folded")
                _remove(tmp_path / "folded")
    assert num_refused > 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "old"]


def test_parts_that_are_missing_repeated_or_swapped_are_refused(tmp_path: Path) -> None:
    old = {"a": tensor(1), "b": tensor(2, "F32", (3,)), "c": tensor(3, "I8", (5,))}
    new = {name: moved(each, 4, 0.5) for name, each in old.items()}
    before = write_checkpoint(tmp_path / "old", old)
    head, *spans = Encoder(old, new).parts()
    for parts in ([head], [head, *spans[:-1]], [head, *spans, spans[0]], [head, *spans[::-1]], spans, [head, head]):
        with pytest.raises((CorruptFrame, WrongBase)):
            apply(before, forge(tmp_path / "d", old, new, parts=parts), tmp_path / "made")


def test_a_file_that_lies_about_its_outcome_or_layout_is_refused(tmp_path: Path) -> None:
    old, new = model(1), next_model(model(1), 3)
    before = write_checkpoint(tmp_path / "old", old)
    with pytest.raises(CorruptFrame, match="promises"):
        apply(before, forge(tmp_path / "d", old, new, result_digest=bytes(32)), tmp_path / "made")
    other = StateLayout(lines=(*layout_of(new).lines, TensorLayout(name="z", dtype="I8", shape=(9,))))
    with pytest.raises(CorruptFrame):
        apply(before, forge(tmp_path / "d", old, new, layout=other), tmp_path / "made")
    with pytest.raises(CorruptFrame):
        fold(before, [forge(tmp_path / "d", old, new, layout=other)], tmp_path / "made")


def test_a_layout_that_fits_no_disk_is_refused_before_any_file(tmp_path: Path) -> None:
    old = model(1)
    before = write_checkpoint(tmp_path / "old", old)
    for shape in ((1 << 50,), (1 << 62, 1 << 62)):
        huge = StateLayout(lines=(TensorLayout(name="z", dtype="F64", shape=shape),))
        forged = forge(tmp_path / "d", old, old, layout=huge)
        with pytest.raises(StorageError, match="free"):
            apply(before, forged, tmp_path / "made")
        with pytest.raises(StorageError, match="free"):
            fold(before, [forged], tmp_path / "made")


def test_a_tensor_name_is_never_a_path(tmp_path: Path) -> None:
    old, new = {"a": tensor(1)}, {"a": tensor(1), "../../escape": tensor(2), "/etc/x": tensor(3), "": tensor(4)}
    before, after = write_checkpoint(tmp_path / "x/old", old), write_checkpoint(tmp_path / "x/new", new)
    diff(before, after, tmp_path / "d")
    apply(before, tmp_path / "d", tmp_path / "x/made")
    assert read_safetensors(tmp_path / "x/made") == new
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "x"]


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", model(1))
    for call in (
        lambda: diff(old, tmp_path / "none", tmp_path / "d"),
        lambda: diff(tmp_path / "none", old, tmp_path / "d"),
        lambda: apply(old, tmp_path / "none", tmp_path / "made"),
        lambda: fold(old, [tmp_path / "none"], tmp_path / "d"),
        lambda: diff(old, old, tmp_path / "none" / "d"),
    ):
        with pytest.raises(NotFound):
            call()


# ---- what is left behind ---------------------------------------------------------------------------------------------


class Interrupting:
    """Raise KeyboardInterrupt at the nth report of progress."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, what: str, done: int, total: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_an_interruption_at_any_time_leaves_nothing(chain: list[Path], tmp_path: Path) -> None:
    diff(chain[0], chain[1], tmp_path / "d0")
    diff(chain[1], chain[2], tmp_path / "d1")
    there = sorted(tmp_path.iterdir())
    calls: list[Callable[[Interrupting], object]] = [
        lambda stop: operations.diff(chain[0], chain[1], tmp_path / "x", force=False, with_floors=True, progress=stop),
        lambda stop: operations.apply(chain[0], tmp_path / "d0", tmp_path / "x", force=False, progress=stop),
        lambda stop: operations.fold(
            chain[0], [tmp_path / "d0", tmp_path / "d1"], tmp_path / "x", force=False, with_floors=True, progress=stop
        ),
    ]
    for call in calls:
        at = 0
        while not (tmp_path / "x").exists():
            try:
                call(Interrupting(at))
            except KeyboardInterrupt:
                assert sorted(tmp_path.iterdir()) == there
            at += 1
        assert at > 10
        _remove(tmp_path / "x")


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    old = {"a": tensor(1, "BF16", (300, 1000))}
    new = {"a": tensor(2, "BF16", (300, 1000))}
    before, after = write_checkpoint(tmp_path / "old", old), write_checkpoint(tmp_path / "new", new)
    diff(before, after, tmp_path / "d")
    there = sorted(tmp_path.iterdir())
    for call in (
        lambda: diff(before, after, tmp_path / "x"),
        lambda: apply(before, tmp_path / "d", tmp_path / "x"),
        lambda: fold(before, [tmp_path / "d"], tmp_path / "x"),
    ):
        with _files_of_at_most(200_000), pytest.raises(StorageError, match="make room"):
            call()
        assert sorted(tmp_path.iterdir()) == there


@contextmanager
def _files_of_at_most(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
