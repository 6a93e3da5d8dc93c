"""The demo model as a plain torch module, with the tensor names of Qwen3."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

END_OF_TEXT, END_OF_TURN = 0, 2
QWEN3: Mapping[str, Any] = MappingProxyType({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"})
Rotation = tuple[Tensor, Tensor]  # cos and sin


@dataclass(frozen=True)
class Shape:
    """The model's sizes, under the names of a Qwen3 configuration."""

    vocab_size: int = 3072
    hidden_size: int = 256
    intermediate_size: int = 704
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


class Norm(nn.Module):
    """Root-mean-square normalisation."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._width, self._epsilon = width, epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(hidden, (self._width,), self.weight.to(hidden.dtype), self._epsilon)


class Attention(nn.Module):
    """Attention with grouped keys and values, normed queries and keys, and rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._dim = shape.head_dim
        queries, keys = shape.num_attention_heads * self._dim, shape.num_key_value_heads * self._dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm = Norm(self._dim, shape.rms_norm_eps)
        self.k_norm = Norm(self._dim, shape.rms_norm_eps)

    def forward(self, hidden: Tensor, rotation: Rotation, visible: Tensor | None = None) -> Tensor:
        """Attend within hidden [batch, length, width]; returns the same shape. visible: as of `mix`."""
        return self.mix(*self.project(hidden, rotation), visible)

    def project(self, hidden: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, heads, length, head_dim], keys and values [batch, kv_heads, length, head_dim]."""
        batch, length, _ = hidden.shape
        heads = (batch, length, -1, self._dim)
        queries = _rotate(self.q_norm(self.q_proj(hidden).view(heads)).transpose(1, 2), rotation)
        keys = _rotate(self.k_norm(self.k_proj(hidden).view(heads)).transpose(1, 2), rotation)
        return queries, keys, self.v_proj(hidden).view(heads).transpose(1, 2)

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        """Attention outputs [batch, length, width].

        visible: [batch, 1, length, columns], True where a row sees a column; None = itself and those before.
        """
        groups = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        is_causal = visible is None
        mixed = functional.scaled_dot_product_attention(queries, keys, values, visible, is_causal=is_causal)
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform each position of [..., width] by itself."""
        gated = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        return cast(Tensor, self.down_proj(gated))


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(
        self, hidden: Tensor, rotation: Rotation, chosen: Tensor | None = None, visible: Tensor | None = None
    ) -> Tensor:
        """Add attention, then the feed-forward part, to [batch, length, width].

        chosen: positions of the flattened batch; only their [positions, width] are returned, None = all.
        visible: as of `Attention.mix`.
        """
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, visible)
        if chosen is not None:
            hidden = hidden.flatten(0, 1)[chosen]
        return self.add_ffn(hidden)

    def add_ffn(self, hidden: Tensor) -> Tensor:
        """Add the feed-forward part to [..., width]."""
        return cast(Tensor, hidden + self.mlp(self.post_attention_layernorm(hidden)))


class DemoNetwork(nn.Module):
    """A decoder whose output matrix is its embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        nn.init.normal_(self.embed_tokens.weight, std=0.04)
        for layer in cast(list[Layer], self.layers):
            # Zero outputs make every layer the identity at first, which steadies a high learning rate.
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)

    def forward(
        self, tokens: Tensor, chosen: Tensor, positions: Tensor | None = None, visible: Tensor | None = None
    ) -> Tensor:
        """Logits [chosen, vocab] at the chosen positions of the flattened batch `tokens` [batch, length].

        positions: [batch, length], None = 0, 1, 2 ... visible: as of `Attention.mix`.
        """
        hidden = self.embed_tokens(tokens)
        rotation = rotation_tables(torch.arange(tokens.shape[1]) if positions is None else positions, self.shape)
        *lower, last = self.layers
        for layer in lower:
            hidden = layer(hidden, rotation, None, visible)
        return self.logits(last(hidden, rotation, chosen, visible))

    def logits(self, hidden: Tensor) -> Tensor:
        """What the last layer's output [..., width] says: [..., vocab]."""
        return functional.linear(self.norm(hidden), self.embed_tokens.weight)


def save_model(weights: dict[str, Tensor], shape: Shape, folder: Path, family: Mapping[str, Any] = QWEN3) -> None:
    """Write the weights and configuration as a model folder of the family, each file in one move.

    family: what tells it in config.json: `architectures`, `model_type` and more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")
    _write_json(folder / "config.json", _configuration(shape, family))
    generation = {
        "do_sample": False,
        "eos_token_id": [END_OF_TURN, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
    }
    _write_json(folder / "generation_config.json", generation)


def _configuration(shape: Shape, family: Mapping[str, Any]) -> dict[str, Any]:
    fixed = {
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": END_OF_TURN,
        "pad_token_id": END_OF_TEXT,
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    return {**family, **fixed, **asdict(shape)}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)


def rotation_tables(positions: Tensor, shape: Shape) -> Rotation:
    """cos and sin of positions [length] or [batch, length]: [..., length, head_dim], with an axis for the heads."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = positions.to(torch.float32).unsqueeze(-1) * shape.rope_theta**-steps
    doubled = torch.cat((angles, angles), dim=-1).unsqueeze(-3)
    return doubled.cos(), doubled.sin()


def _rotate(vectors: Tensor, rotation: Rotation) -> Tensor:
    cosine, sine = rotation
    left, right = vectors.chunk(2, dim=-1)
    return vectors * cosine + torch.cat((-right, left), dim=-1) * sine
