"""Links between regions: which are probed when, which have failed, and which ones a job waits for.

Probes run at the same time, but at most one starts in each region and at most one ends there: two of them over one
region's uplink or downlink would each measure a part of it. Links that were never measured come first, of these the
ones that a pending job may use, and links to regions at which fewer probes have failed. A link that failed is tried
again after `probe_retry_s`, and a measured one is measured again after `probe_again_s`, while neither of its regions is
in another probe. A link that fails keeps its last measurement, and plans go on using it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from coordinator.events import FleetEventKind, LinkMeasured, ProbeFailed, SendProbe
from coordinator.machine.draft import Draft
from coordinator.state import (
    FailedLink,
    Job,
    JobState,
    MeasuredLink,
    Pair,
    State,
    dialled_address,
    live_jobs,
    ready_regions,
    utc_time,
)

LINK_WAIT_S = 30.0
"""Seconds for which a job that could be planned waits for links to be measured: two probes of a link that does not
answer, one after the other. Chosen by hand."""

REGIONS_A_TURN = 32
"""Number of regions whose links are looked at in one second for probes that are due. At 200 regions, a look at all
39,800 links each second took most of the coordinator's CPU time. Chosen by hand."""


def measure(draft: Draft, event: LinkMeasured, now_s: float) -> None:
    """Take note of a link's measurement, also of a late one whose probe was given up."""
    state, pair = draft.state, (event.stamp.region, event.dst_region)
    link = MeasuredLink(rtt_s=event.rtt_s, throughput_bits_per_s=event.throughput_bits_per_s, measured_at_s=now_s)
    if failed := state.failed_links.get(pair):
        text = f"the link to {event.dst_region} is measured again, after {now_s - failed.since_s:.0f} s"
        draft.tell(FleetEventKind.LINK_WORKS_AGAIN, text, region=event.stamp.region)
    # With one more link, a job may fit where it did not.
    if pair not in state.links:
        for job in live_jobs(state):
            if job.infeasible_on and job.request.may_use_link(*pair):
                draft.put_job(replace(job, infeasible_on={}, conflict=""))
    draft.state = replace(
        draft.state,
        links={**state.links, pair: link},
        failed_links={other: each for other, each in state.failed_links.items() if other != pair},
        probes=_without(state, pair),
    )


def fail_probe(draft: Draft, event: ProbeFailed, now_s: float) -> None:
    """Give a probe up at once, because its agent says that it has failed. A late word of that changes nothing."""
    pair = (event.stamp.region, event.dst_region)
    if pair in draft.state.probes:
        fail_link(draft, pair, event.why, now_s)


def give_up_probes(draft: Draft, now_s: float) -> None:
    """Give up the probes of which nothing was heard in time."""
    timeout_s = draft.state.settings.probe_timeout_s
    for pair, ordered_at_s in draft.state.probes.items():
        if now_s - ordered_at_s >= timeout_s:
            fail_link(draft, pair, f"no answer of the agent of {pair[0]} within {timeout_s:.0f} s", now_s)


def fail_link(draft: Draft, pair: Pair, why: str, now_s: float) -> None:
    """Take note that a link was not measured, and why; its probe, if one is in progress, is given up."""
    state, before = draft.state, draft.state.failed_links.get(pair)
    failed = FailedLink(why=why, since_s=before.since_s if before else now_s, tried_at_s=now_s)
    draft.state = replace(state, failed_links={**state.failed_links, pair: failed}, probes=_without(state, pair))
    # Once for a failure, and not for each time that it is tried again.
    if before is None:
        draft.tell(FleetEventKind.LINK_FAILED, f"the link to {pair[1]} was not measured: {why}", region=pair[0])


def _without(state: State, pair: Pair) -> dict[Pair, float]:
    return {other: at_s for other, at_s in state.probes.items() if other != pair}


def forget_probes_of(draft: Draft, region: str) -> None:
    """Forget the probes of a region whose session has ended: no answer comes, and nothing is said about the link."""
    probes = {pair: at_s for pair, at_s in draft.state.probes.items() if region not in pair}
    draft.state = replace(draft.state, probes=probes)


def try_links_again(draft: Draft, region: str) -> None:
    """Let the failed links of a region that has joined be probed now, as if for the first time."""
    failed = draft.state.failed_links
    again = {pair: replace(each, tried_at_s=None) for pair, each in failed.items() if region in pair}
    draft.state = replace(draft.state, failed_links={**failed, **again})


def unsettled_pairs(state: State, sources: frozenset[str], destinations: frozenset[str]) -> list[Pair]:
    """Return the directed pairs that were neither measured nor given up."""
    links, failed = state.links, state.failed_links
    return [
        (src, dst)
        for src in sorted(sources)
        for dst in sorted(destinations)
        if src != dst
        and (src, dst) not in links
        # A region that joined again is tried again.
        and ((src, dst) not in failed or failed[src, dst].tried_at_s is None)
    ]


def wait_for_links(draft: Draft, job: Job, regions: frozenset[str], now_s: float) -> str:
    """Say which links of these regions a job waits for, and until when; empty if it waits no longer."""
    state = draft.state
    missing = [pair for pair in unsettled_pairs(state, regions, regions) if job.request.may_use_link(*pair)]
    if not missing:
        stop_waiting(draft, job.job_id)
        return ""
    since_s = state.link_waits.get(job.job_id, now_s)
    draft.state = replace(state, link_waits={**state.link_waits, job.job_id: since_s})
    if now_s - since_s >= LINK_WAIT_S:
        return ""
    (src, dst), *others = missing
    more = f"s {src} to {dst} and {len(others)} more" if others else f" {src} to {dst}"
    return f"waits for the link{more} to be measured, until {utc_time(since_s + LINK_WAIT_S)}"


def stop_waiting(draft: Draft, job_id: str) -> None:
    """Take note that a job does not wait for links."""
    if job_id in draft.state.link_waits:
        waits = {other: since_s for other, since_s in draft.state.link_waits.items() if other != job_id}
        draft.state = replace(draft.state, link_waits=waits)


def regions_in_turn(state: State, now_s: float) -> list[str]:
    """Return the regions whose links are looked at this second: all of a small fleet, else every region in its turn."""
    # An odd number of turns: ticks two seconds apart do not leave out half of the regions.
    num_turns = len(state.regions) // REGIONS_A_TURN | 1
    return sorted(state.regions)[int(now_s) % num_turns :: num_turns]


def settle_probes(draft: Draft, around: Iterable[str] | None, now_s: float) -> None:
    """Order the probes that are due and may run now: those of the regions `around`, or of all regions if it is None."""
    state, settings = draft.state, draft.state.settings
    sources, destinations = {src for src, _ in state.probes}, {dst for _, dst in state.probes}
    ready = ready_regions(state)
    # Of two hundred regions, most pairs are in no probe that could start.
    from_idle, to_idle = ready - sources, ready - destinations
    near = ready if around is None else ready.intersection(around)
    new = unsettled_pairs(state, from_idle & near, to_idle) + unsettled_pairs(state, from_idle - near, to_idle & near)
    new = sorted(new, key=_urgency(state)) if new else []
    for place, (src, dst) in enumerate([*new, *_pairs_again(state, ready, near, now_s)]):
        # A probe that is not urgent leaves both regions to the others.
        is_busy = place >= len(new) and (src in destinations or dst in sources)
        if src in sources or dst in destinations or is_busy or not (address := dialled_address(state, dst)):
            continue
        sources.add(src)
        destinations.add(dst)
        draft.state = replace(draft.state, probes={**draft.state.probes, (src, dst): now_s})
        order = SendProbe(
            region=src,
            epoch=state.regions[src].epoch,
            dst_region=dst,
            gateway_address=address,
            payload_bytes=settings.probe_payload_bytes,
        )
        draft.effects.append(order)


def _urgency(state: State) -> Callable[[Pair], tuple[bool, bool, int, Pair]]:
    """Return the key that sorts pairs to probe for the first time: the most urgent first."""
    jobs = live_jobs(state)
    pending = [job.request for job in jobs if job.state is JobState.PENDING]
    homes = {job.placement.trainer_region for job in jobs if job.placement is not None}
    failures = Counter(dst for _, dst in state.failed_links)

    def urgency(pair: Pair) -> tuple[bool, bool, int, Pair]:
        waited_for = any(request.may_use_link(*pair) for request in pending)
        # A running job may grow by these.
        return not waited_for, homes.isdisjoint(pair), failures[pair[1]], pair

    return urgency


def _pairs_again(state: State, ready: frozenset[str], near: frozenset[str], now_s: float) -> list[Pair]:
    """Return the pairs with an end `near` to probe again, beginning with the one that was probed longest ago."""
    settings, due = state.settings, dict[Pair, float]()
    for end in near:
        for other in ready:
            if other <= end and other in near:
                continue  # the other way round, both are seen already
            for pair in ((end, other), (other, end)):
                if failed := state.failed_links.get(pair):
                    at_s, after_s = failed.tried_at_s, settings.probe_retry_s
                else:
                    link = state.links.get(pair)
                    at_s, after_s = link.measured_at_s if link else None, settings.probe_again_s
                if at_s is not None and now_s - at_s >= after_s:
                    due[pair] = at_s
    return sorted(due, key=lambda pair: (due[pair], pair))
