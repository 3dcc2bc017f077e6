"""Rank 0 with real followers: they train together, publish what one process publishes, and end together."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing import AuthenticationError, Pipe
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from periplus.errors import NonFiniteLoss, RankLost, TrainingError
from periplus.job.job_file import JobFile
from periplus.values.digest import state_digest
from periplus.values.task import RankMachine
from tests.support.trainer.learning import make_job, sampled, tiny_model
from tests.support.trainer.samples import CONSUMER
from trainer.distributed import followers
from trainer.distributed.leader import Leader

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROMPTS_RP = np.arange(12).reshape(3, 4) % 20
FOUND_S = 20.0
"""Seconds within which the loss of a rank must be noticed; the promise is 30."""


ELSEWHERE = ("env", "RANK_MACHINE=n1")
"""Runs a command as a launcher does on another machine, which this one stands in for."""
MACHINES = (RankMachine(name="n0", num_devices=2), RankMachine(name="n1", num_devices=1, words=ELSEWHERE))
ALIKE = tuple(replace(machine, num_devices=2) for machine in MACHINES)


@contextmanager
def leader_of(size: int, job: JobFile, model: Any, machines: Sequence[RankMachine] = ()) -> Iterator[Leader]:
    leader = Leader(size, 1, machines, "127.0.0.1" if machines else "")
    try:
        leader.start()
        leader.build(job, model)
        yield leader
    finally:
        leader.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def train_for_ever(leader: Leader) -> None:
    samples = sampled(tiny_model(), 0)
    while True:
        leader.step(samples, consumer=CONSUMER, learning_rate=1e-2)


def published(size: int, machines: Sequence[RankMachine] = (), **train: Any) -> list[Any]:
    """Return what three versions look like to readers and to the record: digests, probes, and reports of steps."""
    job = make_job(algorithm={"name": "ppo", "kl_coefficient": 0.1}, train=train)
    found: list[Any] = []
    with leader_of(size, job, tiny_model(), machines) as leader:
        weights = leader.weights
        state = weights.first()
        found.append((state_digest(state), weights.probe(PROMPTS_RP)))
        for seed in range(2):
            report = leader.step(sampled(tiny_model(), seed), consumer=CONSUMER, learning_rate=1e-2)
            assert report is not None
            complete, probe = weights.take(), weights.probe(PROMPTS_RP)
            state = complete(state).state
            found.append((report.values(), {name: tensor.data for name, tensor in state.items()}, probe))
        pids = leader.process_ids
        assert len(pids) == size - 1
    assert not any(is_running(pid) for pid in pids)
    return found


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return published(1)


@pytest.mark.parametrize(
    ("size", "machines", "train"),
    [
        (4, (), {"sharding": "full"}),
        (3, MACHINES, {"sharding": "full"}),
        (4, ALIKE, {"sharding": "hybrid", "micro_batch_samples": 2}),
        (3, MACHINES, {}),  # a small model: a copy on each rank
    ],
)
def test_several_ranks_train_and_publish_as_one_process_does(
    alone: list[Any], size: int, machines: Sequence[RankMachine], train: Mapping[str, Any]
) -> None:
    first, *versions = published(size, machines, **train)
    assert first[0] == alone[0][0], "with equal masters the published bytes are equal"
    np.testing.assert_allclose(first[1], alone[0][1], atol=1e-5)
    for (values, state, probe), (values_alone, state_alone, probe_alone) in zip(versions, alone[1:], strict=True):
        assert values == pytest.approx(values_alone, rel=1e-4, abs=1e-5)
        np.testing.assert_allclose(probe, probe_alone, atol=2e-2)
        differing = sum(int((state[name] != state_alone[name]).sum()) for name in state)
        assert differing < 0.02 * sum(words.size for words in state.values()), "rounding of float32 sums alone"


def test_a_step_that_is_not_finite_is_refused_on_all_ranks_and_the_next_one_is_taken() -> None:
    """They train in bfloat16, and what they probe is in float32 all the same."""
    samples = sampled(tiny_model(), 0)
    with leader_of(1, make_job(), tiny_model()) as leader:
        leader.weights.first()
        expected = leader.weights.probe(PROMPTS_RP)
    model = tiny_model()
    with leader_of(2, make_job(train={"dtype": "bfloat16", "sharding": "full"}), model) as leader:
        weights = leader.weights
        before = weights.first()
        np.testing.assert_allclose(weights.probe(PROMPTS_RP), expected, atol=1e-5)
        with torch.no_grad():  # rank 0's rows alone
            parameter = next(model.parameters()).to_local()
            kept = parameter.clone()
            parameter.fill_(float("nan"))
        with pytest.raises(NonFiniteLoss):
            leader.step(samples, consumer=CONSUMER, learning_rate=1e-2)
        with torch.no_grad():
            parameter.copy_(kept)
        assert state_digest(weights.take()(before).state) == state_digest(before)
        assert leader.step(samples, consumer=CONSUMER, learning_rate=1e-2) is not None
        assert state_digest(weights.take()(before).state) != state_digest(before)


@pytest.mark.parametrize("while_training", [False, True])
def test_a_rank_that_is_killed_is_noticed_at_once_and_named(while_training: bool) -> None:
    size = 3 if while_training else 2
    with leader_of(size, make_job(), tiny_model()) as leader:
        noticed: list[RankLost | None] = []
        waiting = threading.Thread(target=lambda: noticed.append(leader.wait_for_loss()))
        waiting.start()
        *_, last = leader.process_ids
        if while_training:
            threading.Timer(0.3, os.kill, (last, signal.SIGKILL)).start()
        else:
            os.kill(last, signal.SIGKILL)
        started_s = time.perf_counter()
        lost = f"rank {size - 1} of {size} \\(process {last}\\) is lost: it was killed by signal 9"
        with pytest.raises(RankLost, match=lost):
            train_for_ever(leader)
        assert time.perf_counter() - started_s < FOUND_S
        waiting.join(FOUND_S)
        (error,) = noticed
        assert "signal 9" in str(error)
        pids = leader.process_ids
    assert not any(is_running(pid) for pid in pids)


def test_a_rank_on_another_machine_ends_with_it_and_the_machine_is_named() -> None:
    with leader_of(3, make_job(), tiny_model(), MACHINES) as leader:
        here, there = leader.process_ids
        assert b"RANK_MACHINE" not in Path(f"/proc/{here}/environ").read_bytes()
        assert b"RANK_MACHINE=n1" in Path(f"/proc/{there}/environ").read_bytes()
        os.kill(there, signal.SIGKILL)
        with pytest.raises(RankLost, match=rf"rank 2 of 3 on n1 \(process {there}\) is lost"):
            train_for_ever(leader)
    assert not is_running(here)


def test_ranks_join_once_all_of_them_are_ready() -> None:
    follower = """
import runpy, sys, time
from trainer.distributed import process_group, rank
process_group.JOIN_LIMIT_S, skeleton = 1.0, rank.skeleton
sys.argv = sys.argv[3:]
rank.skeleton = lambda first: time.sleep(4.0 * ("--rank=2" in sys.argv)) or skeleton(first)
runpy.run_module("trainer.distributed.follower", run_name="__main__")
"""
    slow = [replace(machine, words=(sys.executable, "-c", follower)) for machine in MACHINES]
    with leader_of(3, make_job(), tiny_model(), slow) as leader:
        assert leader.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=1e-2) is not None


@pytest.mark.parametrize("dies", [True, False])
def test_the_rank_that_died_is_named_and_not_the_one_that_misses_it(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(followers, "CAUSE_S", FOUND_S if dies else 0.1)
    made, ends = followers.Followers(1, 1), []
    for rank in (1, 2):
        end, other_end = Pipe()
        follower = followers._Follower(f"rank {rank} of 3", subprocess.Popen(["sleep", "60"]))
        follower.watcher = threading.Thread(target=made._watch, args=(follower,))
        made._followers.append(follower)
        follower.arrive(end)
        ends.append(other_end)
    for follower in made._followers:
        follower.watcher.start()
    ends[0].send_bytes(b"Connection closed by peer")
    ends[0].close()
    if dies:
        assert made.lost(0.2) is None
        ends[1].close()
    assert f"rank {2 if dies else 1} of 3" in str(made.lost(FOUND_S))
    made.close()


def test_a_rank_whose_connection_breaks_leaves() -> None:
    with leader_of(2, make_job(), tiny_model(), ()) as leader:
        (follower,) = leader.process_ids
        assert leader._followers is not None
        leader._followers._followers[0].say_no_more()
        with pytest.raises(RankLost, match="rank 1 of 2"):
            train_for_ever(leader)
    assert not is_running(follower)


def test_who_does_not_know_the_key_is_no_rank() -> None:
    made = followers.Followers(2, 1, machines=MACHINES, address="127.0.0.1")
    try:
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Client(made._listener.address, authkey=b"another key").recv_bytes()
        made._wait_for(made._followers[0], made._followers[0].arrived)
    finally:
        made.close()


def test_a_rank_that_runs_out_of_memory_says_so() -> None:
    with leader_of(2, make_job(train={"sharding": "full"}), tiny_model()) as leader:
        assert leader.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=1e-2) is not None
        (follower,) = leader.process_ids
        held_bytes = int(Path(f"/proc/{follower}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(follower, resource.RLIMIT_AS, (held_bytes, held_bytes))
        with pytest.raises(RankLost, match=r"rank 1 of 2 .* is lost: out of memory .* lower train.micro_batch_samples"):
            leader.weights.probe(np.ones((4000, 40), np.int64))


def test_a_hanging_rank_does_not_hold_up_the_others_for_ever() -> None:
    with leader_of(2, make_job(), tiny_model()) as leader:
        (follower,) = leader.process_ids
        # As the limit of process_group.py, but shorter.
        distributed_c10d._set_pg_timeout(timedelta(seconds=1), dist.group.WORLD)
        os.kill(follower, signal.SIGSTOP)
        with pytest.raises(TrainingError, match=r"rank 0 failed: .*Timed out waiting 1000ms"):
            leader.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=1e-2)
    assert not is_running(follower)


def test_a_rank_that_is_stopped_is_killed_after_a_while_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "SILENT_S", 4)
    with leader_of(2, make_job(), tiny_model()) as leader:
        (follower,) = leader.process_ids
        assert leader.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=1e-2) is not None
        os.kill(follower, signal.SIGSTOP)
        with pytest.raises(RankLost, match=r"rank 1 of 2 .* is lost: it gave no sign of life for 4 s"):
            train_for_ever(leader)
    assert not is_running(follower)


def test_a_rank_that_has_nothing_to_do_is_not_taken_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "SILENT_S", 4)
    with leader_of(2, make_job(), tiny_model()) as leader:
        assert leader._followers is not None
        assert leader._followers.lost(8.0) is None


def test_closing_ends_a_wait_for_a_loss(tmp_path: Path) -> None:
    for size in (1, 2):
        leader = Leader(size)
        found: list[RankLost | None] = []
        waiting = threading.Thread(target=lambda leader=leader, found=found: found.append(leader.wait_for_loss()))
        waiting.start()
        leader.start()
        leader.close()
        waiting.join(FOUND_S)
        assert found == [None]
