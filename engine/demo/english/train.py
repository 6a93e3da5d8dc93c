"""Train the English checkpoint: `python -m engine.demo.english.train TEXT_DIR --minutes 60 --out DIR`.

TEXT_DIR is what `engine.demo.english.corpus` wrote.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.demo.english.corpus import read_texts
from engine.demo.network import END_OF_TEXT, DemoNetwork, Shape
from engine.demo.train import Batch, Plan, Trainer, run
from engine.demo.vocabulary import save_vocabulary, train_tokenizer

SHAPE = Shape(
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
)
_MATRIX_RATE, _VECTOR_RATE = 0.02, 0.004
_VOCABULARY_CHARACTERS = 8_000_000
_BATCHES = 2


@dataclass(frozen=True)
class English:
    """What the English run has beside the plan.

    text: the corpus' folder. context: tokens of a row. most: characters of documents drawn from it.
    """

    text: Path
    context: int
    most: int


def tokenizer_of(texts: list[str], folder: Path, size: int) -> Tokenizer:
    """The folder's tokenizer; made of the first of the texts when there is none."""
    path = folder / "tokenizer.json"
    if not path.exists():
        save_vocabulary(train_tokenizer(_first_characters(texts, _VOCABULARY_CHARACTERS), size), folder)
    return Tokenizer.from_file(str(path))


def token_stream(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All texts' tokens [tokens], each text ended by END_OF_TEXT."""
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return torch.cat([torch.tensor([*each.ids, END_OF_TEXT]) for each in encoded])


def window_stream(tokens: Tensor, context: int, seed: int, tokens_per_step: int, first: int) -> Iterator[list[Batch]]:
    """Yield the batches of step after step, windows at random places, which the seed and the step's number decide."""
    rows = max(_BATCHES, tokens_per_step // context)
    step = first
    while True:
        rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(0, len(tokens) - context, (rows,), generator=rng)
        windows = tokens[starts[:, None] + torch.arange(context + 1)]
        yield [_batch(part) for part in windows.tensor_split(_BATCHES)]
        step += 1


def train_english(plan: Plan, english: English, shape: Shape = SHAPE) -> None:
    """Train a new checkpoint, or go on with one, for the planned minutes."""
    texts = read_texts(english.text / "training.jsonl")
    drawn = Random(f"documents-{plan.seed}").sample(texts, len(texts))
    tokenizer = tokenizer_of(drawn, plan.out, shape.vocab_size)
    tokens = token_stream(tokenizer, list(_first_characters(drawn, english.most)))
    torch.manual_seed(plan.seed)
    trainer = Trainer(plan, DemoNetwork(shape), (_MATRIX_RATE, _VECTOR_RATE))
    run(trainer, lambda first: window_stream(tokens, english.context, plan.seed, plan.tokens_per_step, first))


def _first_characters(texts: list[str], most: int) -> Iterator[str]:
    left = most
    for text in texts:
        if left <= 0:
            return
        yield text[:left]
        left -= len(text)


def _batch(windows: Tensor) -> Batch:
    inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].flatten()
    return Batch(inputs, torch.arange(inputs.numel()), targets)


def main() -> int:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a checkpoint on English documentation.")
    parser.add_argument("text", type=Path, metavar="TEXT_DIR")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--context", type=int, default=256, help="tokens of a row")
    parser.add_argument("--megabytes", type=int, default=100, help="of text, at most; documents are drawn at random")
    parser.add_argument("--save-every", type=float, default=3, help="minutes between two checkpoints")
    parser.add_argument("--resume", type=Path, help="the state.pt of an earlier run")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(given.threads)
    plan = Plan(given.minutes, given.out, given.seed, given.tokens_per_step, given.save_every, given.resume, half=True)
    train_english(plan, English(given.text, given.context, given.megabytes * 1_000_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
