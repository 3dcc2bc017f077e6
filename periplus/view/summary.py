"""Summary of a run: the JSON object that `--json` prints, and the table that a person reads.

`summary_from` makes a `Summary` from the values of the trainer's summary record. Both renderings show the same values.
One that was not measured is null in JSON and `not measured` in the table, never zero.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from periplus.config import finite_json
from periplus.view import units
from periplus.view.state import printable
from periplus.view.terminal.blocks import bar

_BAR_CELLS = 44


class WanCounter(StrEnum):
    """Counter that `wan_bytes` comes from.

    The WAN emulator counts everything that it relays, including probes and control. Gateways count the job's messages
    that they sent to each other.
    """

    EMULATOR = "emulator"
    GATEWAYS = "gateways"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Values of a run, under the names of the demo's JSON; None stands for a value that was not measured.

    `wan_bytes_from` names the counter of `wan_bytes`. `wan_bytes_full_weights` is the number of bytes that full bf16
    weights and JSON trajectories would have taken. `delta_density` and `delta_bits_per_change` are over all deltas
    together, and `pause_s` is the longest pause of an engine.
    """

    accuracy_before: float | None
    accuracy_after: float | None
    warmup_s: float | None
    warmup_examples: int | None
    wall_s: float | None
    steps: int
    tokens_per_s: float | None
    wan_bytes: int | None
    wan_bytes_full_weights: int | None
    staleness_max: int | None
    staleness_bound: int
    staleness_violations: int
    weight_digest_mismatches: int
    regions: tuple[str, ...]
    eval_reward_before: float | None = None
    eval_reward_after: float | None = None
    weights_ratio: float | None = None
    delta_density: float | None = None
    delta_bits_per_change: float | None = None
    weight_fallbacks: int | None = None
    pause_s: float | None = None
    wan_bytes_from: WanCounter | None = None
    problems_train: int | None = None
    problems_left_out: int | None = None
    changes_of_problems: int | None = None

    def values(self) -> dict[str, float]:
        """Return the measured numbers under their registered names, for the summary record."""
        texts = ("regions", "wan_bytes_from")
        return {name: value for name, value in asdict(self).items() if name not in texts and value is not None}


def summary_from(values: Mapping[str, float], regions: Sequence[str]) -> Summary:
    """Return the summary for the values of a summary record, whose `wan_bytes` the gateways counted.

    Raises: ValueError if a count that every run makes is missing, such as the staleness violations.
    """

    def count(name: str) -> int | None:
        value = _finite(values.get(name))
        return None if value is None else int(value)

    # The promises of a run must never be shown as unknown.
    def promised(name: str) -> int:
        value = count(name)
        if value is None:
            raise ValueError(f"the summary lacks {name}; a run always counts it")
        return value

    return Summary(
        accuracy_before=_finite(values.get("accuracy_before")),
        accuracy_after=_finite(values.get("accuracy_after")),
        eval_reward_before=_finite(values.get("eval_reward_before")),
        eval_reward_after=_finite(values.get("eval_reward_after")),
        warmup_s=_finite(values.get("warmup_s")),
        warmup_examples=count("warmup_examples"),
        wall_s=_finite(values.get("wall_s")),
        steps=promised("steps"),
        tokens_per_s=_finite(values.get("tokens_per_s")),
        wan_bytes=count("wan_bytes"),
        wan_bytes_full_weights=count("wan_bytes_full_weights"),
        staleness_max=count("staleness_max"),
        staleness_bound=promised("staleness_bound"),
        staleness_violations=promised("staleness_violations"),
        weight_digest_mismatches=promised("weight_digest_mismatches"),
        regions=tuple(regions),
        weights_ratio=_finite(values.get("weights_ratio")),
        delta_density=_finite(values.get("delta_density")),
        delta_bits_per_change=_finite(values.get("delta_bits_per_change")),
        weight_fallbacks=count("weight_fallbacks"),
        pause_s=_finite(values.get("pause_s")),
        wan_bytes_from=None if count("wan_bytes") is None else WanCounter.GATEWAYS,
        problems_train=count("problems_train"),
        problems_left_out=count("problems_left_out"),
        changes_of_problems=count("changes_of_problems"),
    )


def summary_json(summary: Summary, **extra: object) -> str:
    """Return the summary and then `extra` as one line of JSON. Raises: ValueError if `extra` repeats a name."""
    data = {name: _finite(value) if isinstance(value, float) else value for name, value in asdict(summary).items()}
    repeated = data.keys() & extra.keys()
    if repeated:
        raise ValueError(f"the summary has {', '.join(sorted(repeated))} already")
    return finite_json.dumps(data | extra)


def summary_table(summary: Summary, *, ascii_only: bool = False) -> RenderableType:
    """Return the summary as a panel: accuracy, speed, promises, and bytes over the WAN beside those of full weights."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for label, value in _rows(summary):
        grid.add_row(label, value)
    return Panel(
        Group(grid, Text(), *_bytes_lines(summary, ascii_only=ascii_only)),
        title=Text("summary", style="bold default"),
        title_align="left",
        border_style="bright_black",
        box=box.ROUNDED,
        padding=(0, 1),
        expand=False,
    )


def _rewards(summary: Summary) -> str:
    values = (summary.eval_reward_before, summary.eval_reward_after)
    if values == (None, None):
        return ""
    return "  ->  ".join(_known(units.UNKNOWN if value is None else f"{value:.3g}") for value in values)


def _rows(summary: Summary) -> list[tuple[str, Text]]:
    before, after = summary.accuracy_before, summary.accuracy_after
    accuracy = Text.assemble(
        (_known(units.percent(before)), "bold"), "  ->  ", (_known(units.percent(after)), "bold cyan")
    )
    if before is not None and after is not None:
        accuracy.append(f"   {(after - before) * 100:+.1f} points", style="dim")
    doubt = Text("held-out problems may have been trained on", style="bold red")
    staleness = Text.assemble(
        (_known(units.short(summary.staleness_max)), "bold"), (f" of {summary.staleness_bound}", "dim")
    )
    warmup = f"{_known(units.duration(summary.warmup_s))}, {_exact(summary.warmup_examples, 'examples')}"
    problems = f"{_exact(summary.problems_train, 'trained on')}, {_exact(summary.problems_left_out, 'left out')}"
    return [
        ("regions", Text(", ".join(map(printable, summary.regions)))),
        ("steps", Text(f"{summary.steps:,} in {_known(units.duration(summary.wall_s))}")),
        ("problems", Text(problems)),
        ("warm-up", Text(warmup)),
        ("accuracy", accuracy),
        *([("held-out reward", Text(rewards))] if (rewards := _rewards(summary)) else []),
        *([("", doubt)] if summary.changes_of_problems else []),
        ("throughput", Text(_exact(summary.tokens_per_s, "tokens/s"))),
        ("published weights", Text(_weights(summary))),
        ("longest engine pause", Text(_milliseconds(summary.pause_s))),
        ("largest staleness", staleness),
        ("staleness violations", promise(summary.staleness_violations)),
        ("digest mismatches", promise(summary.weight_digest_mismatches)),
    ]


def _weights(summary: Summary) -> str:
    ratio, density, bits = summary.weights_ratio, summary.delta_density, summary.delta_bits_per_change
    if ratio is None:
        return "not measured"
    if density is None or bits is None:
        return f"{ratio:.3g}x smaller than bf16"
    return f"{ratio:.3g}x smaller than bf16, {bits:.1f} bits a change, {units.percent(density)} changed"


def _milliseconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.3g} ms"


def promise(count: int) -> Text:
    """Return the text of a count that is promised to be zero: `kept` or `BROKEN`."""
    return (
        Text.assemble((f"{count:,}", "bold"), "  ", ("kept", "green"))
        if count == 0
        else Text(f"{count:,}  BROKEN", style="bold red")
    )


def _bytes_lines(summary: Summary, *, ascii_only: bool) -> list[Text]:
    sent, full = summary.wan_bytes, summary.wan_bytes_full_weights
    heading = "bytes over the WAN"
    if summary.wan_bytes_from is not None:
        heading += f", counted by the {summary.wan_bytes_from}"
    # Without both numbers there is nothing to compare.
    if sent is None or not full:
        return [Text.assemble((f"{heading}  ", "dim"), "not measured" if sent is None else units.size(sent))]
    # Both bars have the same scale: the longer one fills its cells.
    longest = max(sent, full)
    rows = (("full weights + JSON", full, "bright_black"), ("periplus", sent, "cyan"))
    lines = [Text(heading, style="dim")]
    for label, num_bytes, style in rows:
        share = num_bytes / longest
        drawn = "#" * math.ceil(share * _BAR_CELLS) if ascii_only else bar(share, _BAR_CELLS)
        lines.append(
            Text.assemble(f"  {label:<20}", (f"{drawn:<{_BAR_CELLS}}", style), f"  {units.size(num_bytes):>8}")
        )
    lines.append(Text.assemble(f"  {'':<20}", (f"{units.factor(full, sent)} less", "bold cyan")))
    return lines


def _exact(value: float | None, unit: str) -> str:
    return "not measured" if value is None or not math.isfinite(value) else f"{value:,.0f} {unit}"


def _known(text: str) -> str:
    return "not measured" if text == units.UNKNOWN else text


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
