"""What callers show with each call: the token of a fleet to its coordinator, and the secret of a job to its gateways.

The token is for operators and agents: whoever can read its file, which is its owner's alone and holds one line of text
that the system's random source made. On a loopback address a coordinator may do without. Beyond it, the token crosses
networks in the clear, and does not replace an encrypted transport.

The secret is for the processes and gateways of one job, which get it from the coordinator with their task.
"""

import hmac
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from periplus.errors import ConfigError, Denied, NotFound
from periplus.net.peers import is_loopback

VARIABLE = "PERIPLUS_TOKEN"
"""Environment variable with the token of a coordinator whose file a command does not find by itself."""

FILE_VARIABLE = "PERIPLUS_TOKEN_FILE"
"""Environment variable with the file of the token, for commands and for the services that ask for it."""

HOW_TO_MAKE = "(umask 077; openssl rand -hex 32 >{file})"
"""Command that makes a token file."""

KEY = "periplus-token"
"""Name of the metadata that carries the token."""

JOB_KEY = "periplus-job-secret"
"""Name of the metadata that carries a job's secret."""

_TOKEN_BYTES = 32
"""Random bytes of a token: 256 bits, which nobody guesses."""

_MODE_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


Metadata = Iterable[tuple[str, str | bytes]]
"""Metadata of a call, as gRPC gives it."""


class TokenGuard:
    """Refuses calls without the token of a file. `service` names what is called."""

    def __init__(self, file: Path, service: str = "coordinator") -> None:
        self._file, self._service = file, service
        self._token = read_token(file).encode()

    def check(self, metadata: Metadata) -> None:
        """Check a call's metadata. Raises: Denied unless it has the token."""
        if not hmac.compare_digest(_sent(metadata, KEY), self._token):
            raise Denied(
                f"this {self._service} answers only those who can read {self._file}: call it as its owner, or set "
                f"{VARIABLE} to what the file holds, or {FILE_VARIABLE} to a file with it"
            )


def check_identified(service: str, listen: str, *, plaintext: bool, token_file: Path | None) -> None:
    """Raises: ConfigError for a service without identities that other machines reach, or one with both and a token."""
    if plaintext and not is_loopback(listen):
        raise ConfigError(
            f"{service} that listens at {listen} is reached from other machines, and --plaintext is for loopback "
            "addresses alone; leave it out, so that every connection is encrypted and every member has a certificate"
        )
    if token_file is not None and not plaintext:
        raise ConfigError(f"--token-file is for {service} with --plaintext: others know their callers by certificates")


def token_of_environment() -> str:
    """Return the token that PERIPLUS_TOKEN is, or that the file of PERIPLUS_TOKEN_FILE holds; empty without both.

    Raises: what `read_token` raises.
    """
    if given := os.environ.get(VARIABLE, ""):
        return given
    file = os.environ.get(FILE_VARIABLE, "")
    return read_token(Path(file)) if file else ""


def metadata_of(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call with this token, which may be empty."""
    return ((KEY, token),) if token else ()


def metadata_of_job(secret: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call for the job with this secret."""
    return ((JOB_KEY, secret),)


def check_job_secret(metadata: Metadata, secret: str, job_id: str) -> None:
    """Check a call's metadata. Raises: Denied unless it has the secret of the job."""
    if not hmac.compare_digest(_sent(metadata, JOB_KEY), secret.encode()):
        raise Denied(
            f"the secret of job {job_id} is missing or wrong: its gateways answer only processes that its coordinator "
            "has started"
        )


def _sent(metadata: Metadata, name: str) -> bytes:
    sent = [value for key, value in metadata if key == name]
    given = sent[0] if sent else b""
    return given.encode() if isinstance(given, str) else given


def make_token(file: Path) -> None:
    """Write a new token into a new file that its owner alone may read. An older file is replaced. Raises: OSError."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(secrets.token_hex(_TOKEN_BYTES) + "\n")


def read_token(file: Path) -> str:
    """Return the token of a file. Raises: NotFound, Denied, ConfigError if others may read the file or it is empty."""
    try:
        with file.open(encoding="ascii") as opened:
            mode, text = os.fstat(opened.fileno()).st_mode, opened.read().strip()
    except FileNotFoundError as error:
        how = HOW_TO_MAKE.format(file=file)
        raise NotFound(f"the token file {file} does not exist; make one with {how}") from error
    except (OSError, ValueError) as error:
        raise Denied(f"cannot read the token file {file}: {error}; only the user who made it may") from error
    if mode & _MODE_OF_OTHERS:
        raise ConfigError(f"others than its owner may use the token file {file}; chmod 600 it, and make a new token")
    if not text:
        raise ConfigError(f"the token file {file} is empty; write a long random text into it")
    return text
