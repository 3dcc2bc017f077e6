from dataclasses import replace
from math import inf, nan

import pytest

from periplus.process.telemetry import check_names
from periplus.values.policy import Policy
from tests.support.trainer.reader_proofs import proof_of
from trainer.reporting.delivery import ProofTally, Sent
from trainer.reporting.progress import Progress

SENT = Sent(
    is_delta=True,
    payload_bytes=1000,
    content_bytes=200_000,
    num_elements=100_000,
    num_changed=800,
    snapshot_s=0.1,
    encode_s=0.2,
    publish_s=0.4,
)
PROOF = proof_of(Policy(0, 1), transfer_s=1.0, apply_s=0.5, pause_s=0.25)


def test_a_delta_tells_its_density_and_its_bits() -> None:
    values = SENT.values()
    assert (values["delta_density"], values["delta_bits_per_change"]) == (0.008, 10.0)
    check_names(values)


@pytest.mark.parametrize(
    "sent", [replace(SENT, is_delta=False), replace(SENT, num_changed=0), replace(SENT, num_elements=0, num_changed=0)]
)
def test_what_no_element_changed_for_has_no_bits_a_change(sent: Sent) -> None:
    assert "delta_bits_per_change" not in sent.values()


def test_a_tally_counts_proofs_and_keeps_the_longest_times() -> None:
    tally = ProofTally()
    assert tally.values() == {"weight_proofs": 0, "weight_fallbacks": 0, "weight_checks": 0}, "nobody measured a time"
    for proof in (
        PROOF,
        replace(PROOF, pause_s=0.75, transfer_s=0.5, fallback=True),
        replace(PROOF, engine_checked=True, probe_max_difference=1e-5),
        replace(PROOF, ok=False),
    ):
        tally.add(proof, None, None)
    values = tally.values()
    assert (values["weight_proofs"], values["weight_fallbacks"], values["weight_checks"]) == (3, 1, 1)
    assert (values["transfer_s"], values["apply_s"], values["pause_s"]) == (1.0, 0.5, 0.75)
    assert values["probe_max_difference"] == 1e-5
    check_names(values)


def test_a_tally_keeps_for_each_region_when_its_slowest_reader_held_a_version() -> None:
    tally = ProofTally()
    for proof, region, held_after_s in (
        (PROOF, "eu", 0.5),
        (PROOF, "eu", 0.25),
        (PROOF, "us", 2.0),
        (replace(PROOF, ok=False), "us", 9.0),
        (PROOF, "us", None),
        (PROOF, None, 9.0),
    ):
        tally.add(proof, region, held_after_s)
    values = tally.values()
    assert (values["weights_s_region/eu"], values["weights_s_region/us"]) == (0.5, 2.0)
    check_names(values)


@pytest.mark.parametrize("nonsense", [nan, inf, -inf, -1.0])
def test_numbers_of_other_machines_that_are_none_count_as_nothing(nonsense: float) -> None:
    tally = ProofTally()
    tally.add(replace(PROOF, transfer_s=nonsense, apply_s=nonsense, pause_s=nonsense), None, None)
    assert (tally.transfer_s, tally.apply_s, tally.pause_s) == (0.0, 0.0, 0.0)
    assert Progress().proven(replace(PROOF, pause_s=nonsense)).pause_s == 0.0


def test_the_summary_adds_up_deltas_apart_from_full_states() -> None:
    full = replace(SENT, is_delta=False, payload_bytes=150_000)
    total = Progress().published(full).published(SENT).published(replace(SENT, num_changed=0, payload_bytes=200))
    total = total.proven(replace(PROOF, fallback=True)).proven(replace(PROOF, engine_checked=True, pause_s=0.5))
    summary = total.summary({}, wall_s=1.0, bound=0, num_remote_regions=2)
    check_names(summary)
    assert (summary["delta_density"], summary["delta_bits_per_change"]) == (0.004, 12.0)
    assert summary["weights_ratio"] == 600_000 / 151_200
    assert (summary["weight_fallbacks"], summary["weight_checks"], summary["pause_s"]) == (1, 1, 0.5)
    assert (total.num_published, total.delta_bytes) == (3, 151_200)
    assert Progress.of_mapping(total.to_mapping()) == total


def test_a_run_without_deltas_has_no_density() -> None:
    summary = Progress().summary({}, wall_s=1.0, bound=0, num_remote_regions=0)
    assert not {"delta_density", "delta_bits_per_change"} & summary.keys()
