"""Collects the bars of a picture: as many as MAX_SPANS, of the steps that the picture shows."""

from dataclasses import replace

from planner.simulate.record import MAX_SPANS, Span


class Gantt:
    """`first` and `last` are the steps to show. Bars of other steps are kept only where they reach into those."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._spans: list[Span] = []
        self._begin_s = 0.0
        self._end_s = float("inf")

    def add(self, *, region: str, place: str, what: str, begin_s: float, end_s: float, step: int) -> None:
        if end_s > begin_s and end_s >= self._begin_s and begin_s <= self._end_s and len(self._spans) < 4 * MAX_SPANS:
            self._spans.append(Span(region=region, place=place, what=what, begin_s=begin_s, end_s=end_s, step=step))

    def trained(self, step: int, ended_s: float) -> None:
        """The end of a training step: what the picture's first and last instant follow from."""
        if step == self._first - 1:
            self._begin_s = ended_s
            self._spans = [span for span in self._spans if span.end_s >= ended_s]
        elif step == self._last:
            self._end_s = ended_s

    def spans(self) -> tuple[Span, ...]:
        """Cut to what is shown, in the order of time."""
        begin_s, end_s = self._begin_s, self._end_s
        shown = [
            replace(span, begin_s=max(span.begin_s, begin_s), end_s=min(span.end_s, end_s))
            for span in self._spans
            if span.end_s > begin_s and span.begin_s < end_s
        ]
        return tuple(sorted(shown, key=lambda s: (s.begin_s, s.region, s.place, s.what))[:MAX_SPANS])
