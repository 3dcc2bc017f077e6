from dataclasses import replace

from planner.answer.outcome import BudgetExhausted, Fact, Found, Infeasible
from planner.explain.comparison import best_bound, compared, comparison_text, comparison_tree, traces
from planner.question.goal import Goal
from tests.support.gpu_plan import judged

BEST = judged()[1]
FIRST = replace(BEST, evaluation=replace(BEST.evaluation, step_s=2 * BEST.evaluation.step_s), bound=None, elapsed_s=0.1)
RUNS = (
    compared("random", BudgetExhausted(best=FIRST, bound=None, trace=(FIRST,)), 3.0),
    compared("exact", Found(best=BEST, trace=(FIRST, BEST), num_evaluations=5), 2.0),
    compared("verl", Infeasible(conflict=(Fact(kind="memory", name="m", what="it fits nowhere"),)), 0.5),
    compared("hetrl", BudgetExhausted(best=None, bound=None), 3.0),
)


def test_the_best_method_comes_first_and_those_without_an_answer_say_why() -> None:
    lines = comparison_text(RUNS, Goal()).splitlines()
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
    assert comparison_text(RUNS[:1], Goal()).endswith("nothing was proved")


def test_programs_get_every_improvement() -> None:
    tree = comparison_tree(RUNS, Goal())
    assert [method["method"] for method in tree["methods"]] == ["random", "exact", "verl", "hetrl"]
    assert [value for _, value in tree["methods"][1]["trace"]] == [FIRST.evaluation.step_s, BEST.evaluation.step_s]
    assert traces(RUNS, Goal())["hetrl"] == []
