"""zstandard with a hard bound on what decompression allocates.

`ZstdDecompressor.decompress` ignores `max_output_size` when the frame declares its size, so that thirty bytes from a
peer may ask for gigabytes. Here the declared size is read first, must be there, and must be within the bound. Frames
carry zstandard's checksum of the content: a flipped bit that decodes is still refused.
"""

import threading

import zstandard

from periplus.errors import CorruptFrame

_EMPTY_BODY = bytes.fromhex("01000099e9d851")
"""One last block of no bytes, and the checksum of nothing. The package decodes a frame that declares no content without
looking at the rest, so that one flipped bit could make a payload vanish."""

_of_thread = threading.local()
"""Making a context costs more than decoding a small frame, and one context serves one thread at a time."""


def compress(content: bytes, level: int) -> bytes:
    """One frame that declares its content's size and checksum."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True).compress(content)


def compress_words(content: bytes, level: int) -> bytes:
    """As compress, for words of two bytes: repeats of less than three words cost the reader more than they save."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, source_size=len(content), min_match=6, write_checksum=True, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def compress_symbols(content: bytes) -> bytes:
    """As compress, for independent symbols: entropy coding, and only repeats of seven symbols or more."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=17, hash_log=14, chain_log=14, search_log=4, min_match=7, target_length=32,
        strategy=zstandard.STRATEGY_BTOPT, write_checksum=True, write_content_size=True,
    )  # fmt: skip
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def decompress(payload: bytes | memoryview, *, max_content_bytes: int) -> bytes:
    """The content of exactly one frame. Raises: CorruptFrame."""
    try:
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
    """The content of exactly one frame, which must declare so many bytes, at least one. Raises: CorruptFrame."""
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
