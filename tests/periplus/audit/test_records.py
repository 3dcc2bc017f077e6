import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from periplus.audit import records
from periplus.audit.records import MAX_LINE_BYTES, from_line, to_line
from periplus.errors import CorruptFrame
from periplus.job.job_file import MAX_SAMPLES_PER_STEP
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun, Purpose, StopReason
from tests.support.audit.opened import OPENED

integers = st.integers(0, 2**63)
digests = st.binary(min_size=16, max_size=16)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
sizes = st.integers(1, 1024)
policies = st.builds(Policy, integers, integers)
frames = st.builds(records.FrameId, integers, integers)
labels = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
runs = st.lists(st.builds(PolicyRun, policies, integers, st.booleans()), max_size=3).map(tuple)
used = st.lists(st.builds(records.UsedSample, integers, integers, digests), max_size=3).map(tuple)
dropped = st.lists(st.builds(records.DroppedSample, integers, digests, integers), max_size=3).map(tuple)
any_record = st.one_of(
    st.builds(
        records.OpenEntry,
        job_id=texts,
        fork=integers,
        parent=st.none() | policies,
        manifest=st.none() | hashes,
        resumed_at=st.none() | integers,
        bound=integers,
        group_size=sizes,
        groups_per_step=sizes,
        seed=integers,
        algorithm=texts,
        settings=hashes,
        problems=hashes,
        other_problems=st.booleans(),
        schema=st.just(records.SCHEMA),
    ),
    st.builds(
        records.LeaseEntry,
        lease_id=integers,
        group=integers,
        sample=integers,
        item=integers,
        purpose=st.sampled_from(Purpose),
        worker_id=texts,
        region=texts,
        start_at=policies,
        consume_by_version=integers,
    ),
    st.builds(
        records.ResultEntry,
        verdict=st.sampled_from(records.AdmissionVerdict),
        why=labels | st.just(""),
        lease_id=integers,
        group=integers,
        sample=integers,
        worker_id=texts,
        region=texts,
        digest=digests,
        num_tokens=integers,
        policies=runs,
        stop_reason=st.sampled_from(StopReason),
        frame=st.none() | frames,
        index=integers,
    ),
    st.builds(records.LostEntry, lease_id=integers, group=integers, sample=integers, worker_id=texts, why=labels),
    st.builds(records.DropEntry, group=integers, why=labels, samples=dropped),
    st.builds(records.DoubtEntry, worker_id=texts, since=policies, policy=policies, why=texts),
    st.builds(records.EvalEntry, policy=policies, samples=used, newest=st.none() | policies),
    st.builds(records.EvalBeginEntry, policy=policies),
    st.builds(
        records.ConsumeEntry,
        policy=policies,
        trained=st.booleans(),
        why=labels | st.just(""),
        samples=used,
        root=digests,
        staleness_tokens=st.dictionaries(integers, integers, max_size=3),
    ),
    st.builds(records.PublishEntry, policy=policies, digest=hashes),
    st.builds(records.CheckpointEntry, policy=policies, manifest=hashes, covers=integers),
    st.builds(records.PruneEntry, kept_from=frames, policy=policies),
    st.builds(records.ExportEntry, policy=policies, digest=hashes),
    st.builds(records.EndEntry, how=st.sampled_from(records.ENDINGS)),
    st.builds(records.SealEntry, key=hashes, certificate=signatures, signature=signatures),
)

LEASE = records.LeaseEntry(
    lease_id=5,
    group=2,
    sample=1,
    item=9,
    purpose=Purpose.TRAIN,
    worker_id='odd "worker"\n',
    region="eu",
    start_at=Policy(0, 3),
    consume_by_version=4,
)
GOLDEN = (
    b'{"n":7,"prev":"000102030405060708090a0b0c0d0e0f","t":12.500000,"kind":"lease","lease":5,"group":2,"sample":1,'
    b'"item":9,"purpose":"train","worker":"odd \\"worker\\"\\n","region":"eu","start_at":[0,3],"consume_by":4}'
)


def test_the_text_of_a_line_is_frozen() -> None:
    assert to_line(7, bytes(range(16)), 12.5, LEASE) == GOLDEN
    line = from_line(GOLDEN, "here")
    assert (line.n, line.prev, line.time_s, line.record) == (7, bytes(range(16)), 12.5, LEASE)


@given(record=any_record, n=integers, prev=digests, time_s=st.floats(0, 1e10))
def test_every_record_comes_back_from_its_line(record: records.Entry, n: int, prev: bytes, time_s: float) -> None:
    raw = to_line(n, prev, time_s, record)
    assert b"\n" not in raw
    line = from_line(raw, "here")
    assert (line.n, line.prev, line.record) == (n, prev, record)
    assert to_line(line.n, line.prev, line.time_s, line.record) == raw


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "leased"},
        {"extra": 1},
        {"lease": -1},
        {"lease": True},
        {"lease": 1.0},
        {"lease": 2**64},
        {"purpose": "play"},
        {"worker": None},
        {"start_at": [0]},
        {"prev": "00"},
        {"t": "now"},
        {"t": float("nan")},
    ],
)
def test_what_is_not_in_the_schema_is_refused_with_its_place(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptFrame, match=r"audit\.jsonl:8"):
        from_line(rendered(json.loads(GOLDEN) | changes), "audit.jsonl:8")


@pytest.mark.parametrize("key", sorted(json.loads(GOLDEN)))
def test_a_missing_key_is_refused(key: str) -> None:
    data = json.loads(GOLDEN)
    del data[key]
    with pytest.raises(CorruptFrame, match=r"no key or kind|unknown to"):
        from_line(rendered(data), "here")


def rendered(data: dict[str, object]) -> bytes:
    """Return the line as a writer writes it, with whatever is wrong with its data."""
    raw = json.dumps(data, separators=(",", ":")).encode()
    return raw.replace(b'"t":12.5,', b'"t":12.500000,')


def test_the_rendering_of_these_tests_changes_nothing() -> None:
    assert rendered(json.loads(GOLDEN)) == GOLDEN


@pytest.mark.parametrize(
    ("found", "replaced"),
    [
        (b'"group":2,', b'"group":3,"group":2,'),
        (b'"group":2,"sample":1', b'"sample":1,"group":2'),
        (b'"group":2', b'"group": 2'),
        (b'"region":"eu"', b'"region":"\\u0065u"'),
        (b'"t":12.500000', b'"t":12.5'),
        (b'"prev":"000102030405060708090a', b'"prev":"000102030405060708090A'),
    ],
)
def test_a_line_has_one_form_only(found: bytes, replaced: bytes) -> None:
    raw = GOLDEN.replace(found, replaced)
    assert raw != GOLDEN
    assert json.loads(raw).keys() == json.loads(GOLDEN).keys()
    with pytest.raises(CorruptFrame, match=r"one form|in hex"):
        from_line(raw, "here")


@pytest.mark.parametrize("size", [0, -1, 2**31, 2**64 - 1])
def test_sizes_of_a_run_are_bounded(size: int) -> None:
    with pytest.raises(CorruptFrame, match="expected"):
        from_line(to_line(0, bytes(16), 0.0, replace(OPENED, group_size=size)), "here")
    with pytest.raises(CorruptFrame, match="expected"):
        from_line(to_line(0, bytes(16), 0.0, replace(OPENED, groups_per_step=size)), "here")


def test_texts_of_a_line_are_bounded() -> None:
    with pytest.raises(CorruptFrame, match="at most"):
        from_line(to_line(0, bytes(16), 0.0, replace(OPENED, job_id="j" * 5000)), "here")


@given(
    st.binary(max_size=40)
    | st.text(max_size=40).map(str.encode)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_anything_else_is_refused_and_nothing_crashes(raw: bytes) -> None:
    with pytest.raises(CorruptFrame):
        from_line(raw, "here")


def test_a_line_of_another_schema_is_refused_with_the_schemas_name() -> None:
    raw = to_line(0, bytes(16), 0.0, OPENED).replace(b"periplus.audit/2", b"periplus.audit/9")
    with pytest.raises(CorruptFrame, match="audit/9"):
        from_line(raw, "here")


def test_a_step_of_as_many_samples_as_a_job_may_have_is_one_line_that_is_read() -> None:
    """The longest numbers of each sample; a hundredth of the samples, since a line grows with their number."""
    samples = (records.UsedSample((1 << 41) - 1, 1023, bytes(16)),) * (MAX_SAMPLES_PER_STEP // 100)
    record = records.ConsumeEntry(
        policy=Policy(0, 1), trained=True, why="", samples=samples, root=bytes(16), staleness_tokens={0: 1}
    )
    assert 100 * len(to_line(0, bytes(16), 0.0, record)) < MAX_LINE_BYTES
