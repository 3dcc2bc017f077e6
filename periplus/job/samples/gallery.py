"""The page of samples that a user asked for, from a run directory; and the handful that a run's report shows.

Reading changes nothing, needs no service, and works while the trainer writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from periplus.errors import NotFound, PeriplusError
from periplus.job.run_directory import RunDirectory
from periplus.job.samples.doubts import doubt_of, read_doubts
from periplus.job.samples.index import SampleIndex, read_index
from periplus.job.samples.selection import ChosenSample, SampleOrder, SampleQuery, choose
from periplus.job.samples.shown import ShownSample, Tree, sample_tree, shown_sample, tokens_to_decode
from periplus.job.samples.texts import Decode, find_tokenizer, text_decoder
from periplus.job.samples.trajectories import read_trajectories

SCHEMA = "periplus.samples/1"
"""Schema of the JSON of a page."""

REPORTED = 2
"""Samples of each kind (best, worst, random) that a run's report shows. Chosen by hand: enough to see what the model
writes, and few enough to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Samples of a run, ready to be shown.

    `num_matching` counts the samples that match the query on all pages, and `num_samples` all samples of the run.
    `no_text` says why token ids are shown in place of text, and is empty if there is text.
    """

    run: str
    query: SampleQuery
    samples: tuple[ShownSample, ...]
    num_matching: int
    num_samples: int
    no_text: str


def gallery_of(run: RunDirectory, query: SampleQuery) -> Gallery:
    """Return the page of a query.

    Raises: NotFound if the run has no samples, or none that match; the message says which there are.
    """
    with text_decoder(find_tokenizer(run)) as decode:
        index = read_index(run)
        page = choose(index, query)
        if not page.samples:
            raise NotFound(_nothing(run, index, query, page.num_matching))
        return _gallery(run, index, query, page.samples, page.num_matching, decode)


def reported_gallery(run: RunDirectory) -> Gallery | None:
    """Return the best, the worst and some random samples of a run's newest step, each once; None if it has none.

    Which are random depends on the step alone, so that a report that is written again shows the same.
    """
    try:
        index = read_index(run)
    except NotFound:
        return None
    if not index.blocks:
        return None
    newest = index.blocks[-1]
    query = SampleQuery(step=newest.policy.version, size=REPORTED)
    rows = [
        sample.row
        for order in (SampleOrder.BEST, SampleOrder.WORST)
        for sample in choose(index, replace(query, order=order)).samples
    ]
    there = np.flatnonzero(index.has_frames([newest]))
    rows += np.random.default_rng((newest.policy.fork, newest.policy.version)).permutation(there).tolist()
    chosen = [ChosenSample(block=newest, row=row) for row in dict.fromkeys(rows)][: 3 * REPORTED]
    if not chosen:
        return None
    with text_decoder(find_tokenizer(run)) as decode:
        return _gallery(run, index, query, chosen, len(there), decode)


def gallery_tree(gallery: Gallery) -> Tree:
    """Return the JSON of a page."""
    return {
        "schema": SCHEMA,
        "run": gallery.run,
        "page": gallery.query.page,
        "num_matching": gallery.num_matching,
        "num_samples": gallery.num_samples,
        "no_text": gallery.no_text,
        "samples": [sample_tree(sample) for sample in gallery.samples],
    }


def _gallery(
    run: RunDirectory,
    index: SampleIndex,
    query: SampleQuery,
    chosen: Sequence[ChosenSample],
    num_matching: int,
    decode: Decode,
) -> Gallery:
    trajectories = read_trajectories(run, chosen)
    readable = [tokens_to_decode(t) for t in trajectories if not isinstance(t, PeriplusError)]
    decoded = decode(readable)
    texts, doubts = iter(decoded.texts or ()), read_doubts(run)
    samples = tuple(
        shown_sample(sample, found, "", None)
        if isinstance(found, PeriplusError)
        else shown_sample(sample, found, doubt_of(doubts, found, sample.block.policy), next(texts, None))
        for sample, found in zip(chosen, trajectories, strict=True)
    )
    return Gallery(
        run=str(run.root),
        query=query,
        samples=samples,
        num_matching=num_matching,
        num_samples=index.num_samples,
        no_text=decoded.why,
    )


def _nothing(run: RunDirectory, index: SampleIndex, query: SampleQuery, num_matching: int) -> str:
    if num_matching:
        return f"there is no page {query.page}: {num_matching} samples match, {query.size} a page"
    if query.evaluation:
        had = sorted({f"{block.evaluation} at version {block.policy.version}" for block in index.evaluations})
        return f"no sample of an evaluation matches; {run.root} has {', '.join(had) or 'none yet'}"
    if not index.blocks:
        return f"{run.root} has no samples yet: no step of it has been trained; --set shows those of evaluations"
    first, last = index.blocks[0].policy.version, index.blocks[-1].policy.version
    regions = sorted({region for block in index.blocks for region in block.regions})
    kept = np.flatnonzero(index.has_frames(index.blocks))
    there = f"{len(kept)} of {index.num_samples} samples have their frames"
    return (
        f"no sample matches; the run has steps {first} to {last} and samples from {', '.join(regions) or 'no region'}; "
        f"{there} (output.trajectories_mib bounds them)"
    )
