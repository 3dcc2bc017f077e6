"""Recorder of a Gantt chart: at most `MAX_SPANS` bars of the steps that the picture shows."""

from dataclasses import replace

from planner.simulate.run_record import MAX_SPANS, BusySpan


class Gantt:
    """Recorder of the bars of the steps `first` to `last`.

    Bars of other steps are kept only where they reach into the time of these steps.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._spans: list[BusySpan] = []
        self._begin_s = 0.0
        self._end_s = float("inf")

    def add(self, *, region: str, place: str, what: str, begin_s: float, end_s: float, step: int) -> None:
        """Record a bar of `place` in `region`, if it may be visible."""
        # Bars are dropped while the run goes on, so that a long run stays small. The limit is above MAX_SPANS because
        # `spans` drops some more.
        if end_s > begin_s and end_s >= self._begin_s and begin_s <= self._end_s and len(self._spans) < 4 * MAX_SPANS:
            self._spans.append(BusySpan(region=region, place=place, what=what, begin_s=begin_s, end_s=end_s, step=step))

    def trained(self, step: int, ended_s: float) -> None:
        """Note the end of a training step, from which the first and last instant of the picture follow."""
        if step == self._first - 1:
            # The shown time begins when the step before the first shown one ends. Bars that ended earlier are dropped;
            # those that reach into it are cut by `spans`.
            self._begin_s = ended_s
            self._spans = [span for span in self._spans if span.end_s >= ended_s]
        elif step == self._last:
            self._end_s = ended_s

    def spans(self) -> tuple[BusySpan, ...]:
        """Return the bars, cut to the time that is shown and sorted by time."""
        begin_s, end_s = self._begin_s, self._end_s
        shown = [
            replace(span, begin_s=max(span.begin_s, begin_s), end_s=min(span.end_s, end_s))
            for span in self._spans
            if span.end_s > begin_s and span.begin_s < end_s
        ]
        return tuple(sorted(shown, key=lambda s: (s.begin_s, s.region, s.place, s.what))[:MAX_SPANS])
