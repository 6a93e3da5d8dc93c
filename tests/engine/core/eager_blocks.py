"""The network of SDAR in float64, eagerly from its definition: a whole forward each time, a block mask, no cache.

Shapes: T tokens, H heads, K key heads, D head size, V vocabulary. It shares no code with the engine or the compiler.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tools.random_checkpoint import SHAPES, write_checkpoint

Numbers = torch.Tensor


def write_sdar(folder: Path, block_length: int = 4, mask_token: int = 300, seed: int = 0) -> Path:
    """A tiny checkpoint of random weights whose config says SDAR."""
    write_checkpoint(folder, SHAPES["tiny"], seed)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config |= {"architectures": ["SDARForCausalLM"], "model_type": "sdar"}
    config |= {"block_size": block_length, "mask_token_id": mask_token}
    path.write_text(json.dumps(config))
    return folder


@dataclass
class EagerBlocks:
    """One checkpoint. `block_length` may be another than the checkpoint's: 1 is a causal network."""

    config: dict[str, float]
    weights: dict[str, Numbers]
    block_length: int

    @classmethod
    def load(cls, folder: Path) -> "EagerBlocks":
        """Every shard of a Hugging Face folder."""
        config = json.loads((folder / "config.json").read_text())
        shards = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
        weights = {name: value.double() for shard in shards for name, value in shard.items()}
        return cls(config, weights, int(config["block_size"]))

    def __call__(self, tokens: Sequence[int], masked: Sequence[int]) -> NDArray[np.float64]:
        """Logits of the masked positions [M, V]: a predictor of `blocks_by_hand.denoise`."""
        return self.logits(tokens)[list(masked)]

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """[T, V]: what every position says, the blocks before and its own block in sight."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a network this small is slower on more
        try:
            return self._forward(tokens)
        finally:
            torch.set_num_threads(threads)

    def _forward(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        x = self.weights["model.embed_tokens.weight"][list(tokens)]
        blocks = torch.arange(len(tokens)) // self.block_length
        visible = blocks[:, None] >= blocks[None, :]
        for layer in range(int(self.config["num_hidden_layers"])):
            name = f"model.layers.{layer}"
            x = x + self._attention(name, self._norm(x, f"{name}.input_layernorm"), visible)
            x = x + self._feed_forward(name, self._norm(x, f"{name}.post_attention_layernorm"))
        x = self._norm(x, "model.norm")
        tied = self.config["tie_word_embeddings"]
        head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return np.asarray((x @ head.T).numpy())

    def _norm(self, x: Numbers, name: str) -> Numbers:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def _attention(self, name: str, x: Numbers, visible: Numbers) -> Numbers:
        size = int(self.config["head_dim"])
        query, key, value = (
            (x @ self.weights[f"{name}.self_attn.{part}_proj.weight"].T).view(len(x), -1, size).transpose(0, 1)
            for part in ("q", "k", "v")
        )
        query = self._rotate(self._norm(query, f"{name}.self_attn.q_norm"))
        key = self._rotate(self._norm(key, f"{name}.self_attn.k_norm"))
        groups = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
        scores = query @ key.transpose(1, 2) * size**-0.5
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        mixed = (weights @ value).transpose(0, 1).reshape(len(x), -1)
        return mixed @ self.weights[f"{name}.self_attn.o_proj.weight"].T

    def _rotate(self, x: Numbers) -> Numbers:
        """x [heads, T, D]: the first half of D turns with the second."""
        half = x.shape[-1] // 2
        inverse = self.config["rope_theta"] ** -(torch.arange(half).double() / half)
        angles = torch.arange(x.shape[1]).double()[:, None] * inverse
        first, second = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _feed_forward(self, name: str, x: Numbers) -> Numbers:
        gate, up, down = (self.weights[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
