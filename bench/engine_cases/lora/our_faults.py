"""Faults in our path, each given to the reader or the engine's check that a worker runs, and what they find.

The reader is `Incoming` with a `HostCopy`, the engine is the torch engine behind `AdapterEngine`, and its check is
`EngineChecker`. A fault is *found* if a record is refused, if the new state is not proven, or if the engine's check
fails. It is *harmless* if the version is proven and the host copy has exactly the bytes that the trainer published. It
is *missed* if anything else is taken for the version.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError

from bench.engine_cases.lora.adapter_training import SCALE, Step, random_model, train, with_adapters
from bench.engine_cases.lora.crossing import Job, SignedVersion, publication
from periplus.codec.weights.layout import layout_of
from periplus.errors import PeriplusError
from periplus.net.convert import publication_record_from_pb
from periplus.pb.v1 import gateway_pb2
from periplus.values.digest import state_digest
from periplus.values.low_rank import is_adapter
from periplus.values.policy import Policy
from periplus.values.probe_prompts import probe_prompts
from periplus.values.weight_state import WeightState
from rollout_worker.engines.adapter_engine import AdapterEngine
from rollout_worker.engines.engine import ChangedElements, OnSwap, WholeState
from rollout_worker.engines.torch_engine import TorchEngine
from rollout_worker.weights.engine_check import EngineChecker
from rollout_worker.weights.host_copy import HostCopy, Signed
from rollout_worker.weights.incoming import Incoming
from rollout_worker.weights.pending_versions import Version
from trainer.publishing.snapshot import HostWeights

PROBE_SEED = 0

Row = dict[str, int]


@dataclass(frozen=True, slots=True)
class Chain:
    """Versions 0, 1 and 2 of one job, signed: a full state and two deltas."""

    job: Job
    versions: tuple[SignedVersion, ...]

    def held(self, version: int) -> tuple[HostCopy, Incoming]:
        """Return the host copy and the reader of a worker that has proven the versions up to this one."""
        host, incoming = self.job.reader()
        for signed in self.versions[: version + 1]:
            for record in signed.records:
                incoming.take(record)
        assert host.policy == Policy(0, version)
        return host, incoming


def chain(model_name: str, rank: int, learning_rate: float, numbers: Sequence[int]) -> tuple[Chain, list[Step]]:
    """Train adapters, and publish the states after the chosen steps as versions, each with the trainer's probe."""
    model, job = with_adapters(random_model(model_name), rank), Job()
    prompts = probe_prompts(PROBE_SEED, model.config.vocab_size)
    weights = HostWeights(model)
    versions: list[SignedVersion] = []
    steps: list[Step] = []
    for step in train(model, learning_rate, numbers):
        base = versions[-1].published if versions else None
        probe = tuple(weights.probe(prompts).reshape(-1).tolist())
        versions.append(publication(job, len(versions), step.after, base, probe))
        steps.append(step)
    return Chain(job, tuple(versions)), steps


def wrong_scale_found(chain_: Chain, model_name: str) -> Row:
    """Merge the adapters with half of their scale. Only the probe can find this: what was published is right."""
    _assert_right_is_sound(asyncio.run(_checked(chain_, model_name, [_nothing])))
    return asyncio.run(_checked(chain_, model_name, [_nothing], scale=SCALE / 2))


def faults_found(chain_: Chain, other_base: WeightState, model_name: str, num_flips: int) -> dict[str, Row]:
    """Inject every fault, and return how many were found, harmless and missed."""
    rng = np.random.default_rng(1)
    found = {
        "bit flipped in transit": _in_transit(chain_, rng, num_flips),
        "bit flipped at rest, in the host copy": _at_rest(chain_, rng, num_flips),
        "old adapter under a new version number": _old_as_new(chain_),
        "adapter for another base": _other_base(chain_, other_base),
    }
    return found | asyncio.run(_in_engine(chain_, other_base, model_name, rng, num_flips))


def verdict(outcome: object, host: HostCopy, expected: WeightState) -> str:
    """Return found, harmless or missed, from the outcome of the last record."""
    if not isinstance(outcome, Version):
        return "found"
    return "harmless" if state_digest(host.state) == state_digest(expected) else "missed"


def _read(host: HostCopy, incoming: Incoming, messages: Sequence[bytes], expected: WeightState) -> str:
    try:
        outcome: object = None
        for message in messages:
            record = publication_record_from_pb(gateway_pb2.PublicationRecord.FromString(message))
            outcome = incoming.take(record)
    except (PeriplusError, DecodeError):
        return "found"
    return verdict(outcome, host, expected)


def _in_transit(chain_: Chain, rng: np.random.Generator, num_flips: int) -> Row:
    # One bit anywhere in the messages of version 2: opening, chunks, closing.
    messages, expected = chain_.versions[2].messages(), chain_.versions[2].published.state
    sizes = np.array([len(message) for message in messages])
    counts: Counter[str] = Counter()
    for _ in range(num_flips):
        which = int(rng.choice(len(messages), p=sizes / sizes.sum()))
        damaged = list(messages)
        damaged[which] = flipped(messages[which], int(rng.integers(8 * sizes[which])))
        counts[_read(*chain_.held(1), damaged, expected)] += 1
    return _row(counts)


def _at_rest(chain_: Chain, rng: np.random.Generator, num_flips: int) -> Row:
    # One bit of an adapter in the worker's copy of version 1, and then version 2 arrives.
    messages, expected = chain_.versions[2].messages(), chain_.versions[2].published.state
    counts: Counter[str] = Counter()
    for _ in range(num_flips):
        host, incoming = chain_.held(1)
        names = [name for name in host.state if is_adapter(name)]
        data = host.state[names[int(rng.integers(len(names)))]].data
        data[int(rng.integers(data.size))] ^= 1 << int(rng.integers(8))
        counts[_read(host, incoming, messages, expected)] += 1
    return _row(counts)


def _old_as_new(chain_: Chain) -> Row:
    # A relay sends the parts of version 1 as version 2: with version 2's opening, with both of its ends, and under an
    # opening of its own making.
    first, second = (chain_.versions[number].messages() for number in (1, 2))
    renumbered = gateway_pb2.PublicationRecord.FromString(first[0])
    renumbered.opening.policy.version = 2
    renumbered.opening.base.version = 1
    expected = chain_.versions[2].published.state
    tries = (
        (second[0], *first[1:]),
        (second[0], *first[1:-1], second[-1]),
        (renumbered.SerializeToString(), *first[1:]),
    )
    return _row(Counter(_read(*chain_.held(1), messages, expected) for messages in tries))


def _other_base(chain_: Chain, other_base: WeightState) -> Row:
    # The same publisher has signed version 1 over another base, and the reader holds that one; then version 2 arrives.
    other = {**chain_.versions[1].published.state, **other_base}
    host, incoming = chain_.job.reader()
    for record in publication(chain_.job, 1, other, None).records:
        incoming.take(record)
    assert host.policy == Policy(0, 1)
    second = chain_.versions[2]
    return _row(Counter([_read(host, incoming, second.messages(), second.published.state)]))


# ---- in the engine ---------------------------------------------------------------------------------------------------

Scene = Callable[[AdapterEngine, Any], Awaitable[None]]


async def _in_engine(
    chain_: Chain, other_base: WeightState, model_name: str, rng: np.random.Generator, num_flips: int
) -> dict[str, Row]:
    async def old(engine: AdapterEngine, _: Any) -> None:
        await engine.swap(_whole(chain_, 1), Policy(0, 1), OnSwap.KEEP_KV)

    async def other(_: AdapterEngine, model: Any) -> None:
        parameters = dict(model.named_parameters())
        for name, tensor in other_base.items():
            words = torch.from_numpy(tensor.data.view(np.int16).copy()).view(torch.bfloat16)
            parameters[name].data.copy_(words.view(tensor.shape))

    async def one_bit(_: AdapterEngine, model: Any) -> None:
        tensors = [parameter.detach().view(-1).view(torch.int32) for parameter in model.parameters()]
        words = tensors[int(rng.integers(len(tensors)))]
        # The engine holds bfloat16 values as float32: a bit of the upper half is a bit of the value.
        words[int(rng.integers(len(words)))] ^= 1 << int(rng.integers(16, 31))

    _assert_right_is_sound(await _checked(chain_, model_name, [_nothing]))
    return {
        "bit flipped in the engine's memory": await _checked(chain_, model_name, [one_bit] * num_flips),
        "old adapter in the engine, called the new version": await _checked(chain_, model_name, [old]),
        "another base in the engine": await _checked(chain_, model_name, [other]),
    }


def _assert_right_is_sound(row: Row) -> None:
    # Without a fault there is nothing to find.
    assert row == {"found": 0, "harmless": 0, "missed": 1}, "the engine's check refuses what is right"


async def _nothing(_: AdapterEngine, __: Any) -> None:
    pass


async def _checked(chain_: Chain, model_name: str, scenes: Sequence[Scene], scale: float = SCALE) -> Row:
    # Each scene begins with an engine that has version 2, and whose first check, of version 1, had passed.
    counts: Counter[str] = Counter()
    for scene in scenes:
        model = random_model(model_name).requires_grad_(False)
        inner = TorchEngine(model=model, end_ids=(2,), pad_id=0, num_slots=4, prompt_tokens=32, max_new_tokens=8)
        engine = AdapterEngine(inner, scale)
        try:
            await engine.swap(_whole(chain_, 1), Policy(0, 1), OnSwap.KEEP_KV)
            checker = EngineChecker(engine, PROBE_SEED)
            if scale == SCALE:
                assert (await checker.check(_signed(chain_, 1))).is_sound
            await engine.swap(_change(chain_, 2), Policy(0, 2), OnSwap.KEEP_KV)
            await scene(engine, model)
            counts["missed" if (await checker.check(_signed(chain_, 2))).is_sound else "found"] += 1
        finally:
            await engine.close()
    return _row(counts)


def _whole(chain_: Chain, version: int) -> WholeState:
    state = chain_.versions[version].published.state
    return WholeState(layout=layout_of(state), state=state)


def _change(chain_: Chain, version: int) -> ChangedElements:
    _, incoming = chain_.held(version - 1)
    outcome = [incoming.take(record) for record in chain_.versions[version].records][-1]
    assert isinstance(outcome, Version)
    assert outcome.staged is not None
    return ChangedElements(staged=(outcome.staged,))


def _signed(chain_: Chain, version: int) -> Signed:
    published = chain_.versions[version].published
    return Signed(policy=published.policy, state_digest=published.digest, probe_logprobs=published.probe)


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit changed, numbered from the lowest bit of the first byte."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _row(counts: Counter[str]) -> Row:
    return {name: counts[name] for name in ("found", "harmless", "missed")}
