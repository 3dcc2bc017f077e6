"""Samples of a run as plain text for a terminal: figures first, then prompt and completion behind a bar.

Every line of a prompt or completion begins with a bar, and characters that could command the terminal are escaped
(periplus/view/terminal/visible.py). So nothing that a model writes can pass for a figure of another sample.
"""

from collections.abc import Iterator, Sequence

from periplus.job.samples.gallery import Gallery
from periplus.job.samples.shown import ShownPiece, ShownSample
from periplus.view import units
from periplus.view.terminal.visible import visible_text, without_middle

SHOWN_CHARACTERS = 2000
"""Most characters of a prompt, or of a piece of a completion, that are printed. Chosen by hand: about a screen. JSON
and the page have all of them."""

SHOWN_IDS = 64
"""Most token ids that are printed where there is no text. Chosen by hand: a few lines."""

_BAR = "  | "


def samples_text(gallery: Gallery) -> str:
    """Return the text of a page of samples."""
    query = gallery.query
    last_page = -(-gallery.num_matching // query.size)
    head = f"{gallery.num_matching:,} samples match{_of(gallery)}; page {query.page} of {last_page:,}"
    lines = [head, *([gallery.no_text] if gallery.no_text else [])]
    for sample in gallery.samples:
        lines += ["", *_lines(sample)]
    return "\n".join(lines)


def _of(gallery: Gallery) -> str:
    return "" if gallery.query.evaluation else f", of {gallery.num_samples:,} that were trained on"


def _lines(sample: ShownSample) -> Iterator[str]:
    where = f"  {visible_text(sample.region)}" if sample.region else ""
    what = f"{visible_text(sample.evaluation)} at step" if sample.evaluation else "step"
    yield (
        f"{what} {sample.step}  group {sample.group}  sample {sample.sample}{where}  "
        f"reward {'not judged' if sample.reward is None else f'{sample.reward:g}'}"
        + ("" if sample.evaluation else f"  advantage {sample.advantage:+.3g}")
    )
    if sample.reward_parts:
        parts = ", ".join(f"{visible_text(name)} {value:g}" for name, value in sample.reward_parts.items())
        yield f"  reward parts: {parts}"
    if not sample.evaluation:
        yield (
            f"  {_tokens(sample.num_tokens)}, the oldest {_behind(sample.staleness)}; log-probabilities differ from "
            f"the engine's by {sample.difference_mean:.3g} nats in the mean, {sample.difference_max:.3g} at most"
        )
    trajectory = sample.trajectory
    if trajectory is None:
        yield f"  not shown: {visible_text(sample.problem)}"
        return
    yield (
        f"  ended by {trajectory.stop_reason.value} after {units.duration(trajectory.generation_s)}, "
        f"temperature {trajectory.sampling.temperature:g}, worker {visible_text(trajectory.worker_id)}"
    )
    if sample.doubt:
        yield f"  IN DOUBT: this worker's samples were found not to be of the weights: {visible_text(sample.doubt)}"
    yield f"  prompt, {_tokens(len(trajectory.prompt_ids))}:"
    yield from _barred(sample.prompt, trajectory.prompt_ids.tolist())
    for piece in sample.pieces:
        yield _heading(piece)
        yield from _barred(piece.text, trajectory.completion_ids[piece.begin : piece.end].tolist())


def _heading(piece: ShownPiece) -> str:
    num_tokens = _tokens(piece.end - piece.begin)
    if piece.is_context:
        return f"  context, {num_tokens} that no policy sampled:"
    kept = ", with keys and values of older ones" if piece.kept_kv else ""
    return f"  policy {piece.policy}, {_behind(piece.staleness)}{kept}, {num_tokens}:"


def _behind(staleness: int) -> str:
    return f"{staleness} version{'' if staleness == 1 else 's'} behind"


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _barred(text: str | None, ids: Sequence[int]) -> Iterator[str]:
    if text is None:
        more = f" ... {len(ids) - SHOWN_IDS:,} more" if len(ids) > SHOWN_IDS else ""
        text = " ".join(map(str, ids[:SHOWN_IDS])) + more
    for line in visible_text(without_middle(text, SHOWN_CHARACTERS)).split("\n"):
        yield f"{_BAR}{line}"
