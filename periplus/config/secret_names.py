"""The `secrets` of a job: which secrets of a region its processes get, as environment variables.

A job has only names. What the secret of a name is in a region, its owner says in the agent's policy (docs/owners.md).
"""

from typing import Annotated

from pydantic import Field

from periplus.config.loading import Words

SecretName = Annotated[
    str,
    Words("of up to 63 letters, digits and ._-, beginning with a letter or digit"),
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"),
]
"""Name of a secret, as owners of regions and users agree on it."""

VariableName = Annotated[
    str,
    Words("of up to 63 capital letters, digits and _, beginning with a letter"),
    Field(pattern=r"^[A-Z][A-Z0-9_]{0,62}$"),
]
"""Name of the environment variable that holds a secret."""

RESERVED_PREFIXES = ("CUDA_", "LD_", "OMP_", "PERIPLUS_", "PYTHON")
"""Beginnings of variables that decide how a process runs, which no job chooses for a region's owner."""

RESERVED = frozenset({"HOME", "PATH", "SHELL", "TMPDIR", "USER"})
"""More such variables."""


def secret_refusals(secrets: dict[str, str]) -> list[str]:
    """Return what is wrong with a job's secrets, a sentence each."""
    return [
        f"secrets.{variable} would replace a variable that decides how the region's processes run; name another one"
        for variable in secrets
        if variable in RESERVED or variable.startswith(RESERVED_PREFIXES)
    ]
