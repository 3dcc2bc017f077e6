"""A synchronous step's groups are split over pools such that all pools end together."""

from hypothesis import given
from hypothesis import strategies as st

from planner.devices.catalogue import architecture, gpu_types
from planner.problem.lengths import lognormal
from planner.problem.workload import Task, Workload
from planner.simulate.generation.group_shares import Curve, curve, split_groups
from planner.simulate.generation.replica_speed import Speed

WORKLOAD = Workload(
    algorithm="grpo",
    models={Task.GENERATION: architecture("Qwen3-4B")},
    eta=0,
    prompts_per_step=32,
    group_size=8,
    prompt_tokens=lognormal(median_tokens=100, sigma=0.6, cap_tokens=1024),
    completion_tokens=lognormal(median_tokens=382, sigma=1.09, cap_tokens=1024),
)


def of(gpu: str, cache_tokens: int = 1_000_000) -> Curve:
    return curve(WORKLOAD, Speed(WORKLOAD, gpu_types()[gpu], 1), max_running=256, cache_tokens=cache_tokens)


FAST, SLOW = of("A100-80GB-SXM"), of("L4")


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.0, 60.0))
def test_every_group_is_assigned_and_ends_are_as_equal_as_groups_allow(fast: int, slow: int, lag_s: float) -> None:
    pools = [(fast, 0.0, FAST), (slow, lag_s, SLOW)]
    num_groups_by_pool = split_groups(32, 8, pools)
    assert sum(num_groups_by_pool) == 32
    assert min(num_groups_by_pool) >= 0


def test_a_far_region_gets_less_the_farther_it_is() -> None:
    far = [split_groups(32, 8, [(1, 0.0, FAST), (1, lag_s, FAST)])[1] for lag_s in (0.0, 2.0, 5.0, 20.0, 500.0)]
    assert far[0] == 16
    assert far == sorted(far, reverse=True)
    assert far[-1] == 0


def test_more_samples_take_longer_and_small_caches_longest() -> None:
    assert list(FAST.seconds) == sorted(FAST.seconds)
    tight = of("A100-80GB-SXM", cache_tokens=20_000)
    assert tight.seconds[-1] > 2 * FAST.seconds[-1]


def test_a_deal_does_not_depend_on_the_order_of_pools() -> None:
    one = split_groups(32, 8, [(3, 0.0, FAST), (5, 1.0, SLOW)])
    other = split_groups(32, 8, [(5, 1.0, SLOW), (3, 0.0, FAST)])
    assert one == other[::-1]
