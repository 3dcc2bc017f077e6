import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from periplus.errors import ConfigError, Conflict, NotFound, PeriplusError, StorageError
from periplus.weights.output import disk_errors, making_directory, making_file, terminable
from tests.support.checkpoints import model, write_checkpoint


def nothing() -> None: ...


def make_file(path: Path, *, force: bool = False, during: Callable[[], None] = nothing) -> None:
    with making_file(path, force=force) as work:
        work.product.write_bytes(b"new")
        during()


def make_directory(path: Path, *sources: Path, force: bool = False, during: Callable[[], None] = nothing) -> None:
    with making_directory(path, sources, force=force) as work:
        write_checkpoint(work.product, model(7))
        during()


def test_a_file_is_there_when_it_is_done_and_nothing_else_is(tmp_path: Path) -> None:
    make_file(tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"new"
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_whatever_goes_wrong_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "x").write_bytes(b"old")
    old = write_checkpoint(tmp_path / "d", model(1))
    before = sorted(old.iterdir())

    def fail() -> None:
        raise error

    with pytest.raises((error, StorageError)):
        make_file(tmp_path / "x", force=True, during=fail)
    with pytest.raises((error, StorageError)):
        make_directory(old, force=True, during=fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "x"]
    assert (tmp_path / "x").read_bytes() == b"old"
    assert sorted(old.iterdir()) == before


def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    old = write_checkpoint(tmp_path / "d", model(1))
    with pytest.raises(Conflict, match="--force"):
        make_file(tmp_path / "x")
    with pytest.raises(Conflict, match="--force"):
        make_directory(old)
    make_file(tmp_path / "x", force=True)
    (old / "stale.json").touch()
    make_directory(old, force=True)
    assert (tmp_path / "x").read_bytes() == b"new"
    assert not (old / "stale.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "x"]


def test_what_appears_meanwhile_is_not_replaced_either(tmp_path: Path) -> None:
    with pytest.raises(Conflict):
        make_file(tmp_path / "x", during=lambda: (tmp_path / "x").touch())
    with pytest.raises(Conflict):
        make_directory(tmp_path / "d", during=lambda: (tmp_path / "d" / "sub").mkdir(parents=True))
    assert (tmp_path / "x").read_bytes() == b""
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["sub"]


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    make_directory(tmp_path / "d")
    assert (tmp_path / "d" / "model.safetensors").exists()


def test_force_removes_nothing_but_a_checkpoint(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(write_checkpoint(tmp_path / "d", model(1)))
    for place in (home, tmp_path / "file", tmp_path / "link"):
        with pytest.raises(Conflict):
            make_directory(place, force=True)
    for place in (home, Path("/dev/null")):
        with pytest.raises(Conflict, match="no ordinary file"):
            make_file(place, force=True)
    assert (home / "thesis.tex").exists()


def test_a_checkpoint_that_holds_a_source_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = write_checkpoint(tmp_path / "outer", model(1))
    inner = write_checkpoint(outer / "inner", model(2))
    with pytest.raises(Conflict, match="holds"):
        make_directory(outer, inner, force=True)
    monkeypatch.chdir(outer)
    with pytest.raises(Conflict, match="holds"):
        make_directory(outer, force=True)
    assert (inner / "config.json").exists()


def test_a_place_within_a_source_is_refused_since_it_would_copy_itself(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", model(1))
    with pytest.raises(ConfigError, match="outside"):
        make_directory(old / "new", old)
    make_directory(old, old, force=True)


def test_a_parent_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="make that directory first"):
        make_file(tmp_path / "a" / "b")


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EIO, "")]
)
def test_what_the_system_says_is_a_storage_error(number: int, advice: str) -> None:
    with pytest.raises(StorageError, match=f"cannot write x: .*{advice}"), disk_errors("cannot write x"):
        raise OSError(number, os.strerror(number))
    with pytest.raises(PeriplusError, match="as it was"), disk_errors("cannot write x"):
        raise Conflict("as it was")


def test_a_termination_unwinds_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
