"""Ten jobs of unlike shape on small fleets of this machine, to compare what a plan predicts with what is then measured.

They differ in model, batch, length of the answers, staleness bound, regions, links, engine, algorithm, and in whether
devices are cores or emulated accelerators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.engine_cases.models import ENVIRONMENT, write_model
from bench.experiment_cases.executed_fleets import VLLM, emulated
from periplus.job.job_file import JobFile, job_of, load_job
from tests.support.processes.declared_fleet import DeclaredRegion

ROOT = Path(__file__).parents[2]

CORES = DeclaredRegion()
"""A region of this machine's cores."""

MEASURED = {"eval.num_prompts": 8, "eval.every_steps": 0, "checkpoint.every_steps": 0}
"""Keys of every job: evaluations and checkpoints are no part of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job and the fleet that runs it.

    `model` is a name of `bench.engine_cases.models.SIZES`, or empty for the model of the demo. `steps` are trained, of
    which the first is not counted. `link` is (Gbit/s, round trip in ms) between all regions, None for no emulation.
    """

    regions: Mapping[str, DeclaredRegion]
    steps: int
    model: str = ""
    link: tuple[float, float] | None = None
    keys: Mapping[str, object] = field(default_factory=dict)

    def job(self, folder: Path, *keys: str) -> JobFile:
        """Return the resolved job with these keys; its model is written below `folder`."""
        own = MEASURED | dict(self.keys)
        changes = [f"steps={self.steps}", *(f"{key}={value}" for key, value in own.items()), *keys]
        if not self.model:
            return load_job(ROOT / "examples" / "spelling.yaml", changes)
        path = folder / self.model
        if not path.exists():
            path.mkdir()
            write_model(self.model, path)
        tree = {
            "name": "unlike",
            "model": {"path": str(path)},
            "environment": ENVIRONMENT,
            "data": {"size": 4096},
            "algorithm": {"group_size": 8},
            "sampling": {"prompt_tokens": 12, "max_new_tokens": 24},
            "optimizer": {"lr": 1e-4},
            "train": {"groups_per_step": 16},
        }
        return job_of(tree, changes)

    def grid(self) -> str:
        """Return the file of links that the fleet emulates, empty for none."""
        if self.link is None:
            return ""
        rate, rtt = self.link
        pairs = [(a, b) for a in self.regions for b in self.regions if a != b]
        return "src_region,dst_region,throughput_gbps,rtt_ms\n" + "".join(f"{a},{b},{rate},{rtt}\n" for a, b in pairs)


def _paced(number: int, slowdown: float) -> DeclaredRegion:
    return DeclaredRegion(devices=emulated("L4", number, slowdown))


CASES: Mapping[str, Case] = {
    "demo": Case(regions={"a": CORES, "b": CORES, "c": CORES}, steps=60, link=(0.2, 150.0), keys={"regions.min": 3}),
    "4.7M": Case(regions={"a": CORES}, steps=24, model="4.7M", keys={"staleness": 1}),
    "deep, one region": Case(regions={"a": CORES}, steps=16, model="1.4M-28", keys={"staleness": 2}),
    "synchronous": Case(regions={"a": CORES}, steps=24, model="0.8M", keys={"staleness": 0}),
    "long answers, two regions": Case(
        regions={"a": CORES, "b": CORES},
        steps=16,
        model="0.8M",
        link=(0.1, 80.0),
        keys={"staleness": 4, "sampling.max_new_tokens": 160, "train.groups_per_step": 8, "regions.min": 2},
    ),
    "far workers, thin link": Case(
        regions={"a": CORES, "b": CORES},
        steps=16,
        model="4.7M",
        link=(0.02, 120.0),
        keys={"staleness": 2, "regions.trainer": "a", "regions.rollout": "[b]"},
    ),
    "critic": Case(
        regions={"a": CORES},
        steps=16,
        model="0.8M",
        keys={"staleness": 1, "algorithm.name": "ppo", "algorithm.kl_coefficient": 0.01},
    ),
    "vLLM": Case(
        regions={"a": DeclaredRegion(options=("--engine", f"vllm={VLLM}"))},
        steps=16,
        model="0.8M",
        keys={"staleness": 1, "engine.name": "vllm", "engine.kv_cache_gib": 0.25},
    ),
    "emulated, two speeds": Case(
        regions={"fast": _paced(2, 200), "slow": _paced(2, 400)}, steps=16, link=(0.02, 120.0), keys={"regions.min": 2}
    ),
    "emulated, two trainers": Case(
        regions={"fast": _paced(3, 800), "slow": _paced(3, 1600)},
        steps=12,
        model="0.8M",
        link=(0.1, 150.0),
        keys={"staleness": 8, "sampling.max_new_tokens": 48, "train.devices": 2, "regions.min": 2},
    ),
}
"""The jobs by name. The first two are those whose figures have names of their own."""
