"""Measure the block-diffusion model on held-out text: `python -m tools.demo_model.diffusion.evaluate [MODEL_DIR]`."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.demo.location import diffusion_folder
from tools.demo_model.diffusion.decoder import BlockDecoder, Decoding
from tools.demo_model.evaluate import examine
from tools.demo_model.exam import exams
from tools.demo_model.network import END_OF_TEXT, END_OF_TURN, DemoNetwork, Shape

_BATCH = 64


class DiffusionExaminee:
    """A model folder, decoded block by block; counts tokens and steps of all its answers."""

    def __init__(self, folder: Path, decoding: Decoding) -> None:
        self.network = load_network(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokens = self.steps = 0
        self._decoding = replace(decoding, mask=self.network.shape.vocab_size - 1)

    def answers(self, prompts: Sequence[str], longest: int) -> list[str]:
        """Answer each prompt greedily; prompts of like length share a batch."""
        decoder = BlockDecoder(self.network, replace(self._decoding, longest=longest))
        encoded = [self.tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda index: len(encoded[index]))
        result = [""] * len(prompts)
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            for index, answer in zip(chosen, decoder.answers([encoded[each] for each in chosen]), strict=True):
                self.tokens += len(answer.tokens)
                self.steps += answer.steps
                text = [token for token in answer.tokens if token not in (END_OF_TURN, END_OF_TEXT)]
                result[index] = self.tokenizer.decode(text, skip_special_tokens=False)
        return result


def load_network(folder: Path) -> DemoNetwork:
    """The network of a folder in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    network = DemoNetwork(Shape(**{name: config[name] for name in Shape.__dataclass_fields__}))
    weights = load_file(folder / "model.safetensors")
    network.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in weights.items()})
    return network


def main() -> None:
    """Print each exam's figure and the tokens that a step gave."""
    parser = argparse.ArgumentParser(description="Measure the block-diffusion demo model on held-out prompts.")
    parser.add_argument("folder", type=Path, nargs="?", default=diffusion_folder())
    parser.add_argument("--limit", type=int, default=200, help="questions in each exam, at most")
    parser.add_argument("--confidence", type=float, default=0.9, help="a token surer than this is kept")
    parser.add_argument("--per-step", type=int, default=0, help="instead: tokens kept in every step")
    parser.add_argument("--mistakes", type=int, default=0, help="wrong answers shown for each exam, at most")
    given = parser.parse_args()
    torch.set_flush_denormal(True)
    console = Console(markup=False, highlight=False, soft_wrap=True)
    examinee = DiffusionExaminee(given.folder, Decoding(0, 0, given.confidence, given.per_step))
    all_tokens = all_steps = 0
    for exam in exams(given.limit):
        examine(examinee, exam, console, given.mistakes)
        console.print(f"  {examinee.tokens / examinee.steps:.2f} tokens a step")
        all_tokens, all_steps = all_tokens + examinee.tokens, all_steps + examinee.steps
        examinee.tokens = examinee.steps = 0
    console.print(f"all answers together: {all_tokens / all_steps:.2f} tokens a step")


if __name__ == "__main__":
    main()
