"""The coordinator's machine chooses by way of which region one is reached that cannot be dialled."""

from dataclasses import replace

from coordinator.convert import fleet_to_pb, order_to_pb
from coordinator.events import Effect, JobSubmitted, LinkMeasured, RegionJoined, RegionLeft, SendListen, SendProbe
from coordinator.planning import fleet_of
from coordinator.state import Hello, dialled_address
from coordinator.store import _stored
from tests.support.coordinator.machine_run import Run, desired_tasks, hello, request
from tests.support.keys import AUTHORITY

NO_RELAY = "home cannot be dialled, and no region relays to it: give an agent that both can dial --relay"


def undialled(region: str, boot_id: str = "boot") -> Hello:
    return replace(hello(region, boot_id), gateway_address="")


def relay(region: str, boot_id: str = "boot") -> Hello:
    found = hello(region, boot_id)
    return replace(found, inventory=replace(found.inventory, relays=True))


def listens(effects: tuple[Effect, ...]) -> list[tuple[str, str, str]]:
    return [(each.region, each.relay_region, each.relay_address) for each in effects if isinstance(each, SendListen)]


def measure(run: Run, src: str, dst: str, rtt_s: float) -> tuple[Effect, ...]:
    measured = LinkMeasured(stamp=run.stamp(src), dst_region=dst, rtt_s=rtt_s, throughput_bits_per_s=1e8)
    return run.do(measured)


def joined(*hellos: Hello) -> Run:
    run = Run()
    for each in hellos:
        run.do(RegionJoined(each, 1))
    return run


def relayed() -> Run:
    """Home, far and two relays, with the relay `near` chosen for home and all links measured."""
    run = joined(undialled("home"), relay("near"), relay("away"), hello("far"))
    measure(run, "home", "near", 0.01)
    measure(run, "home", "away", 0.2)
    run.measure_all()
    return run


def test_the_nearest_relay_is_chosen_once_all_are_measured_and_the_region_is_told_to_listen() -> None:
    run = joined(undialled("home"), relay("near"), relay("away"), hello("far"))
    assert not listens(measure(run, "home", "away", 0.2))
    assert dialled_address(run.state, "home") == ""
    assert not any(dst == "home" for _, dst in run.state.probes), "a region is probed that cannot be reached yet"
    assert listens(measure(run, "home", "near", 0.01)) == [("home", "near", "near:1")]
    assert dialled_address(run.state, "home") == "relay://near:1/near/home"
    run.measure_all()
    assert ("far", "home") in run.state.links
    assert run.state.failed_links == {}
    assert {region.name: region.relay for region in fleet_to_pb(run.state).regions} == {
        "home": "near",
        "near": "",
        "away": "",
        "far": "",
    }


def test_probes_and_tasks_name_the_relay() -> None:
    run = joined(undialled("home"), relay("near"), hello("far"))
    probes: dict[str, str] = {}
    for effect in measure(run, "home", "near", 0.01):
        if isinstance(effect, SendProbe):
            probes[effect.dst_region] = effect.gateway_address
    while run.state.probes:
        run.answer_probe(*next(iter(run.state.probes)))
        probes |= {each.dst_region: each.gateway_address for each in run.effects if isinstance(each, SendProbe)}
    assert probes["home"] == "relay://near:1/near/home"
    run.do(JobSubmitted("r", "j", request(min_regions=2)))
    run.place("j", "home", "far")
    assert {task.trainer_gateway for task in desired_tasks(run.state, "far")} == {"relay://near:1/near/home"}


def test_of_two_equal_relays_the_name_decides_and_a_link_that_fails_is_left_out() -> None:
    run = joined(undialled("home"), relay("b"), relay("a"), relay("c"))
    while run.state.regions["home"].relay == "":
        src, dst = next(iter(run.state.probes))
        if (src, dst) == ("home", "a"):
            run.probe_fails(src, dst)
        else:
            run.answer_probe(src, dst)
    assert run.state.regions["home"].relay == "b"


def test_links_to_a_region_without_a_relay_fail_with_what_to_do() -> None:
    run = joined(undialled("home"), hello("far"))
    run.measure_all()
    assert {pair: failed.why for pair, failed in run.state.failed_links.items()} == {("far", "home"): NO_RELAY}
    assert run.state.links.keys() == {("home", "far")}
    run.wait(120)
    assert not any(dst == "home" for _, dst in run.state.probes)
    # One that relays now makes it good at once.
    run.do(RegionLeft("far", 1))
    run.do(RegionJoined(relay("far", "again"), 1))
    assert dialled_address(run.state, "home") == "relay://far:1/far/home"
    run.measure_all()
    assert run.state.failed_links == {}


def test_a_relay_that_is_gone_is_replaced_and_stays_while_there_is_no_other() -> None:
    run = relayed()
    epoch = run.state.regions["near"].epoch
    assert listens(run.do(RegionLeft("near", epoch))) == [("home", "away", "away:1")]
    assert not listens(run.do(RegionLeft("away", run.state.regions["away"].epoch)))
    assert dialled_address(run.state, "home") == "relay://away:1/away/home"
    run.do(RegionJoined(hello("away", "without"), 1))
    assert dialled_address(run.state, "home") == ""
    assert listens(run.effects) == [("home", "", "")]
    fleet = fleet_of(run.state, frozenset(("home", "far")))
    assert [(link.src_region, link.dst_region) for link in fleet.links] == [("home", "far")]


def test_a_relay_whose_link_fails_is_left_for_another_that_works() -> None:
    run = relayed()
    run.wait(600)
    while ("home", "near") not in run.state.probes:
        run.answer_probe(*next(iter(run.state.probes)))
    assert listens(run.probe_fails("home", "near")) == [("home", "away", "away:1")]


def test_a_new_session_is_told_again_and_keeps_its_relay() -> None:
    run = relayed()
    assert _stored(run.state.regions["home"]).relay == "near"
    assert listens(run.do(RegionJoined(undialled("home"), 1))) == [("home", "near", "near:1")]
    moved = replace(relay("near"), gateway_address="near:2")
    assert listens(run.do(RegionJoined(moved, 1))) == [("home", "near", "near:2")]
    assert listens(run.do(RegionJoined(hello("home"), 1))) == []
    assert (run.state.regions["home"].relay, dialled_address(run.state, "home")) == ("", "home:1")


def test_an_order_to_listen_goes_to_the_agent() -> None:
    order = SendListen(region="home", epoch=3, relay_region="near", relay_address="near:1")
    message = order_to_pb(order, AUTHORITY)
    assert (message.epoch, message.listen.relay_region, message.listen.relay_address) == (3, "near", "near:1")
