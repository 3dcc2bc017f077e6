"""Finds the files of a data set: one file, a directory, or a repository of the Hugging Face Hub in the local cache.

In a directory, in this order:

1. A folder that the library `datasets` saved (`save_to_disk`) names its files in `state.json`, and one with several
   splits has a folder for each.
2. The front matter of `README.md` may list configurations with the files of each split, as on the Hub.
3. Otherwise a file belongs to the split whose name is a word of its path below the directory, and to the configuration
   (`subset`) that is a folder or a word of its path. A single file needs no word. Files `.json` count only where there
   is no file of another kind, since most of them are settings or notes.

Files are taken in the order of their names, so that the order of the problems is the same on each machine.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from periplus.config import yaml_text
from periplus.config.local_paths import exists
from periplus.environment.datasets.rows import SUFFIXES, suffix_of
from periplus.errors import ConfigError
from periplus.job.data_section import DatasetKeys
from periplus.job.hub import cached_folder, hub_name

STATE_FILE = "state.json"
"""File in which `datasets` lists the files of a split that it saved."""

METADATA_FILES = (STATE_FILE, "dataset_dict.json", "dataset_info.json", "dataset_infos.json")
"""Files ending with `.json` in which the library `datasets` describes a data set."""

CARD_FILE = "README.md"
"""File of a data set that may begin with a description of its files, in YAML between two lines of three hyphens."""

MAX_CARD_BYTES = 1 << 20
"""Bytes of a data set's card that are read. Chosen by hand: the front matter has a few kilobytes."""

_SHOWN = 8


def data_files(source: DatasetKeys, key: str) -> tuple[Path, ...]:
    """Return the files with the rows of a data set, in order.

    `key` is the job's key of the path, for messages. Raises: ConfigError if there are none.
    """
    assert source.path is not None, "resolve() demands a path"
    name = hub_name(source.path, source.revision, "dataset", key)
    if name is None:
        place = Path(source.path)
    else:
        folder = cached_folder(name, key)
        place = folder / name.file if name.file else folder
    if exists(place) and place.is_file():
        return (place,)
    if not exists(place) or not place.is_dir():
        raise ConfigError(f"{key} {source.path!r} does not exist; give a data file, a directory, or a name on the Hub")
    files = _saved_files(place, source, key) or _card_files(place, source, key) or _named_files(place, source, key)
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{key} {source.path!r} lacks the file {file.name}; download the data set again")
    return files


def _saved_files(folder: Path, source: DatasetKeys, key: str) -> tuple[Path, ...]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(each.parent.name for each in folder.glob(f"*/{STATE_FILE}"))
        if source.split not in splits:
            raise _no_split(source, splits, key)
        folder = folder / source.split
    state = folder / STATE_FILE
    if not state.is_file():
        return ()
    try:
        return tuple(folder / each["filename"] for each in json.loads(state.read_bytes())["_data_files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{key}: {state} is not readable as the library datasets writes it: {error}") from error


def _card_files(folder: Path, source: DatasetKeys, key: str) -> tuple[Path, ...]:
    configurations = _configurations(folder / CARD_FILE)
    if not configurations:
        return ()
    names = [str(each.get("config_name", "default")) for each in configurations]
    wanted = source.subset or next((name for name in ("default", *names[: len(names) == 1]) if name in names), None)
    if wanted not in names:
        said = f"data.subset {wanted!r} is none of them" if wanted else "say which with subset"
        raise ConfigError(f"{key} {source.path!r} has the configurations {', '.join(names[:_SHOWN])}; {said}")
    patterns = _patterns_by_split(configurations[names.index(wanted)].get("data_files"))
    if not patterns:
        return ()  # a configuration whose files are found by their names
    if source.split not in patterns:
        raise _no_split(source, sorted(patterns), key)
    found = {file for pattern in patterns[source.split] for file in folder.glob(pattern) if _is_data(file)}
    if not found:
        raise ConfigError(
            f"{key} {source.path!r} has no file {', '.join(patterns[source.split])} that ends with "
            f"{', '.join(SUFFIXES)} here; download the whole data set"
        )
    return tuple(sorted(found))


def _configurations(card: Path) -> Sequence[Mapping[str, Any]]:
    try:
        with card.open("rb") as file:
            text = file.read(MAX_CARD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return ()
    front = re.match(r"---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    try:
        tree = yaml_text.parse(front[1], str(card)) if front else None
    except ConfigError:
        return ()  # a card is a text for people, and need not be well-formed
    configurations = tree.get("configs") if isinstance(tree, Mapping) else None
    return [each for each in configurations or () if isinstance(each, Mapping)]


def _patterns_by_split(data_files_of_config: Any) -> dict[str, list[str]]:
    """Return the file patterns of each split. A card may give one pattern, a list of them, or a list by split."""
    entries = data_files_of_config if isinstance(data_files_of_config, list) else [data_files_of_config]
    patterns: dict[str, list[str]] = {}
    for entry in entries:
        split, paths = ("train", entry) if isinstance(entry, str) else ("", None)
        if isinstance(entry, Mapping):
            split, paths = str(entry.get("split", "train")), entry.get("path")
        for path in paths if isinstance(paths, list) else [paths]:
            if isinstance(path, str) and not path.startswith("/") and ".." not in Path(path).parts:
                patterns.setdefault(split, []).append(path)
    return patterns


def _named_files(folder: Path, source: DatasetKeys, key: str) -> tuple[Path, ...]:
    every = sorted(file for file in folder.rglob("*") if _is_data(file) and file.is_file())
    files = [file for file in every if file.suffix != ".json"] or every
    if not files:
        raise ConfigError(f"{key} {source.path!r} has no file that ends with {', '.join(SUFFIXES)}")
    if source.subset is not None:
        files = [file for file in files if source.subset in _words(folder, file)]
        if not files:
            raise ConfigError(f"{key} {source.path!r} has no file of the subset {source.subset!r}")
    if len(files) == 1:
        return (files[0],)
    of_split = tuple(file for file in files if source.split in _words(folder, file))
    if not of_split:
        names = [str(file.relative_to(folder)) for file in files]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise ConfigError(
            f"{key} {source.path!r} has no file of the split {source.split!r}; it has {shown}; set split, or name one "
            "of the files"
        )
    return of_split


def _is_data(file: Path) -> bool:
    return suffix_of(file) is not None and file.name not in METADATA_FILES


def _words(folder: Path, file: Path) -> set[str]:
    path = file.relative_to(folder)
    stem = path.name.removesuffix(suffix_of(path) or "")
    return {*path.parts[:-1], *re.split(r"[^A-Za-z0-9]+", stem), stem}


def _no_split(source: DatasetKeys, splits: Sequence[str], key: str) -> ConfigError:
    return ConfigError(f"{key} {source.path!r} has no split {source.split!r}; it has {', '.join(splits[:_SHOWN])}")
