"""What a scraper reads of an endpoint of metrics: its text, and the series in it."""

import urllib.request
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from periplus.process.exported_metrics import ExportedSample

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

DEADLINE_S = 20.0


def scraped(address: str, *names: str) -> str:
    """What the endpoint answers, with some names only those metrics."""
    query = "&".join(f"name[]={name}" for name in names)
    with urllib.request.urlopen(f"http://{address}/metrics?{query}", timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
        return text


def value(text: str, name: str, **labels: str) -> float | None:
    """The value of a series, or None if there is none."""
    found: Series = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return found.get((name, frozenset(labels.items())))


def told(samples: Iterable[ExportedSample]) -> dict[str, float]:
    """Samples by their series, as `name value,value`; none of them may come twice."""
    listed = list(samples)
    found = {f"{each.metric.name} {','.join(each.labels)}".rstrip(): each.value for each in listed}
    assert len(found) == len(listed)
    return found
