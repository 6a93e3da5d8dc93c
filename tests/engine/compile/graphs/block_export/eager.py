"""Block diffusion from its definition, in numpy: nothing here knows of masks, fixed shapes or graphs.

Also writes the small random checkpoints it is compared on, with norms that are not all ones.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Numbers = NDArray[np.float64]
MASK, VOCAB = 95, 96


def write_block_checkpoint(folder: Path, layers: int = 2, seed: int = 0, **changes: Any) -> Path:
    """A Qwen3 network of random weights, whose config names a block size and a mask token as SDAR's does."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": [0],
        "block_size": 4,
        "mask_token_id": MASK,
        **changes,
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(config, np.random.default_rng(seed)), folder / "model.safetensors")
    return folder


def _tensors(config: dict[str, Any], random: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config["vocab_size"], hidden),
        "model.norm": (hidden,),
        "lm_head": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.input_layernorm": (hidden,), f"{at}.post_attention_layernorm": (hidden,)}
        shapes |= {f"{at}.self_attn.q_norm": (dim,), f"{at}.self_attn.k_norm": (dim,)}
        shapes |= {f"{at}.self_attn.q_proj": (query, hidden), f"{at}.self_attn.o_proj": (hidden, query)}
        shapes |= {f"{at}.self_attn.k_proj": (key, hidden), f"{at}.self_attn.v_proj": (key, hidden)}
        shapes |= {f"{at}.mlp.gate_proj": (ffn, hidden), f"{at}.mlp.up_proj": (ffn, hidden)}
        shapes[f"{at}.mlp.down_proj"] = (hidden, ffn)
    values = {}
    for name, shape in shapes.items():
        noise = random.standard_normal(shape)
        value = 1 + 0.2 * noise if len(shape) == 1 else noise * shape[1] ** -0.5
        values[f"{name}.weight"] = value.astype(np.float32)
    return values


@dataclass
class EagerModel:
    """One sequence. keys, values: of the committed tokens, [layer] -> [kv_heads, tokens, head_dim]."""

    folder: Path
    keys: list[Numbers] = field(default_factory=list)
    values: list[Numbers] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = json.loads((self.folder / "config.json").read_text())
        self.weights = {
            name: value.astype(np.float64) for name, value in load_file(self.folder / "model.safetensors").items()
        }
        empty = np.zeros((self.config["num_key_value_heads"], 0, self.config["head_dim"]))
        self.keys = [empty] * self.config["num_hidden_layers"]
        self.values = list(self.keys)

    @property
    def committed(self) -> int:
        """Tokens whose keys and values are kept."""
        return self.keys[0].shape[1]

    def forward(self, tokens: list[int], commit: bool = False) -> Numbers:
        """Logits [tokens, vocab] of a block that sees what is committed and all of itself."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        kept = []
        for layer in range(self.config["num_hidden_layers"]):
            mixed, key, value = self.attention(layer, self.norm(x, f"model.layers.{layer}.input_layernorm"))
            kept.append((key, value))
            x = x + mixed
            x = x + self.feed_forward(layer, self.norm(x, f"model.layers.{layer}.post_attention_layernorm"))
        if commit:
            for layer, (key, value) in enumerate(kept):
                self.keys[layer], self.values[layer] = key, value
        return self.norm(x, "model.norm") @ self.weights["lm_head.weight"].T

    def attention(self, layer: int, x: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """What attention adds, and all keys and values with those of x behind."""
        at, heads = f"model.layers.{layer}.self_attn", self.config["num_attention_heads"]
        query, key, value = (self.heads(x, f"{at}.{name}_proj") for name in "qkv")
        query, key = self.norm(query, f"{at}.q_norm"), self.norm(key, f"{at}.k_norm")
        key = np.concatenate([self.keys[layer], self.rotated(key)], axis=1)
        value = np.concatenate([self.values[layer], value], axis=1)
        repeated = np.repeat(key, heads // len(key), axis=0), np.repeat(value, heads // len(value), axis=0)
        scores = self.rotated(query) @ repeated[0].transpose(0, 2, 1) * self.config["head_dim"] ** -0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ repeated[1]
        flat = mixed.transpose(1, 0, 2).reshape(len(x), -1)
        return flat @ self.weights[f"{at}.o_proj.weight"].T, key, value

    def heads(self, x: Numbers, name: str) -> Numbers:
        """A projection as [heads, tokens, head_dim]."""
        projected = x @ self.weights[f"{name}.weight"].T
        return projected.reshape(len(x), -1, self.config["head_dim"]).transpose(1, 0, 2)

    def rotated(self, x: Numbers) -> Numbers:
        """x [heads, tokens, head_dim], tokens behind the committed ones: each half turns with the other."""
        dim = self.config["head_dim"]
        positions = self.committed + np.arange(x.shape[1])
        angles = np.outer(positions, self.config["rope_theta"] ** (-np.arange(0, dim, 2) / dim))
        first, second = x[..., : dim // 2], x[..., dim // 2 :]
        turned = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
        return np.concatenate(turned, axis=-1)

    def norm(self, x: Numbers, name: str) -> Numbers:
        """Root-mean-square norm over the last axis."""
        scaled = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return scaled * self.weights[f"{name}.weight"]

    def feed_forward(self, layer: int, x: Numbers) -> Numbers:
        """silu(gate) * up, projected down."""
        at = f"model.layers.{layer}.mlp"
        gate, up = x @ self.weights[f"{at}.gate_proj.weight"].T, x @ self.weights[f"{at}.up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{at}.down_proj.weight"].T

    def generate(self, prompt: list[int], longest: int, confidence: float) -> list[int]:
        """The reference algorithm: whole prompt blocks, then block after block, one forced token a pass at least."""
        size, mask = self.config["block_size"], self.config["mask_token_id"]
        whole = len(prompt) // size * size
        for start in range(0, whole, size):
            self.forward(prompt[start : start + size], commit=True)
        tail, answer = prompt[whole:], list[int]()
        while len(answer) < longest:
            block = tail + [mask] * (size - len(tail))
            while mask in block:
                logits = self.forward(block)
                logits[:, mask] = -np.inf
                chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
                chances /= chances.sum(axis=-1, keepdims=True)
                open_places = [place for place in range(size) if block[place] == mask]
                forced = max(open_places, key=lambda place: chances[place].max())
                for place in open_places:
                    if place == forced or chances[place].max() > confidence:
                        block[place] = int(chances[place].argmax())
            self.forward(block, commit=True)
            answer += block[len(tail) :]
            tail = []
        return answer[:longest]
