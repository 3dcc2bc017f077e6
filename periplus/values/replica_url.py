"""URLs of replicas: copies of checkpoints that outlive the region of their trainer (trainer/checkpointing/replicas.py).

    <base>/<job id>/<fork>.<version>

The base is a job's `checkpoint.replicate`. If that names a region, the coordinator replaces it with the URL that the
region's agent was started with (`--replica-store`).

An agent writes there, and reads from there, with its own rights and credentials, on behalf of a job that came over the
network. So only file systems across a network are allowed, and directories that the agent's operator allows for runs.
"""

import re
from pathlib import Path

from periplus.errors import ConfigError
from periplus.values.policy import Policy
from periplus.values.task import REGION_NAME

NO_REPLICA = "none"
"""The value of `checkpoint.replicate` that keeps checkpoints in the trainer's region only."""

SCHEMES = ("file", "s3", "gs", "gcs", "az", "abfs", "abfss", "oci", "hdfs", "webhdfs", "sftp")
"""Schemes of fsspec that may be named. Others read from another file system, or run what a URL says."""


def names_region(text: str) -> bool:
    """Return whether a job's `checkpoint.replicate` names a region, whose agent says where replicas lie."""
    return text != NO_REPLICA and re.fullmatch(REGION_NAME, text) is not None


def check_replica_url(text: str) -> None:
    """Check that replicas may lie at a URL. Raises: ConfigError."""
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES or "::" in text or not rest.strip("/") or ".." in text:
        raise ConfigError(
            f"{text!r} is no place for replicas of checkpoints; give a URL such as s3://BUCKET/PREFIX or "
            f"file:///DIRECTORY (schemes: {', '.join(SCHEMES)}), for a job also {NO_REPLICA!r} or a region"
        )
    if scheme == "file" and not rest.startswith("/"):
        raise ConfigError(f"{text!r} names a host or a relative path; a directory has three slashes: file:///DIRECTORY")


def replica_url(base: str, job_id: str, policy: Policy) -> str:
    """Return the URL of the replica of one checkpoint."""
    return f"{base.rstrip('/')}/{job_id}/{policy}"


def is_replica(text: str) -> bool:
    """Return whether a text is a URL; else it is a directory, or says that there is none."""
    return "://" in text


def replicated_policy(url: str) -> Policy:
    """Return the policy of the replica at a URL. Raises: ConfigError."""
    fork, _, version = url.rpartition("/")[2].partition(".")
    if not (fork.isdecimal() and version.isdecimal()):
        raise ConfigError(f"{url} is not the URL of a replica, which ends in FORK.VERSION")
    return Policy(int(fork), int(version))


def local_directory(url: str) -> Path | None:
    """Return the directory of a replica, or None if it is across a network."""
    # As fsspec reads it: nothing in it is unquoted, and no part of it is a query.
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None
