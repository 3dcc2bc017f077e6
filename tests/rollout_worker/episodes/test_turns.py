"""Episodes of several turns with a real engine: which tokens they consist of, and what is trained on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from bench.experiment_cases.episodes import BUDGET, EOS, Digits, play_episodes, small_model
from periplus.environment.environment import Item, Message
from periplus.environment.prompts import PromptEncoder
from periplus.environment.turns.protocol import TurnOutcome
from periplus.errors import ConfigError
from periplus.values.trajectory import Trajectory, TrajectoryLimits
from rollout_worker.engines.engine import CompletionEnd
from rollout_worker.episodes.episode import DrawSettings, EpisodeDesk, EpisodeSettings, FinishedEpisode
from rollout_worker.episodes.scoring import turn_score
from rollout_worker.episodes.turns import PlayedEpisode
from tests.support.episodes import lease
from tests.support.trainer.losses import loss_settings
from trainer.learning.batch import collate, sample_of
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.losses.registry import ALGORITHMS
from trainer.learning.micro_batches import MicroBatchLimits
from trainer.learning.ranks import Ranks
from trainer.learning.step import Targets, Trained, UpdateSettings, actor_gradient

REPLY = "4321"
REPLY_IDS = (7, 6, 5, 4)


class Replying:
    """Answers each turn with the same message, after a while, and ends after `turns` of them."""

    def __init__(self, turns: int, wait_s: float) -> None:
        self.turns, self.wait_s, self.heard = turns, wait_s, list[str]()

    async def reset(self, item: Item) -> Sequence[Message]:
        return ()

    async def step(self, completion: str) -> TurnOutcome:
        self.heard.append(completion)
        await asyncio.sleep(self.wait_s)
        is_done = len(self.heard) == self.turns
        return TurnOutcome(reward=0.25, messages=(Message(role="tool", content=REPLY),), is_done=is_done)


class Source:
    def __init__(self, turns: int, wait_s: float = 0.0) -> None:
        self.turns, self.wait_s, self.opened = turns, wait_s, list[Replying]()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Replying]:
        self.opened.append(Replying(self.turns, self.wait_s))
        yield self.opened[-1]


def turns_of(played: PlayedEpisode) -> list[tuple[bool, tuple[int, ...]]]:
    """Return the episode's tokens, divided where the mask changes."""
    ids, mask = np.array(played.completion.token_ids), np.array(played.mask)
    cuts = np.flatnonzero(np.diff(mask)) + 1
    return [
        (bool(part_mask[0]), tuple(part.tolist()))
        for part, part_mask in zip(np.split(ids, cuts), np.split(mask, cuts), strict=True)
    ]


def test_the_tools_tokens_stand_between_the_turns_masked_and_without_log_probabilities() -> None:
    source = Source(turns=3)
    for played, environment in zip(play_episodes(source, 6), source.opened, strict=True):
        assert played.completion.end is CompletionEnd.EOS
        assert played.turn_rewards == (0.25,) * 3
        parts = turns_of(played)
        assert [is_sampled for is_sampled, _ in parts] == [True, False, True, False, True]
        assert all(ids == REPLY_IDS for is_sampled, ids in parts if not is_sampled)
        assert all(ids[-1] == EOS and EOS not in ids[:-1] for is_sampled, ids in parts if is_sampled)
        said = [Digits().decode(ids, skip_special_tokens=True) for is_sampled, ids in parts if is_sampled]
        assert said == environment.heard
        logprobs, mask = np.array(played.completion.logprobs), np.array(played.mask)
        assert (logprobs[mask] < 0).all()
        assert not logprobs[~mask].any()
        assert [run.num_tokens for run in played.completion.runs] == [len(mask)]


def test_an_episode_depends_neither_on_the_tools_time_nor_on_other_episodes() -> None:
    alone, slow = play_episodes(Source(3), 2), play_episodes(Source(3, wait_s=0.02), 5)
    assert [each.completion.token_ids for each in alone] == [each.completion.token_ids for each in slow[:2]]
    assert [each.completion.logprobs for each in alone] == [each.completion.logprobs for each in slow[:2]]


def test_log_probabilities_are_those_of_the_whole_sequence() -> None:
    for played in play_episodes(Source(3), 3):
        ids = torch.tensor([played.prompt_ids + played.completion.token_ids])
        logprobs = small_model()(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        expected = np.where(played.mask, logprobs[len(played.prompt_ids) - 1 :].numpy(), 0.0)
        np.testing.assert_allclose(played.completion.logprobs, expected, atol=1e-5)


def test_an_episode_ends_with_its_turns_or_its_tokens_and_never_with_the_tools() -> None:
    for played in play_episodes(Source(turns=1000), 3, max_turns=2):
        assert (len(played.turn_rewards), played.completion.end, played.mask[-1]) == (2, CompletionEnd.EOS, True)
    for played in play_episodes(Source(turns=1000), 3, max_turns=1000):
        assert played.completion.end is CompletionEnd.LENGTH
        assert len(played.mask) <= BUDGET
        assert played.mask[-1]


def trajectory(played: PlayedEpisode) -> Trajectory:
    """Return the trajectory that a worker would send, which the trainer's own check has passed."""
    settings = EpisodeSettings(
        seed=5,
        training=DrawSettings(temperature=1.0, max_new_tokens=BUDGET),
        evaluation=DrawSettings(temperature=0.0, max_new_tokens=BUDGET),
        worker_id="w",
        limits=TrajectoryLimits(vocab_size=8, max_prompt_tokens=8, max_completion_tokens=BUDGET),
    )
    desk = EpisodeDesk(PromptEncoder(tokenizer=Digits()), None, settings)  # type: ignore[arg-type]  # not asked here
    finished = FinishedEpisode(
        lease=lease(1),
        prompt_ids=played.prompt_ids,
        completion=played.completion,
        generation_s=played.generation_s,
        mask=played.mask,
        turn_rewards=played.turn_rewards,
    )
    return desk.trajectory(finished, turn_score(played.turn_rewards))


def test_a_training_step_has_the_gradient_in_which_tool_tokens_contribute_nothing() -> None:
    (played,) = play_episodes(Source(3), 1)
    sent = trajectory(played)
    assert sent.reward == 0.75
    batch = collate([sample_of(sent, sent.reward)])
    model = small_model().requires_grad_(True)
    actor = Trained(model=PolicyScorer(model), optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    zeros_BU = torch.zeros(1, len(played.mask) + 1)
    targets = Targets(
        advantages_BT=torch.full(batch.mask_BT.shape, 0.5),
        proximal_BT=None,
        reference_BT=None,
        values_BU=zeros_BU,
        returns_BT=zeros_BU[:, 1:],
    )
    settings = UpdateSettings(
        token_loss=ALGORITHMS["grpo"].token_loss,
        loss=loss_settings(),
        value_clip=None,
        temperature=1.0,
        max_grad_norm=1e9,
        micro_batch=MicroBatchLimits(rows=8, tokens=1000),
    )
    actor_gradient(actor, batch, targets, [0], settings, Ranks(), lambda rows, logprobs_BT: None)
    found = [parameter.grad.clone() for parameter in model.parameters()]
    # By hand: on the policy that sampled, a token's loss is -advantage x ratio, whose gradient is that of its
    # log-probability; the mean is over the sampled tokens alone.
    model.zero_grad()
    ids = torch.tensor([played.prompt_ids + played.completion.token_ids])
    logprobs_T = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    sampled = [len(played.prompt_ids) - 1 + place for place, is_sampled in enumerate(played.mask) if is_sampled]
    (-0.5 * logprobs_T[sampled].sum() / len(sampled)).backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()], rtol=1e-3, atol=1e-5)


class Framing(Digits):
    """A tokenizer with a chat template, which frames each message by its role."""

    chat_template: Any

    def __init__(self, template: str) -> None:
        self.chat_template = template

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages: list[dict[str, str]], **rest: object) -> str:
        from jinja2 import Template

        return str(Template(self.chat_template).render(messages=messages, add_generation_prompt=True))


APPENDS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}${% endfor %}[assistant]"
FORGETS = "{% for m in messages[-2:] %}[{{ m.role }}]{{ m.content }}${% endfor %}[assistant]"


def test_the_template_is_rendered_after_the_end_token_and_sampled_tokens_stay() -> None:
    encoder = PromptEncoder(tokenizer=Framing(APPENDS), end_ids=(ord("$"), ord("%")))
    said = [
        (Message(role="tool", content="5"),),
        (Message(role="tool", content="6"), Message(role="user", content="?")),
    ]
    item = Item(index=0, prompt="go", answer="")
    assert "".join(map(chr, encoder.continuation(item, said[:1]))) == "[tool]5$[assistant]"
    assert "".join(map(chr, encoder.continuation(item, said))) == "[tool]6$[user]?$[assistant]"


def test_a_template_that_does_not_only_append_is_refused() -> None:
    encoder = PromptEncoder(tokenizer=Framing(FORGETS), end_ids=(ord("$"),))
    with pytest.raises(ConfigError, match="only appends"):
        encoder.continuation(Item(index=0, prompt="go", answer=""), [(Message(role="tool", content="5"),)] * 2)
