"""HTML page of a run: one file without scripts, fonts or addresses outside of it.

`render_report` is pure. The page begins with what a reader wants first: whether the run learned, how fast it was,
whether its promises held, and how many bytes crossed the WAN. Then come the curves, the regions, the links and the
whole configuration. All text from files is escaped.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from periplus.process.telemetry import REWARD_PART_MEAN
from periplus.values.record import Record, RecordKind
from periplus.view import units
from periplus.view.page.charts import ChartSeries, comparison, histogram, line_chart, smoothed
from periplus.view.page.evaluation_charts import evaluation_charts
from periplus.view.page.page_frame import html_page
from periplus.view.state import LinkSeen, LinkView, RecordSeen, ViewState, fold
from periplus.view.terms import figure, largest_difference

_LABEL_CHARACTERS = 16
"""Most characters of a legend's label that come from a user: three of them fit beside each other."""

_SUMMARY_UNITS = {
    "accuracy_before": units.percent,
    "accuracy_after": units.percent,
    "warmup_s": units.duration,
    "wall_s": units.duration,
    "wan_bytes": units.size,
    "wan_bytes_full_weights": units.size,
}


def render_report(
    config: Mapping[str, object],
    plan: Mapping[str, object],
    records: Sequence[Record],
    summary: Mapping[str, object],
    links: Sequence[LinkSeen | LinkView],
    ending: str = "",
    samples: str = "",
) -> str:
    """Return the page.

    `config` is the resolved job, `plan` an object of schema periplus.plan/1, and `summary` the demo's JSON. Each may be
    empty. `ending` says how an unfinished run ended, or that it has not ended; it is empty for a finished one.
    `samples` is the markup of the section with samples, or empty.
    """
    # The page draws from the same fold as the live view, so that both show the same figures.
    state = ViewState(plan=plan)
    for record in records:
        state = fold(state, RecordSeen(record))
    name = str(config.get("name") or "run")
    steps = _living_steps(records)
    sections = [
        f'<header><p class="brand">periplus</p><h1>{escape(name)}</h1>',
        f'<p class="lede">{_lede(summary, state)}</p>{_unfinished(config, ending)}{_notice(state)}</header>',
        f'<section class="tiles" aria-label="Results">{"".join(_tiles(summary))}</section>',
        *_wan_section(summary),
        f'<section class="charts" aria-label="Curves">{"".join(_charts(steps, state, summary))}</section>',
        samples,
        _terms_section(state),
        _regions_section(plan, summary),
        _links_section(links),
        _key_values("Summary", {k: _summary_value(k, v) for k, v in summary.items()}),
        _key_values("Plan", dict(_flattened(plan))),
        _key_values("Configuration", dict(_flattened(config))),
    ]
    return html_page(name, sections)


def _living_steps(records: Sequence[Record]) -> list[Record]:
    """Return the step records of the surviving lineage: a new fork replaces the versions that it repeats."""
    by_version: dict[int, Record] = {}
    for record in records:
        if record.kind == RecordKind.STEP:
            known = by_version.get(record.policy.version)
            if known is None or known.policy <= record.policy:
                by_version[record.policy.version] = record
    return [by_version[version] for version in sorted(by_version)]


def _number(summary: Mapping[str, object], name: str) -> float | None:
    value = summary.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _names(summary: Mapping[str, object]) -> list[str]:
    regions = summary.get("regions")
    return [str(region) for region in regions] if isinstance(regions, list | tuple) else []


def _lede(summary: Mapping[str, object], state: ViewState) -> str:
    steps = int(_number(summary, "steps") or state.step)
    wall_s = _number(summary, "wall_s") or state.time_s
    names = _names(summary)
    where = f" over {len(names)} regions: {', '.join(names)}" if names else ""
    return escape(f"{steps:,} training steps in {units.duration(wall_s)}{where}.")


def _notice(state: ViewState) -> str:
    return f'<p class="lede"><strong>{escape(state.notice)}</strong></p>' if state.notice else ""


def _unfinished(config: Mapping[str, object], ending: str) -> str:
    if not ending:
        return ""
    asked = f" The job asks for {config['steps']} steps." if "steps" in config else ""
    return f'<p class="lede"><strong>This run is unfinished: {escape(ending)}.</strong>{escape(asked)}</p>'


def _tiles(summary: Mapping[str, object]) -> Iterator[str]:
    before, after = _number(summary, "accuracy_before"), _number(summary, "accuracy_after")
    gain = (
        f"{(after - before) * 100:+.1f} points, from {units.percent(before)}"
        if after is not None and before is not None
        else ""
    )
    if after is None and (reward := _number(summary, "eval_reward_after")) is not None:
        first = _number(summary, "eval_reward_before")
        yield _tile("Held-out reward", f"{reward:.3g}", "" if first is None else f"mean, from {first:.3g}")
    else:
        yield _tile("Held-out accuracy", units.percent(after), gain)
    yield _tile("Throughput", units.short(_number(summary, "tokens_per_s")), "completion tokens trained a second")
    bound, largest = _number(summary, "staleness_bound"), _number(summary, "staleness_max")
    yield _tile("Largest staleness", units.short(largest), f"versions, of at most {units.short(bound)}")
    sent, full = _number(summary, "wan_bytes"), _number(summary, "wan_bytes_full_weights")
    yield _tile("Less over the WAN", units.factor(full, sent), "than full weights and JSON")
    # An unknown count must not pass for a kept promise.
    broken = [_number(summary, name) for name in ("staleness_violations", "weight_digest_mismatches")]
    known = [count for count in broken if count is not None]
    verdict = units.UNKNOWN if len(known) < 2 else "kept" if not any(known) else "broken"
    counts = ", ".join(
        f"{units.short(count)} {what}" for count, what in zip(broken, ("stale tokens", "wrong digests"), strict=True)
    )
    yield _tile("Promises", verdict, counts, "good" if verdict == "kept" else "bad" if verdict == "broken" else "")


def _tile(label: str, value: str, note: str, style: str = "") -> str:
    value, note = value.replace(" %", "\u00a0%"), note.replace(" %", "\u00a0%")
    return (
        f'<div class="tile {style}"><p class="label">{escape(label)}</p>'
        f'<p class="big">{escape(value)}</p><p class="note">{escape(note)}</p></div>'
    )


def _wan_section(summary: Mapping[str, object]) -> Iterator[str]:
    sent, full = _number(summary, "wan_bytes"), _number(summary, "wan_bytes_full_weights")
    if sent and full:
        counter = summary.get("wan_bytes_from")
        rows = [
            ("Full bf16 weights to each remote region, trajectories as JSON", full, "muted"),
            (f"periplus, counted by the {counter}" if counter else "periplus", sent, "c1"),
        ]
        yield f'<section class="card wide">{comparison("Bytes between regions", rows)}</section>'


def _charts(steps: Sequence[Record], state: ViewState, summary: Mapping[str, object]) -> Iterator[str]:
    def of(name: str) -> list[tuple[float, float]]:
        return [(record.policy.version, record.values[name]) for record in steps if name in record.values]

    # Smooth over a twentieth of the run; short runs are shown as they are.
    window = max(1, len(steps) // 20)
    rewards = of("reward_mean")
    smooth = ChartSeries(label=f"mean of {window} steps", points=smoothed(rewards, window))
    accuracy = ChartSeries(
        label="accuracy",
        points=[(a.step, a.value) for a in state.accuracies if a.value is not None],
        colour="c2",
        style="dots",
    )
    held_out = ChartSeries(
        label="mean reward",
        points=[(a.step, a.reward) for a in state.accuracies if a.reward is not None],
        colour="c2",
        style="dots",
    )
    kl = of("approx_kl")
    delta = ChartSeries(label="delta", points=of("delta_bytes"))
    full = ChartSeries(label="full weights", points=of("full_weights_bytes"), colour="muted")
    # The summary's bound is what was promised; an unfinished run has only that of its records.
    bound = _number(summary, "staleness_bound")
    limit = state.staleness_bound if bound is None else int(bound)
    # The order of the page: does it learn, is it on policy, how fast is it, and where does the time go.
    drawn = (
        line_chart(
            "Reward", [ChartSeries(label="each step", points=rewards, style="faint"), smooth], unit="mean of the batch"
        ),
        *_reward_part_chart(steps, window),
        *_failure_chart(of("reward_failures")),
        line_chart("Accuracy", [accuracy], unit="% of held-out prompts", tick=_percent_tick)
        if accuracy.points or not held_out.points
        else line_chart("Held-out reward", [held_out], unit="mean over held-out prompts"),
        *evaluation_charts(state.set_evaluations),
        line_chart("Loss", [*_raw_and_smooth(of("loss"), window)], unit="nats"),
        line_chart(
            "Entropy of the policy", [*_raw_and_smooth(of("entropy"), window)], unit="nats a token", from_zero=True
        ),
        line_chart("KL from the behaviour policy", [*_raw_and_smooth(kl, window)], unit="nats a token", from_zero=True),
        *_collapse_charts(of, window),
        histogram("Staleness", state.staleness_tokens, bound=limit, unit="% of tokens", x_label="versions behind"),
        line_chart("Throughput", [*_raw_and_smooth(of("tokens_per_s"), window)], unit="tokens/s", from_zero=True),
        line_chart("Published weights", [delta, full], unit="bytes a version", logarithmic=True, tick=units.size),
        line_chart(
            "Where a version's time goes",
            [
                ChartSeries(label="encoding", points=smoothed(of("encode_s"), window)),
                ChartSeries(label="transfer", points=smoothed(of("transfer_s"), window), colour="muted"),
                ChartSeries(label="engine paused", points=smoothed(of("pause_s"), window), colour="c2"),
            ],
            unit="seconds, slowest of the readers",
            from_zero=True,
        ),
        line_chart(
            "Where a step's time goes",
            [
                ChartSeries(label="whole step", points=smoothed(of("step_s"), window), colour="muted"),
                ChartSeries(label="training", points=smoothed(of("train_s"), window)),
                ChartSeries(label="waiting", points=smoothed(of("wait_s"), window), colour="c2"),
            ],
            unit=f"seconds, mean of {window} steps",
            from_zero=True,
        ),
    )
    yield from (f'<figure class="card">{chart}</figure>' for chart in drawn)


def _collapse_charts(of: Callable[[str], list[tuple[float, float]]], window: int) -> Iterator[str]:
    """Draw what tells of a collapse, or of an engine that computes otherwise, before the reward does."""

    def smooth(name: str, label: str, colour: str) -> ChartSeries:
        return ChartSeries(label=label, points=smoothed(of(name), window), colour=colour)

    yield line_chart(
        "Length of completions",
        [smooth("completion_tokens_mean", "mean", "c1"), smooth("completion_tokens_max", "longest", "muted")],
        unit="tokens",
        from_zero=True,
    )
    yield line_chart(
        "Truncated completions",
        [*_raw_and_smooth(of("truncated_fraction"), window)],
        unit="% of the batch",
        from_zero=True,
        tick=_percent_tick,
    )
    yield line_chart(
        "Gradient norm", [*_raw_and_smooth(of("grad_norm"), window)], unit="before clipping", from_zero=True
    )
    yield line_chart(
        "Clipped tokens",
        [
            smooth("clip_fraction_low", "below the range", "c1"),
            smooth("clip_fraction_high", "above it", "c2"),
            smooth("cut_fraction", "weights bounded", "muted"),
        ],
        unit="% of tokens",
        from_zero=True,
        tick=_percent_tick,
    )
    yield line_chart(
        "Trainer against engine",
        [
            smooth("logprob_mismatch_current_mean", "same policy", "c1"),
            smooth("logprob_mismatch_stale_mean", "older one", "c2"),
            smooth("logprob_mismatch_mixed_mean", "several", "muted"),
        ],
        unit="nats, mean difference",
        from_zero=True,
    )


def _reward_part_chart(steps: Sequence[Record], window: int) -> Iterator[str]:
    names = sorted({name for record in steps for name in record.values if REWARD_PART_MEAN.thing_of(name)})
    colours = ("c1", "c2", "muted")
    series = [
        ChartSeries(
            label=(REWARD_PART_MEAN.thing_of(name) or name)[:_LABEL_CHARACTERS],
            points=smoothed([(r.policy.version, r.values[name]) for r in steps if name in r.values], window),
            colour=colours[number],
        )
        for number, name in enumerate(names[: len(colours)])
    ]
    if series:
        more = f", {len(names)} parts in metrics.jsonl" if len(names) > len(series) else ""
        yield line_chart("Parts of the reward", series, unit=f"mean, unweighted{more}")


def _failure_chart(failures: list[tuple[float, float]]) -> Iterator[str]:
    if any(count for _, count in failures):
        series = ChartSeries(label="each step", points=failures, colour="c2")
        yield line_chart("Failures of reward functions", [series], unit="a step", from_zero=True)


def _percent_tick(share: float) -> str:
    return f"{share * 100:.3g}"


def _raw_and_smooth(points: list[tuple[float, float]], window: int) -> tuple[ChartSeries, ChartSeries]:
    smooth = ChartSeries(label=f"mean of {window} steps", points=smoothed(points, window))
    return ChartSeries(label="each step", points=points, style="faint"), smooth


def _terms_section(state: ViewState) -> str:
    rows = [
        (
            each.name,
            *(figure(value, each.unit) or units.UNKNOWN for value in (each.predicted, each.simulated, each.measured)),
            units.UNKNOWN if each.difference is None else f"{each.difference:+.0%}",
        )
        for each in state.terms
    ]
    note = largest_difference(state.terms)
    table = _table(
        "A step, predicted and measured", ("term", "predicted", "simulated", "measured", "difference"), rows, num_text=1
    )
    return table.removesuffix("</section>") + f'<p class="note">{escape(note)}</p></section>' if note else table


def _regions_section(plan: Mapping[str, object], summary: Mapping[str, object]) -> str:
    roles: dict[str, list[str]] = {name: [] for name in _names(summary)}
    assignments = plan.get("assignments")
    for assignment in assignments if isinstance(assignments, list | tuple) else []:
        if isinstance(assignment, Mapping) and "region" in assignment:
            runs = f"{assignment.get('num_workers', 1)} x {assignment.get('task', 'task')}"
            roles.setdefault(str(assignment["region"]), []).append(runs)
    rows = [(name, ", ".join(roles[name]) or units.UNKNOWN) for name in roles]
    return _table("Regions", ("region", "runs"), rows)


def _links_section(links: Sequence[LinkSeen | LinkView]) -> str:
    rows = [
        (
            link.src,
            link.dst,
            f"{link.rtt_s * 1e3:.0f}" if link.rtt_s > 0 else units.UNKNOWN,
            units.mbit(link.throughput_bits_per_s) if link.throughput_bits_per_s > 0 else units.UNKNOWN,
            f"{link.sent_bytes / 1e6:,.2f}",
        )
        for link in sorted(links, key=lambda link: (link.src, link.dst))
    ]
    return _table("Links", ("from", "to", "RTT, ms", "capacity, Mbit/s", "sent, MB"), rows, num_text=2)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], num_text: int = 99) -> str:
    if not rows:
        return ""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{'' if i < num_text else ' class=num'}>{escape(cell)}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', headings)}</tr></thead>"
    return f'<section class="card table"><h2>{escape(title)}</h2><table>{head}<tbody>{body}</tbody></table></section>'


def _key_values(title: str, values: Mapping[str, object]) -> str:
    if not values:
        return ""
    rows = "".join(f"<tr><th scope=row>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in values.items())
    inner = f'<table class="keys"><tbody>{rows}</tbody></table>'
    opened = " open" if title == "Summary" else ""
    return (
        f'<section class="card table"><details{opened}><summary><h2>{title}</h2></summary>{inner}</details></section>'
    )


def _summary_value(name: str, value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if value is None:
        return "not measured"
    if isinstance(value, int | float) and not isinstance(value, bool):
        exact = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        return f"{_SUMMARY_UNITS[name](value)} ({exact})" if name in _SUMMARY_UNITS else exact
    return str(value)


def _flattened(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    match value:
        case Mapping() if value:
            for key, inner in value.items():
                yield from _flattened(inner, f"{prefix}.{key}" if prefix else str(key))
        case list() | tuple() if any(isinstance(item, Mapping | list | tuple) for item in value):
            for i, item in enumerate(value):
                yield from _flattened(item, f"{prefix}[{i}]")
        case list() | tuple():
            yield prefix, ", ".join(map(str, value))
        case _ if prefix:
            yield prefix, value
