from dataclasses import replace

from periplus.values.policy import Policy
from periplus.values.record import Record, RecordKind
from periplus.view.state import Event, JobChanged, RecordSeen, ViewState, fold
from periplus.view.terminal.plain import Said, advance
from tests.support import sample_run
from tests.support.planner.predicted_plan import PLAN


def lines(events: list[Event]) -> list[str]:
    state, said = ViewState(), Said()
    written: list[str] = []
    for event in events:
        before, state = state, fold(state, event)
        said, new = advance(said, before, event, state)
        written += new
    return written


WHOLE = lines(list(sample_run.events()))


def test_a_run_is_told_in_lines_without_escape_codes() -> None:
    assert all(line.isascii() and line.isprintable() for line in WHOLE)
    text = "\n".join(WHOLE)
    for words in [
        "job chain-sum running",
        "phase warmup",
        "before training: accuracy 31.8 % on 512 prompts",
        "step 120/120",
    ]:
        assert words in text, words
    assert "staleness max 3/4" in text
    assert "WAN " in text


def test_steps_are_written_every_ten_or_every_five_seconds_and_the_last_always() -> None:
    steps = [line for line in WHOLE if " step " in line]
    assert sample_run.STEPS / 10 <= len(steps) <= sample_run.STEPS / 2

    def quick(version: int) -> Event:
        values = {"step": version, "steps_total": 35, "reward_mean": 0.5}
        return RecordSeen(Record(kind=RecordKind.STEP, policy=Policy(0, version), time_s=version / 100, values=values))

    written = lines([quick(version) for version in range(1, 36)])
    assert [line.split()[2] for line in written] == ["1/35", "11/35", "21/35", "31/35", "35/35"]


def test_failures_of_reward_functions_are_written_with_the_steps() -> None:
    values = {"reward_mean": 0.5, "reward_failures": 2.0}
    (line,) = lines([RecordSeen(Record(kind=RecordKind.STEP, policy=Policy(0, 1), time_s=0.0, values=values))])
    assert "reward 0.500  2 reward failures" in line


def test_a_broken_promise_is_written_at_once() -> None:
    values = {"staleness_violations": 1.0, "reward_mean": 0.0}
    seen = [Record(kind=RecordKind.STEP, policy=Policy(0, v), time_s=0.0, values={"reward_mean": 0.0}) for v in (1, 2)]
    written = lines([RecordSeen(seen[0]), RecordSeen(replace(seen[1], values=values))])
    assert "BROKEN PROMISE: 1 tokens older than the bound" in written[-1]


def test_an_unchanged_job_and_fleet_write_nothing() -> None:
    running = JobChanged(job_id="j", name="n", state="running")
    assert len(lines([running, running])) == 1
    assert len(lines([sample_run.fleet(0, 0), sample_run.fleet(1, 1)])) == 3


def test_a_step_of_a_planned_job_is_followed_by_what_was_predicted_of_it() -> None:
    values = {"reward_mean": 0.5, "step_s": 12.0, "generation_s_region/us": 9.5, "tokens_per_s_region/us": 3.0}
    step = RecordSeen(Record(kind=RecordKind.STEP, policy=Policy(0, 1), time_s=1.0, values=values))
    planned = JobChanged(job_id="j", name="n", state="running", plan=PLAN.to_tree())
    told = "predicted/measured: step 10 s/12 s, generation in us 8 s/9.5 s, samples of us 75%/100%"
    assert lines([planned, step])[-1].endswith(f"  {told}")
    assert len(lines([step])) == 1, "nothing was predicted"
