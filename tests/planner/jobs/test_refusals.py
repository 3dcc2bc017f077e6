from dataclasses import replace

import pytest

from planner.files.capabilities import load_capabilities
from planner.jobs.refusals import refusal
from planner.problem.fleet import Fleet
from tests.support.planner.hosts import GB, NEEDS, host, mesh, without_link

ABC = mesh([host("a"), host("b"), host("c")])
TORCH_ONLY = mesh([replace(host(name), engines=("torch",)) for name in "ab"])
ONE_VLLM = mesh([replace(host("a"), engines=("torch",)), replace(host("b"), engines=("torch", "vllm"))])
NO_CODE = mesh([replace(host(name), allows_own_code=False) for name in "ab"])
CODE_IN_A = mesh([replace(host("a"), allows_own_code=True), replace(host("b"), allows_own_code=False)])
CAPABILITIES = replace(load_capabilities(), algorithms=frozenset({"grpo"}), max_staleness=8)


@pytest.mark.parametrize(
    ("fleet", "changes", "expected"),
    [
        (Fleet(regions=(), links=(), gpu_types={}), {}, "the fleet has no region"),
        (ABC, {"trainer_region": "x"}, "regions.trainer names x, but the fleet has only a, b, c"),
        (ABC, {"rollout_regions": ("a", "x")}, "regions.rollout names x, but the fleet has only a, b, c"),
        (ABC, {"forbidden_regions": ("c", "a", "b")}, "regions.forbid names every region of the fleet: a, b, c"),
        (ABC, {"trainer_memory_bytes": 9 * GB}, "memory for the trainer: 9.00 GB, but a has 8.00 GB"),
        (ABC, {"rollout_memory_bytes": 9 * GB}, "memory for the trainer and the rollout workers: 22.00 GB, but a has"),
        (
            ABC,
            {"rollout_memory_bytes": 5 * GB, "trainer_region": "b", "rollout_regions": ("a",)},
            "memory for the rollout workers: 10.00 GB, but a has 8.00 GB",
        ),
        (ABC, {"min_regions": 4}, "at least 4 regions, but only 3 of the fleet's 3"),
        (
            without_link(ABC, "a", "c"),
            {"trainer_region": "a", "rollout_regions": ("a", "c")},
            "no link was measured from a to c",
        ),
        (without_link(ABC, "c", "a"), {"trainer_region": "a", "min_regions": 3}, "no link was measured from c to a"),
        (ABC, {"engine": "sglang"}, "the runtime has the engines torch, vllm, not sglang"),
        (
            TORCH_ONLY,
            {"engine": "vllm"},
            "no region that may generate has the engine vllm: a, b; install it, and start the agent with --engine "
            "vllm=PYTHON",
        ),
        (ONE_VLLM, {"engine": "vllm", "forbidden_regions": ("b",)}, "has the engine vllm: a; install it"),
        (ONE_VLLM, {"engine": "vllm", "trainer_region": "b", "min_regions": 2}, "have room; no engine vllm in a"),
        (
            ONE_VLLM,
            {"engine": "vllm", "rollout_regions": ("a", "b")},
            "regions.rollout names a, which has no engine vllm",
        ),
        (
            NO_CODE,
            {"has_own_code": True},
            "the job has reward functions of its user's own, which no region runs: a, b; its operator allows it by "
            "starting the agent with --allow-code",
        ),
        (
            CODE_IN_A,
            {"has_own_code": True, "rollout_regions": ("a", "b")},
            "regions.rollout names b, which runs no reward functions of a user's own",
        ),
        (CODE_IN_A, {"has_own_code": True, "trainer_region": "a", "min_regions": 2}, "(--allow-code) in b"),
        (ABC, {"algorithm": "ppo"}, "the runtime executes grpo, not ppo"),
        (ABC, {"staleness": 9}, "a staleness bound of at most 8, not 9"),
    ],
)
def test_an_infeasible_job_gets_the_fact_that_rules_it_out(
    fleet: Fleet, changes: dict[str, object], expected: str
) -> None:
    refused = refusal(fleet, replace(NEEDS, **changes), CAPABILITIES)  # type: ignore[arg-type]
    assert refused is not None
    assert expected in refused.conflict
    assert len(refused.facts) == 1
    assert refused.is_minimal


@pytest.mark.parametrize(
    ("fleet", "changes"),
    [
        (ABC, {}),
        (ABC, {"engine": "vllm"}),
        (TORCH_ONLY, {"engine": None}),
        (ONE_VLLM, {"engine": "vllm", "trainer_region": "a"}),
        (ABC, {"trainer_region": "a", "rollout_regions": ("b", "c"), "min_regions": 3}),
        (without_link(ABC, "a", "c"), {"min_regions": 3}),
        (without_link(ABC, "a", "c"), {"trainer_region": "a"}),
        (mesh([host("a", memory_gb=4), host("b", memory_gb=2)]), {"min_regions": 2}),
    ],
)
def test_what_a_plan_exists_for_is_not_refused(fleet: Fleet, changes: dict[str, object]) -> None:
    assert refusal(fleet, replace(NEEDS, **changes), CAPABILITIES) is None  # type: ignore[arg-type]


def test_two_regions_behind_walls_need_a_third_to_relay() -> None:
    walled = tuple(replace(host(name), is_public=False) for name in "ab")
    needs = replace(NEEDS, trainer_region="a", rollout_regions=("b",))
    refused = refusal(mesh(walled), needs, CAPABILITIES)
    assert refused is not None
    assert refused.conflict == "no link was measured from a to b"
    assert refusal(mesh([*walled, host("c")]), needs, CAPABILITIES) is None
