"""A run directory as a trainer left it, as far as whoever goes on with it reads it."""

import json
from pathlib import Path
from typing import Any

import yaml

from periplus.job.job_file import JobFile, resolve


def left_run(root: Path, *checkpoints: tuple[int, int], summed_up: bool = False, **keys: Any) -> Path:
    """Write a run of the job `sums`, of 20 steps unless `keys` says otherwise, with checkpoints (fork, version).

    `summed_up`: the last of them is the end of the run, evaluated and exported.
    """
    root.mkdir(parents=True)
    tree = {
        "name": "sums",
        "environment": {"name": "chain_sum"},
        "sampling": {"prompt_tokens": 64},
        "steps": 20,
        **keys,
    }
    job = resolve(JobFile.model_validate(tree))
    (root / "config.yaml").write_text(yaml.safe_dump(json.loads(job.to_json()), sort_keys=False))
    for fork, version in checkpoints:
        folder = root / "checkpoints" / f"{fork}.{version}"
        folder.mkdir(parents=True)
        manifest = {"schema": "periplus.checkpoint/1", "fork": fork, "version": version, "job_id": root.name}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    if summed_up:
        fork, version = checkpoints[-1]
        (root / "metrics.jsonl").write_text(json.dumps({"kind": "summary", "fork": fork, "version": version}) + "\n")
        (root / "final").mkdir()
        (root / "final" / "model.safetensors").write_bytes(b"")
    return root
