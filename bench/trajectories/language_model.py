"""A small language model of mathematics, for records whose ids and log-probabilities nobody made up.

Texts are the problems and solutions of `data/math_prompts`, end to end, an end token between them. A byte-level BPE of
32,768 entries is trained on them, and then one layer of GRU (128 -> 384) with tied embeddings, by Adam on a sampled
softmax of 2,048 negatives. Its logits are rounded to bf16 as an engine's are; tokens are drawn from, and
log-probabilities are, `torch.log_softmax` of these in float32. After an end token it goes on with another text, so
that a completion has the length asked for.

It is no reasoning model: a token has 2 to 4 nats, where those have 0.3 to 1. That makes it the hard case of a codec:
ids repeat less and log-probabilities are farther from 0. `sharpness` multiplies the logits before they are rounded,
which is what a better model would do to them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

VOCAB_SIZE = 32_768
WIDTH, HIDDEN = 128, 384
ROWS, COLUMNS, NEGATIVES = 64, 48, 2048
PEAK_RATE = 4e-3
SOURCES = (
    ("gsm8k_train.jsonl", "question", "answer"),
    ("gsm8k_test.jsonl", "question", "answer"),
    ("deepmath_4994.jsonl", "problem", "answer"),
    ("math500_test.jsonl", "problem", "solution"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """What the model is trained on, and the problems that it is asked."""

    tokenizer: Any
    ids: npt.NDArray[np.int64]
    prompts: Sequence[npt.NDArray[np.int32]]  # of the last source
    answer_lengths: Sequence[int]  # in tokens, of the first source
    num_chars: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.ids.tobytes()).hexdigest()[:12]


def read_corpus(data: Path) -> Corpus:
    """Raises: SystemExit where the texts are not."""
    folder = data / "math_prompts"
    missing = [name for name, *_ in SOURCES if not (folder / name).is_file()]
    if missing:
        raise SystemExit(f"{folder} has no {', '.join(missing)}; name the folder that holds math_prompts with --data")
    pairs: list[tuple[str, str]] = []
    of_source: list[list[tuple[str, str]]] = []
    for name, problem, solution in SOURCES:
        rows = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        of_source.append([(row[problem], row[solution]) for row in rows])
        pairs += of_source[-1]
    tokenizer = _train_tokenizer([text for pair in pairs for text in pair])
    encoded = tokenizer.encode_batch([text for pair in pairs for text in pair])
    ids = np.concatenate([[*e.ids, 0] if i % 2 else e.ids for i, e in enumerate(encoded)]).astype(np.int64)
    prompts = [np.array(tokenizer.encode(problem).ids, np.int32) for problem, _ in of_source[-1]]
    lengths = [len(encoded[2 * i + 1].ids) for i in range(len(of_source[0]))]
    num_chars = sum(len(text) for pair in pairs for text in pair)
    return Corpus(tokenizer=tokenizer, ids=ids, prompts=prompts, answer_lengths=lengths, num_chars=num_chars)


def _train_tokenizer(texts: Sequence[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<end>"], initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


class LanguageModel(nn.Module):
    """Logits of the next token from all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.recurrent = nn.GRU(WIDTH, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, WIDTH)
        self.bias = nn.Parameter(torch.zeros(VOCAB_SIZE))

    def features(self, ids_BS: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_BSH, state = self.recurrent(self.embedding(ids_BS) * WIDTH**0.5, state)
        return self.out(hidden_BSH), state

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.embedding.weight.T + self.bias


def train(corpus: Corpus, steps: int, seed: int) -> LanguageModel:
    """The model after so many steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, ids = LanguageModel(), torch.from_numpy(corpus.ids)
    counts = torch.bincount(ids, minlength=VOCAB_SIZE) + 0.1
    model.bias.data = torch.log(counts / counts.sum())
    proposal = counts**0.75 / (counts**0.75).sum()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * (1 - step / steps) + 1e-5
        starts = torch.randint(0, len(ids) - COLUMNS - 1, (ROWS,), generator=generator)
        window_BS = torch.stack([ids[start : start + COLUMNS + 1] for start in starts])
        features_BSW, _ = model.features(window_BS[:, :-1])
        loss = _sampled_loss(model, features_BSW.flatten(0, 1), window_BS[:, 1:].flatten(), proposal, generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def _sampled_loss(
    model: LanguageModel,
    features_NW: torch.Tensor,
    targets_N: torch.Tensor,
    proposal: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    weight, log_rate = model.embedding.weight, torch.log(NEGATIVES * proposal)
    others_K = torch.multinomial(proposal, NEGATIVES, replacement=True, generator=generator)
    right_N = (features_NW * weight[targets_N]).sum(1) + (model.bias - log_rate)[targets_N]
    wrong_NK = features_NW @ weight[others_K].T + (model.bias - log_rate)[others_K]
    wrong_NK = wrong_NK.masked_fill(others_K[None] == targets_N[:, None], -1e9)
    return (torch.logsumexp(torch.cat([right_N[:, None], wrong_NK], 1), 1) - right_N).mean()


@torch.no_grad()
def sample(
    model: LanguageModel, prompts: Sequence[npt.NDArray[np.int32]], lengths: Sequence[int], sharpness: float, seed: int
) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]:
    """Ids and log-probabilities of one completion a prompt, each of the length asked for."""
    generator = torch.Generator().manual_seed(seed)
    longest_first = np.argsort(-np.asarray(lengths), kind="stable")
    begun = [model.features(torch.from_numpy(prompts[i].astype(np.int64))[None]) for i in longest_first]
    features_RW = torch.cat([features[:, -1] for features, _ in begun])
    state = torch.cat([state for _, state in begun], 1)
    remaining_R = np.asarray(lengths)[longest_first]
    ids: list[list[int]] = [[] for _ in lengths]
    logprobs: list[list[float]] = [[] for _ in lengths]
    for step in range(int(remaining_R[0])):
        live = int((remaining_R > step).sum())
        logits_RV = (model.logits(features_RW[:live]) * sharpness).bfloat16()
        logprobs_RV = torch.log_softmax(logits_RV, -1, dtype=torch.float32)
        cdf_RV = logprobs_RV.exp().cumsum(-1)
        uniform_R1 = torch.rand(live, 1, generator=generator) * cdf_RV[:, -1:]
        tokens_R1 = torch.searchsorted(cdf_RV, uniform_R1).clamp_(max=VOCAB_SIZE - 1)
        chosen_R = logprobs_RV.gather(1, tokens_R1)[:, 0].tolist()
        for row, token, logprob in zip(longest_first, tokens_R1[:, 0].tolist(), chosen_R, strict=False):
            ids[row].append(token)
            logprobs[row].append(logprob)
        features_R1W, state = model.features(tokens_R1, state[:, :live])
        features_RW = features_R1W[:, -1]
    return [(np.array(i, np.int32), np.array(p, np.float32)) for i, p in zip(ids, logprobs, strict=True)]
