from dataclasses import replace

import pytest

from periplus.errors import UnsoundEngine
from periplus.pb.v1 import gateway_pb2
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from rollout_worker.convert import worker_message_to_pb
from rollout_worker.weights.version_report import VersionReport
from tests.support.trainer.kept_samples import trajectory_of
from trainer.checks.doubted_workers import HELPED_TOKENS, DoubtedWorkers
from trainer.intake.convert import message_from_pb
from trainer.intake.messages import EngineDoubted, ProofReceived
from trainer.reporting.delivery import ReaderProof

FIRST = EngineDoubted(worker_id="a", why="odd")


def proof(version: int, *, ok: bool = True, checked: bool = True) -> ReaderProof:
    report = VersionReport(policy=Policy(0, version), state_digest=b"", ok=ok, engine_checked=checked)
    message = message_from_pb(gateway_pb2.TrainerDown(up=worker_message_to_pb("a", report)))
    assert isinstance(message, ProofReceived)
    return message.proof


class Scene:
    """Two workers that have joined, and what was sent to them."""

    def __init__(self) -> None:
        self.sent: list[EngineDoubted] = []
        self.doubted = DoubtedWorkers(self.sent.append)
        self.doubted.joined("a", 1)
        self.doubted.joined("b", 1)

    def versions_in_doubt(self, worker_id: str) -> list[int]:
        sample = trajectory_of(0, 0, worker=worker_id)
        runs = [(PolicyRun(Policy(0, version), 1),) for version in range(6)]
        return [at for at, policies in enumerate(runs) if self.doubted.in_doubt(replace(sample, policies=policies))]


def test_all_samples_of_a_worker_are_in_doubt_until_its_engine_is_proven_after_the_fault() -> None:
    it = Scene()
    it.doubted.found("a", "odd", 300)
    assert it.sent == [FIRST]
    # A check that was on its way when the worker was told says nothing of a repair.
    it.doubted.proven("a", proof(3))
    assert it.versions_in_doubt("a") == [0, 1, 2, 3, 4, 5]
    it.doubted.proven("a", proof(3, ok=False))
    it.doubted.proven("a", proof(3, checked=False))
    assert it.versions_in_doubt("a") == [0, 1, 2, 3, 4, 5]
    it.doubted.proven("a", proof(4))
    it.doubted.proven("a", proof(5))
    assert it.versions_in_doubt("a") == [0, 1, 2, 3, 4]
    assert it.versions_in_doubt("b") == []


def test_a_process_that_started_anew_proves_its_first_version_without_reporting_a_fault() -> None:
    it = Scene()
    it.doubted.found("a", "odd", 300)
    it.doubted.joined("a", 2)
    it.doubted.proven("a", proof(2))
    assert it.sent == [FIRST]
    assert it.versions_in_doubt("a") == [0, 1, 2]


def test_a_worker_that_lost_its_connection_is_told_again_unless_it_has_reported_the_fault() -> None:
    it = Scene()
    it.doubted.found("a", "odd", 300)
    it.doubted.joined("a", 1)
    assert it.sent == [FIRST, FIRST]
    it.doubted.proven("a", proof(2, ok=False))
    it.doubted.joined("a", 1)
    it.doubted.joined("b", 1)
    assert it.sent == [FIRST, FIRST]


def test_a_second_finding_starts_the_process_anew_and_a_third_ends_the_job() -> None:
    it = Scene()
    it.doubted.found("a", "odd", 300)
    it.doubted.found("b", "odd", 300)
    it.doubted.found("a", "odd again", 300)
    assert it.sent[2:] == [EngineDoubted(worker_id="a", why="odd again", starts_anew=True)]
    assert it.versions_in_doubt("a") == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UnsoundEngine, match=r"samples of worker a .* its process started anew: still odd; look at"):
        it.doubted.found("a", "still odd", 300)


def test_a_finding_long_after_a_repair_is_a_first_one_again() -> None:
    it = Scene()
    for _ in range(4):
        it.doubted.found("a", "odd", HELPED_TOKENS)
    assert it.sent == [FIRST] * 4
