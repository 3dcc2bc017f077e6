"""By way of which region others reach a region whose gateway cannot be dialled.

It is a connected region that relays and to which the region has a measured link that works: the one with the shortest
round trip, once the links to all such regions are measured or given up, and by name if two are equal. It stays while it
works, and also while it is away, unless there is another. Without one, the links to the region fail with that reason.
"""

from dataclasses import replace

from coordinator.events import FleetEventKind, SendListen
from coordinator.machine.draft import Draft
from coordinator.machine.links import fail_link, try_links_again, unsettled_pairs
from coordinator.state import State, dialled_address, ready_regions


def settle_relays(draft: Draft, now_s: float) -> None:
    """Choose the relays of regions that cannot be dialled, and tell these regions where to listen."""
    for name, region in draft.state.regions.items():
        if not region.connected or (region.hello.gateway_address and not region.relay):
            continue
        relay = _choice(draft.state, name)
        if relay != region.relay:
            draft.put_region(name, replace(region, relay=relay))
            try_links_again(draft, name)
            text = f"it is reached by way of {relay}" if relay else f"it is reached by way of {region.relay} no longer"
            draft.tell(FleetEventKind.RELAY_CHANGED, text, region=name)
        region, address = draft.state.regions[name], dialled_address(draft.state, name) if relay else ""
        if address != region.listens_at:
            draft.put_region(name, replace(region, listens_at=address))
            at = draft.state.regions[relay].hello.gateway_address if relay else ""
            order = SendListen(region=name, epoch=region.epoch, relay_region=relay, relay_address=at)
            draft.effects.append(order)
        if not relay and not region.hello.gateway_address:
            _fail_links_to(draft, name, now_s)


def _choice(state: State, name: str) -> str:
    region, relays = state.regions[name], _relays(state, name)
    if region.hello.gateway_address:
        return ""
    links = {relay: state.links.get((name, relay)) for relay in relays if (name, relay) not in state.failed_links}
    working = {relay: link.rtt_s for relay, link in links.items() if link is not None}
    if region.relay in working:
        return region.relay
    # One that is away, or whose link has failed, may be back soon.
    present = state.regions.get(region.relay)
    stays = present is not None and (not present.connected or region.relay in relays)
    if not working or (not stays and unsettled_pairs(state, frozenset({name}), relays)):
        return region.relay if stays else ""
    return min(working, key=lambda relay: (working[relay], relay))


def _relays(state: State, name: str) -> frozenset[str]:
    """Return the connected regions that may relay to a region."""
    hellos = {other: state.regions[other].hello for other in ready_regions(state) - {name}}
    return frozenset(each for each, hello in hellos.items() if hello.inventory.relays and hello.gateway_address)


def _fail_links_to(draft: Draft, name: str, now_s: float) -> None:
    state = draft.state
    if unsettled_pairs(state, frozenset({name}), _relays(state, name)):
        return  # one of them may become its relay in a moment
    why = f"{name} cannot be dialled, and no region relays to it: give an agent that both can dial --relay"
    for pair in unsettled_pairs(state, ready_regions(state), frozenset({name})):
        fail_link(draft, pair, why, now_s)
