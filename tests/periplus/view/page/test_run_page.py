import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.page.run_page import render_report
from periplus.view.summary import summary_json
from tests.support import sample_run
from tests.support.planner.predicted_plan import PLAN

SUMMARY = json.loads(summary_json(sample_run.summary()))
PAGE = render_report(sample_run.CONFIG, sample_run.PLAN, sample_run.records(), SUMMARY, sample_run.last_fleet().links)


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass


def test_every_curve_and_table_is_there() -> None:
    curves = ["Bytes between regions", "Reward", "Accuracy", "Loss", "KL from the behaviour policy", "Staleness"]
    curves += ["Entropy of the policy", "Length of completions", "Truncated completions", "Gradient norm"]
    curves += ["Clipped tokens", "Trainer against engine", "Parts of the reward"]
    curves += ["Throughput", "Published weights", "Where a step&#x27;s time goes"]
    for title in curves:
        assert f'aria-label="{title}.' in PAGE, title
    for title in ["Regions", "Links", "Summary", "Plan", "Configuration"]:
        assert f"<h2>{title}</h2>" in PAGE, title
    assert "no data was recorded" not in PAGE
    assert "bound 4" in PAGE
    assert "algorithm.group_size" in PAGE


def test_failures_of_reward_functions_have_a_curve_if_there_are_any() -> None:
    values = {"reward_failures": 3.0}
    failed = Record(kind=RecordKind.STEP, policy=Policy(9, 1), time_s=0.0, values=values)
    assert "Failures of reward functions" not in PAGE
    assert "Failures of reward functions" in render_report({}, {}, [failed], {}, [])


def test_a_planned_run_has_a_table_of_what_was_predicted_simulated_and_measured() -> None:
    values = {"step_s": 12.0, "train_s": 9.0}
    step = Record(kind=RecordKind.STEP, policy=Policy(0, 1), time_s=0.0, values=values)
    page = render_report({}, PLAN.to_tree(), [step], {}, [])
    figures = "".join(f"<td class=num>{text}</td>" for text in ("10 s", "11 s", "12 s", "+20%"))
    assert f"<tr><td>step</td>{figures}</tr>" in page
    assert "training: 50% more than predicted; probably samples have another length" in page
    assert "A step, predicted and measured" not in render_report({}, {}, [step], {}, [])
    assert "A step, predicted and measured" not in render_report({}, PLAN.to_tree(), [], {}, [])


def test_the_page_needs_nothing_outside_itself() -> None:
    assert not re.search(r"https?:|//[a-z]|<script|<link|@import|url\(", PAGE)
    assert "prefers-color-scheme:dark" in PAGE


def test_the_tags_are_balanced() -> None:
    parser = Balanced()
    parser.feed(PAGE)
    assert parser.open == []


def test_text_from_files_is_escaped() -> None:
    evil = "<script>alert('x')</script>\"&"
    links = [replace(link, src=evil) for link in sample_run.last_fleet().links]
    page = render_report(
        {"name": evil, evil: evil},
        {"tasks": [{"region": evil, "role": evil}]},
        sample_run.records(),
        {"regions": [evil], evil: evil},
        links,
    )
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_an_empty_run_is_a_page_that_says_so() -> None:
    page = render_report({}, {}, [], {}, [])
    assert page.count("no data was recorded") >= 8
    Balanced().feed(page)


def test_values_that_are_not_finite_leave_a_gap() -> None:
    values = {"reward_mean": float("nan"), "loss": float("inf"), "delta_bytes": 0.0, "full_weights_bytes": 1.0}
    broken = [Record(kind=RecordKind.STEP, policy=Policy(0, v), time_s=v, values=values) for v in (1, 2)]
    page = render_report({}, {}, [*sample_run.records(), *broken], {"accuracy_after": float("nan")}, [])
    assert not re.search(r"[ L\"M](nan|inf)", page)


def test_a_restored_run_shows_the_surviving_lineage() -> None:
    records = [
        Record(kind=RecordKind.STEP, policy=Policy(fork, version), time_s=0.0, values={"reward_mean": reward})
        for fork, version, reward in [(0, 1, 0.1), (0, 2, 0.2), (1, 2, 0.9)]
    ]
    assert "mean of 1 steps from 0.1 to 0.9" in render_report({}, {}, records, {}, [])
