"""The coordinator's machine probes links at the same time, remembers which fail, and lets jobs wait for few of them."""

from dataclasses import replace
from itertools import product

import pytest

from coordinator.events import (
    Effect,
    FleetEvent,
    FleetEventKind,
    JobSubmitted,
    LinkMeasured,
    PlanFinished,
    RegionJoined,
    RegionLeft,
    RunPlanner,
    SendProbe,
    Ticked,
)
from coordinator.machine.links import LINK_WAIT_S, REGIONS_A_TURN, regions_in_turn
from coordinator.state import Pair
from tests.support.coordinator.machine_run import REGIONS, Run, free, hello, infeasible, request

PAIRS = sorted(pair for pair in product(REGIONS, REGIONS) if pair[0] != pair[1])


def ordered(effects: tuple[Effect, ...]) -> list[Pair]:
    return [(effect.region, effect.dst_region) for effect in effects if isinstance(effect, SendProbe)]


def told(effects: tuple[Effect, ...]) -> list[tuple[FleetEventKind, str]]:
    kinds = (FleetEventKind.LINK_FAILED, FleetEventKind.LINK_WORKS_AGAIN)
    return [(effect.kind, effect.text) for effect in effects if isinstance(effect, FleetEvent) and effect.kind in kinds]


def measured(*regions: str) -> Run:
    run = Run()
    run.join(*regions)
    run.measure_all()
    return run


def test_all_directed_pairs_are_probed_several_at_once_and_never_two_from_or_to_a_region() -> None:
    run, seen = Run(), set[Pair]()
    run.join(*REGIONS)
    most = 0
    while probes := {*run.state.probes}:
        assert len({src for src, _ in probes}) == len({dst for _, dst in probes}) == len(probes)
        seen, most = seen | probes, max(most, len(probes))
        run.answer_probe(*sorted(probes)[0])
    assert (sorted(seen), most) == (PAIRS, 3)


def test_an_order_says_whom_to_probe_and_how() -> None:
    run = Run()
    run.join("eu")
    [order] = [
        effect
        for effect in run.do(RegionJoined(hello("us"), 1))
        if isinstance(effect, SendProbe) and effect.region == "us"
    ]
    assert (order.epoch, order.dst_region, order.gateway_address, order.payload_bytes) == (1, "eu", "eu:1", 1024)


def test_six_regions_that_cannot_be_dialled_hold_a_job_up_for_half_a_minute() -> None:
    run, names = Run(), [f"r{number}" for number in range(12)]
    run.join(*names)
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    start_s = run.now_s
    # The first six answer within a second; each probe of the others takes as long as its agent waits for it.
    while run.state.planning is None:
        run.wait(1.0)
        for (src, dst), at_s in sorted(run.state.probes.items()):
            if dst in names[:6] and run.now_s > at_s:
                run.answer_probe(src, dst)
            elif run.now_s - at_s >= 15:
                run.probe_fails(src, dst)
        assert run.now_s - start_s < 60
    assert run.now_s - start_s <= LINK_WAIT_S
    good = [pair for pair in product(names[:6], names[:6]) if pair[0] != pair[1]]
    assert run.state.links.keys() >= {*good}, "links that work were not measured, for those that do not"


def test_a_job_waits_for_the_links_that_its_rules_allow_and_for_no_others() -> None:
    run = Run()
    run.join(*REGIONS)
    run.do(JobSubmitted("r", "j", request(trainer_region="eu", rollout_regions=("us", "eu"))))
    run.do(JobSubmitted("s", "k", request(forbidden_regions=("ap", "us"))))
    assert [effect.job_id for effect in run.effects if isinstance(effect, RunPlanner)] == ["k"]
    run.answer_probe("eu", "us")
    assert run.job().reason == "waits for the link us to eu to be measured, until 00:17:10 UTC"
    run.answer_probe("us", "eu")
    assert run.job().reason == ""


def test_a_trainers_region_makes_the_links_between_the_others_needless() -> None:
    wanted = request(trainer_region="eu")
    assert [pair for pair in PAIRS if not wanted.may_use_link(*pair)] == [("ap", "us"), ("us", "ap")]
    assert all(request().may_use_link(*pair) for pair in PAIRS)


def test_links_that_a_pending_job_may_use_are_measured_first() -> None:
    run = Run()
    run.join("eu")
    run.do(JobSubmitted("r", "j", request(min_regions=2, trainer_region="us", forbidden_regions=("ap",))))
    run.join("ap", "us")
    run.answer_probe("ap", "eu")
    assert ("us", "eu") in run.state.probes


def test_a_job_is_planned_after_half_a_minute_without_the_links_that_no_agent_answers_for() -> None:
    run = Run()
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    run.join("eu", "us")
    for _ in range(14):  # the agent of us comes again and again, so that no probe of it ends
        run.wait(2)
        assert run.state.planning is None
        run.do(RegionJoined(hello("us"), 1))
    run.now_s += 2
    run.do(Ticked())
    assert run.state.planning == "j"
    # While the planner works, and when its plan does not fit any more, the job does not begin to wait again.
    run.do(RegionJoined(hello("us"), 1))
    assert run.job().reason == ""


def test_a_job_that_waits_for_regions_meanwhile_waits_for_their_links_anew() -> None:
    run = Run()
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    run.join("eu", "us")
    run.do(RegionLeft("us", 1))
    run.wait(29)
    run.do(RegionJoined(hello("us"), 1))
    assert "until 00:17:39 UTC" in run.job().reason


def test_a_failed_probe_is_given_up_at_once_with_its_reason_and_tried_again_later() -> None:
    run = Run()
    run.join("eu", "us")
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    run.answer_probe("us", "eu")
    effects = run.probe_fails("eu", "us", "us:1 does not answer")
    assert told(effects) == [(FleetEventKind.LINK_FAILED, "the link to us was not measured: us:1 does not answer")]
    assert any(isinstance(effect, RunPlanner) for effect in effects), "a job waits for a link that was given up"
    assert not run.state.probes
    run.wait(60)
    assert [*run.state.probes] == [("eu", "us")]
    assert not told(run.probe_fails("eu", "us", "it still does not")), "an operator is told of each try"
    assert (run.state.failed_links["eu", "us"].why, run.state.failed_links["eu", "us"].since_s) == (
        "it still does not",
        1000,
    )
    run.wait(60)
    run.answer_probe("eu", "us")
    assert told(run.effects) == [(FleetEventKind.LINK_WORKS_AGAIN, "the link to us is measured again, after 120 s")]
    assert run.state.failed_links == {}


def test_a_probe_of_which_nothing_is_heard_is_given_up_with_that_reason() -> None:
    run = Run()
    run.join("eu", "us")
    effects = run.wait(20)
    assert [text for _, text in told(effects)] == [
        "the link to us was not measured: no answer of the agent of eu within 20 s",
        "the link to eu was not measured: no answer of the agent of us within 20 s",
    ]
    assert not run.state.probes


def test_a_late_failure_of_a_probe_changes_nothing_and_a_late_measurement_counts() -> None:
    run = measured("eu", "us")
    run.probe_fails("eu", "us")
    assert run.state.failed_links == {}
    run.wait(600)
    run.wait(20)
    assert len(run.state.failed_links) == 1
    [pair] = run.state.failed_links
    run.answer_probe(*pair)
    assert run.state.failed_links == {}


def test_a_link_is_measured_again_while_its_regions_are_in_no_other_probe() -> None:
    run = measured(*REGIONS)
    assert not ordered(run.wait(599))
    run.wait(1)
    assert len(run.state.probes) == 1, "two probes that nobody waits for share a region"
    [pair] = run.state.probes
    run.do(LinkMeasured(stamp=run.stamp(pair[0]), dst_region=pair[1], rtt_s=0.2, throughput_bits_per_s=5e7))
    assert run.state.links[pair].measured_at_s == run.now_s
    assert pair not in run.state.probes
    assert len(run.state.probes) == 1


@pytest.mark.parametrize("num", [3, 31, 32, 63, 64, 200])
@pytest.mark.parametrize("tick_s", [1, 2])
def test_every_region_has_its_turn_soon_and_a_small_fleet_has_it_each_second(num: int, tick_s: int) -> None:
    run = Run()
    run.join("eu")
    state = replace(run.state, regions={f"r{i}": run.state.regions["eu"] for i in range(num)})
    num_turns = num // REGIONS_A_TURN | 1
    turns = [regions_in_turn(state, 1000.5 + tick_s * i) for i in range(num_turns)]
    assert sorted(name for turn in turns for name in turn) == sorted(state.regions)
    assert max(map(len, turns)) <= 2 * REGIONS_A_TURN


def test_a_later_failure_marks_a_link_and_keeps_its_figures() -> None:
    run = measured("eu", "us")
    before = run.state.links
    run.wait(600)
    [pair] = run.state.probes
    assert [kind for kind, _ in told(run.probe_fails(*pair, "gone"))] == [FleetEventKind.LINK_FAILED]
    assert run.state.links == before
    assert run.state.failed_links[pair].since_s == run.now_s


def test_the_links_of_a_region_that_joins_again_are_tried_at_once_and_an_old_failure_is_not_told_again() -> None:
    run = Run()
    run.join("eu", "us")
    run.probe_fails("eu", "us")
    run.answer_probe("us", "eu")
    assert not run.state.probes
    run.do(RegionJoined(hello("us"), 1))
    assert [*run.state.probes] == [("eu", "us")]
    assert not told(run.probe_fails("eu", "us"))


def test_a_probe_is_forgotten_when_an_end_of_it_leaves() -> None:
    run = Run()
    run.join(*REGIONS)
    effects = run.do(RegionLeft("ap", 1))
    assert not any("ap" in pair for pair in run.state.probes)
    assert not told(effects)
    run.measure_all()
    assert sorted(run.state.links) == [("eu", "us"), ("us", "eu")]


def test_a_job_that_did_not_fit_is_planned_again_when_one_more_link_is_measured(run: Run) -> None:
    run.do(RegionJoined(hello("ap"), 1))
    run.do(RegionJoined(hello("sa"), 1))
    run.do(JobSubmitted("r2", "k", request(min_regions=2)))
    for pair in [*run.state.probes]:
        run.probe_fails(*pair)
    while run.state.probes:
        run.probe_fails(*next(iter(run.state.probes)))
    run.do(PlanFinished("k", free("ap", "sa"), infeasible("no link")))
    assert run.job("k").reason.startswith("does not fit what is free (no link)")
    run.wait(60)
    while ("ap", "sa") not in run.state.probes:
        run.probe_fails(*next(iter(run.state.probes)))
    run.answer_probe("ap", "sa")
    assert run.state.planning == "k"
