"""A token file is its owner's alone, and a guard refuses every call without its content."""

from pathlib import Path

import pytest

from periplus.errors import ConfigError, Denied, NotFound
from periplus.net.tokens import TokenGuard, check_identified, make_token, metadata_of, read_token


def test_a_guard_admits_its_token_and_refuses_any_other_with_the_name_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    make_token(file)
    guard = TokenGuard(file)
    guard.check((("other", "x"), *metadata_of(read_token(file))))
    for wrong in ("", "x", read_token(file)[:-1], "\u00e9"):
        with pytest.raises(Denied, match=str(file)):
            guard.check(metadata_of(wrong))


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "[::]:7070", "10.0.0.1:7070", "[2001:db8::1]:7070", "host:7070"])
def test_a_service_that_other_machines_reach_has_identities(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ConfigError, match="--plaintext is for loopback addresses alone"):
        check_identified("a coordinator", listen, plaintext=True, token_file=tmp_path / "token")
    check_identified("a coordinator", listen, plaintext=False, token_file=None)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.0.1:7070", "[::1]:7070", "localhost:7070"])
def test_a_service_that_only_this_machine_reaches_may_do_without(tmp_path: Path, listen: str) -> None:
    check_identified("a coordinator", listen, plaintext=True, token_file=None)
    check_identified("a coordinator", listen, plaintext=True, token_file=tmp_path / "token")
    with pytest.raises(ConfigError, match="by certificates"):
        check_identified("a coordinator", listen, plaintext=False, token_file=tmp_path / "token")


def test_each_token_is_another_one(tmp_path: Path) -> None:
    make_token(tmp_path / "token")
    first = read_token(tmp_path / "token")
    make_token(tmp_path / "token")
    assert read_token(tmp_path / "token") != first


def test_a_file_that_others_may_read_or_that_is_empty_or_absent_is_no_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(NotFound, match="umask"):
        read_token(file)
    file.touch(0o600)
    with pytest.raises(ConfigError, match="empty"):
        read_token(file)
    make_token(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(file)
