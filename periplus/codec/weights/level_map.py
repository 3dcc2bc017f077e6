"""The level of each cell, where a cell is (group, exponent): one sum of three on the wire.

    level = spacing x clip(clip(template[exponent] + offset[group]) + residual[group, exponent])

clipped to 1..MAX_LEVEL / spacing; or 0 where the residual says never, the group is dead, or the exponent has no
template. In the stack, in this order:

    spacing of levels                      1, 2 or 4; mostly 1
    highest exponent with a template       near the typical one (contexts.near_model)
    number R of exponents, downwards       less one, near the typical one
    template of the highest                near the typical one
    templates of the others                zigzag of the difference to the one before, risen as odds double
    prior of offsets; offsets [G]          zigzag, or DEAD
    prior of residuals; residuals [g, R]   zigzag, or NEVER; of the groups that are not dead
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from periplus.codec.weights import contexts
from periplus.codec.weights.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.kernels import Bytes, Ints

SPACINGS = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelMap:
    """What the wire says of levels, in units of the spacing."""

    spacing: int
    first_exponent: int
    template: Ints
    """[R] of exponents first_exponent, first_exponent - 1, ..."""
    offsets: Ints
    """[G]; MAX_SHIFT + 1 where the group is dead"""
    residuals: Ints
    """[G, R]; MAX_RESIDUAL + 1 for never"""
    prior: int
    offset_prior: int


def rise(spacing: int) -> int:
    """By how many levels odds rise when the exponent falls by one: they double."""
    return 2 // spacing


def levels(found: LevelMap) -> Bytes:
    """[G, R] the levels, of 0..MAX_LEVEL."""
    top = contexts.MAX_LEVEL // found.spacing
    expected = np.clip(found.template[None, :] + found.offsets[:, None], 1, top)
    sums = np.clip(expected + found.residuals, 1, top) * found.spacing
    sums[found.residuals > contexts.MAX_RESIDUAL] = 0
    sums[found.offsets > contexts.MAX_SHIFT] = 0
    return np.asarray(sums, np.uint8)


def table(found: LevelMap, num_exponents: int) -> Bytes:
    """[G, 2 num_exponents] the level of each row of sign and exponent."""
    cells = levels(found)
    rows = np.zeros((len(cells), 2, num_exponents), np.uint8)
    last = found.first_exponent - cells.shape[1] + 1
    rows[:, :, last : found.first_exponent + 1] = cells[:, None, ::-1]
    return rows.reshape(len(cells), 2 * num_exponents)


def write(writer: SymbolWriter, found: LevelMap, num_exponents: int) -> None:
    """Append the map."""
    first, num_rows = found.first_exponent, len(found.template)
    _put(writer, SPACINGS.index(found.spacing), contexts.spacing_model())
    _put(writer, first, _exponent_model(num_exponents))
    _put(writer, num_rows - 1, contexts.near_model(first + 1, contexts.TYPICAL_ROWS - 1))
    _put(writer, int(found.template[0]), _level_model(found.spacing))
    top = contexts.MAX_LEVEL // found.spacing
    deltas = found.template[1:] - np.clip(found.template[:-1] + rise(found.spacing), 1, top)
    writer.put(zigzag(deltas, contexts.MAX_LEVEL), contexts.template_model())
    _put(writer, found.offset_prior, contexts.prior_model())
    offset_model = contexts.residual_model(found.offset_prior, contexts.MAX_SHIFT)
    writer.put(zigzag(found.offsets, contexts.MAX_SHIFT), offset_model)
    _put(writer, found.prior, contexts.prior_model())
    alive = found.residuals[found.offsets <= contexts.MAX_SHIFT]
    residual_model = contexts.residual_model(found.prior, contexts.MAX_RESIDUAL)
    writer.put(zigzag(alive.ravel(), contexts.MAX_RESIDUAL), residual_model)


def read(reader: SymbolReader, num_groups: int, num_exponents: int) -> LevelMap:
    """The inverse of write, for a dtype of so many exponents. Raises: CorruptFrame."""
    spacing = SPACINGS[_take(reader, contexts.spacing_model())]
    first = _take(reader, _exponent_model(num_exponents))
    count = _take(reader, contexts.near_model(first + 1, contexts.TYPICAL_ROWS - 1)) + 1
    template = _read_template(reader, spacing, count)
    offset_prior = _take(reader, contexts.prior_model())
    offset_model = contexts.residual_model(offset_prior, contexts.MAX_SHIFT)
    offsets = unzigzag(reader.take(num_groups, offset_model), contexts.MAX_SHIFT)
    prior = _take(reader, contexts.prior_model())
    alive = offsets <= contexts.MAX_SHIFT
    symbols = reader.take(int(alive.sum()) * count, contexts.residual_model(prior, contexts.MAX_RESIDUAL))
    residuals = np.zeros((num_groups, count), np.int64)
    residuals[alive] = unzigzag(symbols, contexts.MAX_RESIDUAL).reshape(-1, count)
    return LevelMap(
        spacing=spacing, first_exponent=first, template=template, offsets=offsets, residuals=residuals, prior=prior,
        offset_prior=offset_prior,
    )  # fmt: skip


def _read_template(reader: SymbolReader, spacing: int, count: int) -> Ints:
    level, top = _take(reader, _level_model(spacing)), contexts.MAX_LEVEL // spacing
    template = [level]
    for delta in unzigzag(reader.take(count - 1, contexts.template_model()), contexts.MAX_LEVEL).tolist():
        level = min(max(level + rise(spacing), 1), top) + delta
        template.append(level)
    return np.array(template, np.int64)


def _put(writer: SymbolWriter, symbol: int, model: contexts.Model) -> None:
    writer.put(np.array([symbol], np.int32), model)


def _take(reader: SymbolReader, model: contexts.Model) -> int:
    return int(reader.take(1, model)[0])


def _exponent_model(num_exponents: int) -> contexts.Model:
    part, whole = contexts.TYPICAL_EXPONENT
    return contexts.near_model(num_exponents, num_exponents * part // whole)


def _level_model(spacing: int) -> contexts.Model:
    return contexts.near_model(contexts.MAX_LEVEL + 1, contexts.TYPICAL_LEVEL // spacing)


def zigzag(values: Ints, largest: int) -> npt.NDArray[np.int32]:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ...; largest + 1 stands for itself, the last symbol."""
    symbols = np.where(values >= 0, 2 * values, -2 * values - 1)
    return np.asarray(np.where(values > largest, 2 * largest + 1, symbols), np.int32)


def unzigzag(symbols: npt.NDArray[np.int32], largest: int) -> Ints:
    """The inverse of zigzag."""
    wide = symbols.astype(np.int64)
    values = np.where(wide & 1, -(wide + 1) // 2, wide // 2)
    return np.asarray(np.where(wide == 2 * largest + 1, largest + 1, values), np.int64)
