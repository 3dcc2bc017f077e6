from dataclasses import replace

from planner.explain.lines import explain, proof
from planner.plan import Played
from tests.support.gpu_plan import gpu_plan
from tests.support.static_plan import PLAN


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
    assert proof(PLAN) == ""


def test_a_simulation_stands_beside_the_prediction() -> None:
    made = gpu_plan()
    assert made.evaluation is not None
    played = Played(step_s=1.1 * made.evaluation.step_s, samples_per_s=1.0, max_age=1, num_steps=8, seed=0)
    assert "s a step over 8 steps (+10.0 %), oldest token 1 version old\n" in explain(replace(made, simulated=played))
    stalled = replace(made, simulated=replace(played, step_s=None, stalled="nothing runs"))
    assert "simulated: came to a stand: nothing runs\n" in explain(stalled)
