"""Charts of the evaluations of named sets: pass@k and mean@k over steps, each with its 95 % interval as a band."""

from collections.abc import Iterator, Sequence

from periplus.view.page.charts import ChartSeries, line_chart
from periplus.view.state import SetEvaluation
from periplus.view.svg import Markup


def evaluation_charts(evaluations: Sequence[SetEvaluation]) -> Iterator[Markup]:
    """Draw a chart for each evaluation set, in the order of their names."""
    for name in sorted({each.name for each in evaluations}):
        of_set = sorted((each for each in evaluations if each.name == name), key=lambda each: each.step)
        newest = of_set[-1].values
        num_samples, k = newest.get("samples_per_prompt", 1.0), newest.get("k", 1.0)
        series = [_series(of_set, "mean_at_k", f"mean@{num_samples:.0f}", "c1")]
        # With one sample a problem both are the same.
        if k > 1:
            series.insert(0, _series(of_set, "pass_at_k", f"pass@{k:.0f}", "c2"))
        unit = f"% of {newest.get('num_prompts', 0.0):.0f} problems, band: 95 % interval"
        yield line_chart(
            f"Evaluation: {name}", series, unit=unit, x_label="training step at which it began", tick=_percent
        )


def _series(of_set: Sequence[SetEvaluation], metric: str, label: str, colour: str) -> ChartSeries:
    found = [each for each in of_set if {metric, f"{metric}_low", f"{metric}_high"} <= each.values.keys()]
    return ChartSeries(
        label=label,
        points=[(each.step, each.values[metric]) for each in found],
        colour=colour,
        style="dots",
        band=[(each.values[f"{metric}_low"], each.values[f"{metric}_high"]) for each in found],
    )


def _percent(share: float) -> str:
    return f"{share * 100:.3g}"
