"""Measures what a model's work takes with a worker's engine on this machine: `python -m rollout_worker.profile FILE`.

It builds the job's engine as a worker does, from the model's configuration alone: speed does not depend on the values
of weights, and the checkpoint need not be on this machine. A stand-in takes the tokenizer's place. It prints the lines
that `periplus.process.measuring` describes, with these keys:

    num_rows              rows that a whole measurement has
    engine_start_s        seconds from the start of this process until the engine takes requests
    versions              versions of the software by name
    generation            one row, as `GenerationRow`
    load_s                seconds to decode a change of 2 % of the elements, write it into the engine and hash that
    sample_s              processor seconds of this process for a sample, beside the engine
    engine_memory_bytes   most memory of the device, or of the host without one

Samples have the job's groups, which share a prompt, and each repetition has prompts of its own: an engine keeps
prefilled prompts. Each completion has exactly the length of its row.
"""

import asyncio
import gc
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from periplus import clock
from periplus.codec.registry import trajectory_decoder
from periplus.codec.weights.decoder import Decoder
from periplus.codec.weights.encoder import encode
from periplus.codec.weights.layout import layout_of
from periplus.config.loading import tree_of
from periplus.environment.completions import end_token_ids
from periplus.environment.environment import Environment, Item
from periplus.environment.job_environment import worker_environment
from periplus.environment.prompts import PromptEncoder
from periplus.errors import ConfigError, PeriplusError
from periplus.job.data_section import makes_problems
from periplus.job.job_file import JobFile
from periplus.job.model_section import NO_TEMPLATE
from periplus.process.measuring import (
    ProfileRequest,
    Say,
    host_peak_bytes,
    is_enough,
    measuring_command,
    spread_of,
    versions_of,
)
from periplus.values.digest import state_digest
from periplus.values.low_rank import WEIGHT, adapters_of, is_adapter
from periplus.values.policy import Policy
from periplus.values.profile import GenerationRow
from periplus.values.trajectory import Purpose, TrajectoryLimits
from periplus.values.transport_keys import KeyedFrame
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from rollout_worker.engines.bundle import build_engine, context_tokens
from rollout_worker.engines.engine import ChangedElements, Completion, Engine, OnSwap, SampleRequest, WholeState
from rollout_worker.engines.engine_around import EngineAround
from rollout_worker.episodes.episode import DrawSettings, EpisodeDesk, EpisodeSettings, FailedLease
from rollout_worker.episodes.queue import LeaseQueue, QueuedLease
from rollout_worker.episodes.sampler import Sampler
from rollout_worker.episodes.scoring import EnvironmentScorer
from rollout_worker.messages import WorkerMessage
from rollout_worker.outbox import Outbox
from rollout_worker.weights.compile import compile_decoder
from rollout_worker.weights.serving import Serving

PACKAGES = ("torch", "transformers", "vllm")

CHANGED_STRIDE = 50
"""One of so many elements changes in the update whose loading is timed: 2 %, of the order of a step in bfloat16."""

SAMPLES_AT_ONCE = 256
"""Samples over which the processor time of the worker is averaged. Chosen by hand: milliseconds each at most."""

TOKENS_AT_ONCE = 1 << 20
"""Most tokens of these samples. Chosen by hand."""

END = "<end>"
"""Word of the stand-in tokenizer for padding and end. No other word begins with it."""

_FIRST = Policy(0, 0)


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


# ---- weights and tokenizer --------------------------------------------------------------------------------------


def random_state(config: Any, job: JobFile) -> WeightState:
    """Return random weights for a model and the job's adapters, by the names under which a trainer publishes them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if (lora := job.model.lora) is not None:
        for name, shape in list(shapes.items()):
            if name.removesuffix(WEIGHT).rpartition(".")[2] in lora.target_modules:
                first, second = adapters_of(name)
                shapes |= {first: (lora.rank, shape[1]), second: (shape[0], lora.rank)}
    # One block of values is repeated: large models need not be drawn element by element.
    block = np.random.default_rng(job.seed).normal(0.0, 0.02, 1 << 20).astype(np.float32)
    words = (block.view(np.uint32) >> 16).astype(np.uint16)
    one = np.full(1, 0x3F80, np.uint16)  # norms scale by 1
    return {
        name: Tensor("BF16", shape, np.resize(words if len(shape) > 1 else one, shape).reshape(-1).view(np.uint8))
        for name, shape in shapes.items()
    }


def changed_state(state: WeightState, *, adapters_alone: bool) -> WeightState:
    """Return a state in which one of CHANGED_STRIDE elements differs in its lowest bit."""
    rng, new = np.random.default_rng(0), dict(state)
    for name, tensor in state.items():
        if adapters_alone and not is_adapter(name):
            continue
        words = tensor.data.view(np.uint16).copy()
        starts = np.arange(0, len(words) - CHANGED_STRIDE + 1, CHANGED_STRIDE)
        words[starts + rng.integers(0, CHANGED_STRIDE, len(starts))] ^= 1
        new[name] = Tensor(tensor.dtype, tensor.shape, words.view(np.uint8))
    return new


def stand_in_tokenizer(config: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are `t0`, `t1` and so on, one for each id of the model's vocabulary.

    An engine needs only the ids of padding and end. The worker's own part needs text for each token.
    """
    text = config.get_text_config()
    size = int(text.vocab_size)
    end = text.eos_token_id if isinstance(text.eos_token_id, int) and text.eos_token_id < size else size - 1
    words = {END if token == end else f"t{token}": token for token in range(size)}
    inner = Tokenizer(models.WordLevel(words, unk_token=END))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=END, eos_token=END)


# ---- the worker beside its engine -------------------------------------------------------------------------------


class _Answering(EngineAround):
    """Answers each request at once with a completion that was generated before."""

    def __init__(self, engine: Engine, completions: Sequence[Completion]) -> None:
        super().__init__(engine)
        self._completions = cycle(completions)

    async def submit(self, request: SampleRequest) -> Completion:
        answer = next(self._completions)
        return replace(answer, runs=tuple(replace(run, policy=_FIRST) for run in answer.runs))


class _Problems:
    """Problems with prompts of one length in the stand-in's words, which `scores` judges; None judges nothing."""

    def __init__(self, scores: Environment | None, vocab_size: int, prompt_tokens: int) -> None:
        self._scores, self._vocab_size, self._prompt_tokens = scores, vocab_size, prompt_tokens

    def __len__(self) -> int:
        return SAMPLES_AT_ONCE

    def item(self, index: int) -> Item:
        tokens = np.random.default_rng(index).integers(0, self._vocab_size, self._prompt_tokens)
        return Item(index=index, prompt=" ".join(f"t{token}" for token in tokens), answer="")

    def score(self, index: int, completion: str) -> float:
        return 0.0 if self._scores is None else self._scores.score(index % len(self._scores), completion)


async def sample_cpu_s(
    engine: Engine, job: JobFile, folder: Path, tokenizer: Any, completions: Sequence[Completion]
) -> float:
    """Return the processor seconds of a worker for one sample: lease, prompt, trajectory and frame.

    The worker's own sampler runs with an engine that answers at once. The reward counts if the job has one of a task
    that needs no data; otherwise every reward is 0, and reward functions of the job are left out.
    """
    job = job.model_copy(update={"eval": job.eval.model_copy(update={"sets": {}})})
    own = job.environment if makes_problems(job.environment) and not job.reward.functions else None
    scores = worker_environment(job, folder) if own is not None and not own.has_turns else None
    prompt, completion = job.sampling.prompt_tokens, job.sampling.max_new_tokens
    problems = _Problems(scores, engine.vocab_size, prompt)
    draws = DrawSettings(temperature=job.sampling.temperature, max_new_tokens=completion)
    settings = EpisodeSettings(
        seed=job.seed,
        training=draws,
        evaluation=draws,
        worker_id="profile",
        limits=TrajectoryLimits(
            vocab_size=engine.vocab_size, max_prompt_tokens=prompt, max_completion_tokens=completion
        ),
    )
    ends = end_token_ids(folder, tokenizer)
    encoder = PromptEncoder(tokenizer=tokenizer, template=NO_TEMPLATE, end_ids=ends)
    desk, lock = EpisodeDesk(encoder, problems, settings), asyncio.Lock()
    queue, serving, outbox = LeaseQueue(), Serving(), Outbox[WorkerMessage]("profile", 1)
    scorer, answering = EnvironmentScorer(problems, lock), _Answering(engine, completions)
    sampler = Sampler(answering, desk, scorer, lock, queue, serving, outbox, zstd_level=job.network.zstd_level)
    serving.sound(_FIRST)
    size = job.algorithm.group_size
    number = max(1, min(SAMPLES_AT_ONCE, TOKENS_AT_ONCE // (prompt + completion)))
    running, used_s = asyncio.ensure_future(sampler.run()), 0.0
    try:
        for first in (0, number):  # the second time all is warm
            began_s = clock.process_s()
            for lease in range(first, first + number):
                queue.add(_lease(lease, lease // size, lease % size))
            sampler.wake()
            used_s = await _sent_cpu_s(outbox, number) - began_s
    finally:
        running.cancel()
    return used_s / number


def _lease(lease_id: int, group: int, sample: int) -> QueuedLease:
    item = group % SAMPLES_AT_ONCE
    start: dict[str, Any] = {"start_at": _FIRST, "consume_by_version": 1, "purpose": Purpose.TRAIN}
    return QueuedLease(lease_id=lease_id, group=group, sample=sample, item=item, **start)


async def _sent_cpu_s(outbox: Outbox[WorkerMessage], num_samples: int) -> float:
    """Wait for frames with so many samples; return the processor time then, without that of decoding them here."""
    num_sent, decoding_s = 0, 0.0
    while True:
        match await outbox.next():
            case KeyedFrame(key, frame):
                at_s = clock.process_s()
                outbox.acknowledge(key.epoch, [key.sequence])
                num_sent += len(trajectory_decoder(frame.codec)(frame.payload, max_content_bytes=1 << 30))
                if num_sent >= num_samples:
                    return at_s - decoding_s
                decoding_s += clock.process_s() - at_s
            case FailedLease(why=why):
                raise PeriplusError(f"a sample could not be made from a completion: {why}")


# ---- the process ------------------------------------------------------------------------------------------------


def measure(request: ProfileRequest, say: Say) -> None:
    """Measure what the request asks for, and say each result."""
    torch.set_num_threads(request.num_threads)
    if request.job.engine.url:
        raise ConfigError("the job's engine is the servers of engine.url, which are not measured")
    with tempfile.TemporaryDirectory(prefix="periplus-profile-") as folder:
        (Path(folder) / "config.json").write_text(request.model_config, encoding="utf-8")
        asyncio.run(_measure(request, Path(folder), say))


async def _measure(request: ProfileRequest, folder: Path, say: Say) -> None:
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    tokenizer, state = stand_in_tokenizer(config), random_state(config, request.job)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    # vLLM pads no prompts, so that one engine measures all rows. The engine torch computes whole columns of padding.
    job = request.job
    if job.engine.name == "vllm" and len(generation_shapes(job, 1, positions)) == len(generation_shapes(job, 1, None)):
        job = _with_prompts(job, 2 * job.sampling.prompt_tokens)
    engine = await build_engine(folder, tokenizer, job)
    start_s, num_slots = clock.process_age_s(), engine.num_slots
    try:
        shapes = generation_shapes(request.job, num_slots, positions)
        say("num_rows", len(shapes))
        say("engine_start_s", start_s)
        say("versions", versions_of(PACKAGES))
        compile_decoder()
        bench = EngineBench(engine, request.job, state)
        await bench.start()
        rest = shapes[request.num_skipped :]
        fitting = [shape for shape in rest if shape.prompt_tokens <= context_tokens(job)]
        for shape in fitting:
            say("generation", tree_of(await bench.row(shape)))
        say("load_s", await bench.load_s())
        if not bench.completions:
            await bench.generate(shapes[0])
        say("sample_s", await sample_cpu_s(engine, request.job, folder, tokenizer, bench.completions))
        say("engine_memory_bytes", _memory_bytes(job))
    finally:
        await engine.close()
    if len(fitting) == len(rest):
        return
    del engine, bench
    gc.collect()
    torch.cuda.empty_cache()
    job = _with_prompts(job, rest[-1].prompt_tokens, max_requests=num_slots)
    engine = await build_engine(folder, tokenizer, job)
    try:
        bench = EngineBench(engine, job, state)
        await bench.start()
        say("generation", tree_of(await bench.row(rest[-1])))
    finally:
        await engine.close()


def _with_prompts(job: JobFile, prompt_tokens: int, **engine: int) -> JobFile:
    sampling = job.sampling.model_copy(update={"prompt_tokens": prompt_tokens})
    return job.model_copy(update={"sampling": sampling, "engine": job.engine.model_copy(update=engine)})


def _memory_bytes(job: JobFile) -> int:
    if not torch.cuda.is_available():
        return host_peak_bytes()
    if job.engine.name == "vllm":
        # vLLM computes in processes of its own, whose share only the device knows.
        free_bytes, all_bytes = torch.cuda.mem_get_info(0)
        return all_bytes - free_bytes
    return torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    measuring_command(measure)()
