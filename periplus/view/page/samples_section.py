"""Samples of a run in HTML: a section of the run's report, and a page of its own.

All text from a run is hostile: it is escaped, and characters that are not visible are shown as escapes
(periplus/view/terminal/visible.py). Context tokens, and tokens of older policies, have a background of their own.
"""

from collections.abc import Iterator, Sequence
from html import escape

from periplus.job.samples.gallery import Gallery
from periplus.job.samples.shown import ShownPiece, ShownSample
from periplus.view.page.page_frame import html_page
from periplus.view.terminal.visible import visible_text, without_middle

REPORTED_CHARACTERS = 4000
"""Most characters of a prompt or a piece in a run's report, which has samples among much else. Chosen by hand."""

_ALL = 1 << 62
_TOKEN = "token"


def samples_section(gallery: Gallery) -> str:
    """Return the section of a run's report with a handful of samples of its newest step."""
    step = gallery.samples[0].step
    lede = f"The best, the worst and some others of step {step}, of {gallery.num_matching:,} samples."
    cards = "".join(_card(sample, REPORTED_CHARACTERS) for sample in gallery.samples)
    note = f'<p class="note">{escape(visible_text(gallery.no_text))}</p>' if gallery.no_text else ""
    inside = f'<h2>Samples</h2><p class="note">{lede}</p>{note}{cards}'
    return f'<section class="samples" aria-label="Samples">{inside}</section>'


def samples_page(gallery: Gallery) -> str:
    """Return a page of samples as an HTML document of its own."""
    query = gallery.query
    last_page = -(-gallery.num_matching // query.size)
    lede = (
        f"{gallery.num_matching:,} samples match"
        + ("" if query.evaluation else f", of {gallery.num_samples:,} that were trained on")
        + ". "
        f"Page {query.page:,} of {last_page:,}."
    )
    note = f'<p class="lede">{escape(visible_text(gallery.no_text))}</p>' if gallery.no_text else ""
    cards = "".join(_card(sample, _ALL) for sample in gallery.samples)
    name = visible_text(gallery.run.rstrip("/").rpartition("/")[2])
    heading = f'<p class="brand">periplus</p><h1>{escape(name)}: samples</h1><p class="lede">{lede}</p>{note}'
    return html_page(
        f"{name} - samples", [f"<header>{heading}</header>", f'<section class="samples">{cards}</section>']
    )


def _card(sample: ShownSample, most: int) -> str:
    return f'<article class="card sample">{"".join(_parts(sample, most))}</article>'


def _parts(sample: ShownSample, most: int) -> Iterator[str]:
    where = f" &middot; {_text(sample.region)}" if sample.region else ""
    what = f"{_text(sample.evaluation)}, step" if sample.evaluation else "Step"
    yield f"<h3>{what} {sample.step} &middot; group {sample.group} &middot; sample {sample.sample}{where}</h3>"
    yield f'<dl class="figures">{"".join(_figures(sample))}</dl>'
    trajectory = sample.trajectory
    if trajectory is None:
        yield f'<p class="note">Not shown: {_text(sample.problem)}</p>'
        return
    if sample.doubt:
        found = "In doubt: this worker's samples were found not to be of the weights"
        yield f'<p class="note">{found}: {_text(sample.doubt)}</p>'
    yield f'<p class="label">Prompt, {_counted(len(trajectory.prompt_ids), _TOKEN)}</p>'
    yield f"<pre>{_words(sample.prompt, trajectory.prompt_ids.tolist(), most)}</pre>"
    yield f'<p class="label">Completion, {_counted(sample.num_tokens, _TOKEN)}</p>'
    pieces = (
        _piece(piece, trajectory.completion_ids[piece.begin : piece.end].tolist(), most) for piece in sample.pieces
    )
    yield f"<pre>{''.join(pieces)}</pre>"
    yield f'<p class="note">{"; ".join(_legend(sample.pieces))}</p>'


def _figures(sample: ShownSample) -> Iterator[str]:
    trajectory = sample.trajectory
    figures = [
        ("reward", "not judged" if sample.reward is None else f"{sample.reward:g}"),
        ("advantage", f"{sample.advantage:+.3g}"),
    ]
    figures += [(name, f"{value:g}") for name, value in sample.reward_parts.items()]
    figures += [
        ("oldest token, versions behind", str(sample.staleness)),
        ("log-probability difference, mean", f"{sample.difference_mean:.3g} nats"),
        ("largest", f"{sample.difference_max:.3g} nats"),
    ]
    if trajectory is not None:
        figures += [("ended by", trajectory.stop_reason.value), ("worker", trajectory.worker_id)]
    return (f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in figures)


def _piece(piece: ShownPiece, ids: Sequence[int], most: int) -> str:
    kind = "context" if piece.is_context else "stale" if piece.staleness else "fresh"
    return f'<span class="{kind}" title="{_text(_told(piece))}">{_words(piece.text, ids, most)}</span>'


def _legend(pieces: Sequence[ShownPiece]) -> Iterator[str]:
    return (_text(_told(piece)) for piece in pieces)


def _told(piece: ShownPiece) -> str:
    count = piece.end - piece.begin
    if piece.is_context:
        return f"{_counted(count, 'context token')} that no policy sampled"
    kept = ", with keys and values of older ones" if piece.kept_kv else ""
    tokens, behind = _counted(count, _TOKEN), _counted(piece.staleness, "version")
    return f"{tokens} by policy {piece.policy}, {behind} behind{kept}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _words(text: str | None, ids: Sequence[int], most: int) -> str:
    return _text(without_middle(" ".join(map(str, ids)) + " " if text is None else text, most))


def _text(text: str) -> str:
    return escape(visible_text(text))
