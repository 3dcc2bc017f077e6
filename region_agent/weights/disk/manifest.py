"""Manifest of a copy (a full state on disk): what the copy must be, as one checksummed block in a file of its own.

Manifests are numbered, and the whole one with the highest number counts. A manifest is never changed in place, so a
crash never leaves a mixture of two. The module also defines the names of a copy's files.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from periplus.codec.weights.layout import StateLayout
from periplus.errors import CorruptSpool, PeriplusError
from periplus.publication import Attestation, Closing, Opening
from periplus.values.policy import Policy
from region_agent.weights.disk.blocks import Read, block, blocks
from region_agent.weights.disk.convert import record_from_bytes, record_to_bytes
from region_agent.weights.disk.files import WeightFiles, new_file

_MANIFEST = b"COPY"
_SCHEMA = "periplus.copy/1"
_NAME = re.compile(r"copy-(\d{10})\.(state|manifest|redo)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullStateManifest:
    """What a copy must be: its layout, its signed opening and closing, and the name of the state's file."""

    layout: StateLayout
    attestation: Attestation
    file: str

    @property
    def policy(self) -> Policy:
        """Version of the state."""
        return self.attestation.opening.policy

    @property
    def digest(self) -> bytes:
        """State digest, as the trainer signed it."""
        return self.attestation.closing.state_digest

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON value; opening and closing are bytes of convert.py in hexadecimal."""
        opening, closing = self.attestation.opening, self.attestation.closing
        return {
            "schema": _SCHEMA,
            "file": self.file,
            "layout": self.layout.to_json(),
            "opening": record_to_bytes(opening).hex(),
            "closing": record_to_bytes(closing).hex(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Invert `to_json`. Raises: CorruptSpool."""
        try:
            if value["schema"] != _SCHEMA:
                raise ValueError(f"schema {value['schema']!r}, expected {_SCHEMA}")
            opening, closing = (record_from_bytes(bytes.fromhex(value[name])) for name in ("opening", "closing"))
            if not isinstance(opening, Opening) or not isinstance(closing, Closing):
                raise ValueError("it has no opening and closing")
            attestation = Attestation(opening=opening, closing=closing)
            return cls(layout=StateLayout.from_json(value["layout"]), attestation=attestation, file=value["file"])
        except (PeriplusError, ValueError, TypeError, KeyError) as error:
            raise CorruptSpool(f"a copy's manifest is not readable: {error}; the copy is fetched again") from error


def file_name(number: int, kind: str) -> str:
    """Return the name of a copy's file of this number and kind (state, manifest or redo)."""
    return f"copy-{number:010d}.{kind}"


def numbered(layer: WeightFiles, folder: Path) -> list[tuple[int, str]]:
    """Return the number and kind of each file of a copy in the folder. Raises: OSError."""
    return [(int(found[1]), found[2]) for name in layer.names(folder) if (found := _NAME.fullmatch(name))]


def write_manifest(layer: WeightFiles, folder: Path, manifest: FullStateManifest, number: int) -> None:
    """Write a manifest durably. Raises: StorageError."""
    with new_file(layer, folder / file_name(number, "manifest"), sync=True) as append:
        append(block(_MANIFEST, json.dumps(manifest.to_json()).encode()))
        layer.sync_folder(folder)


def newest_manifest(layer: WeightFiles, folder: Path, numbers: Sequence[int]) -> tuple[int, FullStateManifest] | None:
    """Return the whole manifest with the highest number, with that number, or None. Raises: OSError."""
    for number in sorted(numbers, reverse=True):
        for each in blocks(reader(layer, folder / file_name(number, "manifest"))):
            try:
                return number, FullStateManifest.from_json(json.loads(each.data))
            except (CorruptSpool, ValueError):
                break
    return None


def reader(layer: WeightFiles, path: Path) -> Read:
    """Return a function that reads parts of a file."""
    return lambda offset, num_bytes: layer.read(path, offset, num_bytes)
