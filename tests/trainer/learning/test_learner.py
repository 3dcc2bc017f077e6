"""Whole steps of every algorithm on the small model of conftest.py, from a job's own settings."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
import torch

from periplus.errors import ConfigError, NonFiniteLoss
from periplus.job.algorithm import GROUPLESS, AlgorithmSection
from periplus.process.telemetry import check_names
from periplus.values.policy import Policy
from periplus.values.trajectory import PolicyRun
from tests.support.cases.tiers import rest_is_slow
from tests.support.trainer.learning import make_job, sampled
from tests.support.trainer.samples import CONSUMER, sample
from trainer.learning import learner as learner_module
from trainer.learning.batch import Batch, Sample, reward_of
from trainer.learning.learner import Learner, StepReport, minibatch_rows
from trainer.learning.losses.m2po import outside_trust_region
from trainer.learning.scoring import completion_logprobs
from trainer.learning.step import actor_gradient
from trainer.recipe import build_learner

NAMES = get_args(AlgorithmSection.model_fields["name"].annotation)
each_algorithm = pytest.mark.parametrize("name", NAMES)


def build(model: Any, **changes: Any) -> Learner:
    return build_learner(make_job(**changes), model)


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def flat(tree: Any) -> list[Any]:
    """Return the leaves of a state, tensors as their bytes."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in flat(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for each in tree for leaf in flat(each)]
    return [(tuple(tree.shape), tree.numpy().tobytes())] if isinstance(tree, torch.Tensor) else [tree]


def everything(model: Any, learner: Learner) -> list[Any]:
    return [*flat(weights(model)), *flat(learner.state_dict())]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: tensors this small gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- it learns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    rest_is_slow(
        [
            *({"name": name} for name in NAMES),
            {"name": "grpo", "kl_coefficient": 0.01},
            {"name": "grpo", "kl_coefficient": 0.01, "kl_in": "reward", "kl_estimator": "k3"},
            {"name": "rloo", "kl_coefficient": 0.01},
            {"name": "reinforce_plus_plus", "kl_coefficient": 0.01, "gamma": 0.99},
            {"name": "ppo", "kl_coefficient": 0.01, "group_size": 1},
            {"name": "grpo", "importance_correction": "masked", "importance_level": "sequence"},
        ],
        quick=len(NAMES),
    ),
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_algorithm_makes_what_is_rewarded_likelier(model: Any, options: dict[str, Any]) -> None:
    learner = build(model, algorithm=options)
    before = np.mean([reward_of(each) for each in sampled(model, 1000, num_groups=64)])
    for step in range(25):
        consumer = Policy(0, step)
        batch = [replace(each, policies=(PolicyRun(consumer, len(each.mask)),)) for each in sampled(model, step)]
        report = learner.step(batch, consumer=consumer, learning_rate=1e-2)
        assert report is not None
        check_names(report.values())
        assert report.mean_ratio == pytest.approx(1.0, abs=1e-4)
        assert report.mismatch.current.mean == pytest.approx(0.0, abs=1e-5)
        assert report.mismatch.current.num_tokens == report.num_tokens == sum(int(each.mask.sum()) for each in batch)
    after = np.mean([reward_of(each) for each in sampled(model, 1000, num_groups=64)])
    assert after > before + 0.1


def test_the_critic_learns_what_to_expect(model: Any) -> None:
    options = {"name": "ppo", "critic_lr": 1e-2, "value_clip": 100.0}
    learner = build(model, algorithm=options, optimizer={"lr": 1e-9})
    losses = []
    for step in range(30):
        report = learner.step(sampled(model, step), consumer=CONSUMER, learning_rate=1e-9)
        assert report is not None
        assert report.value_loss is not None
        losses.append(report.value_loss)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_the_penalty_holds_the_policy_to_where_it_started(model: Any) -> None:
    distances = []
    for coefficient in (1e-6, 1.0):
        actor = copy.deepcopy(model)
        learner = build(actor, algorithm={"name": "grpo", "kl_coefficient": coefficient})
        for step in range(10):
            report = learner.step(sampled(actor, step), consumer=CONSUMER, learning_rate=1e-2)
        assert report is not None
        assert report.reference_kl is not None
        distances.append(report.reference_kl)
    assert distances[0] > 3 * distances[1] > 0


# ---- it is the same step --------------------------------------------------------------------------------------------

LAYOUTS = (
    {"name": "grpo"},
    {"name": "dr_grpo"},
    {"name": "gspo"},
    {"name": "m2po"},
    {"name": "ppo", "kl_coefficient": 0.1},
    {"name": "reinforce_plus_plus", "kl_coefficient": 0.1},
)
each_layout = pytest.mark.parametrize("options", LAYOUTS, ids=lambda options: options["name"])


@each_layout
def test_samples_that_no_function_judged_change_no_bit_of_the_step(model: Any, options: dict[str, Any]) -> None:
    batch = sampled(model, 0)
    unjudged = [replace(batch[0], sample=77, reward=None), replace(batch[-1], group=999, reward=None)]
    results = []
    for given in (batch, [unjudged[0], *batch, unjudged[1]]):
        actor = copy.deepcopy(model)
        learner = build(actor, algorithm=options)
        report = learner.step(given, consumer=CONSUMER, learning_rate=1e-2)
        assert report is not None
        results.append((everything(actor, learner), replace(report, samples=())))
        assert {(each.group, each.sample): each.reward for each in report.samples} == {
            (each.group, each.sample): each.reward for each in given
        }
    assert results[0] == results[1]
    assert learner.step(unjudged, consumer=CONSUMER, learning_rate=1e-2) is None


@each_layout
def test_the_order_of_arrival_changes_no_bit_of_the_step(model: Any, options: dict[str, Any]) -> None:
    results = []
    batch = sampled(model, 0)
    for order in range(3):
        actor = copy.deepcopy(model)
        learner = build(actor, algorithm=options, train={"minibatches": 2, "epochs": 2})
        arrived = batch.copy()
        Random(order).shuffle(arrived)
        reports = [learner.step(arrived, consumer=CONSUMER, learning_rate=1e-2) for _ in range(2)]
        results.append((everything(actor, learner), reports))
    assert results[0] == results[1] == results[2]


@each_layout
@pytest.mark.parametrize("rows", [5, 1])
def test_micro_batches_change_memory_and_not_the_step(model: Any, options: dict[str, Any], rows: int) -> None:
    results = []
    for size in (100, rows):
        actor = copy.deepcopy(model)
        learner = build(actor, algorithm=options, train={"micro_batch_samples": size})
        report = learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=0.0)
        assert report is not None
        results.append([report.loss, report.grad_norm, report.value_loss or 0.0, report.critic_grad_norm or 0.0])
    assert results[1] == pytest.approx(results[0], rel=1e-5, abs=1e-7)


def test_a_step_repeated_after_a_restore_is_the_same_step_bit_for_bit(model: Any) -> None:
    changes = {"algorithm": {"name": "ppo", "kl_coefficient": 0.1}, "train": {"minibatches": 2, "epochs": 2}}
    learner = build(model, **changes)
    learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=1e-2)
    restored_model = copy.deepcopy(model)
    restored = build(restored_model, **changes)
    restored.load_state_dict(copy.deepcopy(learner.state_dict()))
    batch = sampled(model, 1)
    for each in (learner, restored):
        each.step(batch, consumer=CONSUMER.next(), learning_rate=1e-2)
    assert everything(model, learner) == everything(restored_model, restored)


def test_a_state_of_another_algorithm_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError, match="resume with the algorithm that made the checkpoint"):
        build(model, algorithm={"name": "ppo"}).load_state_dict(build(model).state_dict())


def test_one_update_needs_no_pass_of_its_own_for_the_proximal_policy(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return completion_logprobs(*arguments)

    monkeypatch.setattr(learner_module, "completion_logprobs", counted)
    batch = sampled(model, 0)
    build(model).step(batch, consumer=CONSUMER, learning_rate=0.0)
    assert not calls
    build(model, train={"epochs": 3}).step(batch, consumer=CONSUMER, learning_rate=0.0)
    assert len(calls) == 1


def test_several_updates_keep_to_the_policy_of_the_steps_start(model: Any) -> None:
    """With a learning rate that moves far, later updates of a step find ratios to clip; a single one never does."""
    many = build(copy.deepcopy(model), train={"epochs": 4}).step(
        sampled(model, 0), consumer=CONSUMER, learning_rate=3e-2
    )
    single = build(copy.deepcopy(model)).step(sampled(model, 0), consumer=CONSUMER, learning_rate=3e-2)
    assert many is not None
    assert single is not None
    assert (single.num_updates, single.clip_fraction) == (1, 0.0)
    assert many.num_updates == 4
    assert many.clip_fraction > 0.05
    assert many.mismatch == single.mismatch


# ---- the mask of m2po -----------------------------------------------------------------------------------------------


def stale(model: Any) -> list[Sample]:
    """Return samples of a policy that differs from the model, by up to 0.5 nats at a token."""
    random, batch = np.random.default_rng(5), sampled(model, 0)
    return [
        replace(
            each,
            behaviour_logprobs=each.behaviour_logprobs + random.uniform(-0.5, 0.5, len(each.mask)).astype(np.float32),
        )
        for each in batch
    ]


def step_on_stale(model: Any, **train: Any) -> StepReport:
    learner = build(copy.deepcopy(model), algorithm={"name": "m2po"}, train=train)
    report = learner.step(stale(model), consumer=CONSUMER, learning_rate=1e-2)
    assert report is not None
    return report


def test_the_mask_is_that_of_all_rows_of_an_update_whatever_the_micro_batches(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = []

    def kept(*tensors: torch.Tensor, m2_threshold: float) -> torch.Tensor:
        masks.append(outside_trust_region(*tensors, m2_threshold=m2_threshold))
        return masks[-1]

    monkeypatch.setattr(learner_module, "outside_trust_region", kept)
    whole, one_by_one = step_on_stale(model), step_on_stale(model, micro_batch_samples=1)
    assert torch.equal(*masks)
    assert len(masks[0]) == len(stale(model))
    assert whole.clip_fraction == int(masks[0].sum()) / whole.num_tokens > 0
    assert whole.clip_fraction == pytest.approx(whole.clip_fraction_low + whole.clip_fraction_high)
    assert one_by_one.clip_fraction == whole.clip_fraction
    assert (one_by_one.loss, one_by_one.grad_norm) == pytest.approx((whole.loss, whole.grad_norm), rel=1e-5)


def test_each_update_has_a_mask_of_its_own_from_the_weights_before_it(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, scores = [], []

    def counted(actor: Any, part: Batch, temperature: float) -> torch.Tensor:
        scored.append(part.num_rows)
        return completion_logprobs(actor, part, temperature)

    def kept(*tensors: torch.Tensor, m2_threshold: float) -> torch.Tensor:
        scores.append(tensors[0])
        return outside_trust_region(*tensors, m2_threshold=m2_threshold)

    monkeypatch.setattr(learner_module, "completion_logprobs", counted)
    monkeypatch.setattr(learner_module, "outside_trust_region", kept)
    step_on_stale(model, minibatches=2, epochs=2)
    assert scored == [16, 8, 8, 8]
    assert [len(each) for each in scores] == [8] * 4
    scores.clear()
    step_on_stale(model, epochs=2)
    before, after = scores
    assert before.shape == after.shape
    assert not torch.equal(before, after)


# ---- minibatches ----------------------------------------------------------------------------------------------------


def test_minibatches_hold_whole_groups_and_each_row_once() -> None:
    groups = [3, 3, 8, 8, 8, 9, 11, 11]
    parts = minibatch_rows(groups, 3, (0, 1, 2))
    assert sorted(row for part in parts for row in part) == list(range(8))
    assert all(part == sorted(part) for part in parts)
    for group in set(groups):
        assert sum(any(groups[row] == group for row in part) for part in parts) == 1
    assert minibatch_rows(groups, 3, (0, 1, 2)) == parts
    assert any(minibatch_rows(groups, 3, (0, version, 2)) != parts for version in range(2, 6))
    assert minibatch_rows(groups, 1, (0, 1, 2)) == [list(range(8))]
    assert len(minibatch_rows(groups, 9, (0, 0, 0))) == 4


def test_shuffles_are_keyed_by_seed_version_and_epoch_and_not_by_the_fork(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run, on a new fork, takes the steps that the uninterrupted one takes."""
    keys: list[Any] = []

    def told(groups: Any, num_minibatches: int, key: Any) -> list[list[int]]:
        keys.append(tuple(key))
        return minibatch_rows(groups, num_minibatches, key)

    monkeypatch.setattr(learner_module, "minibatch_rows", told)
    learner = build(model, train={"minibatches": 2, "epochs": 2}, seed=9)
    for consumer in (Policy(0, 4), Policy(0, 5), Policy(3, 5)):
        learner.step(sampled(model, 0), consumer=consumer, learning_rate=0.0)
    assert keys == [(9, 4, 0), (9, 4, 1), (9, 5, 0), (9, 5, 1), (9, 5, 0), (9, 5, 1)]


# ---- it is all or nothing -------------------------------------------------------------------------------------------


@each_algorithm
@pytest.mark.parametrize("train", [{}, {"minibatches": 4}, {"epochs": 2}], ids=["one", "minibatches", "epochs"])
@pytest.mark.parametrize("reward", rest_is_slow([float("nan"), -1e7, float("inf"), 1e200], quick=2))
def test_a_reward_that_is_out_of_range_leaves_everything_untouched(
    model: Any, name: str, train: dict[str, int], reward: float
) -> None:
    learner = build(model, algorithm={"name": name}, train=train)
    learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=1e-2)
    before = everything(model, learner)
    batch = sampled(model, 1)
    batch[3] = replace(batch[3], reward=reward)
    with pytest.raises(NonFiniteLoss, match="group 0 sample 3"):
        learner.step(batch, consumer=CONSUMER, learning_rate=1e-2)
    assert everything(model, learner) == before


@pytest.mark.parametrize("options", [{"name": "grpo"}, {"name": "ppo"}], ids=["grpo", "ppo"])
@pytest.mark.parametrize("fails_at", [0, 1, 5, 7])
def test_an_update_that_fails_takes_the_whole_step_back(
    model: Any, options: dict[str, Any], fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log-probabilities turn infinite in one of the eight updates of the step."""
    learner = build(model, algorithm=options, train={"minibatches": 4, "epochs": 2})
    learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=1e-2)
    before = everything(model, learner)
    calls = []

    def poisoned(actor: Any, batch: Any, targets: Any, *rest: Any) -> Any:
        calls.append(1)
        if len(calls) == fails_at + 1:
            targets = replace(targets, advantages_BT=targets.advantages_BT * float("inf"))
        return actor_gradient(actor, batch, targets, *rest)

    monkeypatch.setattr(learner_module, "actor_gradient", poisoned)
    with pytest.raises(NonFiniteLoss):
        learner.step(sampled(model, 1), consumer=CONSUMER, learning_rate=1e-2)
    assert len(calls) == fails_at + 1
    assert everything(model, learner) == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_critic_that_is_not_finite_keeps_the_actor_where_it_was(model: Any) -> None:
    learner = build(model, algorithm={"name": "ppo"})
    state = learner.state_dict()
    state["critic"]["head.bias"].fill_(float("inf"))
    before = everything(model, learner)
    with pytest.raises(NonFiniteLoss, match="the critic's values are not finite"):
        learner.step(sampled(model, 1), consumer=CONSUMER, learning_rate=1e-2)
    assert everything(model, learner) == before


@pytest.mark.parametrize("kl_in", ["loss", "reward"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "dapo"])  # dapo has no KL penalty
def test_a_reference_that_is_not_finite_is_named(model: Any, name: str, kl_in: str) -> None:
    learner = build(model, algorithm={"name": name, "kl_coefficient": 0.1, "kl_in": kl_in})
    reference = learner.state_dict()["reference"]
    next(reversed(reference.values())).fill_(float("nan"))
    before = flat(weights(model))
    with pytest.raises(NonFiniteLoss, match="the reference model's log-probabilities are not finite"):
        learner.step(sampled(model, 1), consumer=CONSUMER, learning_rate=1e-2)
    assert flat(weights(model)) == before


@each_algorithm
def test_rewards_at_the_bound_and_a_hostile_log_probability_give_a_finite_step(model: Any, name: str) -> None:
    learner = build(model, algorithm={"name": name})
    batch = sampled(model, 1)
    for index, reward in enumerate((1e6, -1e6, 1e6 - 0.1)):
        batch[index] = replace(batch[index], reward=reward)
    logprobs = np.array(batch[0].behaviour_logprobs)
    logprobs[0] = -200.0
    batch[0] = replace(batch[0], behaviour_logprobs=logprobs)
    report = learner.step(batch, consumer=CONSUMER, learning_rate=1e-2)
    assert report is not None
    assert all(np.isfinite(value) for value in report.values().values()), report.values()


def test_the_learner_goes_on_after_a_step_that_was_refused(model: Any) -> None:
    twin = copy.deepcopy(model)
    learner, undisturbed = build(model), build(twin)
    bad = sampled(model, 1)
    bad[0] = replace(bad[0], reward=float("inf"))
    with pytest.raises(NonFiniteLoss):
        learner.step(bad, consumer=CONSUMER, learning_rate=1e-2)
    for each, actor in ((learner, model), (undisturbed, twin)):
        each.step(sampled(actor, 2), consumer=CONSUMER, learning_rate=1e-2)
    assert everything(model, learner) == everything(twin, undisturbed)


# ---- edges ----------------------------------------------------------------------------------------------------------


def test_a_batch_of_which_the_loss_sees_nothing_changes_nothing(model: Any) -> None:
    learner, before = build(model), weights(model)
    assert learner.step([sample(0, 0, [3], [4], mask=[0])], consumer=CONSUMER, learning_rate=1.0) is None
    assert all(map(torch.equal, before, weights(model)))


@each_algorithm
def test_a_learning_rate_of_zero_leaves_every_weight_as_it_is(model: Any, name: str) -> None:
    learner = build(model, algorithm={"name": name}, optimizer={"lr": 0.0})
    before = weights(model)
    critic = flat(learner.state_dict().get("critic", {}))
    learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=0.0)
    assert all(map(torch.equal, before, weights(model)))
    assert flat(learner.state_dict().get("critic", {})) == critic


def test_the_critics_rate_follows_the_schedule_of_the_actors(model: Any) -> None:
    learner = build(model, algorithm={"name": "ppo", "critic_lr": 4e-2}, optimizer={"lr": 1e-2})
    learner.step(sampled(model, 0), consumer=CONSUMER, learning_rate=5e-3)
    state = learner.state_dict()
    assert state["critic_optimizer"]["param_groups"][0]["lr"] == pytest.approx(2e-2)
    assert state["optimizer"]["param_groups"][0]["lr"] == 5e-3


@pytest.mark.parametrize("name", sorted(set(NAMES) - GROUPLESS))
def test_groups_of_one_teach_nothing_where_groups_are_compared(model: Any, name: str) -> None:
    report = build(model, algorithm={"name": name}).step(
        sampled(model, 0, group_size=1, num_groups=5), consumer=CONSUMER, learning_rate=0.0
    )
    assert report is not None
    assert report.grad_norm == 0.0


def test_weights_that_are_not_those_the_engine_claims_raise_the_alarm(model: Any) -> None:
    batch = sampled(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    report = build(model).step(batch, consumer=CONSUMER, learning_rate=0.0)
    assert report is not None
    assert report.mismatch.alarm == report.mismatch.current.mean > 0.02
    assert report.values()["logprob_mismatch_alarms"] == 1.0
    honest = [replace(each, policies=(PolicyRun(Policy(0, 4), len(each.mask)),)) for each in batch]
    stale = build(model).step(honest, consumer=CONSUMER, learning_rate=0.0)
    assert stale is not None
    assert stale.mismatch.alarm is None
    assert stale.mismatch.stale == report.mismatch.current


def test_a_token_outside_the_mask_gives_no_gradient(model: Any) -> None:
    """Its identity alone differs between the two batches, and as the last one nothing reads it."""
    results = []
    for last_id in (2, 15):
        actor = copy.deepcopy(model)
        batch = [
            sample(0, 0, (3, 4), (5, 6, last_id), mask=(1, 1, 0), reward=1.0),
            sample(0, 1, (3, 4), (7, 2), reward=0.0),
        ]
        report = build(actor).step(batch, consumer=CONSUMER, learning_rate=1e-2)
        results.append((flat(weights(actor)), report))
    assert results[0] == results[1]
