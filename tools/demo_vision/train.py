"""Train the model that reads images: `python -m tools.demo_vision.train --minutes 60 --out DIR [--start DIR]`.

Without --start the tower begins at random beside the embedded chat model. Every step's scenes depend on the seed and
the step's number alone.
"""

import argparse
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from tools.demo_vision import model as vision
from tools.demo_vision.model import CLOSING, OPENING, PLACEHOLDER, SIDE, TOKENS
from tools.demo_vision.scenes import Scene, draw_scene, questions

SCENES, ASKED = 48, 4  # of a step; questions of a scene
SAVE_EVERY_S = 300.0
WARM_UP, RATE = 100, 1e-3
IGNORED = -100


def training_scenes(seed: int, step: int) -> list[tuple[Scene, Random]]:
    """Those of one step."""
    numbers = [Random(f"vision-training-{seed}-{step}-{number}") for number in range(SCENES)]
    return [(draw_scene(rng), rng) for rng in numbers]


def pixels(images: Sequence[Image.Image]) -> Tensor:
    """[images, 3, side, side] from -1 to 1."""
    small = [image.resize((SIDE, SIDE), Image.Resampling.BICUBIC) for image in images]
    return torch.from_numpy(np.stack([np.asarray(image) for image in small])).permute(0, 3, 1, 2) / 127.5 - 1


def conversation(tokenizer: Tokenizer, scene: Scene, rng: Random) -> tuple[list[int], list[int]]:
    """Ids of a chat about the scene, and the targets of its answers."""
    ids: list[int] = []
    targets: list[int] = []
    for turn, question in enumerate(questions(scene, rng)[:ASKED]):
        image = f"{OPENING}{PLACEHOLDER * TOKENS}{CLOSING}\n" if turn == 0 else ""
        asked = tokenizer.encode(f"<|im_start|>user\n{image}{question.text}<|im_end|>\n<|im_start|>assistant\n").ids
        answer = tokenizer.encode(f"{question.answer}<|im_end|>").ids
        newline = tokenizer.encode("\n").ids
        ids += asked + answer + newline
        targets += [IGNORED] * len(asked) + answer + [IGNORED] * len(newline)
    return ids, targets


def batch_of(tokenizer: Tokenizer, drawn: Sequence[tuple[Scene, Random]]) -> tuple[Tensor, Tensor, Tensor]:
    """(pixels, ids [scenes, length], targets of the next token)."""
    chats = [conversation(tokenizer, scene, rng) for scene, rng in drawn]
    width = max(len(ids) for ids, _ in chats)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in chats])
    targets = torch.tensor([targets + [IGNORED] * (width - len(targets)) for _, targets in chats])
    return pixels([scene.image for scene, _ in drawn]), ids, targets


def loss_of(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Cross entropy of the answers, a token. Logits are made of the rows that are asked for alone."""
    seen, ids, targets = batch
    hidden = model.model(input_ids=ids, pixel_values=seen).last_hidden_state[:, :-1]
    wanted = targets[:, 1:]
    chosen = wanted != IGNORED
    return functional.cross_entropy(model.lm_head(hidden[chosen]), wanted[chosen])


def train(minutes: float, out: Path, start: Path | None, seed: int, first: int) -> None:
    """Train for so many minutes, saving now and then."""
    console, tokenizer = Console(), vision.tokenizer_with_images()
    model = vision.load_model(start) if start else vision.new_model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    losses: deque[float] = deque(maxlen=50)
    began = saved = time.monotonic()
    step = first
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(lambda number: batch_of(tokenizer, training_scenes(seed, number)), step)
        while (share := (time.monotonic() - began) / (60 * minutes)) < 1:
            batch = coming.result()
            coming = ahead.submit(lambda number: batch_of(tokenizer, training_scenes(seed, number)), step + 1)
            rate = RATE * min(1.0, (step - first + 1) / WARM_UP, 2 * (1 - share))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = loss_of(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            step += 1
            if step % 20 == 0:
                console.print(f"step {step}, loss {sum(losses) / len(losses):.4f}, {share:.0%} of the time")
            if time.monotonic() - saved > SAVE_EVERY_S:
                vision.save_model(model, out)
                saved = time.monotonic()
    vision.save_model(model, out)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a folder that an earlier run saved")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first step, for other scenes than before")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train(options.minutes, options.out, options.start, options.seed, options.first)


if __name__ == "__main__":
    main()
