"""`python -m tests.random_gguf --shape qwen3-20b-a3b -o FILE`: a GGUF file of random Q4_0 blocks, 4.5 bits a weight.

For measuring on models that no machine here has: its sizes are real, its answers are noise. Matrices of one size share
their blocks, so that a file of 12 GB takes 100 MB of memory and a minute.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tools.random_checkpoint import CHAT_TEMPLATE, SHAPES, SPECIAL_TOKENS, WORD_START, Qwen3Shape, byte_tokenizer

KIND = gguf.GGMLQuantizationType.Q4_0
BLOCK, BLOCK_BYTES = gguf.GGML_QUANT_SIZES[KIND]
CODE_SPREAD = 4.6  # standard deviation of codes from -8 to 7, all as likely
SEED = 0


def write_gguf(path: Path, shape: Qwen3Shape) -> None:
    """Facts, vocabulary and tensors, in llama.cpp's names."""
    writer = gguf.GGUFWriter(path, "qwen3moe" if shape.experts else "qwen3")
    _add_facts(writer, shape)
    _add_vocabulary(writer, shape.vocab)
    for name, tensor, kind in _tensors(shape):
        writer.add_tensor(name, tensor, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def _add_facts(writer: gguf.GGUFWriter, shape: Qwen3Shape) -> None:
    writer.add_name("random")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.max_position)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.ffn)


def _add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Bytes and made-up words. Readers want a merge, so one word is two spaces."""
    ids = byte_tokenizer(size).get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    tokens[tokens.index(f"{WORD_START}w0")] = WORD_START * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    is_special = set(SPECIAL_TOKENS)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in is_special else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([f"{WORD_START} {WORD_START}"])
    writer.add_eos_token_id(ids[SPECIAL_TOKENS[2]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensors(shape: Qwen3Shape) -> Iterator[tuple[str, NDArray[np.generic], gguf.GGMLQuantizationType]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    floats = gguf.GGMLQuantizationType.F32
    few = (shape.experts,) if shape.experts else ()
    kinds = "_exps" if shape.experts else ""
    norms = {"attn_norm": shape.hidden, "ffn_norm": shape.hidden}
    norms |= {"attn_q_norm": shape.head_dim, "attn_k_norm": shape.head_dim}
    matrices = {
        "attn_q": (query, shape.hidden),
        "attn_k": (key, shape.hidden),
        "attn_v": (key, shape.hidden),
        "attn_output": (shape.hidden, query),
        f"ffn_gate{kinds}": (*few, shape.ffn, shape.hidden),
        f"ffn_up{kinds}": (*few, shape.ffn, shape.hidden),
        f"ffn_down{kinds}": (*few, shape.hidden, shape.ffn),
    }
    yield "token_embd.weight", _blocks((shape.vocab, shape.hidden)), KIND
    for layer in range(shape.layers):
        for name, size in norms.items():
            yield f"blk.{layer}.{name}.weight", np.ones(size, np.float32), floats
        for name, sizes in matrices.items():
            yield f"blk.{layer}.{name}.weight", _blocks(sizes), KIND
        if shape.experts:
            generator = np.random.default_rng((SEED, layer))
            router = generator.standard_normal((shape.experts, shape.hidden), np.float32) * shape.hidden**-0.5
            yield f"blk.{layer}.ffn_gate_inp.weight", router.astype(np.float32), floats
    yield "output_norm.weight", np.ones(shape.hidden, np.float32), floats
    if not shape.tied:
        yield "output.weight", _blocks((shape.vocab, shape.hidden)), KIND


@cache
def _blocks(sizes: tuple[int, ...]) -> NDArray[np.uint8]:
    """Q4_0 blocks, bytes [..., columns / 32 * 18]: a float16 scale, then 32 codes of 4 bits."""
    *rows, columns = sizes
    count = int(np.prod(rows)) * columns // BLOCK
    blocks = np.random.default_rng(SEED).integers(0, 256, (count, BLOCK_BYTES), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(columns**-0.5 / CODE_SPREAD).tobytes(), np.uint8)
    return blocks.reshape(*rows, columns // BLOCK * BLOCK_BYTES)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_gguf", description="Write a GGUF of random blocks.")
    parser.add_argument("--shape", choices=list(SHAPES), required=True)
    parser.add_argument("--layers", type=int, default=0, help="fewer than the shape has, 0 = all")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(argv)
    shape = SHAPES[options.shape]
    write_gguf(options.output, replace(shape, layers=options.layers or shape.layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
