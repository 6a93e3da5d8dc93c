"""`python -m tools.random_checkpoint --shape qwen3-0.6b -o DIR`: a Hugging Face folder of random weights.

For measuring: its sizes are real, its answers are noise. Needs numpy and safetensors only.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SHARD_BYTES = 512 * 1024 * 1024
_NOISE_ITEMS = 1 << 22
WORD_START = "\u0120"  # how byte-level vocabularies write a leading space
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""


@dataclass(frozen=True, slots=True)
class Qwen3Shape:
    """Sizes of a Qwen3 network. experts: of a layer, 0 = one feed-forward; chosen: of them for a token; ffn: of one."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_position: int
    tied: bool = True
    experts: int = 0
    chosen: int = 0


SHAPES = {
    "tiny": Qwen3Shape(2, 64, 4, 2, 16, 128, 384, 512),
    "qwen3-0.6b": Qwen3Shape(28, 1024, 16, 8, 128, 3072, 151_936, 40_960),
    "qwen3-1.7b": Qwen3Shape(28, 2048, 16, 8, 128, 6144, 151_936, 40_960),
    "qwen3-4b": Qwen3Shape(36, 2560, 32, 8, 128, 9728, 151_936, 40_960),
    "qwen3-8b": Qwen3Shape(36, 4096, 32, 8, 128, 12_288, 151_936, 40_960, tied=False),
    "qwen3-20b-a3b": Qwen3Shape(31, 2048, 32, 4, 128, 768, 151_936, 40_960, tied=False, experts=128, chosen=8),
}


def write_checkpoint(folder: Path, shape: Qwen3Shape, seed: int = 0) -> None:
    """Write config.json, tokenizer files and bfloat16 shards; the folder must be empty or new."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer(shape.vocab)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", _config(shape, tokenizer))
    _write_json(folder / "generation_config.json", {"eos_token_id": [_id(tokenizer, 2), _id(tokenizer, 0)]})
    settings = {"chat_template": CHAT_TEMPLATE, "eos_token": SPECIAL_TOKENS[2], "add_bos_token": False}
    _write_json(folder / "tokenizer_config.json", settings)
    write_shards(folder, _tensors(shape, np.random.default_rng(seed)))


def byte_tokenizer(size: int = 256 + len(SPECIAL_TOKENS), special: Sequence[str] = SPECIAL_TOKENS) -> Tokenizer:
    """A tokenizer of `size` tokens without merges: every byte is one token, any text survives the round trip.

    The other tokens are made-up words. No text becomes them, but a random model picks them, and then streams real text.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"{WORD_START}w{index}" for index in range(size - len(alphabet) - len(special))]
    vocabulary = {token: index for index, token in enumerate([*alphabet, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _id(tokenizer: Tokenizer, special: int) -> int:
    identifier = tokenizer.token_to_id(SPECIAL_TOKENS[special])
    assert identifier is not None
    return int(identifier)


def _config(shape: Qwen3Shape, tokenizer: Tokenizer) -> dict[str, object]:
    of_experts = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
        "moe_intermediate_size": shape.ffn,
        "norm_topk_prob": True,
    }
    kind = ("Qwen3Moe", "qwen3_moe") if shape.experts else ("Qwen3", "qwen3")
    return (of_experts if shape.experts else {}) | {
        "architectures": [f"{kind[0]}ForCausalLM"],
        "model_type": kind[1],
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": _id(tokenizer, 2),
    }


def _tensors(shape: Qwen3Shape, generator: np.random.Generator) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Names and values in order. One block of noise is cut at random places: drawing every number takes minutes."""
    noise = generator.standard_normal(_NOISE_ITEMS, dtype=np.float32)

    def matrix(rows: int, columns: int) -> NDArray[np.generic]:
        scaled = (noise * np.float32(columns**-0.5)).astype(ml_dtypes.bfloat16)
        copies = -(-rows * columns // _NOISE_ITEMS)
        rolled = [np.roll(scaled, int(generator.integers(_NOISE_ITEMS))) for _ in range(copies)]
        return np.concatenate(rolled)[: rows * columns].reshape(rows, columns)

    def ones(size: int) -> NDArray[np.generic]:
        return np.ones(size, ml_dtypes.bfloat16)

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", matrix(shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", ones(shape.hidden)
        yield f"{at}.post_attention_layernorm.weight", ones(shape.hidden)
        yield f"{at}.self_attn.q_norm.weight", ones(shape.head_dim)
        yield f"{at}.self_attn.k_norm.weight", ones(shape.head_dim)
        for name, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
            yield f"{at}.self_attn.{name}.weight", matrix(rows, shape.hidden)
        yield f"{at}.self_attn.o_proj.weight", matrix(shape.hidden, query)
        if shape.experts:
            yield f"{at}.mlp.gate.weight", matrix(shape.experts, shape.hidden)
        for mlp in [f"{at}.mlp.experts.{expert}" for expert in range(shape.experts)] or [f"{at}.mlp"]:
            for name in ("gate_proj", "up_proj"):
                yield f"{mlp}.{name}.weight", matrix(shape.ffn, shape.hidden)
            yield f"{mlp}.down_proj.weight", matrix(shape.hidden, shape.ffn)
    yield "model.norm.weight", ones(shape.hidden)
    if not shape.tied:
        yield "lm_head.weight", matrix(shape.vocab, shape.hidden)


def write_shards(folder: Path, tensors: Iterator[tuple[str, NDArray[np.generic]]]) -> None:
    """Shards of about SHARD_BYTES and their index; one shard in memory at a time."""
    homes: dict[str, str] = {}
    shard: dict[str, NDArray[np.generic]] = {}
    total = number = 0

    def flush() -> None:
        name = f"model-{number:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        homes.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, value in tensors:
        shard[name] = value
        total += value.nbytes
        if sum(array.nbytes for array in shard.values()) >= SHARD_BYTES:
            flush()
            number += 1
    if shard:
        flush()
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": homes})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and write the folder."""
    parser = argparse.ArgumentParser(description="Write a checkpoint of random weights.")
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=0, help="fewer than the shape has, 0 = all")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(argv)
    shape = SHAPES[options.shape]
    write_checkpoint(options.output, replace(shape, layers=options.layers or shape.layers), options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
