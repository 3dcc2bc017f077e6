"""Draw charts of a run's report as one SVG for the README: `python tools/report_picture.py RUN_DIR OUT.svg`.

The charts are taken from `RUN_DIR/report.html` as they are, with the page's own style sheet in its light colours. The
picture refers to nothing outside itself. `periplus job report RUN_DIR` writes the page first.
"""

import argparse
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from periplus.view.page.page_style import STYLE

CHARTS = ("Reward.", "Accuracy.", "Staleness.", "Published weights.")
"""How the labels of the charts to draw begin, two a row."""

WIDE_CHART = "Bytes between regions."
"""How the label of the chart begins that spans the picture, below the others."""

CARD_WIDTH, CARD_HEIGHT, WIDE_HEIGHT, GAP, PADDING = 520, 230, 154, 16, 20
"""Sizes in px, chosen by hand: the picture is as wide as a README's text."""


def light_rules(style: str) -> str:
    """Return the page's rules for charts, with its light colours in place of the names of colours."""
    colours = dict(re.findall(r"--(\w+):(#\w+)", style.partition("@media")[0]))
    rules = [rule for rule in re.findall(r"[^{}\n]+\{[^{}]*\}", style) if re.match(r"(svg [.tp]|\.|path\.)", rule)]
    named = re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], "\n".join(rules))
    return f"{named}\nsvg{{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}}"


def picture(page: str) -> str:
    """Return the SVG. Raises: ValueError if the page lacks one of the charts."""
    drawn = re.findall(r'<svg viewBox="0 0 \d+ \d+" role="img" aria-label="[^"]*">.*?</svg>', page, re.DOTALL)
    width = 2 * CARD_WIDTH + GAP
    cells = [
        (i % 2 * (CARD_WIDTH + GAP), i // 2 * (CARD_HEIGHT + 2 * PADDING + GAP), CARD_WIDTH, CARD_HEIGHT + 2 * PADDING)
        for i in range(len(CHARTS))
    ]
    cells.append((0, cells[-1][1] + cells[-1][3] + GAP, width, WIDE_HEIGHT))
    body = []
    for label, (x, y, cell_width, cell_height) in zip((*CHARTS, WIDE_CHART), cells, strict=True):
        chart = next((svg for svg in drawn if f'aria-label="{label}' in svg), None)
        if chart is None:
            raise ValueError(f"the report has no chart {label!r}; was the run too short to have one?")
        place = (
            f'x="{x + PADDING}" y="{y + PADDING}" width="{cell_width - 2 * PADDING}" '
            f'height="{cell_height - 2 * PADDING}" preserveAspectRatio="xMinYMin"'
        )
        body.append(
            f'<rect x="{x + 0.5}" y="{y + 0.5}" width="{cell_width - 1}" height="{cell_height - 1}" rx="12" '
            'fill="#fff" stroke="#dfe5ea"/>'
        )
        body.append(chart.replace("<svg ", f"<svg {place} ", 1))
    height = cells[-1][1] + cells[-1][3]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Charts of a run\'s report">\n<style>{light_rules(STYLE)}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def main() -> int:
    """Draw RUN_DIR/report.html into OUT.svg. Return the exit code: 1 if there is no such report, or no such charts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("run_dir", type=Path, help="run directory with a report.html")
    parser.add_argument("out", type=Path, help="SVG file to write")
    options = parser.parse_args()
    report = options.run_dir / "report.html"
    try:
        text = picture(report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"error: {report}: {error}; `periplus job report RUN_DIR` writes the page anew", file=sys.stderr)
        return 1
    ElementTree.fromstring(text)  # well-formed, or a browser shows nothing
    options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
