"""A stack of entropy-coded symbols (constriction's ANS coder) above raw bits that are stored as they are.

The raw bits are the sealed bottom of the stack. So no section's length has to be stored, both share one tail of about 4
bits beyond the entropy, and a reader that has taken every symbol either finds the seal or knows that the bytes are
damaged. Words are 32 bits, little-endian; zero bytes at the end are left out.

Raw bits that a reader needs before the last symbol are *early* bits. Their words stand first, so a reader finds them
before it has taken all symbols. For that some word must stand above them, which is zero if there are no *late* bits.
The last 32 to 63 bits of either kind are written as symbols, so that a small stack needs no words at all. (An ANS stack
above no words wastes up to three bytes: its state begins empty, and the first symbols take their size out of 24 bits.)
"""

import constriction
import numpy as np
import numpy.typing as npt

from periplus.codec.weights.entropy.contexts import Model, uniform_model
from periplus.codec.weights.entropy.kernels import Bytes, Positions, pack, unpack
from periplus.errors import CorruptFrame

Symbols = npt.NDArray[np.int32]

CHUNK_BITS = 11
"""Long numbers are written as uniform symbols of this many bits each. 2^11 is the largest alphabet that is cheap to
build."""


class SymbolWriter:
    """Collects symbols and raw bits in the order in which a `SymbolReader` will take them."""

    def __init__(self) -> None:
        self._symbols: list[tuple[Symbols, Model]] = []
        self._early = self._late = np.zeros(0, np.uint32)

    def put(self, symbols: Symbols, model: Model) -> None:
        """Append symbols of one distribution."""
        # An alphabet of one symbol takes no bits.
        if model.coder_model is not None and len(symbols):
            self._symbols.append((symbols, model))

    def fork(self) -> "SymbolWriter":
        """Return a copy with the same content so far, on which an alternative can be tried."""
        other = SymbolWriter()
        other._symbols, other._early, other._late = self._symbols.copy(), self._early, self._late
        return other

    def put_one(self, value: int, below: int) -> None:
        """Append a number of which the reader knows only that it is in range(below)."""
        self.put(np.array([value], np.int32), uniform_model(below))

    def put_number(self, value: int, num_bits: int) -> None:
        """Append a number that is uniform in range(2^num_bits)."""
        whole = num_bits // CHUNK_BITS
        chunks = [value >> CHUNK_BITS * i & ((1 << CHUNK_BITS) - 1) for i in range(whole)]
        self.put(np.array(chunks, np.int32), uniform_model(1 << CHUNK_BITS))
        if num_bits > CHUNK_BITS * whole:
            self.put_one(value >> CHUNK_BITS * whole, 1 << (num_bits - CHUNK_BITS * whole))

    def put_early_bits(self, values: Positions, widths: Bytes) -> None:
        """Append the lowest `widths[i]` bits of each value as early bits.

        Call it once; the reader may take them at this place.
        """
        self._early = self._put_bits(values, widths)

    def put_late_bits(self, values: Positions, widths: Bytes) -> None:
        """Append the lowest `widths[i]` bits of each value as late bits. Call it once, after all symbols."""
        self._late = self._put_bits(values, widths)

    def finish(self) -> bytes:
        """Return the bytes of the whole stack."""
        # Early words without late ones get one zero word above them, which `take_late_bits` expects.
        late = np.zeros(1, np.uint32) if len(self._early) and not len(self._late) else self._late
        coder = constriction.stream.stack.AnsCoder(np.concatenate([self._early, late]), seal=True)
        # A stack is read from its top, so symbols are pushed in reverse order.
        for symbols, model in reversed(self._symbols):
            coder.encode_reverse(symbols, model.coder_model)
        data: bytes = coder.get_compressed().astype("<u4").tobytes()
        return data.rstrip(b"\0")

    def _put_bits(self, values: Positions, widths: Bytes) -> Positions:
        num_bits = _num_bits(widths)
        words = np.zeros((num_bits + 31) // 32, np.uint32)
        pack(values, widths, words)
        kept = _words_kept(num_bits)
        self.put_number(int.from_bytes(words[kept:].astype("<u4").tobytes(), "little"), num_bits - 32 * kept)
        return words[:kept]


class SymbolReader:
    """Takes symbols and raw bits in the order of writing.

    Damaged bytes yield wrong symbols of the right alphabet, and no seal at the end.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        whole = bytes(data)
        if whole[-1:] in (b"", b"\0"):
            raise CorruptFrame(f"a stack of {len(whole)} bytes ends in zero; fetch it again")
        self._words = np.frombuffer(whole + bytes(-len(whole) % 4), "<u4").astype(np.uint32)
        self._coder = constriction.stream.stack.AnsCoder(self._words)
        self._num_early = 0

    def take(self, count: int, model: Model) -> Symbols:
        """Return the next `count` symbols. The caller bounds `count`."""
        if model.coder_model is None or not count:
            return np.zeros(count, np.int32)
        found: Symbols = self._coder.decode(model.coder_model, count)
        return found

    def take_one(self, below: int) -> int:
        """Return what `put_one` wrote."""
        return int(self.take(1, uniform_model(below))[0])

    def take_number(self, num_bits: int) -> int:
        """Return what `put_number` wrote."""
        whole = num_bits // CHUNK_BITS
        chunks = self.take(whole, uniform_model(1 << CHUNK_BITS)).tolist()
        if num_bits > CHUNK_BITS * whole:
            chunks.append(self.take_one(1 << (num_bits - CHUNK_BITS * whole)))
        return sum(chunk << CHUNK_BITS * i for i, chunk in enumerate(chunks))

    def take_early_bits(self, widths: Bytes) -> Positions:
        """Return what `put_early_bits` wrote. Raises: CorruptFrame."""
        num_bits = _num_bits(widths)
        self._num_early = _words_kept(num_bits)
        if self._num_early > len(self._words):
            raise CorruptFrame(f"{num_bits} bits in a stack of {len(self._words)} words; fetch it again")
        return self._take_bits(self._words[: self._num_early], widths, num_bits)

    def take_late_bits(self, widths: Bytes) -> Positions:
        """Return what `put_late_bits` wrote, which must be all that is left. Raises: CorruptFrame."""
        num_bits = _num_bits(widths)
        # Words at the bottom of the stack: early ones, then late ones, or the one zero word in place of none.
        num_words = self._num_early + max(_words_kept(num_bits), min(self._num_early, 1))
        if num_words > len(self._words):
            raise CorruptFrame(f"{num_bits} bits in a stack of {len(self._words)} words; fetch it again")
        # The bits beyond the whole words stand above them as symbols.
        rest = self.take_number(num_bits - 32 * _words_kept(num_bits))
        # All symbols are taken: what is left must be exactly the seal and the words below it.
        try:
            words = np.asarray(self._coder.get_compressed(unseal=True), np.uint32)
        except (AssertionError, ValueError) as error:
            raise CorruptFrame("a stack's symbols do not end at its seal; fetch it again") from error
        if len(words) != num_words:
            raise CorruptFrame(f"{len(words)} words of bits follow the symbols; expected {num_words}")
        return _unpack(words[self._num_early :], rest, widths, num_bits)

    def _take_bits(self, words: Positions, widths: Bytes, num_bits: int) -> Positions:
        return _unpack(words, self.take_number(num_bits - 32 * len(words)), widths, num_bits)


def _num_bits(widths: Bytes) -> int:
    return int(widths.sum(dtype=np.int64))


def _words_kept(num_bits: int) -> int:
    """Return how many whole words of raw bits stay words.

    The remaining 32 to 63 bits (or all, if fewer) become symbols.
    """
    return max(0, num_bits // 32 - 1)


def _unpack(words: Positions, rest: int, widths: Bytes, num_bits: int) -> Positions:
    tail = np.frombuffer(rest.to_bytes(8, "little"), "<u4").astype(np.uint32)
    values = np.empty(len(widths), np.uint32)
    unpack(np.concatenate([words[: _words_kept(num_bits)], tail]), widths, values)
    return values
