"""Four-bit blocks of a file in the bundle: the very codes and scales, where a second rounding would change them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.compile.quantization.int4 import int4_blocks
from tests.engine.compile.gguf.gguf_files import F32, Floats, write_gguf
from tests.engine.compile.segments.test_wide import meant, stored

Build = Callable[..., tuple[Path, Manifest]]
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


def far_from_the_edge(rows: Floats, kind: GGMLQuantizationType) -> NDArray[np.generic]:
    """Blocks whose codes are 5 to 10: who rounds once more puts the largest on the edge, with another scale."""
    content = gguf.quantize(rows, kind)
    if kind is not Q4_0:
        return content
    blocks = content.reshape(len(content), -1, 18).copy()
    low, high = blocks[:, :, 2:] & 15, blocks[:, :, 2:] >> 4
    blocks[:, :, 2:] = (5 + low % 6) | ((5 + high % 6) << 4)
    return blocks.reshape(content.shape)


@pytest.mark.parametrize("family", ["Qwen3", "Llama"])
def test_codes_and_scales_are_those_of_the_file(
    family: str, make_oracle: Callable[..., tuple[Any, Path]], build: Build, tmp_path: Path
) -> None:
    """Also of stacked matrices, of rows that were re-ordered, and of queries that carry the attention scale."""
    _, source = make_oracle(family, head_dim=16, intermediate_size=96, num_hidden_layers=1, tie_word_embeddings=True)
    path = write_gguf(source, tmp_path / "m.gguf", Q4_0, quantize=far_from_the_edge)
    folder, manifest = build(path, layout=Layout.SEGMENTS)
    header = gguf.GGUFReader(path)
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in header.tensors}
    graph = stored(folder / "linear_1_of_2.onnx") | stored(folder / "linear_2_of_2.onnx")
    down = meant(graph, "layer_0_down", 96)
    assert np.array_equal(down, file["blk.0.ffn_down.weight"])
    assert not np.array_equal(down, rounded_again(file["blk.0.ffn_down.weight"]))
    both = np.concatenate([file["blk.0.ffn_gate.weight"], file["blk.0.ffn_up.weight"]])
    assert np.array_equal(meant(graph, "layer_0_gate_up", 64), both)
    assert np.array_equal(meant(graph, "head", 64), file["token_embd.weight"])
    query, key = file["blk.0.attn_q.weight"], file["blk.0.attn_k.weight"]
    if family == "Llama":
        order = np.arange(16).reshape(8, 2).T.reshape(-1)
        query, key = (rows.reshape(-1, 16, 64)[:, order].reshape(-1, 64) for rows in (query, key))
        query = query * np.float32(0.25)  # heads of 16
    qkv = np.concatenate([query, key, file["blk.0.attn_v.weight"]])
    assert np.array_equal(meant(graph, "layer_0_qkv", 64), qkv)
    assert manifest.parity["kl"] < 0.02, "what is left is the rounding of activations"


def rounded_again(weight: Floats) -> Floats:
    blocks = int4_blocks(weight, 32, False)
    return meant({"w_weight": blocks.packed, "w_scales": blocks.scales}, "w", weight.shape[1])


@pytest.mark.parametrize(
    "options", [{"block": 128}, {"asymmetric": True}, {"quant": Quant.INT8}, {"quant": Quant.FP32}]
)
def test_other_forms_are_made_of_floats(
    options: dict[str, Any], tiny_checkpoint: Path, build: Build, tmp_path: Path
) -> None:
    """The same bytes as of a file that has these floats."""
    path = write_gguf(tiny_checkpoint, tmp_path / "four.gguf", Q4_0, quantize=far_from_the_edge)
    floats = write_gguf(tiny_checkpoint, tmp_path / "floats.gguf", F32, quantize=lambda rows, _: as_if_rounded(rows))
    _, kept = build(path, **options)
    _, made = build(floats, **options)
    weights = {name: entry for name, entry in made.files.items() if name.endswith(".data")}
    assert weights.items() <= kept.files.items()


def as_if_rounded(rows: Floats) -> Floats:
    return rows if rows.ndim == 1 else np.asarray(gguf.dequantize(far_from_the_edge(rows, Q4_0), Q4_0))


def test_a_stack_of_blocks_and_others_keeps_the_blocks(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    """Values are often stored finer than queries and keys."""
    path = write_gguf(
        tiny_checkpoint,
        tmp_path / "mixed.gguf",
        lambda name: Q8_0 if "attn_v" in name else Q4_0,
        quantize=far_from_the_edge,
    )
    folder, _ = build(path, layout=Layout.SEGMENTS)
    file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    qkv = meant(stored(folder / "linear_1_of_3.onnx"), "layer_0_qkv", 64)
    assert np.array_equal(qkv[:64], file["blk.0.attn_q.weight"])
    assert np.array_equal(qkv[96:], rounded_again(file["blk.0.attn_v.weight"]))
