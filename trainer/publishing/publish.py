"""From the trainer's weights to signed publications: the bundle once, then anchors and deltas, each with its digest.

Masters stay float32; what is published, sampled from and hashed is their bfloat16 rounding. A delta is lossless between
two published states; where it would save next to nothing, an anchor is published in its place. Nothing here waits or
sends: publisher.py does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from periplus.codec import files
from periplus.codec.frame import CodecId
from periplus.codec.weights.encoder import Encoder, encode
from periplus.environment.of_job import DATA_FILE
from periplus.errors import ConfigError
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
from periplus.values.weight_state import Tensor, WeightState, content_bytes

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
"""What a worker needs beside the weights, as Hugging Face names it; those that exist are sent."""


SAMPLE_BYTES = 512 << 10
"""Bytes of a state that are sampled to tell whether a delta pays: encoded both ways in about 10 ms."""

SAMPLE_BLOCK_BYTES = 8 << 10
"""Long enough that runs of unchanged rows show, short enough that 64 of them see the whole state."""

WORTH = 0.98
"""A delta that is larger than this share of the full state gives way to it, since that one needs no base."""


COMPILED = ((1 << 10, 1 << 4), (1 << 20, 1 << 4), (1 << 20, 1 << 15))
"""(elements, changes) of a span of each kind: positions of few elements are coded by other loops than those of many,
and many changes by finer levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What readers hold now: the base of the next delta. `probe`: log-probabilities of the fixed prompts under it."""

    policy: Policy
    state: WeightState
    digest: bytes
    probe: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who signs: the trainer of one fork, with the coordinator's word for its key."""

    job_id: str
    key: PublisherKey
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a worker needs beside weights. `content_bytes`: after decoding."""

    payload: bytes
    content_bytes: int

    @property
    def digest(self) -> bytes:
        """What a worker's hello must show."""
        return payload_digest(self.payload)


def bf16_state(model: Any) -> WeightState:
    """The model's parameters rounded to bfloat16, by checkpoint name, tied weights once."""
    return {name: _bf16(parameter.detach()) for name, parameter in model.named_parameters()}


def float32_state(model: Any) -> WeightState:
    """The model's parameters as they are: what a checkpoint keeps."""
    return {
        name: Tensor(dtype="F32", shape=tuple(p.shape), data=_bytes(p.detach().to(torch.float32)))
        for name, p in model.named_parameters()
    }


def load_float32(model: Any, state: WeightState) -> None:
    """The inverse of float32_state. Raises: ConfigError if the checkpoint is of another model."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != state.keys():
        odd = sorted(parameters.keys() ^ state.keys())
        raise ConfigError(
            f"the checkpoint is of another model: {odd[:3]} are not in both; resume with the job it was made by"
        )
    for name, parameter in parameters.items():
        if (state[name].dtype, state[name].shape) != ("F32", tuple(parameter.shape)):
            raise ConfigError(
                f"the checkpoint is of another model: {name} is {state[name].dtype} {state[name].shape} in it and F32 "
                f"{tuple(parameter.shape)} here; resume with the job it was made by"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            values = state[name].data.view(np.float32).reshape(tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values.copy()))


def bundle(model_dir: Path, data_file: Path | None) -> Bundle:
    """Tokenizer, model configuration and data file."""
    content: dict[str, bytes] = {
        name: (model_dir / name).read_bytes() for name in BUNDLE_FILES if (model_dir / name).is_file()
    }
    if data_file is not None:
        content[DATA_FILE] = data_file.read_bytes()
    return Bundle(payload=files.encode(content), content_bytes=len(files.content(content)))


def bundle_publication(author: Author, policy: Policy, bundle_: Bundle) -> Publication:
    """The bundle, signed."""
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
    """Signs the parts of an encoder: an anchor where there is no base."""
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
    """Whether a delta is smaller than the full state, judged by a sample of both."""
    if base.keys() != state.keys():
        return False
    stride = max(1, content_bytes(state) // SAMPLE_BYTES)
    sampled = {name: _sample(tensor, stride) for name, tensor in state.items()}
    sampled_base = {name: _sample(tensor, stride) for name, tensor in base.items()}
    delta_bytes, full_bytes = (sum(map(len, encode(b, sampled)[1:])) for b in (sampled_base, None))
    return delta_bytes < WORTH * full_bytes


def compile_codec() -> None:
    """Encode three deltas, so that the codec's loops are compiled: on a machine's first run that takes some 5 s of a
    core, and the first version should not wait for it; later runs find them on disk."""
    for num_elements, num_changes in COMPILED:
        base = np.arange(num_elements, dtype=np.uint16)
        new = base.copy()
        new[:: num_elements // num_changes] ^= 1
        old, now = ({"w": Tensor("BF16", (num_elements,), bits)} for bits in (base, new))
        encode(old, now)


def _sample(tensor: Tensor, stride: int) -> Tensor:
    data = tensor.data
    starts = range(0, data.size, stride * SAMPLE_BLOCK_BYTES)
    blocks = [data[start : start + SAMPLE_BLOCK_BYTES] for start in starts]
    taken = np.concatenate(blocks) if blocks else data
    return Tensor(dtype=tensor.dtype, shape=(taken.size * tensor.num_elements // max(data.size, 1),), data=taken)


def _bf16(tensor: torch.Tensor) -> Tensor:
    rounded = tensor.to(torch.bfloat16).contiguous().cpu()
    return Tensor(dtype="BF16", shape=tuple(rounded.shape), data=_bytes(rounded.view(torch.int16)))


def _bytes(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return tensor.contiguous().cpu().numpy().copy().reshape(-1).view(np.uint8)
