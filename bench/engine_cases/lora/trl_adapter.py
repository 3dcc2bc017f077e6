"""TRL's own code on adapters that the benchmark trained, as a program: it runs in the environment of the oracles.

`save` writes each adapter with the function by which TRL's asynchronous trainer publishes one. The base is on torch's
meta device, since only adapters are written. Then each directory is loaded by peft, and its tensors must be those that
were given. It also reports in which type peft makes adapters for a base of each type.

`stale` asks TRL's queue of samples which of them it gives to the trainer, by how many versions they are behind.

One JSON line is printed. Nothing of TRL is changed.
"""

import argparse
import json
import os
import queue
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from peft.utils import load_peft_weights
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import __version__ as trl_version
from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset, save_lora_adapter

PREFIX = "base_model.model."
"""What peft puts before the names of a model's own modules."""

FIELDS = ("enqueued_at", "input_ids", "completion_mask", "old_log_probs", "advantage", "group_id", "metrics")
"""Fields of a sample that the queue passes on unread."""


def save(settings: dict[str, Any]) -> dict[str, Any]:
    """Write every adapter of the settings, and return what was found on the way."""
    accelerator = Accelerator(cpu=True)
    for one in settings["adapters"]:
        with torch.device("meta"):
            model = _peft_model(one, torch.float32)
        given = load_file(one["tensors"])
        named = {
            PREFIX + name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."): tensor
            for name, tensor in given.items()
        }
        loaded = model.load_state_dict(named, strict=False, assign=True)
        assert not loaded.unexpected_keys, loaded.unexpected_keys[:3]
        assert not [name for name in loaded.missing_keys if "lora_" in name]
        save_lora_adapter(model, accelerator, "default", one["folder"])
        back = load_peft_weights(one["folder"], device="cpu")
        assert len(back) == len(given)
        assert all(torch.equal(back[PREFIX + name], tensor) for name, tensor in given.items())
    small = settings["adapters"][0]
    types = {str(dtype): _adapter_types(small, dtype) for dtype in (torch.float32, torch.bfloat16)}
    return {"trl": trl_version, "adapter_type_by_base_type": types}


def stale(settings: dict[str, Any]) -> dict[str, Any]:
    """Return which lags, in versions, TRL's queue lets pass at its default bound."""
    Accelerator(cpu=True)  # TRL's logger asks for its state
    newest, max_lag, bound = 10, 8, settings["max_staleness"]
    waiting: queue.Queue[Any] = queue.Queue()
    for lag in range(max_lag, -1, -1):
        waiting.put(SimpleNamespace(model_version=newest - lag, **dict.fromkeys(FIELDS)))

    def exhausted(_: float) -> None:
        raise EOFError

    metrics: defaultdict[str, list[float]] = defaultdict(list)
    samples = RolloutQueueDataset(waiting, lambda: newest, exhausted, 1.0, metrics, bound, poll_interval_s=0.01)
    try:
        for _ in samples:
            pass
    except EOFError:  # the queue is empty
        pass
    return {
        "bound": bound,
        "kept": metrics["sample/staleness_mean"],
        "dropped": len(metrics["sample/dropped_stale_total"]),
    }


def _peft_model(one: dict[str, Any], dtype: torch.dtype) -> Any:
    model = Qwen3ForCausalLM(Qwen3Config(**one["config"])).to(dtype)
    model.name_or_path = one["base"]
    config = LoraConfig(r=one["rank"], lora_alpha=one["alpha"], target_modules="all-linear")
    return get_peft_model(model, config)


def _adapter_types(one: dict[str, Any], dtype: torch.dtype) -> list[str]:
    model = _peft_model(one, dtype)
    return sorted({str(parameter.dtype) for name, parameter in model.named_parameters() if "lora_" in name})


def main() -> int:
    """Do what the first argument says with the settings of the second, and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["save", "stale"])
    parser.add_argument("settings", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    settings = json.loads(arguments.settings.read_text())
    print(json.dumps({"save": save, "stale": stale}[arguments.what](settings)))
    return 0


if __name__ == "__main__":
    main()
