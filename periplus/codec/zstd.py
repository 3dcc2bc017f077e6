"""zstandard compression with a hard bound on the memory that decompression allocates.

`ZstdDecompressor.decompress` ignores `max_output_size` if the frame declares its size, so thirty bytes from a peer
could make it allocate gigabytes. Here the declared size is read first; it must be present and within the bound. Frames
carry zstandard's checksum of the content, so a flipped bit that would still decode is refused.
"""

import threading

import zstandard

from periplus.errors import CorruptFrame

_EMPTY_BODY = bytes.fromhex("01000099e9d851")
"""Body of a frame without content: one last block of no bytes, and the checksum of nothing. The package decodes a frame
that declares no content without looking at the rest, so without this comparison one flipped bit could empty a
payload."""

_of_thread = threading.local()
"""One decompressor per thread: creating a context takes longer than decoding a small frame, and a context serves one
thread at a time."""


def compress(content: bytes, level: int) -> bytes:
    """Return one frame that declares the size and checksum of its content."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True).compress(content)


def compress_words(content: bytes, level: int) -> bytes:
    """Compress words of two bytes, with matches of at least three words.

    Shorter matches cost the reader more time than they are worth (docs/design/0006-trajectories.md).
    """
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=len(content), min_match=6, write_checksum=True, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def compress_symbols(content: bytes) -> bytes:
    """Compress independent symbols: entropy coding, and only matches of seven symbols or more."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=17,
        hash_log=14,
        chain_log=14,
        search_log=4,
        min_match=7,
        target_length=32,
        strategy=zstandard.STRATEGY_BTOPT,
        write_checksum=True,
        write_content_size=True,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def decompress(payload: bytes | memoryview, *, max_content_bytes: int) -> bytes:
    """Return the content of exactly one frame. Raises: CorruptFrame, also if it exceeds `max_content_bytes`."""
    try:
        # The declared size is read from the frame's header, before the decompressor allocates it.
        content_bytes = zstandard.frame_content_size(payload)
        if content_bytes < 0:
            raise CorruptFrame(f"zstandard frame of {len(payload)} bytes does not declare its content's size; refused")
        if content_bytes > max_content_bytes:
            raise CorruptFrame(
                f"zstandard frame declares {content_bytes} bytes of content; at most {max_content_bytes}"
            )
        if content_bytes == 0 and bytes(payload[zstandard.frame_header_size(payload) :]) != _EMPTY_BODY:
            raise CorruptFrame(f"zstandard frame of {len(payload)} bytes declares no content, but is not empty")
        return _decompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptFrame(f"zstandard frame of {len(payload)} bytes is damaged: {error}; fetch it again") from error


def decompress_exactly(payload: bytes | memoryview, num_bytes: int) -> bytes:
    """Return the content of exactly one frame, which must declare `num_bytes` bytes, at least one.

    Raises: CorruptFrame.
    """
    try:
        content_bytes = zstandard.frame_content_size(payload)
        if content_bytes != num_bytes or not num_bytes:
            raise CorruptFrame(f"zstandard frame declares {content_bytes} bytes of content; expected {num_bytes}")
        return _decompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptFrame(f"zstandard frame of {len(payload)} bytes is damaged: {error}; fetch it again") from error


def _decompressor() -> zstandard.ZstdDecompressor:
    try:
        found: zstandard.ZstdDecompressor = _of_thread.decompressor
    except AttributeError:
        found = _of_thread.decompressor = zstandard.ZstdDecompressor()
    return found
