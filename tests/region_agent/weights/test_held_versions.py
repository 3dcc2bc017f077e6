"""What is held, and which stored links form the chain."""

from hypothesis import given
from hypothesis import strategies as st

from periplus.values.policy import Policy
from region_agent.weights.chain import InMemory
from region_agent.weights.held_versions import HeldVersions, chain_of
from tests.support.gateway.simulated_weights import DELTA_BYTES, anchor, bundle, delta, facts


def link(base: int, version: int) -> InMemory:
    return InMemory(delta(base, version))


@given(st.permutations(range(6)), st.integers(0, 6))
def test_the_chain_from_a_copy_is_found_in_any_order_of_files(order: list[int], start: int) -> None:
    links = [link(base, base + 1) for base in order]
    chain = chain_of(links, facts(Policy(0, start)))
    assert [each.opening.policy.version for each in chain] == list(range(start + 1, 7))


def test_without_a_copy_the_chain_is_the_one_that_ends_at_the_newest_link() -> None:
    links = [link(0, 1), link(3, 4), link(4, 5), link(1, 2)]
    assert [each.opening.policy.version for each in chain_of(links, None)] == [4, 5]
    assert chain_of([], None) == ()


def test_a_link_whose_base_has_another_content_is_not_in_the_chain() -> None:
    other = facts(Policy(0, 0))
    opening = other.attestation.opening
    lying = type(other)(
        attestation=type(other.attestation)(opening=opening, closing=anchor(7).closing), content_bytes=1, num_spans=1
    )
    assert chain_of([link(0, 1)], lying) == ()


def test_the_newest_version_is_that_of_the_chain_else_of_the_anchor_else_of_the_copy() -> None:
    copy, waiting = facts(Policy(0, 0)), InMemory(anchor(3))
    assert HeldVersions().newest is None
    assert HeldVersions(bundle=InMemory(bundle())).newest is None
    assert HeldVersions(copy=copy).newest == Policy(0, 0)
    assert HeldVersions(copy=copy, anchor=waiting).newest == Policy(0, 3)
    assert HeldVersions(copy=copy, anchor=waiting, chain=(link(3, 4),)).newest == Policy(0, 4)


def test_a_copy_reaches_the_newest_state_only_if_it_is_settled_and_the_chain_starts_there() -> None:
    copy = facts(Policy(0, 0))
    assert HeldVersions(copy=copy, chain=(link(0, 1),)).reaches
    assert not HeldVersions(copy=copy, chain=(link(1, 2),)).reaches
    assert not HeldVersions(copy=copy, is_copy_unknown=True).reaches
    assert not HeldVersions(copy=copy, anchor=InMemory(anchor(1))).reaches


def test_links_lead_from_a_version_on_the_chain_only() -> None:
    held = HeldVersions(copy=facts(Policy(0, 0)), chain=(link(0, 1), link(1, 2)))
    assert held.links_from(Policy(0, 0)) == held.chain
    assert held.links_from(Policy(0, 1)) == held.chain[1:]
    assert held.links_from(Policy(0, 2)) == ()
    assert held.links_from(Policy(0, 7)) is held.links_from(None) is None


def test_a_chain_is_long_by_its_links_or_by_the_bytes_of_the_copy() -> None:
    copy = facts(Policy(0, 0))
    chain = tuple(link(base, base + 1) for base in range(11))
    assert copy.content_bytes == 10 * DELTA_BYTES
    assert not HeldVersions(copy=copy, chain=chain[:10]).is_long(1, 10)
    assert HeldVersions(copy=copy, chain=chain).is_long(1, 20)
    assert not HeldVersions(chain=chain).is_long(1, 20)
    assert HeldVersions(chain=chain).is_long(1, 10)
