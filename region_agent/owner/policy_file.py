"""The file in which the owner of a region says what may happen there, `periplus.agent-policy/1` (docs/owners.md).

A key that is left out forbids nothing. The file has no values of secrets, but says where they are on the agent's host.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from periplus.config.loading import Config, Words, check_schema, read_yaml, refuse, validate
from periplus.config.secret_names import SecretName
from periplus.errors import ConfigError, Denied
from periplus.values.task import REGION_NAME

SCHEMA = "periplus.agent-policy/1"
"""Name and version of the format of policy files."""

MAX_SECRET_BYTES = 32 << 10
"""Largest secret in bytes. Linux takes 128 KiB for one variable; no key or token comes near it. Chosen by hand."""


class SecretSource(Config):
    """Where the value of a secret is on the agent's host. Exactly one of the keys is given."""

    env: str | None = Field(default=None, min_length=1)
    """Name of an environment variable of the agent."""
    file: Path | None = None
    """Path of a file with the value alone. Line ends after it are left out. Read at each start of a process."""

    def value(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the secret. Raises: Denied with the reason, without any of the value."""
        if self.env is not None:
            found, place = environment.get(self.env, ""), f"the agent's environment variable {self.env}"
        else:
            assert self.file is not None, "of a source, one key is given"
            place = f"the file {self.file}"
            try:
                # The agent's event loop reads it: a pipe that nobody writes to must not hold it up.
                with open(self.file, "rb", opener=_without_waiting) as file:
                    content = file.read(MAX_SECRET_BYTES + 1) or b""  # None of a pipe with nothing in it
                found = content.decode().rstrip("\r\n")
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise Denied(f"{place} cannot be read: {why}") from None  # a decoder's error shows bytes
        if not found:
            raise Denied(f"{place} is empty or missing")
        if "\0" in found or len(found.encode()) > MAX_SECRET_BYTES:
            raise Denied(f"{place} holds a NUL, or more than {MAX_SECRET_BYTES:,} bytes")
        return found


class AgentPolicy(Config):
    """What the owner of a region allows there."""

    operators: (
        tuple[Annotated[str, Words("that is the name of an operator"), Field(pattern=f"^{REGION_NAME}$")], ...] | None
    ) = None
    """Operators whose jobs may run here, by the names in their certificates. null: all."""
    devices: tuple[Annotated[int, Field(ge=0, le=1023)], ...] | None = None
    """Indices of the devices that jobs may use, of those that the agent finds or that --devices declares. null: all."""
    engines: tuple[Literal["torch", "vllm"], ...] | None = None
    """Engines that rollout workers may use here. null: all."""
    own_code: bool = True
    """Whether jobs may run code of their users' own, if the agent has --allow-code too."""
    unsandboxed: bool = True
    """Whether programs that a model wrote may run without a sandbox, if the agent has --allow-unsandboxed too."""
    egress_gb_per_day: float | None = Field(default=None, ge=0, le=1e9)
    """Gigabytes (10^9 bytes) that the gateway may send to other regions in a day of UTC. null: no limit."""
    secrets: dict[SecretName, SecretSource] = Field(default_factory=dict, max_length=256)
    """Where the secrets are that jobs may name, by name."""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_policy(path: Path) -> AgentPolicy:
    """Return the policy of a file. Raises: ConfigError if it cannot be read or is no policy."""
    if path.is_fifo():  # reading would wait for somebody who writes
        raise ConfigError(f"{path} is a pipe; the policy is read again and again, so give a file")
    policy = validate(AgentPolicy, check_schema(read_yaml(path), SCHEMA, str(path)), str(path))
    refuse(
        str(path),
        [
            f"secrets.{name} must have exactly one of the keys env and file"
            for name, source in policy.secrets.items()
            if (source.env is None) == (source.file is None)
        ],
    )
    return policy
