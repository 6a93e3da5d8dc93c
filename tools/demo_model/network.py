"""The demo model as transformers' Qwen3: as a training starts, what is read of it, and its folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from engine.demo.location import demo_folder

END_OF_TEXT, END_OF_TURN = 0, 2


def new_network(vocabulary: int) -> Any:
    """A Qwen3 of the embedded model's sizes with random weights."""
    config = Qwen3Config.from_pretrained(demo_folder(), vocab_size=vocabulary, dtype=torch.float32)
    network: Any = Qwen3ForCausalLM(config)
    nn.init.normal_(network.model.embed_tokens.weight, std=0.04)
    for name, module in network.model.layers.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            # Zero outputs make every layer the identity at first, which steadies a high learning rate.
            nn.init.zeros_(module.weight)
        elif isinstance(module, nn.Linear):
            module.reset_parameters()
    return network


def logits_at(
    network: Any, tokens: Tensor, chosen: Tensor, positions: Tensor | None = None, visible: Tensor | None = None
) -> Tensor:
    """Logits [chosen, vocab] at the chosen positions of the flattened batch `tokens` [batch, length].

    positions: [batch, length], None = 0, 1, 2 ... visible: [batch, 1, length, length], True where a row sees a column;
    None = itself and those before.
    """
    found = network.model(input_ids=tokens, position_ids=positions, attention_mask=visible, use_cache=False)
    return cast(Tensor, network.lm_head(found.last_hidden_state.flatten(0, 1)[chosen]))


def save_model(network: Any, weights: Mapping[str, Tensor], folder: Path, family: Mapping[str, Any]) -> None:
    """Write weights of a network in bfloat16 as a model folder. family: what config.json says instead of Qwen3."""
    copy: Any = Qwen3ForCausalLM(network.config)
    copy.load_state_dict(weights)
    copy.generation_config.update(do_sample=False, eos_token_id=[END_OF_TURN, END_OF_TEXT], pad_token_id=END_OF_TEXT)
    copy.to(torch.bfloat16).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(family), indent=2) + "\n")
