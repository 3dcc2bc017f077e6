from dataclasses import replace

from planner.explain.lines import explain, proof
from planner.explain.money import rounded_up
from planner.plan import SimulatedFigures
from planner.problem.goal import Goal, Objective
from tests.support.planner.gpu_plan import FLEET, PROBLEM, gpu_plan
from tests.support.planner.static_plan import PLAN


def test_a_static_plan_explains_itself_in_lines() -> None:
    assert explain(PLAN).splitlines() == [
        "method static, trainer in a",
        "  a    trainer, 2 rollout workers",
        "  bbb  1 rollout worker; weights arrive after 1.500 s, round trip 100 ms",
        "binding: the delay",
    ]


def test_a_searched_plan_says_what_to_expect_what_was_proved_and_what_devices_do() -> None:
    text = explain(gpu_plan())
    assert text.startswith("method exact, trainer in us\nexpected: ")
    assert "the best placement is at most 10 % better" in text
    assert "dollars an hour" in text
    assert "  reward, reference and critic inference: busy " in text
    assert "    8 of us/A100-80GB-SXM/8: actor training tensor 2 x data 4 (optimizer sharded, recomputing)\n" in text
    assert "    8 of eu/L40S/4/spot: generation replicas 8 (32 sequences each)\n" in text


def test_proofs_are_said_as_they_are() -> None:
    made = gpu_plan()
    assert proof(replace(made, gap=None)) == "nothing is proved of better ones"
    assert proof(replace(made, gap=0.0)) == "no placement is better"
    assert proof(replace(made, gap=0.996)) == "next to nothing is proved of better ones"
    assert proof(PLAN) == ""


def test_a_simulation_stands_beside_the_prediction() -> None:
    made = gpu_plan()
    assert made.evaluation is not None
    figures = SimulatedFigures(step_s=1.1 * made.evaluation.step_s, samples_per_s=1.0, max_age=1, num_steps=8, seed=0)
    assert "s a step over 8 steps (+10.0 %), oldest token 1 version old\n" in explain(replace(made, simulated=figures))
    stalled = replace(made, simulated=replace(figures, step_s=None, stalled="nothing runs"))
    assert "simulated: stalled: nothing runs\n" in explain(stalled)


def test_a_simulation_that_differs_by_more_than_a_tenth_is_said_in_words() -> None:
    made = gpu_plan()
    assert made.evaluation is not None
    figures = SimulatedFigures(step_s=1.24 * made.evaluation.step_s, samples_per_s=1.0, max_age=1, num_steps=8, seed=0)
    said = "the simulator disagrees: 24 % longer; what it shows and the model does not: docs/planner-limits.md"
    assert said in explain(replace(made, simulated=figures))
    near = replace(figures, step_s=1.09 * made.evaluation.step_s)
    assert "disagrees" not in explain(replace(made, simulated=near))
    short = replace(figures, step_s=0.8 * made.evaluation.step_s)
    assert "the simulator disagrees: 20 % shorter" in explain(replace(made, simulated=short))


def test_devices_without_a_price_are_counted_beside_the_dollars() -> None:
    free = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) if r.name == "eu" else r
        for r in FLEET.regions
    )
    text = explain(gpu_plan(replace(PROBLEM, fleet=replace(FLEET, regions=free))))
    assert " dollars an hour + 8 devices without a price; " in text
    assert "finds the least for this speed, of devices with a price only\n" in text
    assert "without a price" not in explain(gpu_plan())


def test_that_dollars_were_not_looked_at_is_said_where_there_are_prices() -> None:
    made = gpu_plan()
    assert made.evaluation is not None
    limit = rounded_up(made.evaluation.step_s)
    assert made.evaluation.step_s <= float(limit) <= 1.01 * made.evaluation.step_s
    said = f"dollars were not considered: --objective cost --max-step-s {limit} finds the least for this speed\n"
    assert said in explain(made)
    cost = Goal(objective=Objective.COST_AT_THROUGHPUT, max_step_s=1000.0)
    assert "not looked at" not in explain(gpu_plan(replace(PROBLEM, goal=cost)))
    cheap = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) for r in FLEET.regions
    )
    assert "not looked at" not in explain(gpu_plan(replace(PROBLEM, fleet=replace(FLEET, regions=cheap))))
    assert [rounded_up(value) for value in (283.61, 22.0, 0.01234, 1299.0)] == ["284", "22", "0.0124", "1300"]
