"""Plants faults in rollout engines, one at a time, and counts the tokens until the trainer's checks of samples find it.

A small model is trained on random rewards, so that its weights move as in a job. The engine samples from each version;
the planted fault is in the engine alone. Every completion is checked (trainer/checks), so the counts are of
tokens that were computed again; a job checks a share of its samples. Sound runs must raise no alarm.

    python -m bench.engine_cases.planted_faults [--only NAME] [--lr 1e-5] [--dtype bfloat16] [--output FILE]
    python -c "from bench.engine_cases.planted_faults import main; main()" --engine vllm    (as engine_program.py)

The second command needs an environment that has vLLM and accelerate, and plants what can be planted there.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from bench.engine_cases.models import PROMPT_TOKENS, write_model
from bench.provenance import commit, machine
from periplus.codec.weights.layout import layout_of
from periplus.values.policy import Policy
from periplus.values.trajectory import Purpose, SamplingParams, StopReason, Trajectory
from periplus.values.weight_state import WeightState
from rollout_worker.engines import slot_attention, slot_decoder
from rollout_worker.engines.engine import Engine, OnSwap, SampleRequest, WholeState
from rollout_worker.engines.sampling import choose
from rollout_worker.engines.torch_engine import TorchEngine
from trainer.checks import sample_checks
from trainer.checks.doubted_workers import DoubtedWorkers
from trainer.checks.rescoring import Rescorer
from trainer.checks.sample_checks import SampleChecks
from trainer.learning.batch import collate, sample_of
from trainer.learning.forward.attention import use_packed_attention
from trainer.learning.forward.scorer import PolicyScorer
from trainer.learning.scoring import completion_logprobs
from trainer.publishing.publish import bf16_state

COMPLETIONS, TOKENS = 32, 24
"""Completions of a version, and tokens of each."""
SOUND_VERSIONS = 2
"""Versions before a fault begins, unless it is there from the start."""


class World:
    """A trainer of a small model, an engine with its published weights, and the checks of what the engine sampled."""

    def __init__(
        self, folder: Path, *, size: str, dtype: torch.dtype, lr: float, bound: int, seed: int, is_vllm: bool
    ) -> None:
        write_model(size, folder, seed=seed)
        self.is_vllm = is_vllm
        torch.manual_seed(seed)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.served = deepcopy(self.model).to(dtype)
        use_packed_attention(self.model)
        self.scorer = PolicyScorer(self.model, compute_dtype=dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0)
        self.draws = np.random.default_rng(seed)
        self.prompts = self.draws.integers(3, self.model.config.vocab_size, (COMPLETIONS // 4, PROMPT_TOKENS))
        self.checks = SampleChecks(
            Rescorer(self.model.config, torch.device("cpu")),
            DoubtedWorkers(lambda _: None),
            bound=bound,
            now=lambda: 0.0,
            draw_seed=None if is_vllm else seed,
        )
        self.seed, self.version, self.temperature = seed, 0, 1.0
        self.states: list[WeightState] = []

    async def run(self, fault: "Fault | None", max_tokens: int, vllm: Engine | None) -> dict[str, Any]:
        """Train, sample and check until something is found, or `max_tokens` tokens were checked with the fault."""
        self.temperature = 1.0 if fault is None else fault.temperature
        if vllm is not None:
            async with _in_worker(vllm, fault) as plant:
                return await self._run(vllm, fault, max_tokens, plant)
        engine = TorchEngine(
            model=self.served, end_ids=(2,), pad_id=0, num_slots=COMPLETIONS, prompt_tokens=16, max_new_tokens=TOKENS
        )
        try:
            return await self._run(engine, fault, max_tokens, None)
        finally:
            await engine.close()

    async def _run(self, engine: Any, fault: "Fault | None", max_tokens: int, plant: Any) -> dict[str, Any]:
        begins = 0 if fault is None or fault.from_start else SOUND_VERSIONS
        checked_before, why = 0, ""
        while not why and (self.version <= begins or self.checks.num_tokens - checked_before < max_tokens):
            state = bf16_state(self.model)
            self.states.append(state)
            policy = Policy(0, self.version)
            self.checks.published(policy, state)
            is_faulty = fault is not None and self.version >= begins
            if self.version == begins:
                checked_before = self.checks.num_tokens
                if plant is not None:
                    await plant()
            await (fault.swapped if fault and is_faulty else _swapped)(self, engine, policy)
            planted = fault.planted if fault and is_faulty and not self.is_vllm else _nothing
            with planted(self, engine):
                drawn = fault.drawn if fault and is_faulty and self.is_vllm else {}
                trajectories = await self._sampled(engine, policy, drawn)
            # A few samples a check, so that the count of tokens is fine.
            for start in range(0, len(trajectories), 8):
                if found := self.checks.check(trajectories[start : start + 8], 1.0):
                    why = found[0].why
                    break
            else:
                self._train(trajectories)
                self.version += 1
        tokens = self.checks.num_tokens - checked_before
        return {"found": why, "tokens": tokens, "version": self.version, "begins": begins}

    async def _sampled(self, engine: Engine, policy: Policy, drawn: Mapping[str, Any]) -> list[Trajectory]:
        requests = [
            SampleRequest(
                request_id=f"{self.version}-{index}",
                **{"temperature": self.temperature} | dict(drawn),
                prompt_ids=tuple(int(each) for each in self.prompts[index // 4]),
                seed=self.seed,
                group=self.version * COMPLETIONS + index // 4,
                sample=index % 4,
                max_new_tokens=TOKENS,
                greedy=False,
            )
            for index in range(COMPLETIONS)
        ]
        completions = await asyncio.gather(*(engine.submit(request) for request in requests))
        return [
            Trajectory(
                lease_id=0,
                group=request.group,
                sample=request.sample,
                item=0,
                purpose=Purpose.TRAIN,
                prompt_ids=np.asarray(request.prompt_ids, np.int32),
                completion_ids=np.asarray(completion.token_ids, np.int32),
                logprobs=np.asarray(completion.logprobs, np.float32),
                mask=np.ones(len(completion.token_ids), np.bool_),
                policies=tuple(replace(run, policy=policy) for run in completion.runs),
                reward=0.0,
                stop_reason=StopReason.LENGTH,
                sampling=SamplingParams(temperature=self.temperature),
                worker_id="worker",
                generation_s=0.0,
            )
            for request, completion in zip(requests, completions, strict=True)
        ]

    def _train(self, trajectories: list[Trajectory]) -> None:
        batch = collate([sample_of(each, 0.0) for each in trajectories])
        advantages_B = torch.from_numpy(self.draws.standard_normal(batch.num_rows)).float()
        logprobs_BT = completion_logprobs(self.scorer, batch, self.temperature)
        (-(logprobs_BT.sum(1) * advantages_B).mean() / TOKENS).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()


Swapped = Callable[[World, Engine, Policy], Any]
Planted = Callable[[World, Any], Any]


async def _swapped(world: World, engine: Engine, policy: Policy) -> None:
    await _written(world.states[-1], engine, policy)


async def _written(state: WeightState, engine: Engine, policy: Policy) -> None:
    await engine.swap(WholeState(layout=layout_of(state), state=state), policy, OnSwap.REPREFILL)


@contextmanager
def _nothing(_world: World, _engine: TorchEngine) -> Iterator[None]:
    yield


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of an engine: how it takes a version, and what is wrong while it samples.

    `planted` is for the torch engine. vLLM has `in_worker`, a fault of bench/engine_cases/planted_worker.py, and
    `drawn`, what its requests ask for in place of what the job does.
    """

    swapped: Swapped = _swapped
    planted: Planted = _nothing
    from_start: bool = False
    temperature: float = 1.0
    in_worker: str = ""
    drawn: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_for_vllm(self) -> bool:
        """Whether it can be planted in vLLM."""
        return bool(self.in_worker) or self.swapped is not _swapped


@asynccontextmanager
async def _in_worker(vllm: Any, fault: Fault | None) -> AsyncIterator[Any]:
    """Yield what plants the fault in vLLM's worker, None if there is nothing; it is taken away in the end."""
    if fault is None or not fault.in_worker:
        yield None
        return
    is_planted = False

    async def plant() -> None:
        nonlocal is_planted
        await vllm._backend._call("plant", fault.in_worker)
        is_planted = True

    try:
        yield plant
    finally:
        if is_planted:
            await vllm._backend._call("lift")


# ---- weights ------------------------------------------------------------------------------------------------------


def _after(change: Callable[[World], None]) -> Swapped:
    """Return a swap after which the engine's weights are changed."""

    async def swapped(world: World, engine: Engine, policy: Policy) -> None:
        if not world.is_vllm:
            await _swapped(world, engine, policy)
            with torch.no_grad():
                change(world)
            return
        # The model here is no engine's: its weights are changed, and then given to vLLM.
        with torch.no_grad():
            for name, parameter in world.served.named_parameters():
                parameter.copy_(torch.frombuffer(world.states[-1][name].data, dtype=torch.bfloat16).view_as(parameter))
            change(world)
        await _written(bf16_state(world.served), engine, policy)

    return swapped


def _stale(chosen: Callable[[str], bool], rows: slice = slice(None)) -> Swapped:
    """Return a swap that leaves the chosen tensors, or some of their rows, as they were before the fault began."""

    def change(world: World) -> None:
        old = world.states[SOUND_VERSIONS - 1]
        for name, parameter in world.served.named_parameters():
            if chosen(name):
                tensor = torch.frombuffer(old[name].data, dtype=torch.bfloat16).reshape(parameter.shape)
                parameter[rows] = tensor[rows].to(parameter.dtype)

    return _after(change)


def _older(num_versions: int) -> Swapped:
    async def swapped(world: World, engine: Engine, policy: Policy) -> None:
        await _written(world.states[max(0, len(world.states) - 1 - num_versions)], engine, policy)

    return swapped


@contextmanager
def _old_head(world: World, _engine: Any) -> Iterator[None]:
    # The head is tied to the embedding; here it is a copy that no version writes to.
    if world.served.lm_head.weight is world.served.model.embed_tokens.weight:
        old = world.states[SOUND_VERSIONS - 1]["model.embed_tokens.weight"]
        shape, dtype = world.served.lm_head.weight.shape, world.served.lm_head.weight.dtype
        copied = torch.frombuffer(old.data, dtype=torch.bfloat16).reshape(shape).to(dtype)
        world.served.lm_head.weight = torch.nn.Parameter(copied.clone())
    yield


def _flipped_bit(world: World) -> None:
    weight = world.served.model.layers[-1].mlp.down_proj.weight
    weight[0, 0] *= 256.0


def _quantized(world: World) -> None:
    # Four bits, with a scale for each 32 weights of a row.
    for name, parameter in world.served.named_parameters():
        if name.endswith("_proj.weight"):
            groups = parameter.float().view(parameter.shape[0], -1, 32)
            scale = groups.abs().amax(-1, keepdim=True) / 7
            parameter.copy_(((groups / scale).round() * scale).view(parameter.shape))


def _scaled_adapter(world: World) -> None:
    # As an adapter whose scale is twice the trainer's: what training has changed since the start counts twice.
    first = world.states[0]
    for name, parameter in world.served.named_parameters():
        if name.endswith("_proj.weight"):
            base = torch.frombuffer(first[name].data, dtype=torch.bfloat16).reshape(parameter.shape).float()
            parameter.add_((parameter.float() - base).to(parameter.dtype))


# ---- computation --------------------------------------------------------------------------------------------------


@contextmanager
def _patched(place: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def _attention(change: Callable[..., Mapping[str, Any]]) -> Planted:
    """Return a fault of decoding's attention; `change` returns other arguments."""

    @contextmanager
    def planted(_world: World, _engine: TorchEngine) -> Iterator[None]:
        def faulty(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
            given = {"query": query, "key": key, "value": value, "attention_mask": mask, **options}
            return slot_attention.slot_attention(
                module, **(given | dict(change(**given))) if query.shape[2] == 1 else given
            )

        AttentionInterface.register(slot_attention.SLOTS, faulty)
        try:
            yield
        finally:
            AttentionInterface.register(slot_attention.SLOTS, slot_attention.slot_attention)

    return planted


def _steeper(factor: float) -> Callable[..., Mapping[str, Any]]:
    return lambda **given: {"scaling": factor * (given.get("scaling") or given["query"].shape[-1] ** -0.5)}


def _coarse_cache(**given: Any) -> Mapping[str, Any]:
    return {name: given[name].to(torch.float8_e4m3fn).to(given[name].dtype) for name in ("key", "value")}


def _rotary(change: Callable[[Any, bool], Any]) -> Planted:
    @contextmanager
    def planted(world: World, _engine: TorchEngine) -> Iterator[None]:
        rotary = world.served.model.rotary_emb
        right = rotary.forward

        def faulty(x: Any, position_ids: Any) -> Any:
            return right(x, change(position_ids, x.shape[1] == 1))

        with _patched(rotary, "forward", faulty):
            yield

    return planted


@contextmanager
def _wrong_base(world: World, _engine: TorchEngine) -> Iterator[None]:
    rotary = world.served.model.rotary_emb
    exponents = torch.arange(0, len(rotary.inv_freq)) / len(rotary.inv_freq)
    with _patched(rotary, "inv_freq", 1.0 / (1e6**exponents)):
        yield


@contextmanager
def _wrong_epsilon(world: World, _engine: TorchEngine) -> Iterator[None]:
    norms = [module for module in world.served.modules() if hasattr(module, "variance_epsilon")]
    before = [norm.variance_epsilon for norm in norms]
    for norm in norms:
        norm.variance_epsilon = 1e-3
    try:
        yield
    finally:
        for norm, epsilon in zip(norms, before, strict=True):
            norm.variance_epsilon = epsilon


@contextmanager
def _old_prompts(_world: World, engine: TorchEngine) -> Iterator[None]:
    # What the prompts were under the first faulty version is used for good.
    kept = engine._decoder._prompts
    kept.clear = lambda: None  # type: ignore[method-assign]
    yield


# ---- drawing ------------------------------------------------------------------------------------------------------


def _drawn(change: Callable[[Any], Any], reported: float = 1.0) -> Planted:
    """Return a fault of drawing: tokens are drawn from changed logits, and the log-probabilities are of the right ones.

    `reported` is the temperature of the log-probabilities that are reported, in units of the job's.
    """

    @contextmanager
    def planted(_world: World, _engine: TorchEngine) -> Iterator[None]:
        def faulty(logits_RV: Any, temperature_R: Any, *rest: Any) -> Any:
            tokens_R, _ = choose(change(logits_RV), temperature_R, *rest)
            right_RV = torch.log_softmax(logits_RV.float() / (reported * temperature_R[:, None]), -1)
            return tokens_R, right_RV.gather(1, tokens_R[:, None])[:, 0]

        with _patched(slot_decoder, "choose", faulty):
            yield

    return planted


def _top(count: int) -> Callable[[Any], Any]:
    return lambda logits_RV: logits_RV.masked_fill(logits_RV < logits_RV.topk(count)[0][:, -1:], -torch.inf)


def _least(share: float) -> Callable[[Any], Any]:
    def change(logits_RV: Any) -> Any:
        likely_RV = torch.softmax(logits_RV.float(), -1)
        return logits_RV.masked_fill(likely_RV < share * likely_RV.amax(-1, keepdim=True), -torch.inf)

    return change


FAULTS: Mapping[str, Fault] = {
    "decoding's attention 1.5 times as steep": Fault(planted=_attention(_steeper(1.5)), in_worker="steeper attention"),
    "drawn at temperature 0.7, reported at 1": Fault(
        planted=_drawn(lambda logits: logits / 0.7), in_worker="raw log-probabilities", drawn={"temperature": 0.7}
    ),
    "prompts of old weights": Fault(planted=_old_prompts),
    "head is stale": Fault(planted=_old_head, in_worker="stale head"),
    "last down_proj is stale": Fault(swapped=_stale(lambda name: name.endswith("3.mlp.down_proj.weight"))),
    "one bit flipped": Fault(swapped=_after(_flipped_bit)),
    "half of the rows are stale": Fault(
        swapped=_stale(lambda name: name.endswith("_proj.weight"), slice(0, 64)),
    ),
    "a frozen layer": Fault(swapped=_stale(lambda name: ".layers.0." in name)),
    "weights 1 version old": Fault(swapped=_older(1)),
    "weights 2 versions old": Fault(swapped=_older(2)),
    "weights 5 versions old": Fault(swapped=_older(5)),
    "four-bit weights": Fault(swapped=_after(_quantized)),
    "adapter's scale doubled": Fault(swapped=_after(_scaled_adapter)),
    "rotary base": Fault(planted=_wrong_base, from_start=True, in_worker="rotary base"),
    "a norm's epsilon": Fault(planted=_wrong_epsilon, from_start=True, in_worker="epsilon"),
    "cache of 8 bits": Fault(planted=_attention(_coarse_cache), from_start=True),
    "positions off by one in decoding": Fault(planted=_rotary(lambda ids, decodes: ids + 1 if decodes else ids)),
    "top_k of 20 left on": Fault(
        planted=_drawn(_top(20)), from_start=True, in_worker="raw log-probabilities", drawn={"top_k": 20}
    ),
    "min_p of 0.05 left on": Fault(planted=_drawn(_least(0.05)), from_start=True),
    "reported at temperature 1, job at 0.8": Fault(
        planted=_drawn(lambda logits: logits, reported=1 / 0.8),
        from_start=True,
        temperature=0.8,
        in_worker="raw log-probabilities",
    ),
}


def measured(
    name: str,
    *,
    size: str,
    dtype: str,
    lr: float,
    bound: int,
    seed: int,
    max_tokens: int,
    vllm: tuple[asyncio.Runner, Engine] | None = None,
) -> dict[str, Any]:
    """Run one world with a fault, or a sound one if `name` is empty; with a vLLM on its event loop if one is given."""
    with tempfile.TemporaryDirectory() as folder:
        is_vllm, kind = vllm is not None, getattr(torch, dtype)
        world = World(Path(folder), size=size, dtype=kind, lr=lr, bound=bound, seed=seed, is_vllm=is_vllm)
        work = world.run(FAULTS[name] if name else None, max_tokens, None if vllm is None else vllm[1])
        return asyncio.run(work) if vllm is None else vllm[0].run(work)


@contextmanager
def _running_vllm(size: str, dtype: str) -> Iterator[tuple[asyncio.Runner, Engine]]:
    # Imported here, since only its own environment has it.
    from bench.engine_cases.planted_worker import NAME
    from rollout_worker.engines.request_limits import RequestLimits
    from rollout_worker.engines.vllm.async_llm_backend import AsyncLlmBackend, VllmSettings
    from rollout_worker.engines.vllm.vllm_engine import VllmEngine

    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        folder = Path(name)
        write_model(size, folder)
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        (folder / "model.safetensors").unlink()
        settings = VllmSettings(
            folder=folder,
            dtype=dtype,
            num_slots=COMPLETIONS,
            max_tokens=16 + TOKENS + 1,
            cache_bytes=1 << 27,
            eager=True,
            extension=NAME,
        )
        engine = VllmEngine(
            backend=runner.run(AsyncLlmBackend.start(settings)),
            limits=RequestLimits(vocab_size=vocab_size, prompt_tokens=16, max_new_tokens=TOKENS),
            end_ids=(2,),
            num_slots=COMPLETIONS,
            computes_in_bfloat16=dtype == "bfloat16",
        )
        try:
            yield runner, engine
        finally:
            runner.run(engine.close())


@click.command()
@click.option("--only", default="", help="A fault by a part of its name; `sound` for the sound runs.")
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True)
@click.option("--size", default="0.8M", show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True)
@click.option("--lr", default=1e-5, show_default=True)
@click.option("--bound", default=2, show_default=True, help="Bound of staleness: so many older versions are kept.")
@click.option("--sound", default=3, show_default=True, help="Number of sound runs.")
@click.option("--max-tokens", default=5000, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=None)
def main(
    only: str,
    engine: str,
    size: str,
    dtype: str,
    lr: float,
    bound: int,
    sound: int,
    max_tokens: int,
    output: Path | None,
) -> None:
    """Measure and print one line a run, and the counts as one JSON object in the end."""
    torch.set_num_threads(1)
    disable_progress_bar()
    sample_checks.MIN_TOKENS = 1 << 20  # the whole part of a batch that is given
    setting: dict[str, Any] = {"size": size, "dtype": dtype, "lr": lr, "bound": bound, "max_tokens": max_tokens}
    names = [name for name, fault in FAULTS.items() if only in name and (engine == "torch" or fault.is_for_vllm)]
    rows, sound_rows = {}, []
    with _running_vllm(size, dtype) if engine == "vllm" else nullcontext() as vllm:
        for name in names:
            rows[name] = row = measured(name, seed=1, vllm=vllm, **setting)
            print(f"{name:44} {row['tokens'] if row['found'] else '-':>6}  {row['found'] or 'not found'}", flush=True)
        for seed in range(sound if only in ("", "sound") else 0):
            row = measured("", seed=seed, vllm=vllm, **setting)
            sound_rows.append(row)
            print(f"{f'sound {seed}':44} {row['tokens']:>6}  {row['found'] or 'no alarm'}", flush=True)
    record = {
        "name": "planted_faults",
        "setting": setting | {"engine": engine},
        "targets": {"faults_found": 20, "false_alarms": 0},
        "not_planted": sorted(FAULTS.keys() - set(names)),
        "faults": rows,
        "sound": sound_rows,
        "faults_found": sum(bool(row["found"]) for row in rows.values()),
        "false_alarms": sum(bool(row["found"]) for row in sound_rows),
        "commit": commit(),
        "machine": machine(torch=torch.__version__),
    }
    text = json.dumps(record, indent=1)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    json.dump({key: record[key] for key in ("faults_found", "false_alarms")}, sys.stdout)


if __name__ == "__main__":
    main()
