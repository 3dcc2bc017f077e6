"""Generated values of the kernel, for the tests of several modules."""

import json
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import strategies as st

from periplus.values.policy import Policy
from periplus.values.safetensors_format import ELEMENT_BYTES, layout_bytes
from periplus.values.trajectory import (
    MAX_REWARD,
    PolicyRun,
    Purpose,
    SamplingParams,
    StopReason,
    Trajectory,
    read_only,
    token_ids,
)
from periplus.values.weight_state import Tensor, WeightState

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda n: n != "__metadata__")


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(sorted(ELEMENT_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    return Tensor(dtype, shape, _bytes(draw, layout_bytes(dtype, shape)))


def states() -> st.SearchStrategy[dict[str, Tensor]]:
    return st.dictionaries(names, tensors(), max_size=5)


@st.composite
def steps(draw: st.DrawFn) -> tuple[WeightState, WeightState]:
    """Draw a state and another of the same layout, in which some tensors differ."""
    base = draw(states())
    moved = draw(st.sets(st.sampled_from(sorted(base)))) if base else set()
    new = {n: Tensor(t.dtype, t.shape, _bytes(draw, t.data.size)) if n in moved else t for n, t in base.items()}
    return base, new


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    num_tokens = draw(st.integers(0, 6))
    per_token: Any = {"min_size": num_tokens, "max_size": num_tokens}
    mask = draw(st.lists(st.booleans(), **per_token))
    logprobs = draw(st.lists(st.floats(-50, 0, width=32), **per_token))
    versions = sorted(draw(st.lists(st.integers(0, 3), **per_token)))
    fork = draw(st.integers(0, 2**32 - 1))
    # Only a later run can have kept the cache of an older policy.
    runs = [PolicyRun(Policy(fork, version), len(list(run))) for version, run in groupby(versions)]
    kept = [False, *draw(st.lists(st.booleans(), min_size=len(runs), max_size=len(runs)))]
    metadata = st.dictionaries(names, st.integers() | names, min_size=1, max_size=2).map(json.dumps)
    return Trajectory(
        lease_id=draw(u64),
        group=draw(u64),
        sample=draw(u32),
        item=draw(u64),
        purpose=draw(st.sampled_from(Purpose)),
        prompt_ids=token_ids(draw(st.lists(st.integers(0, 300), max_size=4))),
        completion_ids=token_ids(draw(st.lists(st.integers(0, 2**24 - 1), **per_token))),
        logprobs=read_only([p if sampled else 0.0 for p, sampled in zip(logprobs, mask, strict=True)], np.float32),
        mask=read_only(mask, np.bool_),
        policies=tuple(replace(run, kept_kv=each) for run, each in zip(runs, kept, strict=False)),
        reward=draw(st.floats(-MAX_REWARD, MAX_REWARD)),
        stop_reason=draw(st.sampled_from(StopReason)),
        sampling=draw(sampling_params()),
        metadata=draw(st.just("") | metadata),
        worker_id=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)),
        generation_s=draw(st.floats(0, 1e6)),
    )


def sampling_params() -> st.SearchStrategy[SamplingParams]:
    top_p = st.floats(0, 1, exclude_min=True)
    return st.builds(SamplingParams, temperature=st.floats(0, 2), top_p=top_p, top_k=st.integers(0, 2**31))


def _bytes(draw: st.DrawFn, num_bytes: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.frombuffer(draw(st.binary(min_size=num_bytes, max_size=num_bytes)), np.uint8)
