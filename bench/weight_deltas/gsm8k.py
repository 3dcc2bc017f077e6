"""A small Qwen3 that learns GSM8K's texts from random weights: 21 M parameters, 512 wide, 6 layers, tied embeddings.

Texts are questions and answers of GSM8K's training file, end to end, an end token between them; a byte-level BPE of
4,096 entries is trained on them. One text in 128 is held out. AdamW on float32 masters, batches of 8 windows of 128
tokens, a rate of 1e-3 after a ramp, until the held-out loss is flat: the better of its last two measurements is less
than 1 % below the one that lies `FLAT_STEPS` back. A wall limit ends it as well (the record says which of the two).
Then the rate falls to a twentieth over `COOLDOWN_STEPS`: checkpoints that reinforcement starts from were annealed. An
epoch (7,400 texts of 160 tokens) has about 1,200 steps; on two quiet cores 100 steps take 75 s.

What is continued at a reinforcement rate afterwards is this same loss (bench/weight_deltas/series.py): its optimizer,
its masters and its rounding are those of a reinforcement job; its gradients are not.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB_SIZE = 4096
ROWS, COLUMNS = 8, 128
HELD_OUT_EVERY = 128
EVAL_EVERY_STEPS, FLAT_STEPS, FLAT_GAIN = 100, 300, 0.01
PEAK_RATE, RAMP_STEPS = 1e-3, 50
COOLDOWN_STEPS, COOLDOWN_FLOOR = 160, 0.05
BETAS = (0.9, 0.999)
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
ABOUT = "training.json"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the model; the default is the one that figures are about."""

    hidden: int = 512
    intermediate: int = 1536
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Token ids of what is trained on and of what is held out."""

    train: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a training ended."""

    ended_by: str  # "flat" or "wall limit"
    steps: int
    cooldown_steps: int
    num_parameters: int
    train_tokens: int
    epochs: float
    held_out_losses: list[float]  # every EVAL_EVERY_STEPS
    final_loss: float
    wall_s: float


def read_texts(gsm8k: Path) -> Texts:
    """Raises: SystemExit if the file is not there."""
    if not gsm8k.is_file():
        raise SystemExit(f"{gsm8k} is not there; name GSM8K's training file (question, answer a line) with --gsm8k")
    rows = [json.loads(line) for line in gsm8k.read_text().splitlines()]
    texts = [f"{row['question']}\n{row['answer']}" for row in rows]
    tokenizer = _train_tokenizer(texts)
    encoded = [[*e.ids, 0] for e in tokenizer.encode_batch(texts)]
    kept = [ids for i, ids in enumerate(encoded) if i % HELD_OUT_EVERY]
    return Texts(
        train=np.concatenate(kept).astype(np.int64),
        held_out=np.concatenate(encoded[::HELD_OUT_EVERY]).astype(np.int64),
    )


def _train_tokenizer(texts: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def new_model(size: Size, seed: int) -> Any:
    """A random model, in float32."""
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config)


def new_optimizer(model: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)


def windows(ids: npt.NDArray[np.int64], seed: int) -> Iterator[torch.Tensor]:
    """Batches of ROWS windows of COLUMNS + 1 tokens: every window of an epoch once, from a random phase."""
    rng = np.random.default_rng(seed)
    while True:
        starts = np.arange(rng.integers(COLUMNS), len(ids) - COLUMNS - 1, COLUMNS)
        rng.shuffle(starts)
        for i in range(0, len(starts) - ROWS + 1, ROWS):
            yield torch.from_numpy(np.stack([ids[s : s + COLUMNS + 1] for s in starts[i : i + ROWS]]))


def loss_of(model: Any, window_BS: torch.Tensor) -> torch.Tensor:
    """Nats a token."""
    logits_BSV = model(input_ids=window_BS[:, :-1]).logits
    return functional.cross_entropy(logits_BSV.flatten(0, 1), window_BS[:, 1:].flatten())


def update(model: Any, optimizer: torch.optim.Optimizer, window_BS: torch.Tensor, rate: float) -> float:
    """One step in place; the loss before it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(model, window_BS)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def held_out_loss(model: Any, ids: npt.NDArray[np.int64]) -> float:
    starts = np.arange(0, len(ids) - COLUMNS - 1, COLUMNS)
    rows = torch.from_numpy(np.stack([ids[s : s + COLUMNS + 1] for s in starts]))
    return float(np.mean([float(loss_of(model, rows[i : i + ROWS])) for i in range(0, len(rows), ROWS)]))


def is_flat(losses: list[float]) -> bool:
    """Whether the held-out loss stopped falling."""
    back = FLAT_STEPS // EVAL_EVERY_STEPS
    return len(losses) > back + 1 and min(losses[-2:]) > (1 - FLAT_GAIN) * losses[-2 - back]


@dataclass(slots=True, kw_only=True)
class _Training:
    """Where a training stands; saved at each measurement, so that an interrupted one goes on."""

    model: Any
    optimizer: torch.optim.Optimizer
    path: Path
    step: int = 0
    losses: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def load(self) -> None:
        if self.path.is_file():
            stored = torch.load(self.path, weights_only=True)
            self.model.load_state_dict(stored["model"])
            self.optimizer.load_state_dict(stored["optimizer"])
            self.step, self.losses, self.wall_s = stored["step"], stored["losses"], stored["wall_s"]

    def save(self) -> None:
        partial = self.path.with_suffix(".partial")
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "losses": self.losses,
                "wall_s": self.wall_s,
            },
            partial,
        )
        partial.replace(self.path)


def _train(training: _Training, texts: Texts, *, seed: int, limit_s: float, say: Say) -> Outcome:
    """Until it is flat, then the cooldown; in place."""
    training.load()
    batches = islice(windows(texts.train, seed), training.step, None)
    ended_by = _to_flat(training, batches, texts, limit_s, say)
    for i in range(COOLDOWN_STEPS):
        rate = PEAK_RATE * max(COOLDOWN_FLOOR, 1 - (i + 1) / COOLDOWN_STEPS)
        update(training.model, training.optimizer, next(batches), rate)
    final = held_out_loss(training.model, texts.held_out)
    assert math.isfinite(final)
    say(f"ended by {ended_by} after {training.step} steps; after the cooldown {final:.4f}")
    num_tokens = (training.step + COOLDOWN_STEPS) * ROWS * COLUMNS
    return Outcome(
        ended_by=ended_by,
        steps=training.step,
        cooldown_steps=COOLDOWN_STEPS,
        num_parameters=sum(p.numel() for p in training.model.parameters()),
        train_tokens=num_tokens,
        epochs=num_tokens / len(texts.train),
        held_out_losses=training.losses,
        final_loss=final,
        wall_s=training.wall_s,
    )


def _to_flat(training: _Training, batches: Iterator[torch.Tensor], texts: Texts, limit_s: float, say: Say) -> str:
    """What ended it."""
    last_s = time.monotonic()
    while not is_flat(training.losses):
        rate = PEAK_RATE * min(1.0, (training.step + 1) / RAMP_STEPS)
        loss = update(training.model, training.optimizer, next(batches), rate)
        training.step += 1
        now_s = time.monotonic()
        training.wall_s, last_s = training.wall_s + now_s - last_s, now_s
        if training.step % EVAL_EVERY_STEPS == 0:
            training.losses.append(held_out_loss(training.model, texts.held_out))
            training.save()
            said = f"step {training.step}: loss {loss:.3f}, held out {training.losses[-1]:.4f}"
            say(f"training for {training.wall_s:.0f} s, {said}")
        if training.wall_s > limit_s * training.step / (training.step + COOLDOWN_STEPS):
            return "wall limit"
    return "flat"


@dataclass(slots=True, kw_only=True)
class Trained:
    """A training that ended: model and optimizer are as it left them."""

    model: Any
    optimizer: torch.optim.Optimizer
    texts: Texts
    about: dict[str, Any]


def trained(folder: Path, gsm8k: Path, *, seed: int, limit_s: float, say: Say, size: Size | None = None) -> Trained:
    """The trained model, from `folder` if it is there, else trained and put there.

    A training that was ended by its limit goes on, under a higher one, where `ABOUT` was removed.
    """
    texts, size = read_texts(gsm8k), size or Size()
    model = new_model(size, seed)
    optimizer = new_optimizer(model)
    path, about_path = folder / "checkpoint.pt", folder / ABOUT
    if not about_path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        training = _Training(model=model, optimizer=optimizer, path=folder / "training.pt")
        outcome = _train(training, texts, seed=seed, limit_s=limit_s, say=say)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        about_path.write_text(json.dumps({"size": asdict(size), "seed": seed, **asdict(outcome)}, indent=1))
    stored = torch.load(path, weights_only=True)
    model.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    return Trained(model=model, optimizer=optimizer, texts=texts, about=json.loads(about_path.read_text()))


if __name__ == "__main__":  # the training alone: FOLDER GSM8K_FILE LIMIT_S
    trained(
        Path(sys.argv[1]), Path(sys.argv[2]), seed=0, limit_s=float(sys.argv[3]), say=lambda s: print(s, flush=True)
    )
