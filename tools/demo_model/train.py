"""Train the demo model: `python -m tools.demo_model.train --minutes 60 --out DIR`."""

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW, Muon, Optimizer

from tools.demo_model.corpus.mixture import EARLY_STEPS, draw
from tools.demo_model.network import logits_at, new_network, save_model
from tools.demo_model.vocabulary import encode, generated_texts, save_vocabulary, train_tokenizer

_MATRIX_RATE, _VECTOR_RATE = 0.02, 0.004
_WARM_UP, _COOL_DOWN = 0.015, 0.5
_AVERAGING = 0.98
_PARTS = 4
_Sample = TypeVar("_Sample")
_Encoded = tuple[list[int], list[bool]]  # tokens, and for each whether it is learned


@dataclass(frozen=True)
class Plan:
    """What one training run is asked to do."""

    minutes: float
    out: Path
    seed: int
    tokens_per_step: int
    save_every: float
    resume: Path | None


@dataclass(frozen=True)
class Batch:
    """Padded tokens [samples, length], the flat positions that predict a learned token, and those tokens.

    positions, visible: as of `logits_at`.
    """

    tokens: Tensor
    chosen: Tensor
    targets: Tensor
    positions: Tensor | None = None
    visible: Tensor | None = None


class Trainer:
    """The network, its optimisers and the running average of its weights. family: as of `save_model`."""

    def __init__(self, plan: Plan, network: Any, rates: tuple[float, float], family: Mapping[str, Any]) -> None:
        self.plan = plan
        self.network = network
        self._family = family
        matrices = [each for each in network.model.layers.parameters() if each.ndim == 2]
        vectors = [each for each in network.parameters() if not any(each is matrix for matrix in matrices)]
        self.optimizers: tuple[Optimizer, ...] = (
            Muon(matrices, rates[0], weight_decay=0.02),
            AdamW(vectors, rates[1], betas=(0.9, 0.97), weight_decay=0.0),
        )
        self.rates = rates
        self.average = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        self.steps = 0

    def step(self, batches: list[Batch], factor: float) -> float:
        """Take one step and return the loss before it."""
        learned = sum(len(batch.targets) for batch in batches)
        total = 0.0
        for batch in batches:
            logits = logits_at(self.network, batch.tokens, batch.chosen, batch.positions, batch.visible)
            loss = functional.cross_entropy(logits, batch.targets, reduction="sum") / learned
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        weight = min(_AVERAGING, self.steps / (self.steps + 10))
        for name, tensor in self.network.state_dict().items():
            self.average[name].lerp_(tensor, 1 - weight)
        return total

    def save(self) -> None:
        """Write the averaged weights as a model and all state for a resumption."""
        save_model(self.network, self.average, self.plan.out, self._family)
        state = {
            "network": self.network.state_dict(),
            "average": self.average,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "steps": self.steps,
        }
        partial = self.plan.out / "state.partial"
        torch.save(state, partial)
        partial.replace(self.plan.out / "state.pt")

    def restore(self, path: Path) -> None:
        """Continue from the state that an earlier run saved."""
        state = torch.load(path, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.average = state["average"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.steps = state["steps"]


def training_stream(tokenizer: Tokenizer, plan: Plan, first: int = 0) -> Iterator[list[Batch]]:
    """Batches of the mixture, step after step."""

    def sample(rng: Random, step: int) -> _Encoded:
        return encode(tokenizer, draw(rng, step < EARLY_STEPS))

    return batches("training", plan, first, sample, lambda encoded: len(encoded[0]), _padded)


def batches(
    name: str,
    plan: Plan,
    first: int,
    sample: Callable[[Random, int], _Sample],
    length: Callable[[_Sample], int],
    padded: Callable[[list[_Sample]], Batch],
) -> Iterator[list[Batch]]:
    """Yield the batches of step after step, samples of like length together, so that little of a batch is padding.

    Each step depends on `name`, the seed and its number alone, and has about `plan.tokens_per_step` tokens.
    """
    for step in count(first):
        rng = Random(f"{name}-{plan.seed}-{step}")
        samples: list[_Sample] = []
        size = 0
        while size < plan.tokens_per_step:
            samples.append(sample(rng, step))
            size += length(samples[-1])
        parts: list[list[_Sample]] = [[] for _ in range(_PARTS)]
        seen = 0
        for each in sorted(samples, key=length):
            parts[min(_PARTS - 1, seen * _PARTS // size)].append(each)
            seen += length(each)
        yield [padded(part) for part in parts if part]


def learning_rate_factor(fraction: float, resumed: bool) -> float:
    """Warm up, hold, then cool down to zero over the last part of the run."""
    if fraction < _WARM_UP and not resumed:
        return max(0.02, fraction / _WARM_UP)
    return min(1.0, max(0.0, (1 - fraction) / _COOL_DOWN))


def train(plan: Plan) -> None:
    """Train a new model for the planned minutes."""
    tokenizer = _vocabulary(plan)
    torch.manual_seed(plan.seed)
    trainer = Trainer(plan, new_network(tokenizer.get_vocab_size()), (_MATRIX_RATE, _VECTOR_RATE), {})
    run(trainer, lambda first: training_stream(tokenizer, plan, first))


def run(trainer: Trainer, stream: Callable[[int], Iterator[list[Batch]]]) -> None:
    """Train for the planned minutes, saving now and then. stream: the batches of each step from a step on."""
    plan = trainer.plan
    if plan.resume:
        trainer.restore(plan.resume)
    losses: deque[float] = deque(maxlen=50)
    started = saved = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[report]}"))
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("training", total=1.0, report="")
        for batches in stream(trainer.steps):
            now = time.monotonic()
            fraction = (now - started) / (60 * plan.minutes)
            if fraction >= 1:
                break
            losses.append(trainer.step(batches, learning_rate_factor(fraction, plan.resume is not None)))
            report = f"step {trainer.steps} loss {sum(losses) / len(losses):.4f}"
            progress.update(task, completed=fraction, report=report)
            if trainer.steps % 50 == 0:
                progress.console.print(f"{report} after {(now - started) / 60:.1f} min")
            if now - saved > 60 * plan.save_every:
                trainer.save()
                saved = now
    trainer.save()


def _vocabulary(plan: Plan) -> Tokenizer:
    path = plan.out / "tokenizer.json"
    if not path.exists():
        save_vocabulary(train_tokenizer(generated_texts(plan.seed)), plan.out)
    return Tokenizer.from_file(str(path))


def _padded(part: list[_Encoded]) -> Batch:
    width = max(len(tokens) for tokens, _ in part) - 1
    rows: list[list[int]] = []
    chosen: list[int] = []
    targets: list[int] = []
    for row, (tokens, learned) in enumerate(part):
        rows.append(tokens[:-1] + [0] * (width - len(tokens) + 1))
        places = [place for place in range(1, len(tokens)) if learned[place]]
        chosen.extend(row * width + place - 1 for place in places)
        targets.extend(tokens[place] for place in places)
    return Batch(torch.tensor(rows), torch.tensor(chosen), torch.tensor(targets))


def read_plan(description: str) -> Plan:
    """The plan that the command line asks for; sets torch's threads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=80)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--save-every", type=float, default=3, help="minutes between two checkpoints")
    parser.add_argument("--resume", type=Path, help="the state.pt of an earlier run")
    parser.add_argument("--threads", type=int, default=2, help="at most the idle cores: they wait for each other")
    given = parser.parse_args()
    # Sure predictions leave gradients too small for normal floats, with which some processors are very slow.
    torch.set_flush_denormal(True)
    torch.set_num_threads(given.threads)
    return Plan(given.minutes, given.out, given.seed, given.tokens_per_step, given.save_every, given.resume)


if __name__ == "__main__":
    train(read_plan("Train the demo model on generated text."))
