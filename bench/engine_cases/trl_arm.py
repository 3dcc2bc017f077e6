"""One run of TRL's GRPOTrainer on a CPU, as a program of its own: it runs in the environment of the oracles.

It trains on the prompts and with the rewards that `bench/engine_cases/throughput.py` gives, at one setting, as one rank
or one of several, and prints one JSON line: the seconds and completion tokens of each step. Dropout, KL penalty and
gradient checkpointing are off, because they would only slow it down.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from periplus.environment import gym_tasks


class _Steps(TrainerCallback):  # type: ignore[misc]
    """Records the end of each step and its mean completion length."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        self.mean_lengths: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.ends_s.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends_s.append(time.perf_counter())

    def on_log(self, *arguments: Any, logs: dict[str, float], **_: Any) -> None:
        if "completions/mean_length" in logs:
            self.mean_lengths.append(logs["completions/mean_length"])


def main() -> int:
    """Train for a few steps, and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path, help="JSON file written by the benchmark")
    settings = json.loads(parser.parse_args().settings.read_text())
    torch.set_num_threads(settings["threads"])
    tasks = gym_tasks.load(settings["environment"]["name"], settings["environment"]["config"], 0, settings["size"])
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"], dtype=torch.float32, attn_implementation=settings["attention"]
    )

    def reward(completion_ids: list[list[int]], item: list[int], **_: Any) -> list[float]:
        # The text without special tokens is scored, as Periplus does.
        return [
            tasks.score(which, tokenizer.decode(ids, skip_special_tokens=True))
            for which, ids in zip(item, completion_ids, strict=True)
        ]

    rows, per_device, ranks = settings["samples"], settings["rows"], settings["ranks"]
    config = GRPOConfig(
        output_dir=settings["scratch"],
        use_cpu=True,
        bf16=settings["dtype"] == "bfloat16",
        max_steps=settings["steps"],
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=rows // (per_device * ranks),
        num_generations=settings["group_size"],
        max_completion_length=settings["new_tokens"],
        temperature=1.0,
        beta=0.0,
        learning_rate=settings["lr"],
        gradient_checkpointing=False,
        disable_dropout=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        dataloader_num_workers=0,
        torch_compile=settings["compiled"],
    )
    data = Dataset.from_list([{"prompt": tasks.item(i).prompt, "item": i} for i in range(settings["size"])])
    steps = _Steps()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[steps],
    )
    trainer.train()
    seconds = [after - before for before, after in zip(steps.ends_s, steps.ends_s[1:], strict=False)]
    tokens = [length * rows for length in steps.mean_lengths]
    if trainer.is_world_process_zero():
        print(json.dumps({"seconds": seconds, "tokens": tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
