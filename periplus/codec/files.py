"""CODEC_FILES_ZSTD: a bundle of small files (tokenizer, model config) in one zstandard frame.

Content, little-endian: u32 number of files; for each, sorted by name, u32 bytes of name, name in UTF-8, u64 bytes of
data; then the data in the same order. Names are relative POSIX paths that stay below the directory into which a reader
writes them: checked on both sides, because a reader trusts no writer.
"""

import struct
from collections.abc import Iterable, Mapping

from periplus.codec.columns import Columns
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame

LEVEL = 9
"""A bundle is sent once a region and compressed once a job."""

MAX_NAME_BYTES = 1024
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def encode(files: Mapping[str, bytes]) -> bytes:
    """One payload for all files. Raises: ValueError for a name that check_names refuses."""
    return compress(content(files), LEVEL)


def content(files: Mapping[str, bytes]) -> bytes:
    """What encode compresses; its length is the `content_bytes` of an opening. Raises: as encode."""
    check_names(files)
    ordered = sorted((name.encode(), data) for name, data in files.items())
    head = [_U32.pack(len(name)) + name + _U64.pack(len(data)) for name, data in ordered]
    return b"".join([_U32.pack(len(ordered)), *head, *(data for _, data in ordered)])


def decode(payload: bytes, *, max_content_bytes: int) -> dict[str, bytes]:
    """The inverse of encode. Raises: CorruptFrame."""
    columns = Columns(decompress(payload, max_content_bytes=max_content_bytes))
    (num_files,) = _U32.unpack(columns.take(_U32.size))
    sizes: list[tuple[bytes, int]] = []
    for _ in range(num_files):
        (name_bytes,) = _U32.unpack(columns.take(_U32.size))
        name = bytes(columns.take(name_bytes))
        sizes.append((name, *_U64.unpack(columns.take(_U64.size))))
    names = [name for name, _ in sizes]
    if names != sorted(set(names)):
        raise CorruptFrame(f"names in a bundle repeat or are not sorted: {names[:3]}...")
    try:
        files = {name.decode(): bytes(columns.take(data_bytes)) for name, data_bytes in sizes}
        check_names(files)
    except ValueError as error:
        raise CorruptFrame(f"a bundle has a bad file name: {error}") from error
    columns.end()
    return files


def check_names(names: Iterable[str]) -> None:
    """Refuse names that leave the directory, mean something to a shell or terminal, or collide. Raises: ValueError."""
    known = set(names)
    for name in known:
        parts = name.split("/")
        if not name.isprintable() or "\\" in name or ":" in name or len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"{name[:80]!r} has a backslash, a colon or an unprintable character, or is too long")
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{name[:80]!r} is not a plain relative path")
        if parents := known & {"/".join(parts[:i]) for i in range(1, len(parts))}:
            raise ValueError(f"{sorted(parents)[0][:80]!r} is both a file and a directory of {name[:80]!r}")
