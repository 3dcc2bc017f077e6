"""Generation windows of two versions that overlap on the same engines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.tasks.phase_tables import PhaseTable
from planner.cost.tasks.version_overlap import NONE, Overlap, made_in, overlaps_of

SECONDS = np.array([2.0, 4.0, 4.0, 6.0, 8.0, 12.0])
SAMPLES = np.array([0.0, 0.0, 4.0, 8.0, 11.0, 15.0])
SLOWED = Overlap(load_s=1.0, first_s=4.0, slope_per_s=0.5, most=1.5)
MANY = Overlap(load_s=1.0, first_s=4.0, slope_per_s=0.1, most=9.0, fixed_s=2.5)
TABLE = PhaseTable(SECONDS, SAMPLES, SLOWED)
BOTH = st.sampled_from([SLOWED, MANY])


def test_a_phase_takes_longer_in_proportion_to_what_overlaps() -> None:
    assert SLOWED.end_s(6.0, span_s=3.0) == 6.0 + 1.0 * (6.0 - 1.0 - 3.0)
    assert SLOWED.end_s(12.0, span_s=3.0) == 12.0 + 1.5 * (12.0 - 1.0 - 3.0)


def test_windows_no_longer_than_a_step_and_the_loading_are_alone() -> None:
    assert TABLE.overlapped_samples(6.0, 7.0) == (*TABLE.samples_and_slope(6.0), 0.0)
    assert TABLE.overlapped_samples(6.0, 5.0)[0] == TABLE.samples_within(6.0)
    assert TABLE.overlapped_samples(6.0, 4.9)[0] < TABLE.samples_within(6.0)
    assert PhaseTable(SECONDS, SAMPLES).overlapped_samples(6.0, 0.0)[0] == TABLE.samples_within(6.0)


def test_a_knot_is_reached_when_its_phase_ends_beside_the_others() -> None:
    assert TABLE.overlapped_samples(SLOWED.end_s(8.0, 3.0), 3.0)[0] == pytest.approx(11.0)
    assert TABLE.overlapped_samples(4.0, 0.5)[0] == 4.0


def test_of_more_than_two_versions_each_takes_its_part_of_every_span() -> None:
    own_s, span_s = 5.0, 3.0  # 2.5 s of each span are for sequences, and half a second is left for the fixed 2.5
    assert MANY.end_s(1.0 + own_s, span_s) == pytest.approx(1.0 + 2.5 * span_s / (span_s - (own_s - 2.5)))
    assert MANY.end_s(1.0 + 8.0, 3.0) == pytest.approx(1.0 + 8.0 * 10.0)  # more than there is: as with all slots full


def test_up_to_two_spans_two_versions_count_and_from_three_on_all() -> None:
    two = Overlap(load_s=1.0, first_s=4.0, slope_per_s=0.1, most=9.0)
    spans = np.linspace(1.6, 8.0, 400)
    own = MANY.fixed_s * spans / (spans + MANY.fixed_s - 4.0)  # of a phase of 5 s, 1 s of it loading
    for span_s, many_s in zip(spans.tolist(), own.tolist(), strict=True):
        found, alone = MANY.end_s(5.0, span_s), two.end_s(5.0, span_s)
        if span_s >= 4.0 or many_s <= 2 * span_s:
            assert found == alone
        elif many_s > 3 * span_s:
            assert found == pytest.approx(max(alone, 1.0 + many_s))
        else:
            assert alone <= found <= max(alone, 1.0 + many_s)


@given(phase_s=st.floats(0.5, 30.0), span_s=st.floats(0.01, 20.0), more=st.floats(0.0, 5.0), overlap=BOTH)
def test_ends_come_later_with_longer_phases_and_sooner_with_longer_spans(
    phase_s: float, span_s: float, more: float, overlap: Overlap
) -> None:
    end_s, rise = overlap.end_and_rise(phase_s, span_s)
    assert overlap.end_s(phase_s + more, span_s) >= end_s * (1 - 1e-12)
    assert overlap.end_s(phase_s, span_s + more) <= end_s * (1 + 1e-12)
    found = overlaps_of([overlap, NONE]).end_and_rise(np.full(2, phase_s), np.full(2, span_s))
    assert [float(each[0]) for each in found] == pytest.approx([end_s, rise], rel=1e-9, abs=1e-12)
    assert [float(each[1]) for each in found] == [phase_s, 0.0]
    assert overlap.end_s(phase_s + 1e-9, span_s) == pytest.approx(end_s, rel=1e-4)  # no jump


@given(window_s=st.floats(0.1, 40.0), span_s=st.floats(0.1, 14.0), overlap=BOTH)
def test_arrays_say_what_one_table_says_and_slopes_are_those_of_what_is_made(
    window_s: float, span_s: float, overlap: Overlap
) -> None:
    rows = np.zeros(1, dtype=np.int64)
    at, span = np.array([window_s]), np.array([span_s])
    table = PhaseTable(SECONDS, SAMPLES, overlap)
    found = made_in(SECONDS, SAMPLES[None, :], rows, overlaps_of([overlap]), at, span)
    made, of_window, of_span = table.overlapped_samples(window_s, span_s)
    assert [float(each[0]) for each in found] == pytest.approx([made, of_window, of_span], rel=1e-9, abs=1e-9)
    little = 1e-7
    longer, wider = (
        table.overlapped_samples(window_s + little, span_s)[0],
        table.overlapped_samples(window_s, span_s + little)[0],
    )
    assert longer >= made * (1 - 1e-12)
    assert wider >= made * (1 - 1e-12)
    if longer - made < 0.1:  # no jump, and no knot, in between
        assert longer == pytest.approx(made + little * of_window, abs=4 * little)
        assert wider == pytest.approx(made + little * of_span, abs=4 * little)


def test_what_is_made_has_no_step_where_windows_begin_to_overlap() -> None:
    windows = np.linspace(4.0, 14.0, 2001)
    made = np.array([TABLE.overlapped_samples(window_s, 4.2)[0] for window_s in windows.tolist()])
    assert (np.diff(made) >= 0).all()
    assert np.diff(made).max() < 0.02


@given(window_s=st.floats(0.1, 40.0), spans_s=st.tuples(st.floats(0.1, 14.0), st.floats(0.1, 14.0)), overlap=BOTH)
def test_longer_windows_and_steps_never_make_less(
    window_s: float, spans_s: tuple[float, float], overlap: Overlap
) -> None:
    short, long = sorted(spans_s)
    table = PhaseTable(SECONDS, SAMPLES, overlap)
    assert table.overlapped_samples(window_s, long)[0] >= table.overlapped_samples(window_s, short)[0] * (1 - 1e-12)
    assert table.overlapped_samples(window_s * 1.1, short)[0] >= table.overlapped_samples(window_s, short)[0] * (
        1 - 1e-12
    )
    assert table.overlapped_samples(window_s, short)[0] <= table.samples_within(window_s) * (1 + 1e-12)


def test_one_is_no_worse_than_another_where_every_phase_ends_as_early() -> None:
    assert NONE.is_no_worse(NONE)
    assert SLOWED.is_no_worse(SLOWED)
    assert not SLOWED.is_no_worse(NONE)
    assert Overlap(load_s=1.0, first_s=4.0, slope_per_s=0.4, most=1.5).is_no_worse(SLOWED)
    assert not Overlap(load_s=0.5, first_s=4.0, slope_per_s=0.4, most=1.5).is_no_worse(SLOWED)
    with_many = Overlap(load_s=1.0, first_s=4.0, slope_per_s=0.5, most=1.5, fixed_s=2.5)
    assert SLOWED.is_no_worse(with_many)
    assert with_many.is_no_worse(with_many)
    assert not with_many.is_no_worse(SLOWED)
    assert with_many.is_no_worse(Overlap(load_s=1.0, first_s=4.0, slope_per_s=0.5, most=1.5, fixed_s=2.0))
