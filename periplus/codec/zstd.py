"""zstandard with a hard bound on what decompression allocates.

`ZstdDecompressor.decompress` ignores `max_output_size` when the frame declares its size, so that thirty bytes from a
peer may ask for gigabytes. Here the declared size is read first, must be there, and must be within the bound. Frames
carry zstandard's checksum of the content: a flipped bit that decodes is still refused.
"""

import zstandard

from periplus.errors import CorruptFrame


def compress(content: bytes, level: int) -> bytes:
    """One frame that declares its content's size and checksum."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True).compress(content)


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
        return zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptFrame(f"zstandard frame of {len(payload)} bytes is damaged: {error}; fetch it again") from error
