"""The level map of a span: which odds level each cell (group, exponent) has, and its coding.

A *group* is a run of elements, mostly one tensor. A *level* stands for the odds that an element changes (contexts.py).
The level of a cell is a sum of three transmitted terms:

    level = spacing x clip(clip(template[exponent] + offset[group]) + residual[group, exponent])

Both clips are to 1..MAX_LEVEL / spacing. The level is 0 (never changes) if the residual says so, if the group is dead
(nothing in it changes), or if the exponent has no template. Order in the stack:

    spacing of levels                      1, 2 or 4; mostly 1
    highest exponent with a template       near the typical one (contexts.near_model)
    number R of exponents, downwards       less one, near the typical one
    template of the highest                near the typical one
    templates of the others                zigzag of the difference to the one before, raised because odds double
    prior of offsets; offsets [G]          zigzag, or DEAD
    prior of residuals; residuals [g, R]   zigzag, or NEVER; only for the g groups that are not dead
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from periplus.codec.weights.entropy import contexts
from periplus.codec.weights.entropy.coder import SymbolReader, SymbolWriter
from periplus.codec.weights.entropy.kernels import Bytes, Ints

SPACINGS = (1, 2, 4)
"""Allowed spacings: a span uses every such level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelMap:
    """The transmitted terms of a level map, in units of the spacing. G groups, R exponents."""

    spacing: int
    first_exponent: int
    template: Ints
    """[R] level of exponent first_exponent, first_exponent - 1, and so on."""
    offsets: Ints
    """[G] offset of each group; MAX_SHIFT + 1 for a dead group."""
    residuals: Ints
    """[G, R] residual of each cell; MAX_RESIDUAL + 1 for a cell that never changes."""
    prior: int
    """Prior by which residuals are coded."""
    offset_prior: int
    """Prior by which offsets are coded."""


def rise(spacing: int) -> int:
    """Return by how many levels the odds rise if the exponent falls by one: they double."""
    return 2 // spacing


def levels(found: LevelMap) -> Bytes:
    """Return the level [G, R] of each cell, 0 to MAX_LEVEL."""
    top = contexts.MAX_LEVEL // found.spacing
    expected = np.clip(found.template[None, :] + found.offsets[:, None], 1, top)
    sums = np.clip(expected + found.residuals, 1, top) * found.spacing
    # The special values beyond the largest mark cells and groups that never change.
    sums[found.residuals > contexts.MAX_RESIDUAL] = 0
    sums[found.offsets > contexts.MAX_SHIFT] = 0
    return np.asarray(sums, np.uint8)


def table(found: LevelMap, num_exponents: int) -> Bytes:
    """Return the level [G, 2 x num_exponents] of each row of sign and exponent. Both signs have the same level."""
    cells = levels(found)
    rows = np.zeros((len(cells), 2, num_exponents), np.uint8)
    # Templates go from the highest exponent down, rows from the lowest up.
    last = found.first_exponent - cells.shape[1] + 1
    rows[:, :, last : found.first_exponent + 1] = cells[:, None, ::-1]
    return rows.reshape(len(cells), 2 * num_exponents)


def write(writer: SymbolWriter, found: LevelMap, num_exponents: int) -> None:
    """Append the level map to the stack of symbols."""
    first, num_rows = found.first_exponent, len(found.template)
    _put(writer, SPACINGS.index(found.spacing), contexts.spacing_model())
    _put(writer, first, _exponent_model(num_exponents))
    _put(writer, num_rows - 1, contexts.near_model(first + 1, contexts.TYPICAL_ROWS - 1))
    _put(writer, int(found.template[0]), _level_model(found.spacing))
    top = contexts.MAX_LEVEL // found.spacing
    # Each template is coded as the difference to the one before it, raised by what doubled odds would give.
    deltas = found.template[1:] - np.clip(found.template[:-1] + rise(found.spacing), 1, top)
    writer.put(zigzag(deltas, contexts.MAX_LEVEL), contexts.template_model())
    _put(writer, found.offset_prior, contexts.prior_model())
    offset_model = contexts.residual_model(found.offset_prior, contexts.MAX_SHIFT)
    writer.put(zigzag(found.offsets, contexts.MAX_SHIFT), offset_model)
    _put(writer, found.prior, contexts.prior_model())
    # A dead group has no residuals: its offset says that nothing in it changes.
    alive = found.residuals[found.offsets <= contexts.MAX_SHIFT]
    residual_model = contexts.residual_model(found.prior, contexts.MAX_RESIDUAL)
    writer.put(zigzag(alive.ravel(), contexts.MAX_RESIDUAL), residual_model)


def read(reader: SymbolReader, num_groups: int, num_exponents: int) -> LevelMap:
    """Invert `write`, for a dtype of `num_exponents` exponents. Raises: CorruptFrame."""
    spacing = SPACINGS[_take(reader, contexts.spacing_model())]
    first = _take(reader, _exponent_model(num_exponents))
    count = _take(reader, contexts.near_model(first + 1, contexts.TYPICAL_ROWS - 1)) + 1
    template = _read_template(reader, spacing, count)
    offset_prior = _take(reader, contexts.prior_model())
    offset_model = contexts.residual_model(offset_prior, contexts.MAX_SHIFT)
    offsets = unzigzag(reader.take(num_groups, offset_model), contexts.MAX_SHIFT)
    prior = _take(reader, contexts.prior_model())
    # The offsets come first, because they tell how many residuals there are.
    alive = offsets <= contexts.MAX_SHIFT
    symbols = reader.take(int(alive.sum()) * count, contexts.residual_model(prior, contexts.MAX_RESIDUAL))
    residuals = np.zeros((num_groups, count), np.int64)
    residuals[alive] = unzigzag(symbols, contexts.MAX_RESIDUAL).reshape(-1, count)
    return LevelMap(
        spacing=spacing,
        first_exponent=first,
        template=template,
        offsets=offsets,
        residuals=residuals,
        prior=prior,
        offset_prior=offset_prior,
    )


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
    """Return 0, -1, 1, -2, ... as 0, 1, 2, 3, ...

    The special value largest + 1 becomes the last symbol, 2 x largest + 1.
    """
    symbols = np.where(values >= 0, 2 * values, -2 * values - 1)
    return np.asarray(np.where(values > largest, 2 * largest + 1, symbols), np.int32)


def unzigzag(symbols: npt.NDArray[np.int32], largest: int) -> Ints:
    """Invert `zigzag`."""
    wide = symbols.astype(np.int64)
    values = np.where(wide & 1, -(wide + 1) // 2, wide // 2)
    return np.asarray(np.where(wide == 2 * largest + 1, largest + 1, values), np.int64)
