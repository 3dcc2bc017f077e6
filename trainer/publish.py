"""From the trainer's weights to publications: the bundle once, then anchors and deltas, each with its digest.

Masters stay float32; what is published, sampled from and hashed is their bfloat16 rounding. A delta is lossless between
two published states; when it would be no smaller than the full state, an anchor is published in its place.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from periplus.codec import delta, files
from periplus.codec.frame import CodecId
from periplus.digest import payload_digest, state_digest
from periplus.environment.of_job import DATA_FILE
from periplus.errors import ConfigError
from periplus.policy import Policy
from periplus.publication import Publication, PublicationKind, publication
from periplus.state import State, Tensor, content_bytes

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What readers hold now: the base of the next delta."""

    policy: Policy
    state: State
    digest: bytes


def bf16_state(model: Any) -> State:
    """The model's parameters rounded to bfloat16, by checkpoint name, tied weights once."""
    return {name: _bf16(parameter.detach()) for name, parameter in model.named_parameters()}


def float32_state(model: Any) -> State:
    """The model's parameters as they are: what a checkpoint keeps."""
    return {
        name: Tensor(dtype="F32", shape=tuple(p.shape), data=_bytes(p.detach().to(torch.float32)))
        for name, p in model.named_parameters()
    }


def load_float32(model: Any, state: State) -> None:
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


def bundle(job_id: str, policy: Policy, model_dir: Path, data_file: Path | None) -> Publication:
    """Tokenizer, model configuration and data file."""
    content: dict[str, bytes] = {
        name: (model_dir / name).read_bytes() for name in BUNDLE_FILES if (model_dir / name).is_file()
    }
    if data_file is not None:
        content[DATA_FILE] = data_file.read_bytes()
    payload = files.encode(content)
    return publication(
        job_id=job_id, kind=PublicationKind.BUNDLE, policy=policy, base=None, codec=CodecId.FILES_ZSTD,
        payload=payload, content_bytes=len(files.content(content)),
    )  # fmt: skip


def anchor(job_id: str, published: Published) -> Publication:
    """The full state, for readers that have nothing to build on."""
    payload = delta.PlanesZstd().encode(None, published.state)
    return publication(
        job_id=job_id, kind=PublicationKind.ANCHOR, policy=published.policy, base=None,
        codec=CodecId.STATE_PLANES_ZSTD, payload=payload, content_bytes=content_bytes(published.state),
        state_digest=published.digest,
    )  # fmt: skip


def next_version(job_id: str, base: Published, policy: Policy, state: State) -> tuple[Published, Publication]:
    """The publication that brings readers from `base` to `state`, and what they hold afterwards."""
    published = Published(policy=policy, state=state, digest=state_digest(state))
    codec, payload = delta.choose(base.state, state)
    is_delta = codec is CodecId.STATE_XOR_ZSTD
    kind = PublicationKind.DELTA if is_delta else PublicationKind.ANCHOR
    return published, publication(
        job_id=job_id, kind=kind, policy=policy, base=base.policy if is_delta else None, codec=codec, payload=payload,
        content_bytes=content_bytes(state), state_digest=published.digest,
    )  # fmt: skip


def bundle_digest(publication_: Publication) -> bytes:
    """What a worker's hello must show."""
    return payload_digest(publication_.payload)


def _bf16(tensor: torch.Tensor) -> Tensor:
    rounded = tensor.to(torch.bfloat16).contiguous().cpu()
    return Tensor(dtype="BF16", shape=tuple(rounded.shape), data=_bytes(rounded.view(torch.int16)))


def _bytes(tensor: torch.Tensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return tensor.contiguous().cpu().numpy().copy().reshape(-1).view(np.uint8)
