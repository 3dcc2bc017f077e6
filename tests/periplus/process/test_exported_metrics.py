"""Names of exported metrics keep the conventions of Prometheus, and a sample has its metric's labels."""

import re

import pytest

from periplus.process.exported_metrics import (
    AGENT_METRICS,
    COORDINATOR_METRICS,
    EXPORTED_METRICS,
    JOB_STATE,
    ExportedMetric,
)
from periplus.process.telemetry import MetricKind


@pytest.mark.parametrize("metric", EXPORTED_METRICS.values(), ids=lambda each: each.name)
def test_a_name_keeps_the_conventions(metric: ExportedMetric) -> None:
    assert re.fullmatch("periplus_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert not {"job", "instance"} & set(metric.labels), "Prometheus gives these labels itself"
    assert len(set(metric.labels)) == len(metric.labels)
    assert metric.sentence.endswith(".")


def test_a_name_has_one_meaning() -> None:
    assert all(EXPORTED_METRICS[each.name] is each for each in (*COORDINATOR_METRICS, *AGENT_METRICS))


@pytest.mark.parametrize("labels", [{}, {"job_id": "j"}, {"job_id": "j", "state": "running", "region": "eu"}])
def test_a_sample_with_other_labels_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="periplus_job_state has the labels"):
        JOB_STATE.of(1, **labels)


def test_a_sample_has_the_values_of_its_labels_in_their_order() -> None:
    sample = JOB_STATE.of(True, state="running", job_id="j")
    assert (sample.metric, sample.labels, sample.value) == (JOB_STATE, ("j", "running"), 1.0)
