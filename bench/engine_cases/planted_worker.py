"""vLLM's worker with faults that a benchmark plants: the extension of its workers in `planted_faults.py`.

They are faults of computing and drawing. Wrong weights need none of this: the engine is given another state.
"""

from collections.abc import Callable

import torch

from rollout_worker.engines.vllm.worker_extension import WorkerExtension

NAME = "bench.engine_cases.planted_worker.PlantedWorker"

WRONG_BASE = 1e6
WRONG_EPSILON = 1e-3
STEEPER = 1.5


class PlantedWorker(WorkerExtension):
    """Holds what takes the planted faults away again."""

    def plant(self, fault: str) -> None:
        """Plant a fault by its name in `FAULTS`."""
        self._lifting = FAULTS[fault](self)

    def lift(self) -> None:
        """Take the planted fault away."""
        self._lifting()


def _stale_head(worker: PlantedWorker) -> Callable[[], None]:
    # It multiplies with a copy of what it holds now, as a packed head does.
    head = worker.model_runner.get_model().lm_head
    old = head.weight.detach().clone()
    head.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, old, bias)
    return lambda: setattr(head, "cpu_linear", torch.nn.functional.linear)


def _wrong_base(worker: PlantedWorker) -> Callable[[], None]:
    model = worker.model_runner.get_model()
    # Layers share one module.
    (cache,) = {module.cos_sin_cache for module in model.modules() if hasattr(module, "cos_sin_cache")}
    before = cache.clone()
    half = cache.shape[1] // 2
    angles = torch.arange(len(cache))[:, None] * WRONG_BASE ** -(torch.arange(half) / half)
    cache.copy_(torch.cat([angles.cos(), angles.sin()], dim=1))

    def restore() -> None:
        cache.copy_(before)

    return restore


def _wrong_epsilon(worker: PlantedWorker) -> Callable[[], None]:
    norms = [each for each in worker.model_runner.get_model().modules() if hasattr(each, "variance_epsilon")]
    return _changed(norms, "variance_epsilon", lambda _: WRONG_EPSILON)


def _steeper(worker: PlantedWorker) -> Callable[[], None]:
    kernels = [each.impl for each in worker.model_runner.get_model().modules() if hasattr(each, "impl")]
    return _changed(kernels, "scale", lambda scale: STEEPER * scale)


def _raw(worker: PlantedWorker) -> Callable[[], None]:
    # Log-probabilities before temperature, top_k and top_p are reported.
    sampler = worker.model_runner.sampler
    return _changed([sampler, sampler.topk_topp_sampler], "logprobs_mode", lambda _: "raw_logprobs")


def _changed(holders: list[object], name: str, change: Callable[..., object]) -> Callable[[], None]:
    before = [getattr(each, name) for each in holders]
    assert before, f"nothing in this vLLM has {name}"
    for each, value in zip(holders, before, strict=True):
        setattr(each, name, change(value))

    def restore() -> None:
        for each, value in zip(holders, before, strict=True):
            setattr(each, name, value)

    return restore


FAULTS: dict[str, Callable[[PlantedWorker], Callable[[], None]]] = {
    "stale head": _stale_head,
    "rotary base": _wrong_base,
    "epsilon": _wrong_epsilon,
    "steeper attention": _steeper,
    "raw log-probabilities": _raw,
}
