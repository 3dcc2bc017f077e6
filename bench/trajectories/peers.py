"""The same group of samples as others lay it out: JSON, msgpack lists as prime-rl, packed protobuf.

All get the prompt once a group, as ours does, though each would repeat it with every sample.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from periplus.values.trajectory import Trajectory

ZSTD_LEVEL = 3


class TrainingSample(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """prime-rl's record (src/prime_rl/transports/rollouts/types.py, 2026): four lists as long as the tokens."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    advantage: float | None = None
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    encode: Callable[[Sequence[Trajectory]], bytes]
    decode: Callable[[bytes], Any]
    logprobs_of: Callable[[Any], list[list[float]]]


def peers() -> list[Peer]:
    """Each of them raw; `compressed` adds zstandard."""
    message = _protobuf()
    return [
        Peer("json", _json, json.loads, lambda group: [record["logprobs"] for record in group]),
        Peer("prime_rl_msgpack", _msgpack, msgspec.msgpack.Decoder(list[TrainingSample]).decode, _msgpack_logprobs),
        Peer(
            "protobuf",
            lambda group: _to_protobuf(message, group),
            message.FromString,
            lambda group: [list(sample.logprobs) for sample in group.samples],
        ),
    ]


def compressed(peer: Peer) -> Peer:
    compressor, decompressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL), zstandard.ZstdDecompressor()
    return Peer(
        f"{peer.name}_zstd{ZSTD_LEVEL}",
        lambda group: compressor.compress(peer.encode(group)),
        lambda data: peer.decode(decompressor.decompress(data)),
        peer.logprobs_of,
    )


def with_prompts_once(group: Sequence[Trajectory]) -> list[tuple[Trajectory, list[int]]]:
    """Each sample, and the prompt ids that are stored with it."""
    seen: set[bytes] = set()
    rows = []
    for t in group:
        key = t.prompt_ids.tobytes()
        rows.append((t, [] if key in seen else t.prompt_ids.tolist()))
        seen.add(key)
    return rows


def _json(group: Sequence[Trajectory]) -> bytes:
    records = [
        {
            "lease_id": t.lease_id,
            "group": t.group,
            "sample": t.sample,
            "item": t.item,
            "prompt_ids": prompt,
            "completion_ids": t.completion_ids.tolist(),
            "logprobs": [float(str(p)) for p in t.logprobs],
            "mask": t.mask.astype(int).tolist(),
            "policies": [asdict(run) for run in t.policies],
            "reward": t.reward,
            "stop_reason": t.stop_reason,
            "sampling": asdict(t.sampling),
            "metadata": t.metadata,
            "worker_id": t.worker_id,
            "generation_s": t.generation_s,
        }
        for t, prompt in with_prompts_once(group)
    ]
    return json.dumps(records, separators=(",", ":")).encode()


def training_samples(group: Sequence[Trajectory]) -> list[TrainingSample]:
    return [
        TrainingSample(
            token_ids=prompt + t.completion_ids.tolist(),
            mask=[False] * len(prompt) + t.mask.tolist(),
            logprobs=[0.0] * len(prompt) + t.logprobs.tolist(),
            temperatures=[t.sampling.temperature] * (len(prompt) + len(t.completion_ids)),
            env_name="math",
            advantage=0.5,
            reward=t.reward,
        )
        for t, prompt in with_prompts_once(group)
    ]


def _msgpack(group: Sequence[Trajectory]) -> bytes:
    return msgspec.msgpack.encode(training_samples(group))


def _msgpack_logprobs(group: list[TrainingSample]) -> list[list[float]]:
    return [sample.logprobs[len(sample.mask) - sum(sample.mask) :] for sample in group]


def _protobuf() -> Any:
    """message Group { repeated Sample samples = 1; }, with packed fields, built without a file of its own."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="bench_trajectories.proto", package="bench", syntax="proto3")
    sample = file.message_type.add(name="Sample")
    kinds = (
        ("prompt_ids", field.TYPE_UINT32, True),
        ("completion_ids", field.TYPE_UINT32, True),
        ("logprobs", field.TYPE_FLOAT, True),
        ("mask", field.TYPE_BOOL, True),
        ("versions", field.TYPE_UINT64, True),
        ("version_tokens", field.TYPE_UINT32, True),
        ("reward", field.TYPE_DOUBLE, False),
        ("group", field.TYPE_UINT64, False),
        ("sample", field.TYPE_UINT32, False),
    )
    for number, (name, kind, repeated) in enumerate(kinds, start=1):
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        sample.field.add(name=name, number=number, type=kind, label=label)
    group = file.message_type.add(name="Group")
    group.field.add(
        name="samples", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".bench.Sample"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Group"))


def _to_protobuf(message: Any, group: Sequence[Trajectory]) -> bytes:
    out = message()
    for t, prompt in with_prompts_once(group):
        out.samples.add(
            prompt_ids=prompt,
            completion_ids=t.completion_ids.tolist(),
            logprobs=t.logprobs.tolist(),
            mask=t.mask.tolist(),
            versions=[run.policy.version for run in t.policies],
            version_tokens=[run.num_tokens for run in t.policies],
            reward=t.reward,
            group=t.group,
            sample=t.sample,
        )
    data: bytes = out.SerializeToString()
    return data


def known_figure(seed: int) -> dict[str, float]:
    """Bytes a token of prime-rl's layout on a synthetic record such as that of the published 20.8 raw and 5.7 zstd-3.

    4,096 tokens, ids drawn by Zipf's law from 32,768, log-probabilities minus a gamma variate, one temperature.
    """
    rng = np.random.default_rng(seed)
    num_tokens = 4096
    ranks = np.arange(1, 32_769)
    ids = rng.choice(32_768, num_tokens, p=(1 / ranks) / (1 / ranks).sum())
    logprobs = -rng.gamma(0.5, 1.0, num_tokens).astype(np.float32)
    one = TrainingSample(
        token_ids=ids.tolist(),
        mask=[True] * num_tokens,
        logprobs=logprobs.tolist(),
        temperatures=[1.0] * num_tokens,
        env_name="math",
        advantage=0.5,
        reward=1.0,
    )
    raw = msgspec.msgpack.encode([one])
    stored = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw)
    return {"raw": len(raw) / num_tokens, f"zstd{ZSTD_LEVEL}": len(stored) / num_tokens}
