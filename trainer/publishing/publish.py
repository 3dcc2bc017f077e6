"""Makes the contents of publications: it rounds weights, packs the bundle, and decides between a delta and an anchor.

A trainer first publishes a *bundle*, which holds the files that a worker needs besides weights. It then publishes each
version of the weights, either as an *anchor* (the full state) or as a *delta* (what changed since the version before).
The trainer signs all of them.

The trainer keeps float32 weights. What is published, sampled from and hashed is their bfloat16 rounding. A delta is
lossless between two such states. If it would hardly be smaller than the full state, an anchor is published instead.
Nothing here waits or sends: publisher.py does.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from periplus.codec import files
from periplus.codec.frame import CodecId
from periplus.codec.weights.encoder import Encoder, encode
from periplus.environment.job_environment import DATA_FILE
from periplus.errors import ConfigError
from periplus.job.reward_code import CODE_FOLDER
from periplus.publication import (
    Certificate,
    Publication,
    PublicationKind,
    PublicationWriter,
    PublisherKey,
    bundle_parts,
    signed_publication,
)
from periplus.values.digest import payload_digest
from periplus.values.policy import Policy
from periplus.values.probe_prompts import PROBE_FILE
from periplus.values.weight_state import Tensor, WeightState, content_bytes
from trainer.data.adapters import published_parameters

BUNDLE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files that a worker needs besides the weights, under their Hugging Face names. Those that exist are sent."""


SAMPLE_BYTES = 512 << 10
"""Bytes of a state that `delta_pays` samples. They are encoded both ways in about 10 ms. Chosen by hand."""

SAMPLE_BLOCK_BYTES = 8 << 10
"""Bytes of one contiguous block of the sample. Blocks are long enough to show runs of unchanged rows, and short enough
that the 64 blocks of a sample are spread over the whole state. Chosen by hand."""

WORTH = 0.98
"""Largest size of a delta, as a share of the full state's size, that is still worth sending. Above it the full state is
better, because it needs no base. Chosen by hand."""


COMPILED = ((1 << 10, 1 << 4), (1 << 20, 1 << 4), (1 << 20, 1 << 15))
"""Pairs (elements, changes) of spans that together run all loops of the codec. Small spans code positions by other
loops than large ones, and many changes use finer levels than few. `compile_codec` encodes one span of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The version that readers hold now, which is the base of the next delta.

    `digest` is the digest of `state`. `probe` holds the log-probabilities of the fixed prompts under this version, in
    nats, or nothing if they are not finite.
    """

    policy: Policy
    state: WeightState
    digest: bytes
    probe: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The signer of publications: the trainer of one fork, whose key the coordinator has certified."""

    job_id: str
    key: PublisherKey
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The encoded files that a worker needs besides weights. `content_bytes` is their size after decoding."""

    payload: bytes
    content_bytes: int

    @property
    def digest(self) -> bytes:
        """Digest of the payload, by which a worker shows in its hello message that it has this bundle."""
        return payload_digest(self.payload)


def bf16_state(model: Any) -> WeightState:
    """Return the model's parameters rounded to bfloat16, by the names under which they are published.

    Tied weights appear once. The adapters of a model that has some are tensors of their own (trainer/data/adapters.py).
    """
    return {name: bf16_tensor(parameter.detach()) for name, parameter in published_parameters(model)}


def float32_state(model: Any) -> WeightState:
    """Return the model's parameters in float32, by their checkpoint names, as a checkpoint keeps them."""
    return {
        name: Tensor(dtype="F32", shape=tuple(p.shape), data=_bytes(p.detach().to(torch.float32)))
        for name, p in model.named_parameters()
    }


def load_float32(model: Any, state: WeightState) -> None:
    """Copy a state from `float32_state` into the model. Raises: ConfigError if the state is of another model."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != state.keys():
        odd = sorted(parameters.keys() ^ state.keys())
        raise ConfigError(
            f"the checkpoint is of another model: only one of them has the tensors {odd[:3]}; resume with the job that "
            "made the checkpoint"
        )
    for name, parameter in parameters.items():
        if (state[name].dtype, state[name].shape) != ("F32", tuple(parameter.shape)):
            raise ConfigError(
                f"the checkpoint is of another model: {name} is {state[name].dtype} {state[name].shape} in it, but F32 "
                f"{tuple(parameter.shape)} in this job's model; resume with the job that made the checkpoint"
            )
    # Only after all tensors were checked: an error leaves the model as it was.
    with torch.no_grad():
        for name, parameter in parameters.items():
            values = state[name].data.view(np.float32).reshape(tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values.copy()))


def bundle(
    model_dir: Path,
    problems: bytes | None,
    code: Mapping[str, bytes] = MappingProxyType({}),
    set_files: Mapping[str, bytes] = MappingProxyType({}),
    relative_rounding: float = math.nan,
) -> Bundle:
    """Pack tokenizer and model configuration of `model_dir`, the job's code, and the problems if workers need them.

    `set_files` are the files with the problems of evaluation sets, by name. `relative_rounding` is the trainer's own
    (reference_logprobs.py); it is left out if it is not finite.
    """
    content: dict[str, bytes] = {
        name: (model_dir / name).read_bytes() for name in BUNDLE_FILES if (model_dir / name).is_file()
    }
    if problems is not None:
        content[DATA_FILE] = problems
    if math.isfinite(relative_rounding):
        content[PROBE_FILE] = json.dumps({"relative_rounding": relative_rounding}).encode()
    content |= set_files
    content |= {f"{CODE_FOLDER}/{name}": text for name, text in code.items()}
    return Bundle(payload=files.encode(content), content_bytes=len(files.content(content)))


def bundle_publication(author: Author, policy: Policy, bundle_: Bundle) -> Publication:
    """Return the bundle as a signed publication of the given policy."""
    return signed_publication(
        author.key,
        author.certificate,
        job_id=author.job_id,
        kind=PublicationKind.BUNDLE,
        policy=policy,
        codec=CodecId.FILES_ZSTD,
        content_bytes=bundle_.content_bytes,
        parts=bundle_parts(bundle_.payload),
    )


def state_writer(author: Author, encoder: Encoder, policy: Policy, base: Published | None) -> PublicationWriter:
    """Return the writer that signs the encoder's parts: as a delta from `base`, or as an anchor without one."""
    return PublicationWriter(
        author.key,
        author.certificate,
        job_id=author.job_id,
        kind=PublicationKind.ANCHOR if base is None else PublicationKind.DELTA,
        policy=policy,
        base=None if base is None else base.policy,
        base_digest=b"" if base is None else base.digest,
        codec=CodecId.WEIGHTS,
        max_chunks=encoder.num_parts,
        content_bytes=encoder.content_bytes,
    )


def delta_pays(base: WeightState, state: WeightState) -> bool:
    """Return whether a delta is worth sending: whether it is smaller than WORTH times the full state.

    Both sizes are estimated by encoding a sample of the state. False if the two states have other tensors.
    """
    if base.keys() != state.keys():
        return False
    stride = max(1, content_bytes(state) // SAMPLE_BYTES)
    sampled = {name: _sample(tensor, stride) for name, tensor in state.items()}
    sampled_base = {name: _sample(tensor, stride) for name, tensor in base.items()}
    # The first part is left out: the head, with names and shapes, would be a large share of a small sample.
    delta_bytes, full_bytes = (sum(map(len, encode(b, sampled)[1:])) for b in (sampled_base, None))
    return delta_bytes < WORTH * full_bytes


def compile_codec() -> None:
    """Encode three small deltas, so that the codec's loops are compiled before the first version needs them.

    On the first run on a machine this takes about 5 s of one core. Later runs find the compiled loops on disk.
    """
    for num_elements, num_changes in COMPILED:
        base = np.arange(num_elements, dtype=np.uint16)
        new = base.copy()
        new[:: num_elements // num_changes] ^= 1
        old, now = ({"w": Tensor("BF16", (num_elements,), bits)} for bits in (base, new))
        encode(old, now)


def _sample(tensor: Tensor, stride: int) -> Tensor:
    # One block of SAMPLE_BLOCK_BYTES in every `stride` blocks of the tensor, as a tensor of one dimension.
    data = tensor.data
    starts = range(0, data.size, stride * SAMPLE_BLOCK_BYTES)
    blocks = [data[start : start + SAMPLE_BLOCK_BYTES] for start in starts]
    taken = np.concatenate(blocks) if blocks else data
    return Tensor(dtype=tensor.dtype, shape=(taken.size * tensor.num_elements // max(data.size, 1),), data=taken)


def bf16_tensor(tensor: torch.Tensor) -> Tensor:
    """Return a tensor rounded to bfloat16, in the host's memory."""
    rounded = tensor.to(torch.bfloat16).contiguous().cpu()
    return Tensor(dtype="BF16", shape=tuple(rounded.shape), data=_bytes(rounded.view(torch.int16)))


def _bytes(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return tensor.contiguous().cpu().numpy().copy().reshape(-1).view(np.uint8)
