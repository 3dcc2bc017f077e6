"""What an encoder decides: the level of every cell, and which levels share a table of steps. Integer prices throughout,
so that one build writes the same bytes on every machine; a reader needs none of it.

A cell is (group, exponent). Its level is its exponent's template, plus its group's offset, plus a residual, or never.
The three are found by turns, each the cheapest given the others, where the price is that of the cell's gaps plus that
of saying so.
"""

import numpy as np

from periplus.codec.weights import contexts
from periplus.codec.weights.kernels import Ints, kernel
from periplus.codec.weights.level_map import LevelMap, rise, zigzag

_ROUNDS = 2


@kernel
def _best_residuals(
    elements: Ints, changed: Ints, cost_changed: Ints, cost_unchanged: Ints, price: Ints, best: Ints, which: Ints
) -> None:
    """best[g, r, l]: the least price of the cell if l is expected of it; which: by what residual."""
    far, reach = np.int64(1) << 60, (price.size - 2) // 2
    num_levels = cost_changed.size
    cost = np.empty(num_levels, np.int64)
    for g in range(elements.shape[0]):
        for r in range(elements.shape[1]):
            n, k = max(elements[g, r], changed[g, r]), changed[g, r]
            cost[0] = far
            for level in range(1, num_levels):
                cost[level] = k * cost_changed[level] + (n - k) * cost_unchanged[level]
            for level in range(1, num_levels):
                least, by = (price[price.size - 1], reach + 1) if k == 0 else (far, 0)
                for residual in range(max(-reach, 1 - level), min(reach, num_levels - 1 - level) + 1):
                    symbol = 2 * residual if residual >= 0 else -2 * residual - 1
                    total = cost[level + residual] + price[symbol]
                    if total < least:
                        least, by = total, residual
                best[g, r, level] = least
                which[g, r, level] = by


@kernel
def _best_offsets(best: Ints, changed: Ints, template: Ints, price: Ints, offsets: Ints) -> int:
    """For each group the cheapest offset, or dead; returns the price of all."""
    reach = (price.size - 2) // 2
    top = best.shape[2] - 1
    total = np.int64(0)
    for g in range(best.shape[0]):
        least, by = np.int64(1) << 62, 0
        if changed[g].sum() == 0:
            least, by = price[price.size - 1], reach + 1
        for offset in range(-reach, reach + 1):
            cost = price[2 * offset if offset >= 0 else -2 * offset - 1]
            for r in range(best.shape[1]):
                cost += best[g, r, min(max(template[r] + offset, 1), top)]
                if cost >= least:
                    break
            if cost < least:
                least, by = cost, offset
        offsets[g] = by
        total += least
    return int(total)


_NEAR = 8
"""Levels that a template's next one is looked for around what is expected; farther ones only from the cheapest."""


@kernel
def _best_template(best: Ints, offsets: Ints, dead: int, template: Ints, rising: int, price: Ints) -> None:
    """The cheapest template of all, where each exponent's level is told by that of the one before."""
    top = best.shape[2] - 1
    least, cost = np.zeros(top + 1, np.int64), np.empty(top + 1, np.int64)
    before = np.zeros((best.shape[1], top + 1), np.int64)
    for r in range(best.shape[1]):
        cheapest = int(1 + np.argmin(least[1:]))
        for level in range(1, top + 1):
            lowest = min(max(level - rising - _NEAR, 1), top)
            highest = max(min(level - rising + _NEAR, top), 1)
            cost[level] = np.int64(1) << 62
            for near in range(lowest - 1, highest + 1):
                last = near if near >= lowest else cheapest
                delta = level - min(max(last + rising, 1), top)
                total = least[last] + price[2 * delta if delta >= 0 else -2 * delta - 1] if r else np.int64(0)
                if total < cost[level]:
                    cost[level], before[r, level] = total, last
            for g in range(best.shape[0]):
                if offsets[g] != dead:
                    cost[level] += best[g, r, min(max(level + offsets[g], 1), top)]
        least[:] = cost
    level = int(1 + np.argmin(least[1:]))
    for r in range(best.shape[1] - 1, -1, -1):
        template[r] = level
        level = before[r, level]


def choose_levels(elements: Ints, changed: Ints, first_exponent: int, spacing: int) -> LevelMap:
    """The cheapest map found for counts [G, R]."""
    costs = contexts.level_costs(spacing)
    num_levels = len(costs[0])
    template_price = contexts.template_costs()
    template = _pooled(elements, changed, costs)
    prior, offset_prior = 2, 2
    best = np.empty((*elements.shape, num_levels), np.int64)
    which = np.empty_like(best)
    offsets = np.zeros(len(elements), np.int64)
    for _ in range(_ROUNDS):
        _best_residuals(elements, changed, *costs, contexts.residual_costs(prior, contexts.MAX_RESIDUAL), best, which)
        _best_template(best, offsets, contexts.MAX_SHIFT + 1, template, rise(spacing), template_price)
        price = contexts.residual_costs(offset_prior, contexts.MAX_SHIFT)
        _best_offsets(best, changed, template, price, offsets)
        residuals = _pick(which, template, offsets)
        prior = _cheapest_prior(residuals, contexts.MAX_RESIDUAL)
        offset_prior = _cheapest_prior(offsets, contexts.MAX_SHIFT)
    return LevelMap(
        spacing=spacing, first_exponent=first_exponent, template=template, offsets=offsets, residuals=residuals,
        prior=prior, offset_prior=offset_prior,
    )  # fmt: skip


def _pooled(elements: Ints, changed: Ints, costs: tuple[Ints, Ints]) -> Ints:
    """[R] the cheapest level of all groups together."""
    k = changed.sum(axis=0)
    n = np.maximum(elements.sum(axis=0), k)
    price = k[:, None] * costs[0] + (n - k)[:, None] * costs[1]
    return np.asarray(np.argmin(price[:, 1:], axis=1) + 1, np.int64)


def _pick(which: Ints, template: Ints, offsets: Ints) -> Ints:
    expected = np.clip(template[None, :] + offsets[:, None], 1, which.shape[2] - 1)
    return np.asarray(np.take_along_axis(which, expected[:, :, None], axis=2)[:, :, 0], np.int64)


def _cheapest_prior(values: Ints, largest: int) -> int:
    counts = np.bincount(zigzag(values, largest).ravel(), minlength=2 * largest + 2)
    prices = [
        int(counts @ contexts.residual_costs(prior, largest)) + contexts.prior_cost(prior)
        for prior in range(contexts.NUM_PRIORS)
    ]
    return prices.index(min(prices))
