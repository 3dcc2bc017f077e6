"""Terms of a step, predicted and measured, and the sentence about the largest difference."""

import pytest

from periplus.process.telemetry import check_names
from periplus.view.terms import Term, figure, is_measured, largest_difference, mean_after, planned_metrics, terms_of
from tests.support.planner import predicted_plan, static_plan

PLAN, STATIC = predicted_plan.PLAN.to_tree(), static_plan.PLAN.to_tree()

MEASURED = {
    "step_s": 12.0,
    "train_s": 6.1,
    "wait_s": 5.5,
    "tokens_per_s_region/eu": 100.0,
    "tokens_per_s_region/us": 300.0,
    "weights_s_region/us": 6.0,
    "publish_s": 0.5,
    "generation_s_region/us": 9.5,
}


def test_each_term_has_what_was_predicted_and_measured() -> None:
    found = {each.name: (each.unit, each.predicted, each.simulated, each.measured) for each in terms_of(PLAN, MEASURED)}
    assert found == {
        "step": ("s", 10.0, 11.0, 12.0),
        "training": ("s", 6.0, 6.5, 6.1),
        "waiting": ("s", 4.0, 4.5, 5.5),
        "publication": ("s", None, None, 0.5),
        "generation in eu": ("s", 9.0, None, None),
        "weights to eu": ("s", 0.0, None, None),
        "samples of eu": ("share", 0.25, None, 0.25),
        "generation in us": ("s", 8.0, 9.25, 9.5),
        "weights to us": ("s", 2.0, 2.75, 6.0),
        "samples of us": ("share", 0.75, None, 0.75),
    }


def test_a_plan_without_an_evaluation_predicts_the_way_of_the_weights_only() -> None:
    measured = {"step_s": 12.0, "weights_s_region/bbb": 3.0, "tokens_per_s_region/a": 1.0}
    found = {each.name: (each.predicted, each.measured) for each in terms_of(STATIC, measured)}
    assert found == {
        "step": (None, 12.0),
        "training": (None, None),
        "waiting": (None, None),
        "publication": (None, None),
        "generation in a": (None, None),
        "generation in bbb": (None, None),
        "weights to a": (None, None),
        "samples of a": (None, 1.0),
        "weights to bbb": (1.5, 3.0),
        "samples of bbb": (None, None),
    }
    assert largest_difference(terms_of(STATIC, measured)).startswith("weights to bbb: 100% more than predicted")


def test_the_term_that_matters_most_in_a_step_is_named_with_a_likely_cause() -> None:
    text = largest_difference(terms_of(PLAN, MEASURED))
    assert text.startswith("weights to us: 200% more than predicted; probably the link")
    # A second of training counts more than a difference in weights of a tenth of it, though that is larger in percent.
    slow = {**MEASURED, "train_s": 9.0, "weights_s_region/us": 2.3}
    assert largest_difference(terms_of(PLAN, slow)).startswith("training: 50% more than predicted; probably samples")
    close = {"step_s": 10.5, "train_s": 6.2, "wait_s": 4.3, "weights_s_region/us": 2.1}
    assert largest_difference(terms_of(PLAN, close)) == ""


def test_weights_that_are_late_are_named_only_if_the_trainer_waits_for_longer() -> None:
    late = {"step_s": 11.0, "train_s": 7.0, "wait_s": 4.0, "weights_s_region/us": 9.0}
    assert largest_difference(terms_of(PLAN, late)).startswith("training: 17% more than predicted")
    assert largest_difference(terms_of(PLAN, {**late, "train_s": 6.0})) == "", "nothing of the step is late"
    waits = {**late, "wait_s": 5.5}
    assert largest_difference(terms_of(PLAN, waits)).startswith("weights to us: 350% more than predicted")


def test_engines_that_are_busy_for_longer_are_named_only_if_the_trainer_waits_for_longer() -> None:
    unsimulated = {**PLAN, "simulated": None}
    busy = {"step_s": 13.0, "train_s": 7.5, "wait_s": 4.5, "generation_s_region/us": 12.0}
    found = largest_difference(terms_of(unsimulated, busy))
    assert found.startswith("training: 25% more than predicted"), "few requests at once cost the step nothing"
    assert largest_difference(
        terms_of(unsimulated, {**busy, "train_s": 6.0})
    ) == "waiting: 12% more than predicted; " + ("probably samples come at another pace than predicted")
    slow = {**busy, "train_s": 6.0, "wait_s": 7.0}
    assert largest_difference(terms_of(unsimulated, slow)).startswith("generation in us: 50% more than predicted")
    # The simulated run has the engines busy for as long: then something else lets the trainer wait.
    close = {**slow, "generation_s_region/us": 9.5}
    assert largest_difference(terms_of(PLAN, close)).startswith("waiting: 75% more than predicted")


@pytest.mark.parametrize("figures", [None, {**PLAN["simulated"], "step_s": None, "stalled": "no weights"}])
def test_a_plan_without_a_simulation_or_with_a_stalled_one_has_no_simulated_terms(figures: object) -> None:
    assert not any(each.simulated for each in terms_of({**PLAN, "simulated": figures}, MEASURED))


def test_metrics_that_terms_read() -> None:
    assert all(map(is_measured, MEASURED))
    assert not is_measured("reward_mean")


def test_the_mean_follows_the_last_steps_and_leaves_out_the_first_one() -> None:
    means: dict[str, float] = {}
    for number, step_s in enumerate([60.0, 2.0, 4.0]):
        means = mean_after(means, number, {"step_s": step_s, "tokens_per_s_region/eu": 8.0 / step_s, "loss": 1.0})
    assert means == {"step_s": 3.0, "tokens_per_s_region/eu": 3.0}
    # A region without samples in a step made none in it; a term that a step does not have keeps its mean.
    assert mean_after(means, 3, {}) == {"step_s": 3.0, "tokens_per_s_region/eu": 2.0}
    assert mean_after(means, 1000, {"step_s": 23.0})["step_s"] == 4.0, "a twentieth of the newest step"


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(None, "s", ""), (0.0123, "s", "0.0123 s"), (0.25, "share", "25%"), (0.0, "s", "0 s")]
)
def test_a_figure_has_its_unit(value: float | None, unit: str, text: str) -> None:
    assert figure(value, unit) == text


def test_predictions_have_metrics_of_their_own_and_a_plan_without_an_evaluation_has_none() -> None:
    tree = {"evaluation": {"step_s": 2.0, "task_s": {"actor_training": 1.5, "generation": 9.0}, "regions": []}}
    assert planned_metrics(tree) == {"planned_step_s": 2.0, "planned_train_s": 1.5, "planned_wait_s": 0.5}
    assert planned_metrics({}) == {}
    check_names(planned_metrics(tree))


@pytest.mark.parametrize(("predicted", "measured"), [(None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0)])
def test_there_is_no_difference_without_two_figures(predicted: float | None, measured: float | None) -> None:
    assert Term(name="step", unit="s", predicted=predicted, simulated=None, measured=measured).difference is None
