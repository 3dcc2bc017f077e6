import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from periplus.process.telemetry import check_names
from periplus.view.summary import WanCounter, summary_from, summary_json, summary_table
from tests.support import sample_run

SUMMARY = sample_run.summary()


def table(**changes: float | None) -> str:
    values = {**SUMMARY.values(), **changes}
    console = Console(file=io.StringIO(), width=100)
    known = {name: value for name, value in values.items() if value is not None}
    console.print(summary_table(summary_from(known, SUMMARY.regions)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_json_has_the_names_of_the_contract() -> None:
    assert set(json.loads(summary_json(SUMMARY))) == {
        "accuracy_before",
        "accuracy_after",
        "eval_reward_before",
        "eval_reward_after",
        "warmup_s",
        "warmup_examples",
        "wall_s",
        "steps",
        "tokens_per_s",
        "wan_bytes",
        "wan_bytes_full_weights",
        "staleness_max",
        "staleness_bound",
        "staleness_violations",
        "weight_digest_mismatches",
        "regions",
        "weights_ratio",
        "delta_density",
        "delta_bits_per_change",
        "weight_fallbacks",
        "pause_s",
        "wan_bytes_from",
        "problems_train",
        "problems_left_out",
        "changes_of_problems",
    }


def test_a_run_that_changed_its_problems_says_what_its_accuracy_is_worth() -> None:
    assert "held-out problems may have been trained on" in table(changes_of_problems=1)
    assert "have been trained on" not in table(changes_of_problems=0)


def test_the_values_are_registered_and_come_back() -> None:
    check_names(SUMMARY.values())
    assert summary_from(SUMMARY.values(), SUMMARY.regions) == SUMMARY


def test_what_was_not_measured_is_null_and_said() -> None:
    values = {**SUMMARY.values(), "accuracy_after": float("nan")}
    del values["wan_bytes"]
    data = json.loads(summary_json(summary_from(values, SUMMARY.regions)))
    assert data["accuracy_after"] is None
    assert data["wan_bytes"] is None
    assert "not measured" in table(wan_bytes=None)


def test_the_json_and_the_table_say_who_counted_the_bytes() -> None:
    assert json.loads(summary_json(SUMMARY))["wan_bytes_from"] == "gateways"
    assert "bytes over the WAN, counted by the gateways" in table()
    emulated = replace(SUMMARY, wan_bytes_from=WanCounter.EMULATOR)
    assert json.loads(summary_json(emulated))["wan_bytes_from"] == "emulator"
    uncounted = summary_from({k: v for k, v in SUMMARY.values().items() if k != "wan_bytes"}, ())
    assert json.loads(summary_json(uncounted))["wan_bytes_from"] is None


def test_bytes_that_were_counted_as_none_are_no_missing_measurement() -> None:
    assert "0 B" in table(wan_bytes=0)


def test_a_terminal_without_unicode_gets_ascii_alone() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=100)
    console.print(summary_table(SUMMARY, ascii_only=console.options.ascii_only))
    file.flush()
    assert b"####" in file.buffer.getvalue()


def test_a_promise_that_was_not_counted_is_refused() -> None:
    values = SUMMARY.values()
    del values["staleness_violations"]
    with pytest.raises(ValueError, match="staleness_violations"):
        summary_from(values, ())


def test_an_extra_value_does_not_replace_one_of_the_summary() -> None:
    assert json.loads(summary_json(SUMMARY, run_dir="runs/x"))["run_dir"] == "runs/x"
    with pytest.raises(ValueError, match="wan_bytes"):
        summary_json(SUMMARY, wan_bytes=1)


def test_the_table_compares_the_bytes_and_says_whether_promises_held() -> None:
    text = table()
    for words in ["31.8 %  ->  73.8 %", "497 MB", "14.8 MB", "34x less", "0  kept", "3 of 4", "2,914 tokens/s"]:
        assert words in text, words
    assert "47.2x smaller than bf16, 9.8 bits a change, 12.5 % changed" in text
    assert "3.2 ms" in text
    assert "8,096 trained on, 64 left out" in text
    assert "not measured" in table(weights_ratio=None)
    assert "BROKEN" in table(staleness_violations=2)
