"""Matrix of a fleet's links: from each region (rows) to each other (columns), darker for higher throughput."""

import math

from periplus.view import svg, units
from periplus.view.svg import Markup
from planner.explain.pictures import drawing
from planner.problem.fleet import Fleet, Link

_CELL_W, _CELL_H = 74.0, 40.0
"""Width and height (`_CELL_H`) of a cell in pixels."""
_SLOWEST, _FASTEST = 7, 11
"""Ends of the colour scale as powers of ten of bit/s: 10 Mbit/s and (`_FASTEST`) 100 Gbit/s."""
_MAX_REGIONS = 40
"""Largest number of regions that are drawn; more are unreadable."""


def links_svg(fleet: Fleet, title: str = "links between regions") -> str:
    """Return the matrix with throughput (upper line) and round trip (lower line) of each measured pair.

    Cells of pairs that were not measured are empty.
    """
    names = sorted(region.name for region in fleet.regions)[:_MAX_REGIONS]
    links = {(link.src_region, link.dst_region): link for link in fleet.links}
    # The longest name decides the width of the row labels and, turned by 40 degrees, the height above the columns.
    label = max(90.0, max(drawing.text_width(name) for name in names) + 16)
    head = max(drawing.text_width(name, 12) for name in names) * 0.7 + 24
    left, top = 28 + label, 76 + head
    shapes = [drawing.text(28, 42, title, size=18, bold=True)]
    note = "from row to column: Mbit/s (tenth percentile where several were measured), round trip in ms"
    shapes.append(drawing.text(28, 64, note, size=12, colour="soft"))
    for i, src in enumerate(names):
        y = top + i * _CELL_H
        shapes.append(drawing.text(left - 10, y + 24, src, anchor="end"))
        x = left + i * _CELL_W + _CELL_W / 2
        # A column has the same region as the row of its index, so one loop labels both.
        turned = f"translate({svg.number(x)} {svg.number(top - 8)}) rotate(-40)"
        shapes.append(svg.element("g", drawing.text(0, 0, src, size=12), transform=turned))
        for j, dst in enumerate(names):
            shapes += _cell(links.get((src, dst)), src == dst, left + j * _CELL_W, y)
    # Small fleets still get the width that title and legend need.
    width = max(left + len(names) * _CELL_W + head * 0.8, 620.0)
    left_out = len(fleet.regions) - len(names)
    height = top + len(names) * _CELL_H + 24
    shapes += _scale(height)
    height += 30
    if left_out > 0:
        shapes.append(drawing.text(28, height, f"{left_out} more regions are not drawn", size=12, colour="soft"))
        height += 20
    return drawing.document(
        title, f"{len(fleet.links)} links among {len(fleet.regions)} regions", width, height, shapes
    )


def _cell(link: Link | None, is_self: bool, x: float, y: float) -> list[Markup]:
    """Return the shapes of one cell of the matrix."""
    if link is None:
        # The diagonal is no link; a dash marks a pair that nobody measured.
        colour = "idle" if is_self else "card"
        words = [] if is_self else [drawing.text(x + _CELL_W / 2, y + 24, "-", colour="soft", anchor="middle")]
        return [drawing.box(x + 1, y + 1, _CELL_W - 2, _CELL_H - 2, colour, radius=3), *words]
    return [
        drawing.box(x + 1, y + 1, _CELL_W - 2, _CELL_H - 2, "card", radius=3),
        drawing.box(
            x + 1,
            y + 1,
            _CELL_W - 2,
            _CELL_H - 2,
            "generation",
            radius=3,
            tip=_tip(link),
            opacity=_opacity(link.bytes_per_s * 8),
        ),
        drawing.text(x + _CELL_W / 2, y + 18, units.mbit(link.bytes_per_s * 8), size=12, anchor="middle"),
        drawing.text(x + _CELL_W / 2, y + 33, f"{link.rtt_s * 1e3:.0f} ms", size=11, colour="soft", anchor="middle"),
    ]


def _opacity(bits_per_s: float) -> float:
    """Return the opacity of a rate: equal in every picture, and linear in the rate's logarithm."""
    power = min(max(math.log10(bits_per_s), _SLOWEST), _FASTEST)
    return 0.06 + 0.54 * (power - _SLOWEST) / (_FASTEST - _SLOWEST)


def _scale(y: float) -> list[Markup]:
    """Return the legend, with one swatch per power of ten."""
    shapes, x = [], 28.0
    for power in range(_SLOWEST, _FASTEST + 1):
        words = units.quantity(10.0**power, "bit/s")
        shapes.append(drawing.box(x, y - 11, 22, 14, "generation", radius=3, opacity=_opacity(10.0**power)))
        shapes.append(drawing.text(x + 28, y, words, size=12, colour="soft"))
        x += 46 + drawing.text_width(words, 12)
    return shapes


def _tip(link: Link) -> str:
    return f"{link.src_region} to {link.dst_region}, {link.num_samples} samples, {link.usd_per_gbyte:.3f} dollars a GB"
