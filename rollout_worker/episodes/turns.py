"""Plays episodes of several turns: the engine's turns and the environment's answers become one completion.

    prompt | sampled turn <eos> | environment's tokens | sampled turn <eos> | ...
             mask true            mask false             mask true

Tokens that were sampled stay as they are: a next turn's prompt is the prompt, what was sampled, and the tokens that the
chat template puts between (periplus/environment/prompts.py). An episode ends when the environment says so, after the
job's greatest number of turns, or when the tokens of sampling.max_new_tokens are used up. It never ends with tokens of
the environment. A turn that ends by its length, or within a text by a stop string, is judged by the environment like
any other, and is the last one. A stop string that is a special token ends a turn as an end token does.

While an environment works on a turn, its episode has no slot in the engine, and other episodes go on. Weights may
change between turns and within them; runs say which policy sampled what, and the environment's tokens belong to the run
before them. What the episode's random numbers are does not depend on how long the environment took, apart from the
version of the weights that this decides.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from periplus import clock
from periplus.environment.environment import Environment, Message
from periplus.environment.prompts import PromptEncoder
from periplus.environment.turns.protocol import TurnEnvironment
from periplus.values.trajectory import PolicyRun
from rollout_worker.engines.engine import Completion, CompletionEnd, Engine, SampleRequest
from rollout_worker.environments.building import EpisodeSource
from rollout_worker.episodes.queue import QueuedLease
from rollout_worker.weights.serving import ServedRequest, Serving

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """An episode as one completion of `prompt_ids`, whose `mask` is false at the environment's tokens.

    `generation_s` are the seconds in which the engine had the episode.
    """

    prompt_ids: tuple[int, ...]
    completion: Completion
    mask: tuple[bool, ...]
    turn_rewards: tuple[float, ...]
    generation_s: float


@dataclass(slots=True)
class _Transcript:
    """What an episode consists of so far."""

    prompt_ids: tuple[int, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    runs: list[PolicyRun] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0
    generation_s: float = 0.0

    def add_turn(self, turn: Completion) -> None:
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs
        self.mask += [True] * len(turn.token_ids)
        self.longest_gap_s = max(self.longest_gap_s, turn.longest_gap_s)
        for run in turn.runs:
            if self.runs and self.runs[-1].policy == run.policy:
                last = self.runs.pop()
                kept = last.kept_kv or run.kept_kv
                run = PolicyRun(run.policy, last.num_tokens + run.num_tokens, kept_kv=kept)
            self.runs.append(run)

    def add_context(self, ids: Sequence[int]) -> None:
        self.token_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.mask += [False] * len(ids)
        self.runs[-1] = replace(self.runs[-1], num_tokens=self.runs[-1].num_tokens + len(ids))

    def ended(self, end: CompletionEnd) -> PlayedEpisode:
        completion = Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            runs=tuple(self.runs),
            end=end,
            longest_gap_s=self.longest_gap_s,
        )
        return PlayedEpisode(
            prompt_ids=self.prompt_ids,
            completion=completion,
            mask=tuple(self.mask),
            turn_rewards=tuple(self.rewards),
            generation_s=self.generation_s,
        )


class TurnDriver:
    """Plays the episodes of a job. `lock` is held by whoever calls `problems` or the encoder's tokenizer."""

    def __init__(
        self,
        engine: Engine,
        serving: Serving,
        source: EpisodeSource,
        problems: Environment,
        encoder: PromptEncoder,
        lock: asyncio.Lock,
        *,
        max_turns: int,
    ) -> None:
        self._engine, self._serving, self._source = engine, serving, source
        self._problems, self._encoder, self._lock = problems, encoder, lock
        self._max_turns = max_turns
        self._under_way: set[str] = set()
        self._aborted: set[str] = set()

    def abort(self, request_ids: Collection[str]) -> None:
        """Let no further turn of these episodes begin. Turns that the engine has are ended by `Engine.abort`."""
        self._aborted |= self._under_way.intersection(request_ids)

    async def play(self, lease: QueuedLease, request: SampleRequest, served: ServedRequest) -> PlayedEpisode:
        """Play the episode of a lease, whose request has the tokens of all turns as its limit.

        Its end is ABORTED if it was aborted, its result is condemned, or the weights are of another fork. Raises:
        RequestFailed, EngineDied, RewardFailed, ConfigError; whatever the environment raises.
        """
        self._under_way.add(request.request_id)
        try:
            async with self._source.open() as environment:
                return await self._play(lease, request, served, environment)
        finally:
            self._under_way.discard(request.request_id)
            self._aborted.discard(request.request_id)

    async def _play(
        self, lease: QueuedLease, request: SampleRequest, served: ServedRequest, environment: TurnEnvironment
    ) -> PlayedEpisode:
        item = await self._locked(lambda: self._problems.item(lease.item))
        if opening := tuple(await environment.reset(item)):
            item = replace(item, prompt="".join(message.content for message in opening), messages=opening)
            request = replace(request, prompt_ids=await self._locked(lambda: self._encoder.encode(item)))
        transcript, exchanges = _Transcript(request.prompt_ids), list[tuple[Message, ...]]()
        while await self._may_go_on(lease, request.request_id, served):
            turn = await self._turn(request, transcript)
            if turn.end is CompletionEnd.ABORTED:
                return transcript.ended(turn.end)
            outcome = await environment.step(await self._locked(partial(self._text, request, turn)))
            transcript.rewards.append(outcome.reward)
            is_last = outcome.is_done or len(transcript.rewards) == self._max_turns
            if is_last or not _has_ended(request, turn):
                return transcript.ended(turn.end)
            exchanges.append(tuple(outcome.messages))
            added = await self._locked(partial(self._encoder.continuation, item, exchanges, turn.token_ids[-1]))
            if len(transcript.token_ids) + len(added) >= request.max_new_tokens:
                return transcript.ended(CompletionEnd.LENGTH)
            transcript.add_context(added)
        return transcript.ended(CompletionEnd.ABORTED)

    async def _may_go_on(self, lease: QueuedLease, request_id: str, served: ServedRequest) -> bool:
        while not served.is_condemned and request_id not in self._aborted:
            policy = self._serving.policy
            if policy is not None:
                return policy.fork == lease.start_at.fork
            await self._serving.changed()
        return False

    async def _turn(self, request: SampleRequest, transcript: _Transcript) -> Completion:
        num_before = len(transcript.token_ids)
        began_s = clock.monotonic_s()
        turn = await self._engine.submit(
            replace(
                request,
                prompt_ids=(*transcript.prompt_ids, *transcript.token_ids),
                max_new_tokens=request.max_new_tokens - num_before,
                first_position=num_before,
            )
        )
        transcript.generation_s += clock.monotonic_s() - began_s
        transcript.add_turn(turn)
        return turn

    def _text(self, request: SampleRequest, turn: Completion) -> str:
        if request.stop is not None:
            return request.stop.before(turn.token_ids)
        return self._encoder.decoder.text(turn.token_ids)

    async def _locked(self, call: Callable[[], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(call)


def _has_ended(request: SampleRequest, turn: Completion) -> bool:
    """Return whether a turn ended with a token after which another turn may follow."""
    is_special = request.stop is not None and turn.token_ids[-1] in request.stop.special_ids
    return turn.end is CompletionEnd.EOS or (turn.end is CompletionEnd.STOP and is_special)
