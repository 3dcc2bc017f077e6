"""What a job exports is a model that vLLM serves, under the same names and with the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from periplus.values.digest import state_digest
from tests.support.engines.vllm.small_model import VOCAB, small_config
from trainer.checkpointing.export import final_model
from trainer.publishing.publish import bf16_state

pytestmark = [pytest.mark.vllm, pytest.mark.processes]

# vLLM gets a process that has imported nothing else, as it has when somebody serves the model. It ends without the
# interpreter's clean-up, in which threads of vLLM abort it now and then.
PROGRAM = """
import json, os, sys
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    folder, prompt = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(folder, skip_tokenizer_init=True, enforce_eager=True, kv_cache_memory_bytes=1 << 26, max_model_len=64)
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (found,) = llm.generate([{"prompt_token_ids": prompt}], params)
    print(json.dumps([each[token].logprob for each, token in zip(found.prompt_logprobs[1:], prompt[1:])]))
    sys.stdout.flush()
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)
"""
LIMIT_S = 280.0
"""Seconds that the program may take, less than pytest gives a test. Beside other work it took more than 120."""


def test_vllm_loads_an_exported_model_and_computes_with_its_weights(tmp_path: Path) -> None:
    """The model is tied: its export has no output projection, which vLLM must make from the embeddings."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(small_config(tied=True, num_layers=2)).eval().requires_grad_(False)
    folder = tmp_path / "final"
    # Files of at most 64 KiB, so that the weights are in several.
    final_model(model, {}, folder, state_digest(bf16_state(model)), max_file_bytes=1 << 16)
    assert len(list(folder.glob("*.safetensors"))) > 1
    ids = np.random.default_rng(1).integers(0, VOCAB, 32).tolist()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(ids)],
        env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (each for each in done.stdout.splitlines() if each.startswith("[-"))  # vLLM's log is among them
    expected = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)[:-1]
    expected_T = expected.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    difference = np.abs(np.array(json.loads(line)) - expected_T)
    assert difference.mean() < 0.02, "rounding to bfloat16 of weights and of what vLLM computes"
