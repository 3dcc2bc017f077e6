"""The manifest of a checkpoint: what a run was at that point, and which files hold which rows of which tensors.

`parts` and `tensors` are described in periplus/values/row_parts.py. The collection `actor` holds the trained weights in
float32, and `learner` every other tensor of the learner. Of weights that are not trained, beside adapters, the manifest
has only digests (`frozen`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from periplus.errors import ConfigError
from periplus.values.policy import Lineage, Policy
from periplus.values.row_parts import PartedTensor, parted_tensors
from trainer.data.problem_digests import CountedDigest
from trainer.publishing.shard_digest import TensorDigests

SCHEMA = "periplus.checkpoint/1"
"""Name and version of the manifest's format."""

MANIFEST = "manifest.json"
"""File whose presence makes a directory a checkpoint."""

WEIGHTS = "model.safetensors"
"""File of the actor's weights in float32, if one process wrote them. transformers loads it."""

ADAPTERS = "adapters.safetensors"
"""File of the actor's adapters in float32, if one process wrote them and only they are trained."""

LEARNER = "learner.json"
"""File of the learner's state without its tensors."""

LEARNER_TENSORS = "learner.safetensors"
"""File of the learner's tensors (optimizers, critic and reference model), if one process wrote them."""

ACTOR, LEARNT = "actor", "learner"
"""Collections of tensors in a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Content of a complete checkpoint's manifest.

    - `policy`, `lineage`: the version that was saved, and the history of its fork.
    - `parts`: the BLAKE3 hash of each file, in hexadecimal, by file name.
    - `tensors`: the tensors by collection and name, with the files of their rows.
    - `frozen`: shape and digest of each weight that is not trained, rounded to bfloat16, by name.
    - `progress`: sums over the run, which the final summary continues.
    - `audit_line`: number of the first line of the audit that the checkpoint does not cover.
    - `next_group`, `open_groups`: the ledger's next group, and the groups that were open.
    - `batches_root`: running hash over all batches of the history.
    - `problems`: digests of the run's problems.
    - `digest`: BLAKE3 hash of the manifest's own bytes. `directory`: where the checkpoint is.
    """

    job_id: str
    policy: Policy
    lineage: Lineage
    parts: Mapping[str, str]
    tensors: Mapping[str, Mapping[str, PartedTensor]]
    frozen: TensorDigests
    progress: Mapping[str, float]
    audit_line: int
    next_group: int
    open_groups: tuple[int, ...]
    batches_root: bytes
    problems: tuple[CountedDigest, ...]
    digest: bytes
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Where a run is when a checkpoint is written: what the manifest holds besides the parts.

    - `audit_line`, `audit_prev`: number of the first line of the audit that the checkpoint does not cover, and the
      hash of the line before.
    - `next_group`, `open_groups`: the ledger's next group, and the groups that are open (trainer/ledger/machine.py).
    - `batches_root`: running hash over all batches of the history.
    - `parent`: the previous checkpoint of this history; None for the first.
    - `problems`: digests of the run's problems.
    """

    job_id: str
    policy: Policy
    lineage: Lineage
    progress: Mapping[str, float]
    audit_line: int
    audit_prev: bytes
    next_group: int
    open_groups: Sequence[int]
    batches_root: bytes
    parent: Manifest | None
    problems: Sequence[CountedDigest] = ()


def manifest_json(
    content: Content,
    *,
    weights: bytes,
    frozen: TensorDigests,
    parts: Sequence[Mapping[str, Any]],
    tensors: Mapping[str, Mapping[str, Sequence[Any]]],
) -> dict[str, Any]:
    """Return the manifest as a JSON value.

    `weights` is the digest of the actor's weights as they are published. `frozen` are those of them that are not
    trained, and that no part holds.
    """
    parent = content.parent
    return {
        "schema": SCHEMA,
        "job_id": content.job_id,
        "fork": content.policy.fork,
        "version": content.policy.version,
        "parents": [[policy.fork, policy.version] for policy in content.lineage.parents],
        "parent": None if parent is None else [parent.policy.fork, parent.policy.version],
        "parent_manifest": None if parent is None else parent.digest.hex(),
        "audit": {"n": content.audit_line, "prev": content.audit_prev.hex()},
        "next_group": content.next_group,
        "open_groups": list(content.open_groups),
        "batches_root": content.batches_root.hex(),
        "problems": [[each.name, each.count, each.digest] for each in content.problems],
        "progress": dict(content.progress),
        "weights": weights.hex(),
        "frozen": {name: ["BF16", list(shape), digest.hex()] for name, (shape, digest) in sorted(frozen.items())},
        "tensors": tensors,
        "parts": list(parts),
    }


def read_manifest(path: Path) -> Manifest:
    """Read a manifest, and check that its parts hold each row of each tensor exactly once.

    Raises: ConfigError if it is damaged or has another schema.
    """
    try:
        text = path.read_bytes()
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ConfigError(
                f"{path} has schema {data['schema']!r}, and this build reads {SCHEMA}; use the build that wrote it"
            )
        listed = {part["name"]: part["blake3"] for part in data["parts"]}
        tensors = parted_tensors(data)
        _check_listed(listed, tensors)
        policy = Policy(data["fork"], data["version"])
        return Manifest(
            job_id=data["job_id"],
            policy=policy,
            lineage=Lineage(policy.fork, tuple(Policy(fork, version) for fork, version in data["parents"])),
            parts=listed,
            tensors=tensors,
            frozen={
                name: (tuple(shape), bytes.fromhex(digest))
                for name, (_, shape, digest) in data.get("frozen", {}).items()
            },
            progress=data["progress"],
            audit_line=data["audit"]["n"],
            next_group=data["next_group"],
            open_groups=tuple(data["open_groups"]),
            batches_root=bytes.fromhex(data["batches_root"]),
            # Of the bytes in the file, which is what the next manifest and the audit name.
            problems=tuple(
                CountedDigest(name=name, count=count, digest=digest) for name, count, digest in data["problems"]
            ),
            digest=blake3(text).digest(),
            directory=path.parent,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a checkpoint manifest ({error!r}); remove its directory") from error


def _check_listed(listed: Mapping[str, str], tensors: Mapping[str, Mapping[str, PartedTensor]]) -> None:
    # Without it nothing could be restored.
    if LEARNER not in listed:
        raise ValueError(f"the part {LEARNER} is not listed")
    if not tensors.get(ACTOR):
        raise ValueError("no tensor of the actor is listed")
