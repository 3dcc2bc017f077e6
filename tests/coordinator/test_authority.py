"""The file of the job authority's private key."""

from pathlib import Path

import pytest

from coordinator.authority import open_authority
from periplus.errors import ConfigError


def test_a_key_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "authority"
    made = open_authority(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert open_authority(path).public_key == made.public_key
    assert [file.name for file in path.parent.iterdir()] == ["authority"]


def test_without_a_file_every_start_has_a_key_of_its_own() -> None:
    assert open_authority(None).public_key != open_authority(None).public_key


def test_the_private_key_is_in_no_representation_of_the_authority(tmp_path: Path) -> None:
    path = tmp_path / "authority"
    shown = repr(open_authority(path))
    assert path.read_text().strip() not in shown
    assert str(bytes.fromhex(path.read_text()))[2:-1] not in shown


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_may_touch_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "authority"
    open_authority(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:03o}.*chmod 600"):
        open_authority(path)


@pytest.mark.parametrize("text", [b"", b"no key", b"ab" * 31, b"ab" * 33, b"\xff" * 64, b"ab" * 31 + b"g0"])
def test_what_is_no_key_is_refused_and_left_alone(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "authority"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="holds no job authority's key"):
        open_authority(path)
    assert path.read_bytes() == text


def test_a_folder_where_the_key_should_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        open_authority(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        open_authority(tmp_path / "file" / "authority")
