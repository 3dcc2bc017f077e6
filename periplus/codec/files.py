"""CODEC_FILES_ZSTD: a bundle of small files (tokenizer, model config) in one zstandard frame.

The content is little-endian: u32 number of files; for each file, sorted by name, u32 bytes of the name, the name in
UTF-8, and u64 bytes of data; then the data of all files in the same order. Names are relative POSIX paths that stay
below the directory into which a reader writes them. Both encoder and decoder check the names, because a reader trusts
no writer.
"""

import struct
from collections.abc import Iterable, Mapping

from periplus.codec.columns import Columns
from periplus.codec.zstd import compress, decompress
from periplus.errors import CorruptFrame

LEVEL = 9
"""zstandard level. A bundle is compressed once per job and sent once per region, so a slow level pays. Chosen by
hand.
"""

MAX_NAME_BYTES = 1024
"""Longest file name in UTF-8 bytes. Chosen by hand."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def encode(files: Mapping[str, bytes]) -> bytes:
    """Return one payload for all files. Raises: ValueError for a name that `check_names` refuses."""
    return compress(content(files), LEVEL)


def content(files: Mapping[str, bytes]) -> bytes:
    """Return the bytes that `encode` compresses.

    Their length is the `content_bytes` of an opening. Raises: as `encode`.
    """
    check_names(files)
    ordered = sorted((name.encode(), data) for name, data in files.items())
    head = [_U32.pack(len(name)) + name + _U64.pack(len(data)) for name, data in ordered]
    return b"".join([_U32.pack(len(ordered)), *head, *(data for _, data in ordered)])


def decode(payload: bytes, *, max_content_bytes: int) -> dict[str, bytes]:
    """Invert `encode`. Raises: CorruptFrame, also if the content exceeds `max_content_bytes`."""
    columns = Columns(decompress(payload, max_content_bytes=max_content_bytes))
    (num_files,) = _U32.unpack(columns.take(_U32.size))
    # First the names and sizes of all files, then their data in the same order.
    sizes: list[tuple[bytes, int]] = []
    for _ in range(num_files):
        (name_bytes,) = _U32.unpack(columns.take(_U32.size))
        name = bytes(columns.take(name_bytes))
        sizes.append((name, *_U64.unpack(columns.take(_U64.size))))
    names = [name for name, _ in sizes]
    # One bundle has one encoding: sorted names, each once.
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
    """Check that the names may be files of one bundle.

    Refused are names that leave the directory, that a shell or terminal could interpret, or that collide: one name is
    the directory of another.

    Raises: ValueError.
    """
    known = set(names)
    for name in known:
        parts = name.split("/")
        if not name.isprintable() or "\\" in name or ":" in name or len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"{name[:80]!r} has a backslash, a colon or an unprintable character, or is too long")
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{name[:80]!r} is not a plain relative path")
        # A directory of one file that is itself a file could not be written.
        if parents := known & {"/".join(parts[:i]) for i in range(1, len(parts))}:
            raise ValueError(f"{sorted(parents)[0][:80]!r} is both a file and a directory of {name[:80]!r}")
