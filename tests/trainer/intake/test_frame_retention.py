from hypothesis import given
from hypothesis import strategies as st

from periplus.spool.format import Position
from trainer.intake.frame_retention import Retention


def at(sequence: int) -> Position:
    return Position(1, sequence)


def filled(max_bytes: int, *settled_at: int | None) -> Retention:
    """Frames of ten bytes and one sample; None: not settled."""
    retention = Retention(max_bytes)
    for sequence, version in enumerate(settled_at):
        retention.add(at(sequence), 10, 1, version=0)
        if version is not None:
            retention.settle(at(sequence), version)
    return retention


def test_covered_frames_are_kept_while_there_is_room() -> None:
    retention = filled(30, 0, 0, 0)
    assert retention.give_up(covered_version=9) is None
    assert retention.num_bytes == 30


def test_beyond_the_room_the_oldest_covered_frames_go_first() -> None:
    retention = filled(15, 0, 0, 0)
    assert retention.give_up(covered_version=1) == at(2)
    assert retention.num_bytes == 10


def test_what_no_checkpoint_covers_stays_whatever_room_there_is() -> None:
    assert filled(0, 3, 3).give_up(covered_version=3) is None
    assert filled(0, 2, 3).give_up(covered_version=3) == at(1)


def test_a_restore_reads_the_frames_from_the_first_that_the_checkpoint_does_not_cover() -> None:
    assert filled(99).first_needed(covered_version=3) is None
    assert filled(99, 2, 3, 2).first_needed(covered_version=3) == at(1)
    assert filled(99, 2, None, 2).first_needed(covered_version=3) == at(1)
    assert filled(99, 1, 2).first_needed(covered_version=3) == at(1), "the newest one, if none is needed"


def test_a_frame_with_a_sample_that_waits_to_be_trained_on_holds_up_those_behind_it() -> None:
    retention = filled(0, 0, None, 0, 0)
    assert retention.give_up(covered_version=5) == at(1)
    retention.settle(at(1), 4)
    assert retention.give_up(covered_version=5) == at(3)


def test_the_newest_frame_stays_so_that_there_is_one_to_begin_from() -> None:
    assert filled(0, 0, 0).give_up(covered_version=5) == at(1)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.none() | st.integers(0, 6)), min_size=1, max_size=12),
    st.integers(0, 200),
    st.integers(0, 7),
)
def test_only_covered_frames_ever_go_and_only_for_want_of_room(
    frames: list[tuple[int, int | None]], max_bytes: int, covered: int
) -> None:
    retention = Retention(max_bytes)
    for sequence, (num_bytes, version) in enumerate(frames):
        retention.add(at(sequence), num_bytes, 1, version=0)
        if version is not None:
            retention.settle(at(sequence), version)
    stays = retention.give_up(covered)
    num_gone = 0 if stays is None else stays.sequence
    gone, kept = frames[:num_gone], frames[num_gone:]
    assert all(version is not None and version < covered for _, version in gone)
    assert retention.num_bytes == sum(num_bytes for num_bytes, _ in kept)
    if gone:
        assert sum(num_bytes for num_bytes, _ in frames[num_gone - 1 :]) > max_bytes
