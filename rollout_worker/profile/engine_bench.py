"""Times an engine: rows of generation, and the loading of new weights.

Samples have the job's groups, which share a prompt, and each repetition has prompts of its own: an engine keeps
prefilled prompts. Each completion has exactly the length of its row.
"""

import asyncio
import statistics
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

from periplus import clock
from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.job.job_file import JobFile
from periplus.process.measuring import is_enough, spread_of
from periplus.values.digest import state_digest
from periplus.values.policy import Policy
from periplus.values.profile import GenerationRow
from periplus.values.weight_state import WeightState, content_bytes
from rollout_worker.engines.engine import ChangedElements, Completion, Engine, OnSwap, SampleRequest, WholeState
from rollout_worker.profile.stand_ins import changed_state


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationShape:
    """Samples of one row, and the lengths in tokens of each."""

    num_samples: int
    prompt_tokens: int
    completion_tokens: int


def generation_shapes(job: JobFile, num_slots: int, positions: int | None) -> tuple[GenerationShape, ...]:
    """Return the rows of a job in their fixed order, without those that are longer than the model's `positions`.

    The last one may have twice the job's prompts, for which a worker's engine need not have room.
    """
    prompt, completion = job.sampling.prompt_tokens, job.sampling.max_new_tokens
    sizes = [(each, prompt, completion) for each in (1, max(1, num_slots // 4), num_slots, 2 * num_slots)]
    sizes += [(num_slots, prompt, max(1, completion // 4)), (num_slots, 2 * prompt, completion)]
    return tuple(
        GenerationShape(num_samples=number, prompt_tokens=p, completion_tokens=n)
        for number, p, n in dict.fromkeys(sizes)
        if positions is None or p + n <= positions
    )


class EngineBench:
    """Times one engine, which has the weights `state`, for a job."""

    def __init__(self, engine: Engine, job: JobFile, state: WeightState) -> None:
        self._engine, self._job, self._state = engine, job, state
        self._versions, self._groups = count(), count()
        self._warm: set[tuple[int, int]] = set()
        self.completions: list[Completion] = []
        """Completions of the newest generation of the job's own lengths."""

    async def start(self) -> None:
        """Write the weights, and generate once, so that all loops are compiled."""
        await self._swap(WholeState(layout=layout_of(self._state), state=self._state))
        tokens = min(2, self._job.sampling.max_new_tokens)
        await self.generate(
            GenerationShape(num_samples=1, prompt_tokens=self._job.sampling.prompt_tokens, completion_tokens=tokens)
        )

    async def row(self, shape: GenerationShape) -> GenerationRow:
        """Measure one row, with a warm-up before the first of its lengths."""
        lengths = (shape.prompt_tokens, shape.completion_tokens)
        if lengths not in self._warm:
            await self.generate(shape)
            self._warm.add(lengths)
        seconds: list[float] = []
        while not is_enough(seconds):
            seconds.append(await self.generate(shape))
        return GenerationRow(
            num_samples=shape.num_samples,
            num_slots=self._engine.num_slots,
            prompt_tokens=shape.prompt_tokens,
            completion_tokens=shape.completion_tokens,
            seconds=statistics.median(seconds),
            spread=spread_of(seconds),
        )

    async def generate(self, shape: GenerationShape) -> float:
        """Generate samples of a shape at once, and return the seconds. Raises: as `Engine.submit`."""
        size = self._job.algorithm.group_size
        groups = islice(self._groups, -(-shape.num_samples // size))
        named = islice(((group, sample) for group in groups for sample in range(size)), shape.num_samples)
        requests = [self._request(group, sample, shape) for group, sample in named]
        began_s = clock.monotonic_s()
        completions = await asyncio.gather(*(self._engine.submit(request) for request in requests))
        seconds = clock.monotonic_s() - began_s
        lengths = {len(completion.token_ids) for completion in completions}
        assert lengths == {shape.completion_tokens}, lengths
        if shape.completion_tokens == self._job.sampling.max_new_tokens:
            self.completions = completions
        return seconds

    async def load_s(self) -> float:
        """Return the seconds in which a change is decoded, written into the engine and hashed there.

        The change and its reverse take turns, so that each of them changes elements.
        """
        states = (self._state, changed_state(self._state, adapters_alone=self._job.model.lora is not None))
        digests = tuple(map(state_digest, states))
        payloads = (encode(states[1], states[0]), encode(states[0], states[1]))
        seconds: list[float] = []
        while not is_enough(seconds):
            new = 1 - len(seconds) % 2
            began_s = clock.monotonic_s()
            decoder = Decoder(states[1 - new], max_content_bytes=content_bytes(states[new]))
            for part in payloads[new]:
                decoder.feed(part)
            await self._swap(ChangedElements(staged=(decoder.staged(),)))
            digest = await self._engine.digest()
            seconds.append(clock.monotonic_s() - began_s)
            assert digest == digests[new], "the engine holds other weights than were written"
        return statistics.median(seconds)

    async def _swap(self, change: WholeState | ChangedElements) -> None:
        await self._engine.swap(change, Policy(0, next(self._versions)), OnSwap(self._job.engine.on_swap))

    def _request(self, group: int, sample: int, shape: GenerationShape) -> SampleRequest:
        prompt = np.random.default_rng(group).integers(0, self._engine.vocab_size, shape.prompt_tokens)
        return SampleRequest(
            request_id=f"{group}.{sample}",
            prompt_ids=tuple(prompt.tolist()),
            seed=self._job.seed,
            group=group,
            sample=sample,
            temperature=self._job.sampling.temperature,
            max_new_tokens=shape.completion_tokens,
            min_new_tokens=shape.completion_tokens,
            greedy=False,
        )
