"""Continue the demo model as one that denoises: `python -m tools.demo_model.diffusion.train --minutes 80 --out DIR`.

Blocks of four tokens are denoised; a row sees its own block both ways and everything before it (BD3-LM, arXiv
2503.09573; SDAR, arXiv 2510.06303). Logits are read where the mask stands.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from engine.demo.location import demo_folder
from tools.demo_model.corpus.mixture import draw
from tools.demo_model.diffusion.rows import BLOCK, Row, batch_of, training_rows
from tools.demo_model.network import DemoNetwork, Shape
from tools.demo_model.train import Batch, Plan, Trainer, read_plan, run
from tools.demo_model.vocabulary import encode

MASK_TEXT = "<|MASK|>"
_RATES = (0.01, 0.002)  # of matrices and vectors: half of what the model was first trained with
_PARTS = 4
_COPIED = ("tokenizer.json", "tokenizer_config.json")


def family(mask: int) -> Mapping[str, Any]:
    """What config.json says of the model beyond its sizes. mask: the id of the mask token."""
    return MappingProxyType(
        {
            "architectures": ["SDARForCausalLM"],
            "model_type": "sdar",
            "block_size": BLOCK,
            "mask_token_id": mask,
        }
    )


def write_tokenizer(folder: Path, mask: int) -> None:
    """The demo's tokenizer with the mask token as one more special token."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, settings = (json.loads((demo_folder() / name).read_text(encoding="utf-8")) for name in _COPIED)
    like = vocabulary["added_tokens"][0]
    vocabulary["added_tokens"].append({**like, "id": mask, "content": MASK_TEXT})
    settings["mask_token"] = MASK_TEXT
    (folder / _COPIED[0]).write_text(json.dumps(vocabulary, ensure_ascii=False, indent=2), encoding="utf-8")
    (folder / _COPIED[1]).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def continued_network() -> DemoNetwork:
    """The demo model with one more token, the mask; its embedding starts as the mean of all."""
    weights = load_file(demo_folder() / "model.safetensors")
    state: dict[str, Tensor] = {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}
    table = state["embed_tokens.weight"]
    state["embed_tokens.weight"] = torch.cat((table, table.mean(0, keepdim=True)))
    network = DemoNetwork(Shape(vocab_size=len(table) + 1))
    network.load_state_dict(state)
    return network


def noisy_stream(tokenizer: Tokenizer, plan: Plan, mask: int, first: int = 0) -> Iterator[list[Batch]]:
    """Yield the batches of step after step, each of about `plan.tokens_per_step` rows, clean and noisy together."""
    step = first
    while True:
        rng = Random(f"diffusion-{plan.seed}-{step}")
        samples: list[list[Row]] = []
        size = 0
        while size < plan.tokens_per_step:
            tokens, learned = encode(tokenizer, draw(rng))
            samples.append(training_rows(rng, tokens, learned, mask))
            size += len(samples[-1])
        yield _batches(samples, size)
        step += 1


def _batches(samples: list[list[Row]], size: int) -> list[Batch]:
    """Samples of like length together, so that little of a batch is padding."""
    parts: list[list[list[Row]]] = [[] for _ in range(_PARTS)]
    seen = 0
    for rows in sorted(samples, key=len):
        parts[min(_PARTS - 1, seen * _PARTS // size)].append(rows)
        seen += len(rows)
    return [batch_of(part) for part in parts if part]


def train(plan: Plan) -> None:
    """Continue the demo model for the planned minutes."""
    network = continued_network()
    mask = network.shape.vocab_size - 1
    write_tokenizer(plan.out, mask)
    tokenizer = Tokenizer.from_file(str(demo_folder() / _COPIED[0]))
    trainer = Trainer(plan, network, _RATES, family(mask))
    run(trainer, lambda first: noisy_stream(tokenizer, plan, mask, first))


if __name__ == "__main__":
    train(read_plan("Continue the demo model as a block-diffusion model."))
