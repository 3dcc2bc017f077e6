"""`tools/report_picture.py` draws charts of a run's report as one SVG that stands alone, as a README shows it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from periplus.view.page.run_page import render_report
from periplus.view.summary import summary_json
from tests.support import sample_run

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
CHARTS = ["Reward", "Accuracy", "Staleness", "Published weights", "Bytes between regions"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory with the report of a plausible run."""
    summary = json.loads(summary_json(sample_run.summary()))
    links = sample_run.last_fleet().links
    page = render_report(sample_run.CONFIG, sample_run.PLAN, sample_run.records(), summary, links)
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    return tmp_path


def draw(run_dir: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "tools/report_picture.py", run_dir, run_dir / "report.svg"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def box_of(chart: ElementTree.Element) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a chart's place in the picture."""
    x, y, width, height = (float(chart.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def classes_with_rules(style: str) -> set[str]:
    return set(re.findall(r"\.([a-z]\w*)", style))


def test_the_picture_shows_five_charts_of_the_report_side_by_side(run_dir: Path) -> None:
    done = draw(run_dir)
    assert done.returncode == 0, done.stderr
    picture = ElementTree.parse(run_dir / "report.svg").getroot()
    charts = [each for each in picture if each.tag == f"{SVG}svg"]
    assert [chart.attrib["aria-label"].partition(".")[0] for chart in charts] == CHARTS
    assert all(each.find(f".//{SVG}path") is not None or each.find(f".//{SVG}rect") is not None for each in charts)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    boxes = [box_of(chart) for chart in charts]
    assert all(0 <= left < right <= width and 0 <= top < bottom <= height for left, top, right, bottom in boxes)
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_the_picture_has_the_rules_and_colours_of_its_charts_and_refers_to_nothing_else(run_dir: Path) -> None:
    assert draw(run_dir).returncode == 0
    text = (run_dir / "report.svg").read_text(encoding="utf-8")
    style = text[text.index("<style>") : text.index("</style>")]
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"var\(|url\(|@import|<script|https?:", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    used = {name for names in re.findall(r'class="([^"]+)"', text) for name in names.split()}
    styled = used & classes_with_rules(page[page.index("<style>") : page.index("</style>")])
    assert {"title", "line", "c1", "bound"} <= styled <= classes_with_rules(style)


def test_a_report_that_lacks_a_chart_gives_no_picture_and_a_sentence(run_dir: Path) -> None:
    report = run_dir / "report.html"
    report.write_text(report.read_text().replace('aria-label="Staleness.', 'aria-label="Age.'))
    done = draw(run_dir)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {report}: the report has no chart 'Staleness.'")
    assert not (run_dir / "report.svg").exists()


def test_a_run_without_a_report_is_told_how_to_write_one(tmp_path: Path) -> None:
    done = draw(tmp_path)
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert "periplus job report RUN_DIR" in done.stderr
    assert "Traceback" not in done.stderr
