"""What a tracker gets for a record."""

import math

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from trainer.tracking.rows import TrackerRow, row_of


def record(kind: RecordKind, version: int, values: dict[str, float], text: str = "", fork: int = 0) -> Record:
    return Record(kind=kind, policy=Policy(fork, version), time_s=2.0, values=values, text=text)


def test_a_step_has_the_names_of_metrics_jsonl_and_the_training_step() -> None:
    values = {"step": 7.0, "loss": 0.5, "grad_norm": math.nan}
    step = Record(kind=RecordKind.STEP, policy=Policy(1, 7), time_s=2.0, values=values, staleness_tokens={1: 30, 0: 4})
    row = row_of(step)
    assert row.step == 7
    assert row.values == {"loss": 0.5, "staleness_tokens/0": 4, "staleness_tokens/1": 30, "fork": 1, "time_s": 2.0}
    assert TrackerRow.from_json(row.to_json()) == row


def test_names_that_steps_have_too_are_told_apart_by_the_kind() -> None:
    summary = row_of(record(RecordKind.SUMMARY, 9, {"staleness_max": 1.0}, "ab12"))
    assert summary.values == {"summary/staleness_max": 1.0, "summary/text": "ab12", "fork": 0, "time_s": 2.0}
    evaluation = row_of(record(RecordKind.EVAL, 9, {"accuracy": 0.5}, "after"))
    assert evaluation.values == {"accuracy": 0.5, "eval/text": "after", "fork": 0, "time_s": 2.0}


def test_steps_of_the_warm_up_come_before_the_first_version() -> None:
    rows = [row_of(record(RecordKind.WARMUP, 0, {"step": step, "steps_total": 40.0})) for step in (10.0, 40.0)]
    assert [(row.step, row.values["warmup/step"]) for row in rows] == [(-30, 10.0), (0, 40.0)]


def test_a_phase_of_a_resumed_run_belongs_to_the_version_that_it_goes_on_from() -> None:
    phase = row_of(record(RecordKind.PHASE, 0, {}, "loading the model", fork=1), resumed_version=5)
    assert (phase.step, phase.values["phase/text"]) == (5, "loading the model")
