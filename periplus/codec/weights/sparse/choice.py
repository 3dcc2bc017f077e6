"""Encoder-side choice of the level map: the odds level of every cell of a span that is cheapest to code.

A *cell* is a pair (group, exponent); a *group* is a run of elements, mostly one tensor. A *level* is one of 62 odds
that an element changes. The level of a cell is the template of its exponent, plus the offset of its group, plus a
residual of its own; or the cell is marked as never changing. The three are optimised in turns, each given the
other two. The price of a cell is what coding its changes costs at that level (negative log-likelihood), plus what
coding the map costs.

Prices are integers with `contexts.COST_BITS` fraction bits, so the encoder writes the same bytes on every machine. A
decoder needs nothing from here. Array legend: G groups, R exponents from the highest down, L levels (0 is not used).
"""

import numpy as np

from periplus.codec.weights.entropy import contexts
from periplus.codec.weights.entropy.kernels import Ints, kernel
from periplus.codec.weights.entropy.level_map import LevelMap, rise, zigzag

_ROUNDS = 2
"""Number of times that residuals, template and offsets are optimised in turns. Chosen by hand."""


@kernel
def _best_residuals(
    elements: Ints, changed: Ints, cost_changed: Ints, cost_unchanged: Ints, price: Ints, best: Ints, which: Ints
) -> None:
    """For each cell and each level expected of it, find the cheapest residual.

    Input: `elements` and `changed` [G, R], `cost_changed` and `cost_unchanged` [L], `price` of residual symbols.
    Output: `best` [G, R, L] is the least price and `which` [G, R, L] the residual; `reach + 1` stands for "never
    changes".
    """
    far, reach = np.int64(1) << 60, (price.size - 2) // 2
    num_levels = cost_changed.size
    cost = np.empty(num_levels, np.int64)
    for g in range(elements.shape[0]):
        for r in range(elements.shape[1]):
            # Negative log-likelihood of the cell's k changes among n elements at each level. Counts of elements are
            # estimates in large spans, so n is at least k.
            n, k = max(elements[g, r], changed[g, r]), changed[g, r]
            cost[0] = far
            for level in range(1, num_levels):
                cost[level] = k * cost_changed[level] + (n - k) * cost_unchanged[level]
            for level in range(1, num_levels):
                # "Never changes" costs its symbol alone, and is allowed only where nothing changed.
                least, chosen = (price[price.size - 1], reach + 1) if k == 0 else (far, 0)
                for residual in range(max(-reach, 1 - level), min(reach, num_levels - 1 - level) + 1):
                    symbol = 2 * residual if residual >= 0 else -2 * residual - 1
                    total = cost[level + residual] + price[symbol]
                    if total < least:
                        least, chosen = total, residual
                best[g, r, level] = least
                which[g, r, level] = chosen


@kernel
def _best_offsets(best: Ints, changed: Ints, template: Ints, price: Ints, offsets: Ints) -> int:
    """Find the cheapest offset [G] of each group, and return the total price.

    A group in which nothing changed may be "dead" instead (`reach + 1`).
    """
    # `price` has the prices of the zigzag symbols of -reach to reach, and last that of a dead group.
    reach = (price.size - 2) // 2
    top = best.shape[2] - 1
    total = np.int64(0)
    for g in range(best.shape[0]):
        least, chosen = np.int64(1) << 62, 0
        if changed[g].sum() == 0:
            least, chosen = price[price.size - 1], reach + 1
        for offset in range(-reach, reach + 1):
            cost = price[2 * offset if offset >= 0 else -2 * offset - 1]
            for r in range(best.shape[1]):
                cost += best[g, r, min(max(template[r] + offset, 1), top)]
                # Prices only grow, so that a sum above the best one so far cannot win.
                if cost >= least:
                    break
            if cost < least:
                least, chosen = cost, offset
        offsets[g] = chosen
        total += least
    return int(total)


_NEAR = 8
"""Search width of the template's dynamic program: levels this close to the expected one are tried as predecessors. Of
the farther ones only the cheapest is tried. Chosen by hand."""


@kernel
def _best_template(best: Ints, offsets: Ints, dead: int, template: Ints, rising: int, price: Ints) -> None:
    """Find the cheapest template [R] by a dynamic program (Viterbi) over exponents.

    The level of an exponent is coded as the difference to the level of the exponent before it plus `rising`. `least[l]`
    is the least price of a prefix that ends at level l, and `before[r, l]` its predecessor, from which the path is read
    backwards.
    """
    top = best.shape[2] - 1
    least, cost = np.zeros(top + 1, np.int64), np.empty(top + 1, np.int64)
    before = np.zeros((best.shape[1], top + 1), np.int64)
    for r in range(best.shape[1]):
        # The best predecessor overall, tried besides those near the expected one.
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
                # A dead group has no cells that depend on the template.
                if offsets[g] != dead:
                    cost[level] += best[g, r, min(max(level + offsets[g], 1), top)]
        least[:] = cost
    level = int(1 + np.argmin(least[1:]))
    for r in range(best.shape[1] - 1, -1, -1):
        template[r] = level
        level = before[r, level]


def choose_levels(elements: Ints, changed: Ints, first_exponent: int, spacing: int) -> LevelMap:
    """Return the cheapest level map found for the counts `elements` and `changed` [G, R]."""
    costs = contexts.level_costs(spacing)
    num_levels = len(costs[0])
    template_price = contexts.template_costs()
    # Start from one template for all groups with no offsets, and improve the three in turns.
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
        # The priors of residuals and offsets follow from what was just chosen.
        prior = _cheapest_prior(residuals, contexts.MAX_RESIDUAL)
        offset_prior = _cheapest_prior(offsets, contexts.MAX_SHIFT)
    return LevelMap(
        spacing=spacing,
        first_exponent=first_exponent,
        template=template,
        offsets=offsets,
        residuals=residuals,
        prior=prior,
        offset_prior=offset_prior,
    )


def _pooled(elements: Ints, changed: Ints, costs: tuple[Ints, Ints]) -> Ints:
    """Return the cheapest level [R] of each exponent if all groups had the same."""
    k = changed.sum(axis=0)
    n = np.maximum(elements.sum(axis=0), k)
    price = k[:, None] * costs[0] + (n - k)[:, None] * costs[1]
    return np.asarray(np.argmin(price[:, 1:], axis=1) + 1, np.int64)


def _pick(which: Ints, template: Ints, offsets: Ints) -> Ints:
    """Return the chosen residual [G, R] of each cell at its expected level."""
    expected = np.clip(template[None, :] + offsets[:, None], 1, which.shape[2] - 1)
    return np.asarray(np.take_along_axis(which, expected[:, :, None], axis=2)[:, :, 0], np.int64)


def _cheapest_prior(values: Ints, largest: int) -> int:
    """Return the prior that codes the values, and its own symbol, most cheaply."""
    counts = np.bincount(zigzag(values, largest).ravel(), minlength=2 * largest + 2)
    prices = [
        int(counts @ contexts.residual_costs(prior, largest)) + contexts.prior_cost(prior)
        for prior in range(contexts.NUM_PRIORS)
    ]
    return prices.index(min(prices))
