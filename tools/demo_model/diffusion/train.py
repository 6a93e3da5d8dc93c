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
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from engine.demo.location import demo_folder
from tools.demo_model.corpus.mixture import draw
from tools.demo_model.diffusion.rows import BLOCK, Row, batch_of, training_rows
from tools.demo_model.train import Batch, Plan, Trainer, batches, read_plan, run
from tools.demo_model.vocabulary import encode

MASK_TEXT = "<|MASK|>"
_RATES = (0.01, 0.002)  # of matrices and vectors: half of what the model was first trained with
_COPIED = ("tokenizer.json", "tokenizer_config.json")


def family(mask: int) -> Mapping[str, Any]:
    """What config.json says of the model beyond its sizes. mask: the id of the mask token."""
    named = {"architectures": ["SDARForCausalLM"], "model_type": "sdar"}
    return MappingProxyType({**named, "block_size": BLOCK, "mask_token_id": mask})


def write_tokenizer(folder: Path, mask: int) -> None:
    """The demo's tokenizer with the mask token as one more special token."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, settings = (json.loads((demo_folder() / name).read_text(encoding="utf-8")) for name in _COPIED)
    like = vocabulary["added_tokens"][0]
    vocabulary["added_tokens"].append({**like, "id": mask, "content": MASK_TEXT})
    settings["mask_token"] = MASK_TEXT
    (folder / _COPIED[0]).write_text(json.dumps(vocabulary, ensure_ascii=False, indent=2), encoding="utf-8")
    (folder / _COPIED[1]).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def continued_network() -> Any:
    """The demo model with one more token, the mask; its embedding starts as the mean of all."""
    network: Any = Qwen3ForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32)
    mask = network.config.vocab_size
    table = network.resize_token_embeddings(mask + 1, mean_resizing=False).weight.data
    table[mask] = table[:mask].mean(0)
    return network


def noisy_stream(tokenizer: Tokenizer, plan: Plan, mask: int, first: int = 0) -> Iterator[list[Batch]]:
    """Batches of the mixture, step after step; rows of all copies count, clean and noisy."""

    def sample(rng: Random, step: int) -> list[Row]:
        return training_rows(rng, *encode(tokenizer, draw(rng)), mask)

    return batches("diffusion", plan, first, sample, len, batch_of)


def train(plan: Plan) -> None:
    """Continue the demo model for the planned minutes."""
    network = continued_network()
    mask = network.config.vocab_size - 1
    write_tokenizer(plan.out, mask)
    tokenizer = Tokenizer.from_file(str(demo_folder() / _COPIED[0]))
    trainer = Trainer(plan, network, _RATES, family(mask))
    run(trainer, lambda first: noisy_stream(tokenizer, plan, mask, first))


if __name__ == "__main__":
    train(read_plan("Continue the demo model as a block-diffusion model."))
