"""Bytes that cross for one version of the adapters: our signed publication, and the directory that TRL writes.

Ours is what the trainer hands to a gateway: opening, one chunk for each part of the codec, and closing, each with its
signature and as the message of the protocol. The closing carries the log-probabilities of the probe. Before its bytes
are counted, a publication is read by the reader of a worker (rollout_worker/weights/incoming.py) and must be proven.

TRL's are the files that its own function writes (trl_adapter.py). The server reads only the configuration and the
tensors; the model card crosses too and is counted apart. zstandard and bfloat16 are variants that TRL does not have:
they show how much of the difference is the codec's. So does `without_base_bytes`: the adapters alone as a full state by
our codec, which needs no version before.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from bench.engine_cases.lora.adapter_training import Step
from periplus.codec.frame import CodecId
from periplus.codec.weights.encoder import Encoder, encode
from periplus.net.convert import publication_record_to_pb
from periplus.publication import JobAuthority, PublicationRecord, PublisherKey, Trust
from periplus.values.digest import state_digest
from periplus.values.low_rank import is_adapter
from periplus.values.policy import Policy
from periplus.values.probe_prompts import NUM_LOGPROBS
from periplus.values.weight_state import WeightState
from rollout_worker.weights.host_copy import HostCopy
from rollout_worker.weights.incoming import Incoming
from rollout_worker.weights.pending_versions import Version
from trainer.publishing.publish import Author, Published, state_writer

JOB = "lora"
MAX_CONTENT_BYTES = 1 << 33
"""Largest state that the reader takes here: 8 GiB."""

BLOCK_BYTES = 8 << 10
"""Smallest chunk that content-defined storage of models keeps once, such as Xet's (8 to 128 KiB)."""


@dataclass(frozen=True, slots=True)
class Job:
    """The keys of a job: its authority's, and the publisher's."""

    authority: JobAuthority = field(default_factory=JobAuthority.generate)
    key: PublisherKey = field(default_factory=PublisherKey.generate)

    @property
    def author(self) -> Author:
        """The signer of the job's publications."""
        return Author(job_id=JOB, key=self.key, certificate=self.authority.certify(JOB, 0, self.key.public_key))

    def reader(self) -> tuple[HostCopy, Incoming]:
        """Return a worker's empty host copy, and the reader that brings versions into it."""
        host = HostCopy()
        trust = Trust(self.authority.public_key, JOB)
        return host, Incoming(trust, host, highest_fork=0, distrust=False, max_content_bytes=MAX_CONTENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedVersion:
    """A version's records, in the order of the wire, and what was published."""

    records: tuple[PublicationRecord, ...]
    published: Published
    payload_bytes: int

    def messages(self) -> tuple[bytes, ...]:
        """Return the records as they cross: messages of the protocol."""
        return tuple(publication_record_to_pb(record).SerializeToString() for record in self.records)


def publication(
    job: Job,
    version: int,
    state: WeightState,
    base: Published | None,
    probe: tuple[float, ...] = (-1.0,) * NUM_LOGPROBS,
) -> SignedVersion:
    """Encode and sign a version, as a delta from `base` or as a full state without one.

    `probe` are log-probabilities of the probe's prompts; their values do not change the number of bytes.
    """
    encoder = Encoder(None if base is None else base.state, state)
    writer = state_writer(job.author, encoder, Policy(0, version), base)
    chunks = [writer.chunk(part) for part in encoder.parts()]
    digest = state_digest(state)
    published = Published(policy=Policy(0, version), state=state, digest=digest, probe=probe)
    records: tuple[PublicationRecord, ...] = (writer.opening, *chunks, writer.closing(digest, probe))
    assert writer.opening.codec is CodecId.WEIGHTS
    return SignedVersion(records=records, published=published, payload_bytes=encoder.stats.payload_bytes)


class Reader:
    """A worker's reader that is led from version to version, each of which it must prove."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.host, self._incoming = job.reader()
        self._held: Published | None = None

    def follow(self, state: WeightState) -> SignedVersion:
        """Publish a state as the next version, a delta where there is one before, and read it. Return the version."""
        version = 0 if self._held is None else self._held.policy.version + 1
        signed = publication(self._job, version, state, self._held)
        outcome = [self._incoming.take(record) for record in signed.records][-1]
        assert isinstance(outcome, Version), "the reader has not proven the version"
        assert self.host.state_digest == signed.published.digest == state_digest(state)
        self._held = signed.published
        return signed


def our_bytes(reader: Reader, step: Step) -> dict[str, Any]:
    """Return what crosses for one step. The reader first gets the state before it, if it does not hold that."""
    reader.follow(step.before)
    began_s = time.perf_counter()
    signed = reader.follow(step.after)
    took_s = time.perf_counter() - began_s
    changed, total = _changed(step)
    adapters = {name: tensor for name, tensor in step.after.items() if is_adapter(name)}
    return {
        "wire_bytes": sum(map(len, signed.messages())),
        "payload_bytes": signed.payload_bytes,
        "without_base_bytes": sum(map(len, encode(None, adapters))),
        "records": len(signed.records),
        "encode_sign_read_prove_s": round(took_s, 3),
        "changed_share": {kind: changed[kind] / total[kind] for kind in changed},
    }


def their_bytes(folder: Path, tensors: bytes, tensors_before: bytes) -> dict[str, Any]:
    """Return what the directory of one adapter takes, and what its tensors would take in other forms.

    `tensors` are the float32 elements of the step, and `tensors_before` those of the step before.
    """
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    content = (folder / "adapter_model.safetensors").read_bytes()
    bf16 = rounded(np.frombuffer(tensors, np.float32))
    return {
        "files": files,
        "all_files_bytes": sum(files.values()),
        "server_reads_bytes": files["adapter_model.safetensors"] + files["adapter_config.json"],
        "zstd3_bytes": len(_zstd(content, 3)),
        "bf16_bytes": bf16.nbytes,
        "bf16_zstd3_bytes": len(_zstd(bf16.tobytes(), 3)),
        "blocks_unchanged_share": blocks_unchanged(tensors_before, tensors),
    }


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return finite float32 values rounded to bfloat16, as words."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def blocks_unchanged(before: bytes, after: bytes, block_bytes: int = BLOCK_BYTES) -> float:
    """Return the share of blocks of `after` that a storage with deduplication has already, since `before` has them."""
    known = set(_blocks(before, block_bytes))
    found = [block in known for block in _blocks(after, block_bytes)]
    return sum(found) / len(found)


def _blocks(data: bytes, block_bytes: int) -> Iterator[bytes]:
    return (data[start : start + block_bytes] for start in range(0, len(data), block_bytes))


def _zstd(data: bytes, level: int) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def _changed(step: Step) -> tuple[Mapping[str, int], Mapping[str, int]]:
    # Elements of A and of B whose bfloat16 value changed, and all of them.
    changed, total = {"A": 0, "B": 0}, {"A": 0, "B": 0}
    for name, tensor in step.after.items():
        if is_adapter(name):
            kind = "A" if ".lora_A." in name else "B"
            words = tensor.data.view(np.uint16)
            changed[kind] += int(np.count_nonzero(words != step.before[name].data.view(np.uint16)))
            total[kind] += words.size
    return changed, total
