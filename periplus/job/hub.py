"""Names of the Hugging Face Hub, and where the local cache has what they name.

Nothing is downloaded: a name that the cache of this machine lacks is an error that tells how to download it. The cache
is that of huggingface_hub, which reads HF_HOME and HF_HUB_CACHE. The library is imported when a name is looked up.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from periplus.config.local_paths import exists, expanded_path
from periplus.errors import ConfigError

HUB_PREFIX = "hf://"
"""Prefix of an address on the Hub, as huggingface_hub's file system has it."""

Kind = Literal["model", "dataset"]
"""Kind of a repository on the Hub."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_ADDRESS = re.compile(r"hf://(?P<datasets>datasets/)?(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?(/(?P<file>.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository of the Hub, or one file of it. `revision` is a branch, a tag or a commit."""

    kind: Kind
    repo: str
    revision: str = "main"
    file: str | None = None

    @property
    def download(self) -> str:
        """Return the command that brings the repository into the local cache."""
        parts = [f"hf download {self.repo}", f"--revision {self.revision}" if self.revision != "main" else ""]
        return " ".join(filter(None, [*parts, "--repo-type dataset" if self.kind == "dataset" else ""]))

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" + (f"/{self.file}" if self.file else "")


def hub_name(path: str, revision: str | None, kind: Kind, key: str) -> HubName | None:
    """Return what a path names on the Hub, or None if it is a path of this machine's file system.

    ORGANISATION/NAME is a name of the Hub unless there is such a file or directory here. `key` is the job's key, for
    messages. Raises: ConfigError for an address that is not understood, or of a repository of another kind.
    """
    if path.startswith(HUB_PREFIX):
        name = _address(path, kind, key)
        if revision is not None and name.revision not in ("main", revision):
            raise ConfigError(f"{key} names the revision {name.revision}, but {_sibling(key)} is {revision}; give one")
        return name if revision is None else replace(name, revision=revision)
    if _NAME.fullmatch(path) and not exists(Path(path)):
        return HubName(kind=kind, repo=path, revision=revision or "main")
    if revision is not None:
        raise ConfigError(
            f"{_sibling(key)} is {revision}, but {key} {path!r} is not a name on the Hugging Face Hub; leave "
            f"{_sibling(key)} out"
        )
    return None


def _address(path: str, kind: Kind, key: str) -> HubName:
    found = _ADDRESS.fullmatch(path)
    if found is None or not _NAME.fullmatch(found["repo"]):
        prefix = "hf://datasets/" if kind == "dataset" else HUB_PREFIX
        raise ConfigError(f"{key} {path!r} is not an address on the Hub; write {prefix}ORGANISATION/NAME[@REVISION]")
    if (kind == "dataset") != bool(found["datasets"]):
        raise ConfigError(
            f"{key} {path!r} names a {'data set' if found['datasets'] else 'model'}; a {_WORDS[kind]} is needed here"
            + ("" if found["datasets"] else ", hf://datasets/ORGANISATION/NAME")
        )
    if kind == "model" and found["file"]:
        raise ConfigError(f"{key} {path!r} names a file of a model; leave out {found['file']!r}")
    return HubName(kind=kind, repo=found["repo"], revision=found["revision"] or "main", file=found["file"])


def located(path: str, revision: str | None, kind: Kind, key: str) -> dict[str, str]:
    """Return a path's keys `path` and `revision` in the form that means the same in every directory and at every time.

    A path of the file system is expanded and becomes absolute. A name of the Hub becomes an address, with the commit
    that the cache of this machine has for its revision. A name that the cache lacks stays as it is: the checks of a job
    refuse it later.
    Raises: ConfigError.
    """
    path = expanded_path(path, key)
    name = hub_name(path, revision, kind, key)
    if name is None:
        return {"path": str(Path(path).absolute())}
    try:
        name = replace(name, revision=cached_folder(name, key).name)
    except ConfigError:
        return {"path": path}
    prefix = f"{HUB_PREFIX}datasets/" if kind == "dataset" else HUB_PREFIX
    return {"path": f"{prefix}{name.repo}" + (f"/{name.file}" if name.file else ""), "revision": name.revision}


def cached_folder(name: HubName, key: str) -> Path:
    """Return the folder of the local cache with the repository's files at its revision; the last part is the commit.

    Raises: ConfigError if the cache has no such revision, or if huggingface_hub is not installed.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{key} {name} is a name on the Hugging Face Hub, and its cache is read by huggingface_hub, which is not "
            "installed here; pip install 'periplus[train]'"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            name.repo, repo_type=name.kind, revision=name.revision, local_files_only=True
        )
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ConfigError(
            f"{key} {name} is neither a path on this machine nor in its Hugging Face cache, and a job downloads "
            f"nothing; run `{name.download}` here and on the machine of the trainer"
        ) from error
    return Path(folder)


def _sibling(key: str) -> str:
    return f"{key.rpartition('.')[0]}.revision"


_WORDS = {"model": "model", "dataset": "data set"}
