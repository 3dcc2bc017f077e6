"""Loads or makes the private key of the job authority, which certifies the trainers of jobs.

The key lies in a file that only its owner may read, or is made anew for the life of the process. With a file, workers
and gateways still accept certificates after the coordinator was restarted. Without one, each coordinator process is a
new authority, and running tasks go on trusting the authority that they were started under.
"""

import os
import stat
from pathlib import Path

from periplus.errors import ConfigError
from periplus.process.disk import partial_path, sync
from periplus.publication import JobAuthority

KEY_BYTES = 32
"""Length of a raw Ed25519 private key, in bytes."""


def open_authority(path: Path | None) -> JobAuthority:
    """Return the authority whose private key is in this file; make the file if it does not exist.

    Without a path, return an authority with a new key that is not stored.
    Raises: ConfigError if the file cannot be made or read, holds no key, or may be accessed by other users.
    """
    if path is None:
        return JobAuthority.generate()
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            # The mode is read from the open file, so that the file that is checked is the one that is read.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(2 * KEY_BYTES + 2)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"the job authority's key {path} cannot be used: {why}; give another file") from error
    if mode & 0o077:
        raise ConfigError(f"the job authority's key {path} is open to others (mode {mode:03o}); chmod 600 it")
    return JobAuthority.from_private_bytes(_key(path, text))


def _make(path: Path) -> None:
    """Write a new key to `path` atomically. If two processes do so at the same time, the first one's key stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    partial.unlink(missing_ok=True)
    try:
        # The mode is set at creation: at no time can another user open the key.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(JobAuthority.generate().private_bytes.hex().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a rename, fails if the name exists: of two processes that make a key, both use the first
            # one's.
            os.link(partial, path)
        except FileExistsError:
            return
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _key(path: Path, text: bytes) -> bytes:
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{path} holds no job authority's key, which is {2 * KEY_BYTES} hexadecimal digits; give another file, or "
            "move this one away and a new key is made: running jobs keep the old one"
        )
    return key
