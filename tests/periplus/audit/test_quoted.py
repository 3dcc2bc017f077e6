"""The figures that people quote are recomputed: what is changed, missing or there twice in metrics.jsonl is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from periplus.audit import records as audit
from periplus.audit.findings import Code
from periplus.audit.report import report_text, report_tree
from periplus.job.run_directory import RunDirectory
from periplus.values.record import RecordKind
from periplus.values.trajectory import Purpose
from tests.support.audit.files import audited
from tests.support.audit.run import AuditRun

Lines = list[dict[str, Any]]


def found_after(run: Path, edit: Callable[[Lines], object]) -> list[Code]:
    """Return the codes of the findings after an edit of the lines of metrics.jsonl."""
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [finding.code for finding in audited(run).findings]


def of_kind(lines: Lines, kind: str) -> list[int]:
    return [at for at, line in enumerate(lines) if line["kind"] == kind]


def test_a_clean_run_says_what_was_recomputed(honest: Path, pruned: Path) -> None:
    report = audited(honest)
    assert report.is_clean
    figures = report.figures
    assert (figures.steps, figures.evaluations, figures.accuracies) == (10, 2, 2)
    text = report_text(report)
    assert "reward_mean of 10 steps, mean reward of 2 evaluations and accuracy of 2 recomputed\n" in text
    assert report_tree(report)["figures"]["steps_without_frames"] == 0
    report = audited(pruned)
    assert report.is_clean
    assert report.figures.steps + report.figures.steps_without_frames == 10
    assert "not of " in report_text(report)


@pytest.mark.parametrize("value", [0.51, None, "high", 10**400, -1])
def test_another_mean_reward_is_found(run: Path, value: object) -> None:
    def edit(lines: Lines) -> None:
        lines[of_kind(lines, "step")[3]]["reward_mean"] = value

    assert found_after(run, edit) == [Code.METRICS_WRONG]


@pytest.mark.parametrize("name", ["accuracy", "eval_reward_mean", "num_prompts"])
@pytest.mark.parametrize("value", [0.9, None])
def test_another_figure_of_an_evaluation_is_found(run: Path, name: str, value: object) -> None:
    def edit(lines: Lines) -> None:
        lines[of_kind(lines, "eval")[1]][name] = value

    assert found_after(run, edit) == [Code.METRICS_WRONG]


@pytest.mark.parametrize("kind", ["step", "eval"])
def test_a_line_that_is_missing_or_there_twice_is_found(run: Path, kind: str) -> None:
    path = run / "metrics.jsonl"
    before = path.read_bytes()
    assert found_after(run, lambda lines: lines.pop(of_kind(lines, kind)[-1])) == [Code.METRICS_MISSING]
    path.write_bytes(before)
    assert found_after(run, lambda lines: lines.append(lines[of_kind(lines, kind)[0]])) == [Code.METRICS_TWICE]


def test_a_step_that_no_batch_made_is_found(run: Path) -> None:
    def edit(lines: Lines) -> None:
        lines.append(lines[of_kind(lines, "step")[0]] | {"fork": 2, "version": 1})

    assert found_after(run, edit) == [Code.METRICS_AHEAD]


def test_a_killed_trainer_may_lack_its_last_lines_and_no_others(tmp_path: Path) -> None:
    run = AuditRun(root=tmp_path / "run")
    run.start()
    for _ in range(3):
        run.step()
    run.evaluate()
    run.kill()
    assert found_after(run.root, lambda lines: lines.__delitem__(slice(-2, None))) == []
    assert audited(run.root).figures.unwritten_steps == 1
    assert found_after(run.root, lambda lines: lines.pop(0)) == [Code.METRICS_MISSING]


def evaluated_sets(root: Path) -> AuditRun:
    """Write a run that evaluates two held-out problems, and a set of three with two samples each."""
    run = AuditRun(root=root)
    run.start()
    groups = [run.open_group(Purpose.EVAL) for _ in range(8)]
    # The set's samples of one problem are next to each other, and the last one is never produced.
    leases = [run.lease(group, 0, item=at if at < 2 else 50 + at // 2) for at, group in enumerate(groups)]
    for lease in leases[:-1]:
        run.arrive(run.trajectory(lease, reward=float(lease.group % 2)))
    run.lose(leases[-1], "failed")
    run.drop(groups[-1], "failed")
    kept = [run.waiting.pop(group)[0].result for group in groups[:-1]]
    samples = tuple(audit.UsedSample(each.group, each.sample, each.digest) for each in kept)
    run.say(audit.EvalEntry(policy=run.policy, samples=samples))
    run.record(RecordKind.EVAL, "before", accuracy=0.5, eval_reward_mean=0.5, num_prompts=2.0)
    sizes = {"num_prompts": 3.0, "samples_per_prompt": 2.0, "k": 2.0}
    run.record(RecordKind.EVAL_SET, "sums", mean_at_k=1 / 3, pass_at_k=2 / 3, eval_reward_mean=0.4, **sizes)
    run.end()
    return run


def test_named_sets_are_recomputed_with_what_no_worker_could_produce(tmp_path: Path) -> None:
    run = evaluated_sets(tmp_path / "run")
    report = audited(run.root)
    assert report.findings == ()
    assert (report.figures.evaluations, report.figures.accuracies) == (2, 2)


@pytest.mark.parametrize(
    "values",
    [
        {"pass_at_k": 1.0},
        {"mean_at_k": 0.5},
        {"k": 1.0},
        {"k": 3.0},
        {"samples_per_prompt": 3.0, "num_prompts": 2.0},
        {"num_prompts": 2.0},
        {"num_prompts": 1e300},
        {"text": "other", "eval_reward_mean": 1.0},
    ],
)
def test_another_figure_of_a_set_is_found(tmp_path: Path, values: dict[str, object]) -> None:
    run = evaluated_sets(tmp_path / "run")
    assert set(found_after(run.root, lambda lines: lines[1].update(values))) == {Code.METRICS_WRONG}


def test_a_set_without_its_line_is_found(tmp_path: Path) -> None:
    run = evaluated_sets(tmp_path / "run")
    assert found_after(run.root, lambda lines: lines.pop()) == [Code.METRICS_WRONG]


def test_an_accuracy_by_another_job_is_not_held_against_the_one_in_config(tmp_path: Path) -> None:
    """A resumption may change what is right, and config.yaml is then that of the last fork alone."""
    run = AuditRun(root=tmp_path / "run")
    run.start()
    run.step()
    run.evaluate()
    run.checkpoint()
    run.kill()
    run.right_from = 0.5
    run.start(run.policy)
    run.evaluate()
    run.end()
    lines = [record.values.get("accuracy") for record in RunDirectory(run.root).records()]
    assert lines == [None, 1 / 3, 2 / 3]
    report = audited(run.root)
    assert (report.findings, report.figures.evaluations, report.figures.accuracies) == ((), 2, 1)
    assert "not of 1 accuracies" in report_text(report)


# ---- final/ ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"vocab": {"a": 1}}'),
        ("tokenizer.json", None),
        ("config.json", b'{\n  "dtype": "bfloat16",\n  "layers": 3\n}'),
        ("config.json", b'{\n  "dtype": "float32",\n  "layers": 2\n}'),
        ("modeling.py", b"import os"),
        ("model.safetensors.index.json", b"{}"),
    ],
)
def test_another_file_of_the_exported_model_is_found(run: Path, name: str, content: bytes | None) -> None:
    path = run / "final" / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    found = [(finding.code, finding.place) for finding in audited(run).findings]
    assert found == [(Code.FINAL_WRONG, f"final/{name}")]


def test_a_folder_in_the_exported_model_is_named(run: Path) -> None:
    (run / "final" / "code").mkdir()
    (finding,) = audited(run).findings
    assert (finding.place, "foreign" in finding.message) == ("final/code", True)
