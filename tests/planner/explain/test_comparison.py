from dataclasses import replace

from planner.answer.outcome import BudgetExhausted, Fact, Found, Infeasible
from planner.explain.comparison import best_bound, compared, comparison_text, comparison_tree
from planner.plan import SimulatedFigures
from tests.support.planner.gpu_plan import FLEET, PROBLEM, estimate

BEST = estimate()[1]
FIRST = replace(BEST, evaluation=replace(BEST.evaluation, step_s=2 * BEST.evaluation.step_s), bound=None, elapsed_s=0.1)
RUNS = (
    compared("random", BudgetExhausted(best=FIRST, bound=None, trace=(FIRST,)), 3.0),
    compared("exact", Found(best=BEST, trace=(FIRST, BEST), num_evaluations=5), 2.0),
    compared("verl", Infeasible(facts=(Fact(kind="memory", name="m", what="it fits nowhere"),)), 0.5),
    compared("hetrl", BudgetExhausted(best=None, bound=None), 3.0),
)


def test_the_best_method_comes_first_and_those_without_an_answer_say_why() -> None:
    lines = comparison_text(RUNS, PROBLEM).splitlines()
    assert [line.split()[0] for line in lines] == ["METHOD", "exact", "random", "hetrl", "verl", "proved:"]
    assert "1.000x" in lines[1]
    assert "10.00 %" in lines[1]
    assert "1.00 s" in lines[1]
    assert "2.000x" in lines[2]
    assert lines[3].endswith("nothing in time")
    assert lines[4].endswith("it fits nowhere")


def test_the_bound_is_the_highest_that_any_method_proved() -> None:
    assert best_bound(RUNS) == BEST.bound
    assert best_bound(RUNS[:1]) is None
    assert comparison_text(RUNS[:1], PROBLEM).endswith("nothing was proved")


def test_programs_get_every_improvement() -> None:
    tree = comparison_tree(RUNS, PROBLEM)
    assert [method["method"] for method in tree["methods"]] == ["random", "exact", "verl", "hetrl"]
    assert [value for _, value in tree["methods"][1]["trace"]] == [FIRST.evaluation.step_s, BEST.evaluation.step_s]


def test_what_the_simulator_says_has_a_column_where_it_was_asked() -> None:
    assert "SIMULATED" not in comparison_text(RUNS, PROBLEM)
    step_s = 1.5 * BEST.evaluation.step_s
    figures = SimulatedFigures(step_s=step_s, samples_per_s=1.0, max_age=1, num_steps=8, seed=0)
    stands = replace(figures, step_s=None, stalled="nothing runs")
    runs = (replace(RUNS[0], simulated=stands), replace(RUNS[1], simulated=figures), *RUNS[2:])
    lines = comparison_text(runs, PROBLEM).splitlines()
    assert lines[0].split()[:3] == ["METHOD", "STEP", "SIMULATED"]
    assert " s (+50 %)" in lines[1]
    assert "stalled" in lines[2]
    assert comparison_tree(runs, PROBLEM)["methods"][1]["simulated"]["step_s"] == step_s


def test_dollars_are_unknown_where_nothing_has_a_price() -> None:
    cheap = tuple(
        replace(r, machines=tuple(replace(m, usd_per_gpu_hour=None) for m in r.machines)) for r in FLEET.regions
    )
    free = replace(FLEET, regions=cheap, links=tuple(replace(link, usd_per_gbyte=0.0) for link in FLEET.links))
    problem = replace(PROBLEM, fleet=free)
    best = estimate(problem)[1]
    run = compared("exact", Found(best=best, trace=(best,)), 1.0)
    (method,) = comparison_tree((run,), problem)["methods"]
    assert method["usd_per_hour"] is None
    assert method["devices_without_a_price"] == best.placement.num_gpus
    assert "0.00 " not in comparison_text((run,), problem).splitlines()[1].partition("1.000x")[0]
