"""The user's own code that travels with a job: which files, under which names, and with which digests.

    the job file          reward.functions: [{path: "my_rewards:score"}], reward.code: [my_rewards.py, lib/]
                          environment: {path: "my_env:Game"}, environment.code: [my_env.py]
    where it is submitted `resolved_code` finds the files and writes their digests into the job; a person agrees
    where it is trained   `read_code` reads them again, refuses what has changed, and they go into the bundle
    a worker              unpacks them into CODE_FOLDER, from where processes of rewards and environments import them

A file travels under its own name, and a folder under its name with all Python files in it. So a module is imported as
it is next to the job file. Symbolic links, hidden files and caches stay behind.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from periplus.config.local_paths import expanded_path
from periplus.errors import ConfigError
from periplus.job.data_section import EnvironmentSection
from periplus.job.reward_section import RewardSection

Section = TypeVar("Section", RewardSection, EnvironmentSection)
"""A section that may name code of the user's own."""

CODE_FOLDER = "reward_code"
"""Folder of the code in a job's bundle, and on a worker below the folder that the bundle is unpacked into."""

MAX_FILES = 256
"""Most files of a job's code. Chosen by hand: more is a library, which belongs into the environments of workers."""

MAX_CODE_BYTES = 4 << 20
"""Largest size of a job's code, in bytes. Chosen by hand, for the same reason."""

SUFFIX = ".py"
"""Suffix of the files of a folder that travel."""


def resolved_code(section: Section, folders: tuple[Path, ...]) -> Section:
    """Return the section with absolute paths of its code and the digest of each file.

    Without `code` the modules of the functions are looked for in `folders`. Digests that the section has already
    stay, so that files which have changed are refused. Raises: ConfigError.
    """
    if not section.has_own_code:
        return section
    where = _name(section)
    given = tuple(Path(expanded_path(each, f"{where}.code")).absolute() for each in section.code) or tuple(
        _module(top, folders, where) for top in section.own_modules
    )
    section = section.model_copy(update={"code": tuple(map(str, given))})
    if section.code_digests:
        return section
    digests = {name: blake3(content).hexdigest() for name, content in _contents(given, where).items()}
    return section.model_copy(update={"code_digests": digests})


def read_code(reward: RewardSection, environment: EnvironmentSection | None) -> Mapping[str, bytes]:
    """Return the content of each file of a job's code by the name under which it travels.

    Raises: ConfigError if files cannot be read, or are not those that the job's digests name, or if two of them would
    travel under one name.
    """
    contents: dict[str, bytes] = {}
    for section in (reward, environment):
        read = {} if section is None else _read(section)
        for name in contents.keys() & read.keys():
            if contents[name] != read[name]:
                raise ConfigError(
                    f"reward.code and environment.code have different files that travel as {name}; rename one of them"
                )
        contents |= read
    return contents


def _read(section: RewardSection | EnvironmentSection) -> dict[str, bytes]:
    if not section.has_own_code:
        return {}
    where = _name(section)
    contents = _contents(tuple(map(Path, section.code)), where)
    digests = {name: blake3(content).hexdigest() for name, content in contents.items()}
    if digests != section.code_digests:
        odd = sorted({name for name, _ in digests.items() ^ section.code_digests.items()})
        raise ConfigError(
            f"{where}.code has changed since the job was submitted: {', '.join(odd[:5])}; restore it, or submit a new "
            "job, where the new code is shown and agreed to"
        )
    return contents


def _name(section: RewardSection | EnvironmentSection) -> str:
    return "reward" if isinstance(section, RewardSection) else "environment"


def _module(top: str, folders: tuple[Path, ...], where: str) -> Path:
    for folder in folders:
        for path in (folder / f"{top}{SUFFIX}", folder / top):
            if path.is_file() or (path / "__init__.py").is_file():
                return path.absolute()
    looked = " and ".join(dict.fromkeys(map(str, folders)))
    file = f"{top}{SUFFIX}"
    raise ConfigError(
        f"{'reward.functions' if where == 'reward' else 'environment.path'} names the module {top}, but there is no "
        f"{file} or {top}/__init__.py in {looked}; name its files in {where}.code"
    )


def _contents(paths: tuple[Path, ...], where: str) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    size = 0
    for name, path in _files(paths):
        if name in contents:
            raise ConfigError(f"{where}.code has two files that travel as {name}; rename one of them")
        try:
            contents[name] = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{where}.code: {path} cannot be read: {error.strerror}; give a file that exists on the machine of the "
                "trainer too"
            ) from error
        size += len(contents[name])
        if len(contents) > MAX_FILES or size > MAX_CODE_BYTES:
            raise ConfigError(
                f"{where}.code has more than {MAX_FILES} files or {MAX_CODE_BYTES >> 20} MiB; name the files that it "
                "needs, and install libraries where workers run"
            )
    return contents


def _files(paths: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the name under which each file travels, and its path."""
    for path in paths:
        if not path.is_dir():
            yield path.name, path
            continue
        for file in sorted(path.rglob(f"*{SUFFIX}")):
            parts = file.relative_to(path).parts
            if file.is_file() and not any(part.startswith(".") for part in parts) and not _has_link(path, file):
                yield "/".join((path.name, *parts)), file


def _has_link(root: Path, file: Path) -> bool:
    return any(each.is_symlink() for each in (file, *file.parents) if each.is_relative_to(root) and each != root)
