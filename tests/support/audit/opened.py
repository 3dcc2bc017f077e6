"""The first line of a journal that a test writes by hand."""

from periplus.audit import records

OPENED = records.OpenEntry(
    job_id="j",
    fork=0,
    parent=None,
    manifest=None,
    resumed_at=None,
    bound=1,
    group_size=2,
    groups_per_step=2,
    seed=0,
    algorithm="grpo",
    settings=bytes(32),
    problems=bytes(32),
)
